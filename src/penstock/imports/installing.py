"""Staged logs into a stopped broker's data directory.

The topics were made by the broker itself and are empty. Under the directory's lock the broker's small files are told about
the logs first (the catalogue stays as it is): where each begins and ends, an epoch above all that came over, and producer
ids above all that came over, so that no old producer is taken for a new one. Then the folders change places. A crash in
between leaves a log that the files know more of than there is, which the broker refuses to serve and says so; the next run
of the import completes it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.imports.engine import ImportFailed
from penstock.imports.staging import DONE, Staged
from penstock.storage.data_directory import METADATA_FILE, partition_metadata
from penstock.storage.files import ChecksumMismatch, DirectoryLock, Disk, read_checked, write_checked
from penstock.storage.recovery import LogBounds, LogState

_CLEAN_STOP, _CHECKPOINT, _LEADER_EPOCH, _PRODUCER_IDS = "clean-stop", "checkpoint", "leader-epoch", "producer-ids"
_TRASH = ".trash"
_T = TypeVar("_T")


def install(data_dir: Path, logs: Sequence[Staged], topic_ids: dict[str, uuid.UUID]) -> None:
    """Put the logs in place; `topic_ids` by the names of the logs. Raises StartError when a broker uses the directory."""
    disk = Disk()
    lock = DirectoryLock(data_dir / ".lock")
    try:
        states = {log.name: _state(log, topic_ids[log.name]) for log in logs}
        _raise_number(disk, data_dir / _LEADER_EPOCH, max(log.leader_epoch for log in logs) + 1)
        _raise_number(disk, data_dir / _PRODUCER_IDS, max(log.producer_id_max for log in logs) + 1)
        marker = _read(disk, data_dir / _CLEAN_STOP, dict[str, LogState])
        bounds = _read(disk, data_dir / _CHECKPOINT, dict[str, LogBounds])
        if bounds is None:
            raise ImportFailed(f"{data_dir / _CHECKPOINT} is not readable: start the broker once and stop it")
        bounds |= {name: state.bounds for name, state in states.items()}
        write_checked(disk, data_dir / _CHECKPOINT, msgspec.json.encode(bounds))
        if marker is not None:  # there is none when the broker could not serve all logs: then it looks at each
            write_checked(disk, data_dir / _CLEAN_STOP, msgspec.json.encode(marker | states))
        for log in logs:
            _place(disk, data_dir, log, topic_ids[log.name])
        disk.sync_directory(data_dir)
    except (OSError, ChecksumMismatch) as error:
        raise ImportFailed(f"{data_dir} cannot be written: {error}") from None
    finally:
        lock.release()


def _place(disk: Disk, data_dir: Path, log: Staged, topic_id: uuid.UUID) -> None:
    """The staged folder takes the place of the broker's empty one. A run that ended before may have done any part of it."""
    staged, place = Path(log.folder), data_dir / log.name
    if not staged.exists():
        return
    disk.replace_whole(staged / METADATA_FILE, partition_metadata(topic_id))
    if place.exists():
        disk.make_directory(data_dir / _TRASH)
        disk.rename(place, data_dir / _TRASH / uuid.uuid4().hex)
    disk.rename(staged, place)
    disk.remove(place / DONE)


def _state(log: Staged, topic_id: uuid.UUID) -> LogState:
    bounds = LogBounds(
        recovery_point=log.log_end_offset,
        log_start_offset=log.log_start_offset,
        topic_id=topic_id,
        # without producers there is nothing to look for in what came over
        producerless_offset=0 if log.producer_id_max >= 0 else log.log_end_offset,
        active_base_offset=log.active_base_offset,
        closed_segments=log.closed_segments,
        closed_bytes=log.closed_bytes,
    )
    return LogState(bounds, log.leader_epoch, log.active_bytes, int(time.time() * 1000))


def _raise_number(disk: Disk, path: Path, least: int) -> None:
    try:
        current = int(read_checked(disk, path))
    except FileNotFoundError:
        current = 0
    if least > current:
        write_checked(disk, path, b"%d\n" % least)


def _read(disk: Disk, path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(read_checked(disk, path), type=kind)
    except (FileNotFoundError, ChecksumMismatch, msgspec.DecodeError):
        return None
