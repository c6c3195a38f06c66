"""What the broker does by itself, in the background: recovery points, retention, timed flushes, expiry.

All of it runs on the loop, a few logs at a time, because logs belong to the loop's thread; only the checkpoint's own sync
waits on a thread. Retention trusts the wall clock only while it keeps step with the monotonic one: a clock that jumped by
more than five minutes must not delete a log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from penstock.broker.partition import Partition
from penstock.coordination.producer_records import encode_snapshot
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import DiskFailed
from penstock.storage.log import PartitionLog
from penstock.storage.retention import expired_segments
from penstock.storage.segment import file_name

logger = logging.getLogger(__name__)

LOGS_PER_SLICE = 16
"""Logs looked after before the loop serves others again: about half a millisecond."""
PRODUCER_EXPIRATION_MS = 7 * 24 * 3_600_000
"""Kafka's transactional.id.expiration.ms: a producer id outlives the longest pause of a batch job (KIP-854 has a day)."""
CLOCK_STEP_MS_MAX = 300_000
FLUSH_INTERVAL_MS_MIN = 5
"""A disk that takes as long for one flush gains nothing from a shorter interval."""
FLUSH_LOOK_MS_MAX = 1_000
"""A shorter flush.ms than all others acts so long after it was set."""
SNAPSHOTS_KEPT = 2


class Housekeeping:
    def __init__(
        self,
        directory: DataDirectory,
        partitions: Callable[[], Iterable[Partition]],
        now_ms: Callable[[], int],
        *,
        checkpoint_interval_ms: int,
        retention_interval_ms: int,
        flush_interval_ms: int,
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._now_ms = now_ms
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._retention_interval_ms = retention_interval_ms
        self._flush_interval_ms = flush_interval_ms
        self._tasks: list[asyncio.Task[None]] = []
        self._checkpoint_lock = asyncio.Lock()
        self._clock_base = now_ms() - time.monotonic() * 1000
        self.retention_paused = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for interval_ms, work in (
            (self._checkpoint_interval_ms, self.checkpoint),
            (self._retention_interval_ms, self.retain),
            (self._retention_interval_ms, self._expire_producers),
        ):
            self._tasks.append(
                loop.create_task(self._repeat(work.__name__, interval_ms, work), name=f"penstock {work.__name__}")
            )

        self._tasks.append(loop.create_task(self._flush_in_time(), name="penstock timed flushes"))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    async def _repeat(name: str, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except (OSError, DiskFailed) as error:
                logger.error("%s failed, will be tried again: %s", name, error)

    # ------------------------------------------------------------------------------------------------ checkpoints

    async def checkpoint(self) -> None:
        """Store index entries and producer snapshots, then the recovery points that rely on them."""
        async with self._checkpoint_lock:
            at_work = 0
            for partition in list(self._partitions()):
                log = partition.log
                if log is None:
                    continue
                if self._store_caches(partition, log):
                    at_work += 1
                    if at_work % LOGS_PER_SLICE == 0:
                        await asyncio.sleep(0)
            logs = [partition.log for partition in self._partitions() if partition.log is not None]
            payload = self._directory.checkpoint_payload(logs)
            starts = [log.log_start_offset for log in logs]
            await asyncio.get_running_loop().run_in_executor(None, self._directory.write_checkpoint, payload)
            now_ms = self._now_ms()
            for log, log_start_offset in zip(logs, starts, strict=True):
                try:
                    log.delete_dropped(log_start_offset, now_ms)
                except OSError as error:
                    logger.warning("%s: deleting old segments failed, will be retried: %s", log.name, error)

    def _store_caches(self, partition: Partition, log: PartitionLog) -> bool:
        """Store index entries and producers, if there are new ones. Recovery does without them, so a log that cannot store
        them does not keep the recovery points of all others from being written."""
        try:
            return log.active.store_indexes(log.flushed_offset) | self.store_snapshot(partition)
        except OSError as error:
            logger.warning("%s: storing the index or the producers failed, will be retried: %s", log.name, error)
            return True

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
        if not self._clock_is_steady():
            return
        now_ms = self._now_ms()
        for at, partition in enumerate(list(self._partitions())):
            if partition.log is not None:
                self.retain_log(partition, now_ms)
            if at % LOGS_PER_SLICE == 0:
                await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, self._directory.empty_trash)

    def retain_log(self, partition: Partition, now_ms: int) -> None:
        log = partition.log
        assert log is not None
        try:
            log.sweep_doomed(now_ms)
            if not partition.config.deletes or self.retention_paused:
                return
            count = expired_segments(log, partition.config, partition.high_watermark, now_ms)
            if not count:
                return
            freed = log.drop_segments(count)
        except OSError as error:
            # An append that begins a segment comes by here too: what could not be deleted must not cost it.
            logger.error("retention: %s: %s; will be tried again", log.name, error)
            return
        partition.log_start_moved()
        logger.info(
            "retention: %s: %d segments, %d bytes deleted; starts at %d now",
            log.name,
            count,
            freed,
            log.log_start_offset,
        )

    def _clock_is_steady(self) -> bool:
        step_ms = abs(self._now_ms() - time.monotonic() * 1000 - self._clock_base)
        paused = step_ms > CLOCK_STEP_MS_MAX
        if paused and not self.retention_paused:
            logger.error(
                "the wall clock moved by %d s against the monotonic one: retention by time is paused until restart",
                step_ms // 1000,
            )
        self.retention_paused = self.retention_paused or paused
        return not self.retention_paused

    # ------------------------------------------------------------------------------------------------ the rest

    async def _flush_in_time(self) -> None:
        """The interval policy, and topics with flush.ms: nothing waits longer than the shortest interval among them."""
        while True:
            interval_ms = min(self._flush_interval_ms, FLUSH_LOOK_MS_MAX)
            for partition in self._partitions():
                if partition.flush_within_ms is not None:
                    interval_ms = min(interval_ms, partition.flush_within_ms)
            interval_ms = max(interval_ms, FLUSH_INTERVAL_MS_MIN)
            await asyncio.sleep(interval_ms / 1000)
            now_ms = int(time.monotonic() * 1000)
            refused = 0
            for partition in list(self._partitions()):
                if partition.flush_is_due(now_ms, now_ms + interval_ms, self._flush_interval_ms):
                    assert partition.log is not None
                    if partition.log.flush_refused is not None:
                        refused += 1
                        reason = f"{partition.id}: {partition.log.flush_refused}"
                    partition.request_flush(partition.log)
            if refused:
                logger.warning("%d logs could not be flushed and are tried again, one of them is %s", refused, reason)

    async def _expire_producers(self) -> None:
        now_ms = self._now_ms()
        for at, partition in enumerate(list(self._partitions())):
            partition.producers.expire(now_ms, PRODUCER_EXPIRATION_MS)
            if at % LOGS_PER_SLICE == 0:
                await asyncio.sleep(0)
