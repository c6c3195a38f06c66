"""What the storage tests share: batches to append, logs to append them to, and what a log holds."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.model import topic_config
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import Batch, whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, FileCache
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment

TOPIC_ID = uuid.UUID("9a1b6c1e-77b1-4d6f-9f3e-0a5c1d2e3f40")
NOW_MS = 1_700_000_000_000

StoredRecord = tuple[int, int, bytes | None]
"""Offset, timestamp, value."""


def config(**overrides: str | int) -> TopicConfig:
    """A topic config; `segment_bytes=100` stands for segment.bytes."""
    return topic_config.parse({name.replace("_", "."): str(value) for name, value in overrides.items()}, {})


def batch(
    values: Sequence[bytes],
    timestamps: Sequence[int] | None = None,
    *,
    offset: int = 0,
    epoch: int = 0,
    **fields: object,
) -> Batch:
    times = timestamps or [NOW_MS] * len(values)
    data = build_batch(
        [NewRecord(time, None, value) for time, value in zip(times, values, strict=True)],
        base_offset=offset,
        leader_epoch=epoch,
        **fields,  # type: ignore[arg-type]
    )
    return Batch(memoryview(data))


def append(log: PartitionLog, *runs: Sequence[bytes], now_ms: int = NOW_MS, epoch: int = 0, **fields: object) -> None:
    """Append a batch for each list of values, in one go."""
    batches = []
    offset = log.log_end_offset
    for values in runs:
        made = batch(values, offset=offset, epoch=epoch, **fields)
        batches.append(made)
        offset = made.next_offset
    if batches:
        assert log.append(batches, now_ms) == len(batches)


def new_log(
    directory: Path, disk: Disk | None = None, open_files_max: int = 64, **overrides: str | int
) -> PartitionLog:
    """An empty log in a new folder, without a data directory around it."""
    disk = disk or Disk()
    files = FileCache(disk, open_files_max)
    disk.make_directory(directory)
    segment = Segment(disk, files, directory, 0)
    disk.open(segment.path, create=True)
    return PartitionLog(disk, files, directory, config(**overrides), [segment], 0, 0, -1)


def flush(log: PartitionLog, disk: Disk) -> None:
    job = log.begin_flush()
    if job is not None:
        job.run(disk)
        log.end_flush(job)


def records_of(data: bytes | memoryview, offset: int = 0) -> list[StoredRecord]:
    """The records from `offset` on in the whole batches of `data`, each with its CRC checked, as a client does."""
    found = []
    for one in whole_batches(memoryview(data)):
        assert one.crc_is_right()
        found.extend((r.offset, r.timestamp, r.value) for r in read_records(one) if r.offset >= offset)
    return found


def read(log: PartitionLog, disk: Disk, offset: int, max_bytes: int, upper: int, *, one_batch: bool = True) -> bytes:
    found = log.read(offset, max_bytes, upper, one_batch=one_batch)
    return b"" if found is None else disk.read_at(found.file, found.position, found.length)  # type: ignore[arg-type]


def read_all(log: PartitionLog, disk: Disk, max_bytes: int = 1 << 20) -> list[StoredRecord]:
    """Everything from the log start on, as a consumer reads it: answer after answer."""
    found: list[StoredRecord] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        part = records_of(read(log, disk, offset, max_bytes, log.log_end_offset), offset)
        assert part, f"nothing at offset {offset} of {log.log_end_offset}"
        found.extend(part)
        offset = part[-1][0] + 1
    return found


def values_of(log: PartitionLog, disk: Disk) -> list[bytes | None]:
    """The values of all records; their offsets must be dense."""
    found = read_all(log, disk)
    assert [offset for offset, _, _ in found] == list(range(log.log_start_offset, log.log_end_offset))
    return [value for _, _, value in found]


def open_log(directory: DataDirectory, name: str = "t-0", **overrides: str | int) -> PartitionLog:
    """Open a log that must come online, and flush it as the broker does."""
    log, report = directory.open_log(name, TOPIC_ID, config(**overrides), NOW_MS)
    assert log is not None, report.offline
    directory.flush([log])
    return log


def offline_reason(directory: DataDirectory, name: str = "t-0", **overrides: str | int) -> str:
    log, report = directory.open_log(name, TOPIC_ID, config(**overrides), NOW_MS)
    assert log is None
    assert report.offline
    return report.offline


def checkpoint(directory: DataDirectory, *logs: PartitionLog) -> None:
    """What the broker does every few seconds."""
    for log in logs:
        log.active.store_indexes(log.flushed_offset)
    directory.write_checkpoint(directory.checkpoint_payload(logs))
    for log in logs:
        log.delete_dropped(log.log_start_offset, NOW_MS)
        log.sweep_doomed(NOW_MS)


def crash(directory: DataDirectory) -> None:
    """The process is gone: nothing is flushed, nothing is written; the kernel drops the lock."""
    directory.close([], clean=False)
