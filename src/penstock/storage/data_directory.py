"""The data directory: who may use it, what it holds, and where each log stood.

    .lock           one broker at a time
    identity        cluster id and node id
    leader-epoch    rises at every unclean start, before anything is written in it
    checkpoint      recovery point and log start offset of every log, every few seconds
    clean-stop      where each log ended; exists only between a clean stop and the next start
    topics          the broker's catalogue (kept for it as opaque bytes)
    reserve         room for the broker's own writes when the disk is full
    .trash/         folders of deleted partitions on their way out
    .deleted-<id>/  a topic deleted while the disk had no room for a new catalogue; removed with the next catalogue
    <topic>-<n>/    the partitions, in Kafka's layout
    *.stray/        partitions of no topic that were in the way of a new one; never deleted by the broker

The small files are replaced whole and carry a checksum. A damaged identity, epoch or catalogue stops the start with a
clear line; a damaged checkpoint or marker only makes recovery look at more.
"""

from __future__ import annotations

import base64
import errno
import itertools
import logging
import os
import re
import threading
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from penstock.model.errors import StartError
from penstock.model.topic_config import TopicConfig
from penstock.storage.files import (
    ChecksumMismatch,
    DirectoryLock,
    Disk,
    DiskFull,
    FileCache,
    checked,
    read_checked,
    write_checked,
)
from penstock.storage.log import PartitionLog
from penstock.storage.recovery import UNKNOWN, LogBounds, LogState, RecoveryReport, open_log
from penstock.storage.reserve import Reserve
from penstock.storage.room import Room
from penstock.storage.segment import Segment
from penstock.storage.shared_sync import SharedSync, shared_sync

logger = logging.getLogger("penstock.storage")

METADATA_FILE = "partition.metadata"
_TRASH = ".trash"
_STRAY = ".stray"
_DELETED = re.compile(r"\.deleted-([0-9a-f]{32})")
_PARTITION = re.compile(r".+-\d+")
_FLUSH_THREADS = 8
_FLUSHES_AT_ONCE = 64
"""Logs flushed together, each with at least one file open."""


class Identity(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: int


class DataDirectory:
    def __init__(
        self, path: Path, disk: Disk | None = None, open_files_max: int = 1024, reserve_bytes: int = 0
    ) -> None:
        """Without `reserve_bytes` there is no reserve: on a full disk each write fails by itself."""
        self.path = path
        self.disk = disk or Disk()
        self.files = FileCache(self.disk, open_files_max)
        try:
            self.disk.make_directory(path)
            self.disk.make_directory(path / _TRASH)
            self._lock = DirectoryLock(path / ".lock", self.disk.system_calls)
        except FileExistsError as error:
            raise StartError(f"cannot use data directory {path}: it is a file") from error
        except OSError as error:
            raise StartError(f"cannot use data directory {path}: {error.strerror or error}") from error
        self.shared_sync: SharedSync | None = shared_sync(path) if disk is None else None
        """Opened before anything is written. A disk of the caller's own syncs every file by itself."""
        self._trash_lock = threading.Lock()
        self.folder_lock = threading.Lock()
        """Held while a thread changes files of a partition by name, so that the folder does not change hands meanwhile."""
        self._offline: dict[str, LogBounds] = {}
        """Logs that are not served: what is known of them is kept for the next start."""
        self._checkpointed = b""
        self.reserve: Reserve | None = None
        try:
            if reserve_bytes:
                self.reserve = Reserve(self.disk, path, reserve_bytes)
            self._states: dict[str, LogState] | None = self._read_marker()
            self._bounds: dict[str, LogBounds] | None = self._read_checkpoint()
            self.clean = self._states is not None
            """Whether the last broker here stopped cleanly."""
            self.is_new = not self.disk.exists(path / "leader-epoch")
            self.leader_epoch = self._read_epoch()
            self.disk.remove(path / "clean-stop")
            self.disk.sync_directory(path)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise StartError(f"cannot use data directory {path}: {error.strerror or error}") from error
            raise

    @property
    def history(self) -> str:
        """How the last broker here ended, for the line that tells of the start."""
        if self.is_new:
            return "in a new directory"
        return "after a clean stop" if self.clean else "after a crash or a kill"

    # ------------------------------------------------------------------------------------------------ identity

    def identity(self, wanted: Identity) -> Identity:
        """The directory's identity; made of `wanted` the first time."""
        payload = self.read_state("identity")
        if payload is None:
            self.write_state("identity", msgspec.json.encode(wanted))
            return wanted
        return msgspec.json.decode(payload, type=Identity)

    def _read_epoch(self) -> int:
        payload = self.read_state("leader-epoch")
        if payload is None:
            epoch = 0
            if self._bounds is None and not self.disk.exists(self.path / "checkpoint"):
                # from now on a checkpoint that is missing was lost
                self.write_checkpoint(b"{}")
                self._bounds = {}
        elif self.clean:
            return int(payload)
        else:
            epoch = int(payload) + 1
        if payload is None:
            self.write_state("leader-epoch", b"%d\n" % epoch)
        else:  # while the file is owed, the next start may use the same epoch: nothing is appended before the file is stored
            self.write_or_owe_state("leader-epoch", b"%d\n" % epoch)
        return epoch

    # ------------------------------------------------------------------------------------------------ small files

    def read_state(self, name: str) -> bytes | None:
        """A small file that must be right: None when there is none, StartError when it is damaged."""
        try:
            return read_checked(self.disk, self.path / name)
        except FileNotFoundError:
            return None
        except (ChecksumMismatch, OSError) as error:
            raise StartError(f"{self.path / name} is damaged: {error}; restore it from a backup") from error

    def write_state(self, name: str, payload: bytes) -> None:
        write_checked(self.disk, self.path / name, payload)

    def owe_state(self, name: str, payload: bytes) -> None:
        self.disk.owe(self.path / name, checked(payload))

    def write_or_owe_state(self, name: str, payload: bytes) -> None:
        """As `write_state`, but the file is written later if the disk is full."""
        self.disk.replace_or_owe(self.path / name, checked(payload))

    def _read_marker(self) -> dict[str, LogState] | None:
        try:
            return msgspec.json.decode(read_checked(self.disk, self.path / "clean-stop"), type=dict[str, LogState])
        except (FileNotFoundError, ChecksumMismatch, msgspec.DecodeError):
            return None

    def _read_checkpoint(self) -> dict[str, LogBounds] | None:
        try:
            return msgspec.json.decode(read_checked(self.disk, self.path / "checkpoint"), type=dict[str, LogBounds])
        except (FileNotFoundError, ChecksumMismatch, msgspec.DecodeError):
            return None

    def checkpoint_payload(self, logs: Iterable[PartitionLog]) -> bytes:
        return self.checkpoint_of([self.checkpoint_part(logs)])

    @staticmethod
    def checkpoint_part(logs: Iterable[PartitionLog]) -> bytes:
        """The checkpoint entries of these logs, a part for `checkpoint_of`."""
        return msgspec.json.encode({log.name: _bounds_of(log) for log in logs})[1:-1]

    def checkpoint_of(self, parts: Iterable[bytes]) -> bytes:
        offline = msgspec.json.encode(self._offline)[1:-1]
        return b"{" + b",".join(part for part in (offline, *parts) if part) + b"}"

    def write_checkpoint(self, payload: bytes) -> None:
        self.disk.settle()
        if payload != self._checkpointed:
            write_checked(self.disk, self.path / "checkpoint", payload)
            self._checkpointed = payload

    def flush(self, logs: Iterable[PartitionLog]) -> None:
        """Flush what is not flushed, many at a time, and wait; a log that cannot be is failed."""
        dirty = [log for log in logs if log.dirty]
        if not dirty:
            return
        with ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="penstock-flush-all") as threads:
            for first in range(0, len(dirty), _FLUSHES_AT_ONCE):
                part = dirty[first : first + _FLUSHES_AT_ONCE]
                jobs = [job for log in part if (job := log.begin_flush()) is not None]
                list(threads.map(lambda job: job.run(self.disk), jobs))
                for job in jobs:
                    job.log.end_flush(job)

    def close(self, logs: Iterable[PartitionLog], *, clean: bool) -> None:
        """Flush and say where every log ended; without `clean` only the lock is given back."""
        try:
            if clean:
                self._close_logs(list(logs))
        finally:
            self._release()

    def _release(self) -> None:
        if self.shared_sync is not None:
            self.shared_sync.close()
        if self.reserve is not None:
            self.reserve.close()
        self._lock.release()

    def _close_logs(self, logs: list[PartitionLog]) -> None:
        self.disk.settle()
        self.flush(logs)
        states = {}
        for log in logs:
            if log.failure is not None or log.dirty:
                return
            active = log.active
            active.store_indexes(log.log_end_offset, closing=True)
            closed = [
                segment.size
                for segment, following in itertools.pairwise(log.segments)
                if following.base_offset > log.log_start_offset  # the others are on their way out
            ]
            states[log.name] = LogState(
                _bounds_of(log, len(closed), sum(closed)),
                log.leader_epoch,
                active.size,
                active.created_ms,
            )
        # the marker serves one start; after that the checkpoint must know as much
        self.write_checkpoint(self.checkpoint_payload(logs))
        write_checked(self.disk, self.path / "clean-stop", msgspec.json.encode(states))

    # ------------------------------------------------------------------------------------------------ logs

    def open_log(
        self, name: str, topic_id: uuid.UUID, config: TopicConfig, now_ms: int
    ) -> tuple[PartitionLog | None, RecoveryReport]:
        """The log of a partition that the catalogue knows; None with a reason when it must stay offline.

        After a crash it is not flushed yet (`flush`).
        """
        state = (self._states or {}).get(name)
        if state is not None and state.bounds.topic_id == topic_id:
            # the files may have changed since the clean stop: what it knew counts
            bounds = state.bounds
        else:
            state = None
            bounds = self._known_bounds(name, topic_id)
        log, report = open_log(self.disk, self.files, self.path / name, config, bounds, state, now_ms)
        if log is None:
            self._offline[name] = bounds
        return log, report

    def _known_bounds(self, name: str, topic_id: uuid.UUID) -> LogBounds:
        if self._bounds is None:
            return LogBounds(UNKNOWN, topic_id=topic_id)
        bounds = self._bounds.get(name)
        return bounds if bounds is not None and bounds.topic_id == topic_id else LogBounds(0, topic_id=topic_id)

    def stays_offline(self, log: PartitionLog) -> None:
        """The log was opened but is not to be served."""
        self._offline[log.name] = _bounds_of(log)

    def create_log(
        self, name: str, topic_id: uuid.UUID, config: TopicConfig, endures: Room = Room.AMPLE
    ) -> PartitionLog:
        """A new, empty log; safe on disk when it returns. Called off the loop, because it waits for the disk, so it touches
        files only: `adopt` does the rest."""
        directory = self.path / name
        if self.disk.room > endures:
            raise DiskFull(errno.ENOSPC, f"{directory}: no room on the disk")
        self._lock.check()  # a data directory that was deleted is not created again, without its lock and its identity
        if self.disk.exists(directory):
            self._clear_away(name)
        self.disk.make_directory(directory)
        segment = Segment(self.disk, self.files, directory, 0)
        self.disk.open(segment.path, create=True)
        self.disk.replace_whole(directory / METADATA_FILE, partition_metadata(topic_id))
        log = PartitionLog(self.disk, self.files, directory, config, [segment], 0, 0, -1)
        log.topic_id = topic_id
        return log

    def adopt(self, log: PartitionLog) -> None:
        """Before a created log is used, on the thread that uses the logs."""
        self._offline.pop(log.name, None)
        # a flush of the deleted log before it may have opened that path again
        self.files.forget([log.active.path])

    def _clear_away(self, name: str) -> None:
        """What lies where a new log is to be: the rest of a creation that a crash broke off, or a log that the catalogue
        does not know, perhaps because the catalogue was lost. Its records are not thrown away for a new topic's sake."""
        if not self._holds_records(name):
            self.trash(name)
            return
        kept = f"{name}.{uuid.uuid4().hex}{_STRAY}"
        self.disk.rename(self.path / name, self.path / kept)
        logger.warning("folder %s holds records of no topic of the catalogue; it is %s from now on", name, kept)

    def discard(self, names: Iterable[str]) -> None:
        """Delete the folders of partitions whose creation failed, except folders with records."""
        for name in names:
            if self.disk.exists(self.path / name) and not self._holds_records(name):
                self.trash(name)
        self.empty_trash()

    def _holds_records(self, name: str) -> bool:
        return any(size for file, size in self.disk.sizes(self.path / name).items() if file.endswith(".log"))

    def sync(self) -> None:
        self.disk.sync_directory(self.path)

    def trash(self, name: str) -> None:
        """Take a partition's folder out of sight; `empty_trash` deletes it."""
        self._offline.pop(name, None)
        with self.folder_lock:
            self.disk.rename(self.path / name, self.path / _TRASH / uuid.uuid4().hex)

    def mark_deleted(self, topic_id: uuid.UUID, folders: Iterable[str]) -> bool:
        """Record a deletion by renaming one folder of the topic, which needs no disk space when a new catalogue does not
        fit. False if there is no folder, so that nothing takes space."""
        for folder in folders:
            place, mark = self.path / folder, self.path / f".deleted-{topic_id.hex}"
            if not self.disk.exists(place):
                continue
            with self.folder_lock:
                self.disk.rename(place, mark)
                try:
                    self.sync()
                except OSError:  # the deletion is refused, so the next start must not find it
                    self.disk.rename(mark, place)
                    raise
            self._offline.pop(folder, None)
            return True
        return False

    def marked_deleted(self) -> set[uuid.UUID]:
        return {uuid.UUID(found[1]) for name in self.disk.names(self.path) if (found := _DELETED.fullmatch(name))}

    def empty_deleted(self) -> None:
        """Delete the files of topics that are marked as deleted, write the owed files into the space this frees, then delete
        the marks. From then on the catalogue must not list the topics."""
        marks = [name for name in self.disk.names(self.path) if _DELETED.fullmatch(name)]
        for mark in marks:
            for name in self.disk.names(self.path / mark):
                self.disk.remove(self.path / mark / name)
        self.disk.settle()
        for mark in marks:
            self.disk.remove_directory(self.path / mark)

    def empty_trash(self) -> None:
        """Delete what was thrown away. What cannot be deleted stays, does not keep the rest, and is raised at the end."""
        failure: OSError | None = None
        with self._trash_lock:
            for name in self.disk.names(self.path / _TRASH):
                try:
                    self.disk.remove_directory(self.path / _TRASH / name)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure

    def refuse_lost_catalogue(self, name: str) -> None:
        """There is no catalogue, so there can be no records: StartError if there are."""
        found = [stray for stray in self.strays(()) if _PARTITION.fullmatch(stray) and self._holds_records(stray)]
        if found:
            raise StartError(
                f"{self.path / name} is missing, but there are records ({found[0]}, {len(found)} in all): restore it from a "
                "backup; the directory of another broker comes over with `penstock import`"
            )

    def without_path(self, text: str) -> str:
        """The text with paths relative to this directory: clients must not see where it is."""
        return text.replace(f"{self.path}{os.sep}", "")

    def strays(self, known: Iterable[str]) -> list[str]:
        """Folders that look like partitions but that the catalogue does not know."""
        names = set(known)
        return [
            name
            for name in self.disk.names(self.path)
            if not name.startswith(".") and name not in names and self.disk.is_directory(self.path / name)
        ]


def partition_metadata(topic_id: uuid.UUID) -> bytes:
    """The content of the file that says which topic a partition's folder belongs to, in Kafka's format."""
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=")


def _bounds_of(log: PartitionLog, closed_segments: int = UNKNOWN, closed_bytes: int = UNKNOWN) -> LogBounds:
    return LogBounds(
        log.flushed_offset,
        max(log.log_start_offset, log.segments[0].base_offset),  # cleaning may have emptied the first segments
        log.topic_id,
        min(log.producerless_offset, log.flushed_offset),
        log.active.base_offset,
        log.active.max_timestamp,
        log.active.max_timestamp_offset,
        closed_segments,
        closed_bytes,
    )
