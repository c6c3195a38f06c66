"""A partition's log made beside the data directory's own, whole and checked, before anything there changes.

Segment files of Kafka's format are copied by the kernel, without what the survey found damaged, and read back while the next
piece is copied: the checksum of each piece must be the one that the survey saw. Their indexes come along where they fit.
Records of other formats are written as batches, then read back with their CRCs, counted, compared with the survey, and
indexed on the way. A folder with `staged.json` in it is complete, and taken if it was made of what the survey sees now; any
other is made again.

The last segment begins where the imported records end. It is the one that the broker appends to, and the only one that
recovery holds to be without gaps.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.imports import source
from penstock.imports.engine import ImportFailed
from penstock.imports.segment_copy import copy_segments
from penstock.imports.source import Findings
from penstock.imports.survey import Advance, Survey
from penstock.imports.tally import Tally
from penstock.records.batch import Batch
from penstock.records.control import Marker, MarkerKind, build_marker
from penstock.storage.epochs import EpochStart, LeaderEpochs
from penstock.storage.files import Disk, FileCache
from penstock.storage.segment import RELATIVE_OFFSET_MAX, Place, Segment
from penstock.storage.segment_reader import base_offset_of, list_segments, read_segment

FOLDER = ".import"
DONE = "staged.json"
SEGMENT_BYTES = 1024 * 1024 * 1024
"""Kafka's segment.bytes."""
INDEX_INTERVAL_BYTES = 4096
"""Kafka's index.interval.bytes."""
_WRITE_BYTES = 4 * 1024 * 1024


class StageJob(NamedTuple):
    reader: str
    survey: Survey
    folder: str
    name: str
    """TOPIC-PARTITION as it will be called."""
    log_start_offset: int


class Staged(msgspec.Struct, frozen=True):
    """A log that is complete, and what the broker has to be told of it."""

    name: str
    folder: str
    log_start_offset: int
    log_end_offset: int
    active_base_offset: int
    active_bytes: int
    closed_segments: int
    closed_bytes: int
    leader_epoch: int
    producer_id_max: int
    aborted: int
    """Transactions that were open, and are aborted now."""
    bytes: int
    fingerprint: int
    """Of the survey that it was made after."""


def stage_partition(job: StageJob, advance: Advance) -> Staged:
    folder = Path(job.folder)
    try:
        done = msgspec.json.decode((folder / DONE).read_bytes(), type=Staged)
        if done.fingerprint == job.survey.fingerprint() and done.log_start_offset == job.log_start_offset:
            advance(done.bytes)
            return done
    except (OSError, msgspec.DecodeError):
        pass
    try:
        return _stage(job, folder, advance)
    except OSError as error:
        raise ImportFailed(f"{job.name} cannot be written: {error}") from None


def _stage(job: StageJob, folder: Path, advance: Advance) -> Staged:
    survey = job.survey
    disk = Disk()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if survey.stretches:
        copy_segments(disk, survey.stretches, folder, advance)
    else:
        _write(source.load(job.reader).batches(survey.partition, Findings()), folder, advance)
        _check(disk, folder, survey)
    segments = [path.stat().st_size for path in list_segments(folder)]
    end = survey.end_offset
    markers = _markers(survey)
    active = folder / f"{end:020d}.log"
    _write_synced(active, b"".join(markers))
    LeaderEpochs(disk, folder).replace([EpochStart(*entry) for entry in survey.epochs])
    disk.sync_directory(folder)
    staged = Staged(
        name=job.name,
        folder=job.folder,
        log_start_offset=job.log_start_offset,
        log_end_offset=end + len(markers),
        active_base_offset=end,
        active_bytes=sum(map(len, markers)),
        closed_segments=len(segments),
        closed_bytes=sum(segments),
        leader_epoch=survey.epochs[-1][0],
        producer_id_max=survey.producer_id_max,
        aborted=len(markers),
        bytes=survey.tally.bytes,
        fingerprint=survey.fingerprint(),
    )
    disk.replace_whole(folder / DONE, msgspec.json.encode(staged))
    return staged


# ---------------------------------------------------------------------------------------------------- writing


def _write(batches: Iterator[Batch], folder: Path, advance: Advance) -> None:
    batch = next(batches, None)
    while batch is not None:
        base_offset, size = batch.base_offset, 0
        with open(folder / f"{base_offset:020d}.log", "wb", buffering=_WRITE_BYTES) as file:
            while batch is not None and (not size or _fits(batch, base_offset, size)):
                file.write(batch.view)
                size += batch.size
                advance(batch.size)
                batch = next(batches, None)
            file.flush()
            os.fdatasync(file.fileno())


def _fits(batch: Batch, base_offset: int, size: int) -> bool:
    return size + batch.size <= SEGMENT_BYTES and batch.last_offset - base_offset <= RELATIVE_OFFSET_MAX


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _markers(survey: Survey) -> list[bytearray]:
    """What ends the transactions that nobody is left to end: readers of committed records would wait for ever."""
    now_ms = int(time.time() * 1000)
    return [
        build_marker(
            Marker(MarkerKind.ABORT, 0),
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            timestamp_ms=now_ms,
            base_offset=survey.end_offset + at,
            leader_epoch=survey.epochs[-1][0],
        )
        for at, begun in enumerate(survey.transactions.open.values())
    ]


# ---------------------------------------------------------------------------------------------------- checking


def _check(disk: Disk, folder: Path, survey: Survey) -> None:
    """Read every staged batch, and make the indexes that go with the segments."""
    tally = Tally()
    files = FileCache(disk, 8)
    for path in list_segments(folder):
        segment = Segment(disk, files, folder, base_offset_of(path))
        scan = read_segment(path)
        for position, batch in scan:
            tally.add(batch)
            place = Place(
                position, batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp, batch.leader_epoch
            )
            segment.note_recovered(place, INDEX_INTERVAL_BYTES)
        if scan.damage is not None:
            raise ImportFailed(f"{path} was not written as it should be: {scan.damage}")
        for index, entries in segment.index_tail(survey.end_offset, closing=True):
            _write_synced(index, entries)
    if tally != survey.tally:
        raise ImportFailed(f"{folder.name}: found were {survey.tally}; written were {tally}")


def staging_folder(data_dir: Path, name: str) -> Path:
    return data_dir / FOLDER / name


def remove_staging(data_dir: Path) -> None:
    shutil.rmtree(data_dir / FOLDER, ignore_errors=True)
