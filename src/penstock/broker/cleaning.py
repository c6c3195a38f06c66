"""When logs are cleaned, and by whom: one niced child process, one log at a time, the dirtiest first.

The broker chooses, hands the job to the child, and swaps the result in when it comes back; appends and reads go on
meanwhile. Cleaned is what is closed, flushed, decided (below the last stable offset) and older than
min.compaction.lag.ms. A log is due when its dirty part is at least min.cleanable.dirty.ratio of it, or holds something
older than max.compaction.lag.ms.

The steps of a swap (storage/swap.py) run in a thread, one after the other; the log changes on the loop, between two steps.
A log whose cleaning fails, for whatever reason, is tried again later and later; the others are not affected. A swap that
failed half-way is continued before its log is cleaned again.

No cleaning starts while the disk is short of space. A swap continues even then: its last step deletes the old segments.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from penstock.broker.cleaner_child import ChildNotStarted, CleanerChild, CleaningFailed
from penstock.broker.partition import Partition
from penstock.broker.reads import WARM_BYTES
from penstock.storage.cleaner import CleaningJob, CleaningResult, SourceSegment, cleaned_tag
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import ChecksumMismatch, Cold
from penstock.storage.legacy_swap import SwapRejected
from penstock.storage.log import PartitionLog
from penstock.storage.room import Room
from penstock.storage.segment import Segment
from penstock.storage.swap import Swap, sweep

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 15.0
RETRY_S_MIN = 30.0
RETRY_S_MAX = 3_600.0
"""A log that cannot be cleaned is tried again after the first, then after twice as long each time, up to the second."""
STATE_FILE = "cleaner"
COLD_TRIES_MAX = 100_000
"""Reads of one log before it is known whether it is due, most of them pauses of an index rebuild."""
ITEMS_PER_SLICE = 16
"""Segments renamed in memory before the loop serves others again: less than a millisecond."""

T = TypeVar("T")


class Candidate(NamedTuple):
    dirty_ratio: float
    partition: Partition
    log: PartitionLog
    end_offset: int


class Stage(enum.Enum):
    """The next step of an exchange."""

    DECIDE = enum.auto()
    ABANDON = enum.auto()
    PLACE = enum.auto()
    COMMIT = enum.auto()
    SWEEP = enum.auto()


@dataclass(slots=True)
class Exchange:
    """A swap under way, kept until it is done or given up, whatever fails in between."""

    log: PartitionLog
    swap: Swap
    result: CleaningResult
    segments: list[Segment]
    """The new ones, under the names that the child gave them until they are in place."""
    stage: Stage = Stage.DECIDE


class Retry(NamedTuple):
    failures: int
    due_s: float


@dataclass(slots=True)
class CleaningTotals:
    """Totals since the broker started."""

    runs: int = 0
    segments_rewritten: int = 0
    records_dropped: int = 0
    bytes_rewritten: int = 0
    bytes_freed: int = 0

    def add(self, result: CleaningResult) -> None:
        self.runs += 1
        self.segments_rewritten += len(result.old_base_offsets)
        self.records_dropped += result.records_read - result.records_kept
        self.bytes_rewritten += result.bytes_after
        self.bytes_freed += result.bytes_before - result.bytes_after


class Cleaning:
    def __init__(
        self,
        directory: DataDirectory,
        partitions: Callable[[], Iterable[Partition]],
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._now_ms = now_ms
        self._clock = clock
        self._first_dirty: dict[str, int] = self._load()
        self._retries: dict[PartitionLog, Retry] = {}
        self._exchanges: dict[PartitionLog, Exchange] = {}
        self.child = CleanerChild()
        self._step: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.totals = CleaningTotals()

    def _load(self) -> dict[str, int]:
        """Where each log's dirty part begins; when that is lost, everything counts as dirty once."""
        try:
            payload = self._directory.read_state(STATE_FILE)
            return {} if payload is None else msgspec.json.decode(payload, type=dict[str, int])
        except (ChecksumMismatch, msgspec.DecodeError):
            return {}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._step is not None:  # the thread does not stop with the task, and the next broker must not meet it
            await asyncio.wait([self._step])
        await self.child.end()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                while await self.clean_one():
                    pass
            except Exception:
                logger.exception("log cleaning failed, retrying in %d s", CHECK_INTERVAL_S)

    async def clean_one(self) -> bool:
        """Continue a swap that failed, or clean the dirtiest log that is due. False if there is nothing to do now.

        Only one call may run at a time: a second one would remove the new files of the first.
        """
        self._forget_withdrawn()
        exchange = next((one for one in self._exchanges.values() if self._may_try(one.log)), None)
        if exchange is not None:
            return await self._attempt(exchange.log, self._carry_on(exchange))
        if self._directory.disk.room is not Room.AMPLE:  # the new segments would take the space of the reserve
            return False
        due = await self._due()
        return False if due is None else await self._attempt(due.log, self._clean(due))

    async def _attempt(self, log: PartitionLog, work: Awaitable[None]) -> bool:
        """Whether to go on with other logs, however this one ended."""
        try:
            await work
        except ChildNotStarted as error:
            logger.warning("log cleaning: %s; retrying in %d s", error, CHECK_INTERVAL_S)
            return False
        except Exception as error:  # noqa: BLE001
            self._failed(log, error)
        else:
            self._retries.pop(log, None)
        return True

    # ------------------------------------------------------------------------------------------------ failures

    def _failed(self, log: PartitionLog, error: Exception) -> None:
        if log.withdrawn:
            return
        failures = self._retries[log].failures + 1 if log in self._retries else 1
        delay_s = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(failures - 1, 16))
        self._retries[log] = Retry(failures, self._clock() + delay_s)
        expected = isinstance(error, OSError | CleaningFailed | SwapRejected)
        logger.warning(
            "log cleaning of %s failed, retrying in %d s: %s", log.name, delay_s, error, exc_info=not expected
        )

    def _may_try(self, log: PartitionLog) -> bool:
        return log not in self._retries or self._retries[log].due_s <= self._clock()

    def _forget_withdrawn(self) -> None:
        self._retries = {log: retry for log, retry in self._retries.items() if not log.withdrawn}
        self._exchanges = {log: exchange for log, exchange in self._exchanges.items() if not log.withdrawn}

    # ------------------------------------------------------------------------------------------------ choosing

    async def _due(self) -> Candidate | None:
        now_ms = self._now_ms()
        candidates = []
        for partition in list(self._partitions()):
            log = partition.log
            if log is None or not self._may_clean(partition, log):
                continue
            try:
                candidate = await self._candidate_when_warm(partition, log, now_ms)
            except Exception as error:  # noqa: BLE001
                self._failed(log, error)
                continue
            if candidate is not None:
                candidates.append(candidate)
        candidates = [one for one in candidates if self._may_clean(one.partition, one.log)]
        return max(candidates, key=lambda candidate: candidate.dirty_ratio, default=None)

    def _may_clean(self, partition: Partition, log: PartitionLog) -> bool:
        if not partition.compacts or log.withdrawn or log.failure is not None or log.replays:
            return False
        return log not in self._exchanges and self._may_try(log)

    async def _candidate_when_warm(self, partition: Partition, log: PartitionLog, now_ms: int) -> Candidate | None:
        """The same after a thread has read what the ages of the segments have to be read from."""
        for _ in range(COLD_TRIES_MAX):
            try:
                return self._candidate(partition, log, now_ms)
            except Cold as cold:
                read_ahead = partial(self._directory.disk.read_ahead, cold, WARM_BYTES)
                await asyncio.get_running_loop().run_in_executor(None, read_ahead)
        return None

    def _candidate(self, partition: Partition, log: PartitionLog, now_ms: int) -> Candidate | None:
        config = partition.config
        end_offset = min(log.active.base_offset, partition.last_stable_offset, partition.high_watermark)
        first_dirty = min(self._first_dirty.get(log.name, 0), log.log_end_offset)
        clean = dirty = 0
        oldest_dirty_ms = now_ms
        for at, segment in enumerate(log.segments[:-1]):
            end = log.segments[at + 1].base_offset
            if segment.base_offset >= end_offset:
                break
            if end > first_dirty and now_ms - segment.largest_timestamp(wait=False) < config.min_compaction_lag_ms:
                end_offset = segment.base_offset
                break
            if end <= first_dirty:
                clean += segment.size
            else:
                if not dirty:
                    oldest_dirty_ms = segment.largest_timestamp(wait=False)
                dirty += segment.size
        if not dirty or end_offset <= first_dirty:
            return None
        ratio = dirty / (clean + dirty)
        overdue = now_ms - oldest_dirty_ms > config.max_compaction_lag_ms
        if ratio < config.min_cleanable_dirty_ratio and not overdue:
            return None
        return Candidate(ratio, partition, log, end_offset)

    def _job(self, due: Candidate) -> CleaningJob:
        log, partition = due.log, due.partition
        sources = tuple(
            SourceSegment(segment.base_offset, segment.size)
            for segment in log.segments[:-1]
            if segment.base_offset < due.end_offset
        )
        return CleaningJob(
            id=uuid.uuid4().hex,
            directory=str(log.directory),
            segments=sources,
            first_dirty_offset=max(self._first_dirty.get(log.name, 0), log.segments[0].base_offset),
            end_offset=due.end_offset,
            segment_bytes=partition.config.segment_bytes,
            index_interval_bytes=partition.config.index_interval_bytes,
            delete_retention_ms=partition.config.delete_retention_ms,
            now_ms=self._now_ms(),
            aborted=partition.aborted.ranges(),
            producer_last_offsets=partition.producers.last_offsets(),
        )

    # ------------------------------------------------------------------------------------------------ cleaning

    async def _clean(self, due: Candidate) -> None:
        log = due.log
        await self._in_thread(log, self._sweep(log))
        job = self._job(due)
        try:
            result = await self.child.clean(job)
            if not self._still_fits(log, result):
                logger.info("%s changed while it was cleaned; the new files are discarded", log.name)
                await self._in_thread(log, self._sweep(log))
                return
        except Exception:
            # what was written takes room, on a disk that may be full; the next cleaning would remove it too
            with contextlib.suppress(OSError):
                await self._in_thread(log, self._sweep(log))
            raise
        disk, files = self._directory.disk, self._directory.files
        exchange = Exchange(log, Swap(disk, log.directory, job.id, result), result, [])
        async for one in _sliced(result.new_segments):
            segment = Segment(disk, files, log.directory, one.base_offset, one.size, cleaned_tag(job.id))
            exchange.segments.append(segment)
        self._exchanges[log] = exchange
        log.swapping = True
        await self._carry_on(exchange)

    @staticmethod
    def _still_fits(log: PartitionLog, result: CleaningResult) -> bool:
        """Whether the log has the segments that were cleaned, and nobody holds on to one."""
        return log.holds(result.old_base_offsets) and log.failure is None and not log.replays

    async def _carry_on(self, exchange: Exchange) -> None:
        """Do the steps that are left; storage/swap.py says what an error in each means."""
        log, swap = exchange.log, exchange.swap
        if exchange.stage is Stage.DECIDE:
            await self._decide(exchange)
        if exchange.stage is Stage.ABANDON:
            await self._abandon(exchange)
            return
        if exchange.stage is Stage.PLACE:
            await self._in_thread(log, swap.place)
            async for segment in _sliced(exchange.segments):
                segment.use_tag("")
            exchange.stage = Stage.COMMIT
        if exchange.stage is Stage.COMMIT:
            await self._in_thread(log, swap.commit)
            log.end_swap()
            exchange.stage = Stage.SWEEP
            self._committed(exchange)
        await self._in_thread(log, self._sweep(log))
        del self._exchanges[log]
        await self._save()

    async def _decide(self, exchange: Exchange) -> None:
        log = exchange.log
        exchange.stage = Stage.ABANDON
        try:
            await self._in_thread(log, exchange.swap.decide)
        except Exception:
            with contextlib.suppress(OSError):
                await self._abandon(exchange)
            raise
        if self._still_fits(log, exchange.result):
            old = log.replace_segments(len(exchange.result.old_base_offsets), exchange.segments)
            exchange.stage = Stage.PLACE
            async for segment in _sliced(old):
                self._directory.files.forget(segment.paths())

    async def _abandon(self, exchange: Exchange) -> None:
        log = exchange.log
        await self._in_thread(log, exchange.swap.abandon)
        log.end_swap()
        del self._exchanges[log]
        await self._in_thread(log, self._sweep(log))

    def _committed(self, exchange: Exchange) -> None:
        log, result = exchange.log, exchange.result
        self._first_dirty[log.name] = result.cleaned_to_offset
        self.totals.add(result)
        logger.info(
            "cleaned %s up to offset %d: %d of %d records stay, %d bytes became %d",
            log.name,
            result.cleaned_to_offset,
            result.records_kept,
            result.records_read,
            result.bytes_before,
            result.bytes_after,
        )

    def _sweep(self, log: PartitionLog) -> Callable[[], None]:
        return partial(sweep, self._directory.disk, log.directory)

    async def _in_thread(self, log: PartitionLog, step: Callable[[], None]) -> None:
        """Do a step that waits for the disk, unless the log's folder went away with its topic."""

        def run() -> None:
            with self._directory.folder_lock:
                if not log.withdrawn:
                    step()

        self._step = asyncio.get_running_loop().run_in_executor(None, run)
        await asyncio.shield(self._step)
        if log.withdrawn:
            raise CleaningFailed(f"topic of {log.name} was deleted")

    async def _save(self) -> None:
        known = {partition.log.name for partition in self._partitions() if partition.log is not None}
        self._first_dirty = {name: offset for name, offset in self._first_dirty.items() if name in known}
        payload = msgspec.json.encode(self._first_dirty)
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._directory.write_state, STATE_FILE, payload)
        except OSError as error:
            logger.warning("the progress of log cleaning could not be saved, a restart cleans more again: %s", error)


async def _sliced(items: Sequence[T]) -> AsyncIterator[T]:
    """The items, some at a time, with turns of the loop in between."""
    for at, item in enumerate(items):
        yield item
        if at % ITEMS_PER_SLICE == ITEMS_PER_SLICE - 1:
            await asyncio.sleep(0)
