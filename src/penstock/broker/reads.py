"""Reading many partitions in one request, and waiting until there is enough to read.

A read that finds fewer than `min_bytes` parks a `ReadWait` at each of its partitions. An append wakes just the waits of its
own partition, and a wait looks again at that partition alone; nothing scans. Data that is not in memory is fetched by a
reader thread first, so that the loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.engine import Isolation, Read, ReadResult
from penstock.broker.partition import Partition
from penstock.broker.read_errors import ReadErrors
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.storage.files import Cold, Disk
from penstock.storage.segment import Rebuilding

COLD_TRIES_MAX = 64
"""Headers that a read of one partition may have to fetch from the disk before it gives up: an index interval needs a few
at most."""
WARM_BYTES = 128 * 1024
"""What a reader thread fetches at once: the kernel's usual readahead."""

FindPartition = Callable[[str, int], Partition | None]


class Reads:
    """Performs reads for an engine: one a broker."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, find: FindPartition, readers: ThreadPoolExecutor, disk: Disk
    ) -> None:
        self._loop = loop
        self._find = find
        self._readers = readers
        self._disk = disk
        self.errors = ReadErrors()
        self.stopping = False
        """Nobody is made to wait any more: what is there is the answer."""

    def read(
        self, reads: Sequence[Read], max_bytes: int, min_bytes: int, max_wait_ms: int, isolation: int
    ) -> list[ReadResult] | Pending[list[ReadResult]]:
        min_bytes = min(min_bytes, max_bytes)
        try:
            results, size, final = self.look(reads, max_bytes, isolation)
        except Cold as cold:
            return ReadWait(self, reads, max_bytes, min_bytes, max_wait_ms, isolation).start_cold(cold)
        if final or size >= min_bytes or max_wait_ms <= 0 or self.stopping:
            return results
        return ReadWait(self, reads, max_bytes, min_bytes, max_wait_ms, isolation).start(results)

    def look(self, reads: Sequence[Read], max_bytes: int, isolation: int) -> tuple[list[ReadResult], int, bool]:
        """Results, bytes, and whether to answer at once (an error, or a partition that gave all it may)."""
        results = []
        size = 0
        final = not reads
        for read in reads:
            result = self.look_at(read, max_bytes - size, isolation, one_batch=size == 0)
            if result.records is not None:
                size += result.records.length
                final = final or result.records.length >= read.max_bytes
            elif result.fault is not Fault.NONE:
                final = True
            results.append(result)
        return results, size, final

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
            return ReadResult(Fault.NONE, high_watermark, stable, start)
        try:
            records = log.read(offset, min(read.max_bytes, budget), upper, one_batch=one_batch)
        except OSError as error:
            self.errors.note(partition.id, offset, error)
            return ReadResult(Fault.STORAGE_ERROR, high_watermark, stable, start)
        if records is None or isolation != Isolation.READ_COMMITTED or not len(partition.aborted):
            return ReadResult(Fault.NONE, high_watermark, stable, start, records)
        aborted = partition.aborted.between(offset, log.segment_end(offset, upper))
        return ReadResult(Fault.NONE, high_watermark, stable, start, records, aborted)

    def warm(self, cold: Cold, then: Callable[[], None]) -> None:
        """Bring the bytes into memory on a reader thread, then go on. The next look meets an error of that read."""
        future = self._readers.submit(self._disk.read_ahead, cold, WARM_BYTES)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(then))

    def wait(self, delay_ms: int, then: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, then)

    def partition(self, read: Read) -> Partition | None:
        return self._find(read.topic, read.partition)


class ReadWait:
    """One read that could not be answered at once. Ends by enough data, an error, the time limit, or being abandoned."""

    __slots__ = (
        "_cold_tries",
        "_isolation",
        "_max_bytes",
        "_max_wait_ms",
        "_min_bytes",
        "_parked",
        "_pending",
        "_reads",
        "_service",
        "_sizes",
        "_timer",
    )

    def __init__(
        self, service: Reads, reads: Sequence[Read], max_bytes: int, min_bytes: int, max_wait_ms: int, isolation: int
    ) -> None:
        self._service = service
        self._reads = reads
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._isolation = isolation
        self._pending: Pending[list[ReadResult]] = Pending(self._abandoned)
        self._parked: list[Partition] = []
        self._sizes: list[int] = []
        """Bytes that each read found last, while parked."""
        self._timer: asyncio.TimerHandle | None = None
        self._cold_tries = 0

    def start(self, results: Sequence[ReadResult]) -> Pending[list[ReadResult]]:
        self._park(results)
        return self._pending

    def start_cold(self, cold: Cold) -> Pending[list[ReadResult]]:
        self._service.warm(cold, self._look_again)
        return self._pending

    def data_came(self, partition: Partition) -> None:
        """The partition's high watermark moved, or the partition went away."""
        if self._min_bytes > 1 and self._still_too_little(partition):
            return
        self._look_again()

    def _still_too_little(self, partition: Partition) -> bool:
        """Whether what came does not make the answer: looks at nothing but this partition."""
        for at, read in enumerate(self._reads):
            if (read.topic, read.partition) != partition.id:
                continue
            try:
                result = self._service.look_at(read, self._max_bytes, self._isolation, one_batch=True)
            except Cold:
                return False
            size = 0 if result.records is None else result.records.length
            if result.fault is not Fault.NONE or size >= read.max_bytes:
                return False
            self._sizes[at] = size
        return sum(self._sizes) < self._min_bytes

    def _park(self, results: Sequence[ReadResult]) -> None:
        self._sizes = [0 if result.records is None else result.records.length for result in results]
        for read in self._reads:
            partition = self._service.partition(read)
            if partition is not None:
                partition.data_waiters[self] = None
                self._parked.append(partition)
        if self._timer is None:
            self._timer = self._service.wait(self._max_wait_ms, self._time_is_up)

    def _unpark(self) -> None:
        for partition in self._parked:
            partition.data_waiters.pop(self, None)
        self._parked.clear()

    def _time_is_up(self) -> None:
        self._max_wait_ms = 0
        self._look_again()

    def _look_again(self) -> None:
        if self._pending.done:
            return
        try:
            results, size, final = self._service.look(self._reads, self._max_bytes, self._isolation)
        except Cold as cold:
            self._unpark()
            if not isinstance(cold, Rebuilding):  # which always comes to an end
                self._cold_tries += 1
            if self._cold_tries > COLD_TRIES_MAX * len(self._reads):
                self._end([ReadResult(Fault.STORAGE_ERROR)] * len(self._reads))
            else:
                self._service.warm(cold, self._look_again)
            return
        if final or size >= self._min_bytes or self._max_wait_ms <= 0 or self._service.stopping:
            self._end(results)
        elif not self._parked:
            self._park(results)
        else:
            self._sizes = [0 if result.records is None else result.records.length for result in results]

    def _end(self, results: list[ReadResult]) -> None:
        self._release()
        self._pending.complete(results)

    def _abandoned(self) -> None:
        self._release()

    def _release(self) -> None:
        self._unpark()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
