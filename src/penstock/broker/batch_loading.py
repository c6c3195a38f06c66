"""Loads batches into the cache for reads of records, on threads, once for all reads that wait for the same batch.

The unpacked size of a batch is counted before a thread unpacks it (`Unpacking`) and until it is in the cache, which has its
own bound. No batch is kept outside of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from penstock.broker.record_cache import DecodedBatch, Far, RecordCache
from penstock.broker.unpacking import Unpacking
from penstock.model.slices import Work
from penstock.records.batch import Batch, BatchError
from penstock.records.walk import unpacked_bytes_max
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment

T = TypeVar("T")

Ended = Callable[[BaseException | None], None]


class BatchLoading:
    def __init__(self, loop: asyncio.AbstractEventLoop, readers: ThreadPoolExecutor, unpacking: Unpacking) -> None:
        self._loop = loop
        self._readers = readers
        self._unpacking = unpacking
        self.in_slices = unpacking.in_slices
        self.cache = RecordCache()
        self._under_way: dict[Hashable, list[Ended]] = {}
        """The reads that wait for a thread, by the work of the thread."""

    def unpack(self, segment: Segment, position: int, size: int, offset: int, ended: Ended) -> None:
        """Load a batch into the cache, ready to be read from that offset on."""
        key = segment, position
        waiting = self._under_way.get(key)
        if waiting is not None:
            waiting.append(ended)
            return
        try:
            read = segment.reader()
        except OSError as error:
            ended(error)
            return
        self._under_way[key] = [ended]
        self.in_slices(self._unpacked(key, read, size, offset))

    def _unpacked(
        self, key: tuple[Segment, int], read: Callable[[int, int], bytes], size: int, offset: int
    ) -> Work[None]:
        segment, position = key
        limit_bytes = unpacked_bytes_max(size)
        counted = size + limit_bytes
        yield self._unpacking.account.take(counted)
        decoded = yield self._unpacking.in_thread(partial(_decoded, read, position, size, limit_bytes))
        error = decoded if isinstance(decoded, Exception) else None
        if error is None:
            try:
                yield from decoded.seek(offset)
            except BatchError as damage:
                error = damage
            self.cache.put(segment, decoded)
        del decoded
        self._unpacking.account.give(counted)
        for ended in self._under_way.pop(key):
            ended(error)

    def seek(
        self, log: PartitionLog, far: Far, ended: Callable[[DecodedBatch | None, BaseException | None], None]
    ) -> None:
        """Set the marks of a cached batch up to an offset. None if the batch has been evicted meanwhile."""
        self.in_slices(self._sought(log, far, ended))

    def _sought(
        self, log: PartitionLog, far: Far, ended: Callable[[DecodedBatch | None, BaseException | None], None]
    ) -> Work[None]:
        yield self._unpacking.account.take(far.size)
        batch = self.cache.find(log.segments[log.segment_at(far.offset)], far.offset)
        error: BaseException | None = None
        if batch is not None:
            try:
                yield from batch.seek(far.offset)
            except BatchError as damage:
                error = damage
        self._unpacking.account.give(far.size)
        ended(batch, error)

    def on_thread(self, key: Hashable, work: Callable[[], T], keep: Callable[[T], None], ended: Ended) -> None:
        """Run `work` on a reader thread, once for all reads that need it, and pass its result to `keep` on the loop."""
        waiting = self._under_way.get(key)
        if waiting is not None:
            waiting.append(ended)
            return
        waiting = self._under_way[key] = [ended]

        def came(done: Future[T]) -> None:
            del self._under_way[key]
            error = done.exception()
            if error is None:
                keep(done.result())
            for callback in waiting:
                callback(error)

        working = self._readers.submit(work)
        working.add_done_callback(lambda done: self._loop.call_soon_threadsafe(came, done))


def _decoded(read: Callable[[int, int], bytes], position: int, size: int, limit_bytes: int) -> DecodedBatch:
    return DecodedBatch(Batch(memoryview(read(position, size))), limit_bytes)
