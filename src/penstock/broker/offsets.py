"""Offsets by time and by place (Kafka's ListOffsets), and where a leader epoch ended (KIP-101).

A timestamp lookup finds the exact record: the time index names the batch. A thread reads and unpacks it, because it may
unpack to megabytes, and its records are walked on the loop in slices.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from penstock.broker.engine import EpochEnd, Isolation, OffsetFound
from penstock.broker.partition import Partition
from penstock.broker.pauses import Pauses
from penstock.broker.reads import WARM_BYTES
from penstock.broker.unpacking import Unpacking
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records import walk
from penstock.records.batch import Batch, BatchError
from penstock.records.record import unpacked
from penstock.storage.epochs import EpochsDamaged
from penstock.storage.files import Cold, Disk, DiskFailed
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Rebuilding, Unfinished

T = TypeVar("T")

logger = logging.getLogger(__name__)

COLD_TRIES_MAX = 1_000
"""Stretches of a log that one look may have to fetch: time index entries lie that far apart only when clocks went back."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5


def epoch_fault(partition: Partition, leader_epoch: int) -> Fault:
    if leader_epoch < 0 or leader_epoch == partition.leader_epoch:
        return Fault.NONE
    return Fault.FENCED_LEADER_EPOCH if leader_epoch < partition.leader_epoch else Fault.UNKNOWN_LEADER_EPOCH


def place_of(partition: Partition, log: PartitionLog, special: int) -> OffsetFound | None:
    """The answer for a special timestamp that needs no look at the log; None for the others."""
    if special in (EARLIEST, EARLIEST_LOCAL):
        try:
            epoch = log.epochs.epoch_at(log.log_start_offset)
        except (OSError, EpochsDamaged) as error:
            logger.warning("%s: the leader epoch of its start cannot be looked up: %s", log.name, error)
            return OffsetFound(Fault.STORAGE_ERROR)
        return OffsetFound(Fault.NONE, log.log_start_offset, -1, max(epoch, 0))
    if special == LATEST_TIERED:
        return OffsetFound(Fault.NONE, -1, -1, -1)
    if special < MAX_TIMESTAMP:
        return OffsetFound(Fault.INVALID_REQUEST)
    return None


async def find_timestamp(
    partition: Partition,
    log: PartitionLog,
    timestamp: int,
    isolation: int,
    readers: ThreadPoolExecutor,
    disk: Disk,
    unpacking: Unpacking,
) -> OffsetFound:
    """The first record at or after `timestamp`, or with MAX_TIMESTAMP the one with the largest; offset -1 if none."""
    committed = isolation == Isolation.READ_COMMITTED
    upper = partition.last_stable_offset if committed else partition.high_watermark
    pauses = Pauses()
    try:
        # Index files and headers are read here, a decoded batch is not: segments belong to the loop's thread.
        offset = log.log_start_offset
        wanted = sys.maxsize if timestamp == MAX_TIMESTAMP else timestamp
        largest = await _largest_timestamp(log, wanted, readers, disk, pauses)
        if timestamp == MAX_TIMESTAMP:
            timestamp = largest
            if timestamp < 0:
                return OffsetFound(Fault.NONE, -1, -1, -1)
        while True:
            if pauses.due:
                await pauses.pause()
            try:
                found = await _when_warm(lambda: log.find_timestamp(timestamp, offset), readers, disk)  # noqa: B023
            except Unfinished as unfinished:
                offset = unfinished.offset
                continue
            if found is None or found[1].base_offset >= upper:
                return OffsetFound(Fault.NONE, -1, -1, -1)
            segment, place = found
            search = _first_at_or_after(segment.reader(), place.position, place.size, timestamp, offset, unpacking)
            record = await _result(unpacking.in_slices(search))
            if isinstance(record, OSError | BatchError):
                return _failed(log, timestamp, record)
            if isinstance(record, Exception):
                raise RuntimeError(f"timestamp {timestamp} cannot be looked up: {record!r}")
            if record is not None:
                break
            # the batch that the log starts in has its late records below the log start
            offset = place.last_offset + 1
    except (OSError, BatchError) as error:
        return _failed(log, timestamp, error)
    if record[0] >= upper:
        return OffsetFound(Fault.NONE, -1, -1, -1)
    return OffsetFound(Fault.NONE, record[0], record[1], place.leader_epoch)


async def _largest_timestamp(
    log: PartitionLog, enough: int, readers: ThreadPoolExecutor, disk: Disk, pauses: Pauses
) -> int:
    """The largest timestamp of the segments up to the first one that has at least `enough`."""
    largest = -1
    base_offset = -1
    while True:
        # segments may be dropped, replaced or added during a pause
        at = bisect_right(log.segments, base_offset, key=lambda segment: segment.base_offset)
        if at == len(log.segments) or largest >= enough:
            return largest
        segment = log.segments[at]
        largest = max(largest, await _when_warm(partial(segment.largest_timestamp, wait=False), readers, disk))
        base_offset = segment.base_offset
        if pauses.due:
            await pauses.pause()


def _failed(log: PartitionLog, timestamp: int, error: Exception) -> OffsetFound:
    logger.warning("%s: timestamp %d cannot be looked up: %s", log.name, timestamp, error)
    return OffsetFound(Fault.STORAGE_ERROR)


async def _when_warm(look: Callable[[], T], readers: ThreadPoolExecutor, disk: Disk) -> T:
    """What a look at the log finds, after a reader thread has brought into memory what it misses."""
    loop = asyncio.get_running_loop()
    tries = 0
    while tries < COLD_TRIES_MAX:
        try:
            return look()
        except Cold as cold:
            tries += not isinstance(cold, Rebuilding)  # which always comes to an end
            await loop.run_in_executor(readers, disk.read_ahead, cold, WARM_BYTES)
    raise DiskFailed(0, "the log does not stay in memory")


async def _result(result: Any) -> Any:
    """The result of work that may already be complete."""
    if not isinstance(result, Pending):
        return result
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    result.then(lambda value: None if future.done() else future.set_result(value))
    return await future


def _first_at_or_after(
    read: Callable[[int, int], bytes], position: int, size: int, timestamp: int, offset: int, unpacking: Unpacking
) -> Work[tuple[int, int] | Exception | None]:
    """Offset and timestamp of the first matching record of a batch, or why the batch cannot be read."""
    limit_bytes = walk.unpacked_bytes_max(size)
    counted = size + limit_bytes
    yield unpacking.lookups.take(1)
    yield unpacking.account.take(counted)
    try:
        found = yield unpacking.in_thread(partial(_unpacked, read, position, size, limit_bytes))
        if isinstance(found, Exception):
            return found
        batch, data = found
        record = yield from walk.find_timestamp(batch, data, timestamp, offset)
        return record
    except BatchError as damage:
        return damage
    finally:
        found = batch = data = None
        unpacking.account.give(counted)
        unpacking.lookups.give(1)


def _unpacked(read: Callable[[int, int], bytes], position: int, size: int, limit_bytes: int) -> tuple[Batch, bytes]:
    batch = Batch(memoryview(read(position, size)))
    if not batch.crc_is_right():
        raise BatchError(f"the batch at offset {batch.base_offset} is corrupt: its CRC is wrong")
    return batch, unpacked(batch, limit_bytes)


def epoch_end(partition: Partition, current_leader_epoch: int, leader_epoch: int) -> EpochEnd:
    log = partition.log
    if log is None:
        return EpochEnd(Fault.STORAGE_ERROR)
    fault = epoch_fault(partition, current_leader_epoch)
    if fault is not Fault.NONE:
        return EpochEnd(fault)
    if leader_epoch == partition.leader_epoch:
        return EpochEnd(Fault.NONE, leader_epoch, log.log_end_offset)
    if leader_epoch > partition.leader_epoch:
        return EpochEnd(Fault.NONE)
    try:
        return EpochEnd(Fault.NONE, *log.epochs.end_offset(leader_epoch, log.log_end_offset))
    except (OSError, EpochsDamaged) as error:
        logger.warning("%s: the end of leader epoch %d cannot be looked up: %s", log.name, leader_epoch, error)
        return EpochEnd(Fault.STORAGE_ERROR)
