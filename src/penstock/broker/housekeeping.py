"""What the broker does by itself, in the background: recovery points, retention, timed flushes, expiry.

All of it runs on the loop, a few milliseconds at a time, because logs belong to the loop's thread; only the checkpoint's own
sync waits on a thread. After a jump of the wall clock nothing is deleted by age (see `Clock`); retention by size continues.

A task that fails with any error is logged and runs again at its next interval.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.broker.clock import Clock
from penstock.broker.partition import Partition
from penstock.broker.pauses import Pauses
from penstock.broker.reads import COLD_TRIES_MAX, WARM_BYTES
from penstock.coordination.producer_records import encode_snapshot
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Cold
from penstock.storage.log import PartitionLog
from penstock.storage.retention import expired_segments
from penstock.storage.room import Room
from penstock.storage.segment import Rebuilding, file_name

logger = logging.getLogger(__name__)

LOGS_PER_PART = 100
"""Logs whose recovery points are encoded without a pause: about half a millisecond."""
PRODUCER_EXPIRATION_MS = 7 * 24 * 3_600_000
"""Kafka's transactional.id.expiration.ms: a producer id outlives the longest pause of a batch job (KIP-854 has a day)."""
FLUSH_INTERVAL_MS_MIN = 5
"""A disk that takes as long for one flush gains nothing from a shorter interval."""
FLUSH_LOOK_MS_MAX = 1_000
"""A shorter flush.ms than all others acts so long after it was set."""
SNAPSHOTS_KEPT = 2
ROOM_INTERVAL_MS = 500
"""Interval of checks for free space while the disk is full."""
RETRY_S = 1.0
"""Pause after a failed task, in addition to its interval."""


@dataclass(slots=True)
class RetentionTotals:
    """Totals since the broker started."""

    segments_deleted: int = 0
    bytes_deleted: int = 0
    idle_runs: int = 0
    """Runs that found nothing to delete."""


class Housekeeping:
    def __init__(
        self,
        directory: DataDirectory,
        partitions: Callable[[], Iterable[Partition]],
        clock: Clock,
        *,
        checkpoint_interval_ms: int,
        retention_interval_ms: int,
        flush_interval_ms: int,
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._clock = clock
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._retention_interval_ms = retention_interval_ms
        self._flush_interval_ms = flush_interval_ms
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint_lock = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self.totals = RetentionTotals()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for interval_ms, work in (
            (self._checkpoint_interval_ms, self.checkpoint),
            (self._retention_interval_ms, self.retain),
            (self._retention_interval_ms, self._expire_producers),
            (ROOM_INTERVAL_MS, self._restore_room),
        ):
            self._tasks.append(
                loop.create_task(self._repeat(work.__name__, interval_ms, work), name=f"penstock {work.__name__}")
            )

        self._tasks.append(
            loop.create_task(self._repeat("timed flush", 0, self._flush_in_time), name="penstock flushes")
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def written(self) -> None:
        """Wait for the thread that writes a checkpoint: it does not end with the task that started it."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    @staticmethod
    async def _repeat(name: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except OSError as error:
                logger.error("%s failed, will be retried: %s", name, error)
            except Exception:
                logger.exception("%s failed, will be retried", name)
            else:
                continue
            await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------------------------------------------ checkpoints

    async def checkpoint(self) -> None:
        """Store index entries and producer snapshots, then the recovery points that rely on them."""
        async with self._checkpoint_lock:
            pauses = Pauses()
            for partition in list(self._partitions()):
                log = partition.log
                if log is not None:
                    self._store_caches(partition, log)
                if pauses.due:
                    await pauses.pause()
            logs = [partition.log for partition in self._partitions() if partition.log is not None]
            starts: list[int] = []
            parts: list[bytes] = []
            for first in range(0, len(logs), LOGS_PER_PART):
                some = logs[first : first + LOGS_PER_PART]
                parts.append(self._directory.checkpoint_part(some))
                starts += [log.log_start_offset for log in some]
                if pauses.due:
                    await pauses.pause()
            payload = self._directory.checkpoint_of(parts)
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, self._directory.write_checkpoint, payload)
            await asyncio.shield(self._writing)
            now_ms = self._clock.now_ms()
            for log, log_start_offset in zip(logs, starts, strict=True):
                try:
                    log.delete_dropped(log_start_offset, now_ms)
                    if self._is_short_of_room:  # file.delete.delay.ms is for readers, and they keep their files open
                        log.sweep_doomed(sys.maxsize)
                except OSError as error:
                    logger.warning("%s: deleting old segments failed, will be retried: %s", log.name, error)
                if pauses.due:
                    await pauses.pause()

    @property
    def _is_short_of_room(self) -> bool:
        return self._directory.disk.room is not Room.AMPLE

    def _store_caches(self, partition: Partition, log: PartitionLog) -> None:
        """Store index entries and producers, if there are new ones. Recovery does without them, so a log that cannot store
        them does not keep the recovery points of all others from being written."""
        if self._is_short_of_room:
            return
        try:
            log.active.store_indexes(log.flushed_offset)
            self.store_snapshot(partition)
        except OSError as error:
            logger.warning("%s: storing the index or the producers failed, will be retried: %s", log.name, error)

    def store_snapshot(self, partition: Partition) -> bool:
        """Write the producers' state as of the log end, if it changed; older snapshots go."""
        log = partition.log
        assert log is not None
        if not len(partition.producers):
            log.producerless_offset = log.log_end_offset
            return False
        if partition.snapshot_offset == log.log_end_offset:
            return False
        data = encode_snapshot(partition.producers.snapshot())
        disk = self._directory.disk
        disk.replace_whole(log.directory / file_name(log.log_end_offset, ".snapshot"), data, durable=False)
        partition.snapshot_offset = log.log_end_offset
        for name in [name for name in disk.names(log.directory) if name.endswith(".snapshot")][:-SNAPSHOTS_KEPT]:
            disk.remove(log.directory / name)
        return True

    # ------------------------------------------------------------------------------------------------ retention

    async def retain(self) -> None:
        now_ms = self._clock.now_ms()
        deleted = self.totals.segments_deleted
        pauses = Pauses()
        for partition in list(self._partitions()):
            tries = 0
            while (cold := self.retain_log(partition, now_ms)) is not None and tries < COLD_TRIES_MAX:
                tries += not isinstance(cold, Rebuilding)  # which always comes to an end
                read_ahead = partial(self._directory.disk.read_ahead, cold, WARM_BYTES)
                await asyncio.get_running_loop().run_in_executor(None, read_ahead)
            if pauses.due:
                await pauses.pause()
        if self.totals.segments_deleted == deleted:
            self.totals.idle_runs += 1
        await asyncio.get_running_loop().run_in_executor(None, self._directory.empty_trash)

    def retain_log(self, partition: Partition, now_ms: int) -> Cold | None:
        """Delete what is due; the bytes that have to be read first, if there are any. An append that begins a segment does
        this too, and leaves those to the next run."""
        log = partition.log
        if log is None or log.withdrawn:
            return None
        try:
            log.sweep_doomed(now_ms)
        except OSError as error:  # old segments are dropped all the same, or the disk would fill
            logger.error("retention: %s: a file cannot be deleted, will be retried: %s", log.name, error)
        if not partition.config.deletes:
            return None
        try:
            count = expired_segments(
                log, partition.config, partition.high_watermark, now_ms if self._clock.is_steady else None
            )
        except Cold as cold:
            return cold
        except OSError as error:
            # An append that begins a segment comes by here too: what could not be deleted must not cost it.
            logger.error("retention: %s: %s; will be tried again", log.name, error)
            return None
        if not count:
            return None
        freed = log.drop_segments(count)
        partition.log_start_moved()
        self.totals.segments_deleted += count
        self.totals.bytes_deleted += freed
        logger.info(
            "retention: %s: %d segments, %d bytes deleted; starts at %d now",
            log.name,
            count,
            freed,
            log.log_start_offset,
        )
        return None

    # ------------------------------------------------------------------------------------------------ the rest

    async def _restore_room(self) -> None:
        reserve = self._directory.reserve
        if self._is_short_of_room and reserve is not None:
            await asyncio.get_running_loop().run_in_executor(None, reserve.restore)

    async def _flush_in_time(self) -> None:
        """The interval policy, and topics with flush.ms: nothing waits longer than the shortest interval among them."""
        interval_ms = min(self._flush_interval_ms, FLUSH_LOOK_MS_MAX)
        pauses = Pauses()
        for partition in list(self._partitions()):
            if partition.flush_within_ms is not None:
                interval_ms = min(interval_ms, partition.flush_within_ms)
            if pauses.due:
                await pauses.pause()
        interval_ms = max(interval_ms, FLUSH_INTERVAL_MS_MIN)
        await asyncio.sleep(interval_ms / 1000)
        pauses = Pauses()
        now_ms = int(time.monotonic() * 1000)
        refused = 0
        for partition in list(self._partitions()):
            if partition.flush_is_due(now_ms, now_ms + interval_ms, self._flush_interval_ms):
                assert partition.log is not None
                if partition.log.flush_refused is not None:
                    refused += 1
                    reason = f"{partition.id}: {partition.log.flush_refused}"
                partition.request_flush(partition.log)
            if pauses.due:
                await pauses.pause()
        if refused:
            logger.warning("%d logs could not be flushed, will be retried; one of them is %s", refused, reason)

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        if not self._clock.is_steady:
            return
        pauses = Pauses()
        for partition in list(self._partitions()):
            partition.producers.expire(now_ms, PRODUCER_EXPIRATION_MS)
            if pauses.due:
                await pauses.pause()
