"""Reading many partitions in one request, and waiting until there is enough to read.

A read that finds fewer than `min_bytes` waits for each of its partitions (`_Wait`). An append wakes only the reads that wait
for its partition, and a woken read checks only the partitions with new records; nothing scans. A reader thread first loads
data that is not in memory, so that the loop never waits for the disk. Reads of thousands of partitions, and reads that are
woken together, run in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock.broker.engine import Isolation, Read, ReadResult
from penstock.broker.partition import Partition
from penstock.broker.read_errors import ReadErrors
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.pending import Pending
from penstock.model.slices import Slices, Work
from penstock.storage.files import Cold, Disk
from penstock.storage.segment import Rebuilding

COLD_TRIES_MAX = 64
"""Headers that a read of one partition may have to fetch from the disk before it gives up: an index interval needs a few
at most."""
WARM_BYTES = 128 * 1024
"""What a reader thread fetches at once: the kernel's usual readahead."""
PARTITIONS_AT_ONCE = 256
"""Reads of up to this many partitions are performed at once; larger ones in slices."""
_PAUSE_PARTITIONS = 16
_PARKED_AT_ONCE = 256

FindPartition = Callable[[str, int], Partition | None]


class Reads:
    """Performs reads for an engine: one a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find: FindPartition,
        readers: ThreadPoolExecutor,
        disk: Disk,
        slices: Slices,
    ) -> None:
        self._loop = loop
        self._find = find
        self._readers = readers
        self._disk = disk
        self.errors = ReadErrors()
        self._slices = slices
        self.stopping = False
        """Nobody is made to wait any more: what is there is the answer."""

    def read(
        self, reads: Sequence[Read], max_bytes: int, min_bytes: int, max_wait_ms: int, isolation: int
    ) -> list[ReadResult] | Pending[list[ReadResult]]:
        min_bytes = min(min_bytes, max_bytes)
        wait: _Wait | None = None
        if len(reads) <= PARTITIONS_AT_ONCE:
            try:
                results, size, final = self._look(reads, max_bytes, isolation)
            except Cold:
                pass
            else:
                if final or size >= min_bytes or max_wait_ms <= 0 or self.stopping:
                    return results
                wait = self._begun_wait(max_wait_ms)
                for at, read in enumerate(reads):
                    self._park(wait, read, at)
                wait.sizes = _sizes(results)
        work = self._read(reads, max_bytes, min_bytes, max_wait_ms, isolation, wait)
        return self._slices.run(work, drop=True, holds=False)  # type: ignore[no-any-return]

    def read_in_slices(
        self, reads: Sequence[Read], max_bytes: int, min_bytes: int, max_wait_ms: int, isolation: int
    ) -> Work[list[ReadResult]]:
        """As `read`, in slices."""
        return self._read(reads, max_bytes, min(min_bytes, max_bytes), max_wait_ms, isolation, None)

    def _read(
        self,
        reads: Sequence[Read],
        max_bytes: int,
        min_bytes: int,
        max_wait_ms: int,
        isolation: int,
        wait: _Wait | None,
    ) -> Work[list[ReadResult]]:
        """Read, and wait until there is enough. With a `wait`, a read has just found too little."""
        try:
            while True:
                if wait is not None:
                    while not self.stopping:
                        yield wait.next()
                        if wait.is_up:
                            max_wait_ms = 0
                            break
                        if (yield from self._is_enough(wait, reads, max_bytes, min_bytes, isolation)):
                            break
                results, size, final = yield from self._look_in_slices(reads, max_bytes, isolation)
                if final or size >= min_bytes or max_wait_ms <= 0 or self.stopping:
                    return results
                if wait is None:
                    wait = self._begun_wait(max_wait_ms)
                    for at, read in enumerate(reads):
                        self._park(wait, read, at)
                        if at % _PARKED_AT_ONCE == _PARKED_AT_ONCE - 1:
                            yield None
                    wait.looks_again()  # records may have been appended before it was parked
                wait.sizes = _sizes(results)
        finally:
            if wait is not None:
                wait.end()

    def _begun_wait(self, max_wait_ms: int) -> _Wait:
        wait = _Wait()
        wait.timer = self._loop.call_later(max_wait_ms / 1000, wait.time_is_up)
        return wait

    def _park(self, wait: _Wait, read: Read, at: int) -> None:
        partition = self._find(read.topic, read.partition)
        if partition is not None:
            wait.park(partition, at)

    def _is_enough(
        self, wait: _Wait, reads: Sequence[Read], max_bytes: int, min_bytes: int, isolation: int
    ) -> Work[bool]:
        """Whether the new records may complete the answer. Checks only the partitions that have some."""
        came, wait.came = wait.came, {}
        if min_bytes <= 1:
            return True
        for partition in came:
            for at in wait.places[partition]:
                try:
                    result = self.look_at(reads[at], max_bytes, isolation, one_batch=True)
                except Cold:
                    return True
                size = 0 if result.records is None else result.records.length
                if result.fault is not NO_FAULT or size >= reads[at].max_bytes:
                    return True
                wait.size += size - wait.sizes[at]
                wait.sizes[at] = size
                yield None
        return wait.size >= min_bytes

    def _look(self, reads: Sequence[Read], max_bytes: int, isolation: int) -> tuple[list[ReadResult], int, bool]:
        """Results, bytes, and whether to answer at once (an error, or a partition that gave all it may)."""
        results = []
        size = 0
        final = not reads
        for read in reads:
            result = self.look_at(read, max_bytes - size, isolation, one_batch=size == 0)
            if result.records is not None:
                size += result.records.length
                final = final or result.records.length >= read.max_bytes
            elif result.fault is not NO_FAULT:
                final = True
            results.append(result)
        return results, size, final

    def _look_in_slices(
        self, reads: Sequence[Read], max_bytes: int, isolation: int
    ) -> Work[tuple[list[ReadResult], int, bool]]:
        """The same with pauses, loading data from disk where needed."""
        results: list[ReadResult] = []
        size = 0
        final = not reads
        for at, read in enumerate(reads):
            result = yield from self._look_until_warm(read, max_bytes - size, isolation, one_batch=size == 0)
            if result.records is not None:
                size += result.records.length
                final = final or result.records.length >= read.max_bytes
            elif result.fault is not NO_FAULT:
                final = True
            results.append(result)
            if at % _PAUSE_PARTITIONS == _PAUSE_PARTITIONS - 1:
                yield None
        return results, size, final

    def _look_until_warm(self, read: Read, budget: int, isolation: int, *, one_batch: bool) -> Work[ReadResult]:
        tries = 0
        while tries < COLD_TRIES_MAX:
            try:
                return self.look_at(read, budget, isolation, one_batch=one_batch)
            except Cold as cold:
                if not isinstance(cold, Rebuilding):  # which always terminates
                    tries += 1
                warmed: Pending[None] = Pending()
                self.warm(cold, partial(warmed.complete, None))
                yield warmed
        return ReadResult(Fault.STORAGE_ERROR)

    def look_at(self, read: Read, budget: int, isolation: int, *, one_batch: bool) -> ReadResult:
        partition = self._find(read.topic, read.partition)
        if partition is None:
            return ReadResult(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        log = partition.log
        if log is None:
            return ReadResult(Fault.STORAGE_ERROR)
        epoch = read.leader_epoch
        if epoch >= 0 and epoch != partition.leader_epoch:
            older = epoch < partition.leader_epoch
            return ReadResult(Fault.FENCED_LEADER_EPOCH if older else Fault.UNKNOWN_LEADER_EPOCH)
        high_watermark = partition.high_watermark
        stable = partition.last_stable_offset
        offset = read.offset
        start = log.log_start_offset
        if not start <= offset <= log.log_end_offset:
            return ReadResult(Fault.OFFSET_OUT_OF_RANGE, high_watermark, stable, start)
        upper = stable if isolation == Isolation.READ_COMMITTED else high_watermark
        if offset >= upper or (budget <= 0 and not one_batch):
            return ReadResult(NO_FAULT, high_watermark, stable, start)
        try:
            records = log.read(offset, min(read.max_bytes, budget), upper, one_batch=one_batch)
        except OSError as error:
            self.errors.note(partition.id, offset, error)
            return ReadResult(Fault.STORAGE_ERROR, high_watermark, stable, start)
        if records is None or isolation != Isolation.READ_COMMITTED or not len(partition.aborted):
            return ReadResult(NO_FAULT, high_watermark, stable, start, records)
        aborted = partition.aborted.between(offset, log.segment_end(offset, upper))
        return ReadResult(NO_FAULT, high_watermark, stable, start, records, aborted)

    def warm(self, cold: Cold, then: Callable[[], None]) -> None:
        """Bring the bytes into memory on a reader thread, then go on. The next look meets an error of that read."""
        future = self._readers.submit(self._disk.read_ahead, cold, WARM_BYTES)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(then))


def _sizes(results: Sequence[ReadResult]) -> list[int]:
    return [0 if result.records is None else result.records.length for result in results]


class _Wait:
    """The partitions that a read waits for, and those with new records."""

    __slots__ = ("_pending", "_sizes", "came", "is_up", "places", "size", "timer")

    def __init__(self) -> None:
        self.places: dict[Partition, list[int]] = {}
        """The reads of each partition."""
        self.came: dict[Partition, None] = {}
        """Partitions whose high watermark moved, or that were deleted."""
        self.is_up = False
        self.timer: asyncio.TimerHandle | None = None
        self._pending: Pending[None] | None = None
        self.sizes = []

    @property
    def sizes(self) -> list[int]:
        """Bytes that each partition's last read found."""
        return self._sizes

    @sizes.setter
    def sizes(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self.size = sum(sizes)

    def park(self, partition: Partition, at: int) -> None:
        places = self.places.get(partition)
        if places is None:
            self.places[partition] = [at]
            partition.data_waiters[self] = None
        else:
            places.append(at)

    def next(self) -> Pending[None]:
        """Completes when a partition has new records or the time is up."""
        pending: Pending[None] = Pending()
        if self.came or self.is_up:
            pending.complete(None)
        else:
            self._pending = pending
        return pending

    def data_came(self, partition: Partition) -> None:
        self.came[partition] = None
        self._wake()

    def looks_again(self) -> None:
        """Treat every partition as one with new records."""
        self.came.update(dict.fromkeys(self.places))

    def time_is_up(self) -> None:
        self.is_up = True
        self._wake()

    def _wake(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.complete(None)

    def end(self) -> None:
        for partition in self.places:
            partition.data_waiters.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
