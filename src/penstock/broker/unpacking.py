"""Decompression on separate threads, counted before memory is allocated.

The unpacked size of a batch is known only afterwards, so its maximum is counted first: what its codec can produce from its
size, and no more than the broker's limit for such a batch. The rest is given back when the real size is known.

The threads run C code that releases the interpreter lock (records/compression.py). They get only bytes and a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.broker.account import Account
from penstock.model.limits import UNPACKED_BYTES_MAX
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records.batch import Batch, BatchError
from penstock.records.compression import EXPANSION_MAX, decompress
from penstock.records.walk import unpacked_bytes_max

T = TypeVar("T")

THREADS = 2
"""More would only compete with the event loop."""
LOOKUPS_AT_ONCE = 4
"""Batches that are unpacked for offsets by time at the same time, over all requests: one request may ask for thousands, and
produces that need unpacking wait in the same line."""


class Unpacked:
    """The unpacked bytes of a batch; call `release` when they are no longer needed."""

    __slots__ = ("_account", "_counted", "data")

    def __init__(self, account: Account, counted: int, data: bytes) -> None:
        self._account = account
        self._counted = len(data)
        self.data = data
        account.give(counted - len(data))

    def release(self) -> None:
        self.data = b""
        counted, self._counted = self._counted, 0
        self._account.give(counted)


class Unpacking:
    """One per engine. `in_slices` runs the work that waits for unpacked data and continues with it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, in_slices: Callable[..., Any], bytes_max: int = UNPACKED_BYTES_MAX
    ) -> None:
        self._loop = loop
        self.call_soon = loop.call_soon
        self.in_slices = in_slices
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-unpack")
        self._stopped = False
        self.account = Account(bytes_max, loop.call_soon)
        self.lookups = Account(LOOKUPS_AT_ONCE, loop.call_soon)
        """Of places for lookups, not of bytes."""

    def unpacked(self, batch: Batch) -> Work[Unpacked]:
        """The records of a compressed batch. Its bytes must not change meanwhile. Raises BatchError."""
        return self.decompressed(batch.compression, batch.payload(), unpacked_bytes_max(batch.size))

    def decompressed(self, codec: int, data: memoryview, limit_bytes: int) -> Work[Unpacked]:
        """The decompressed `data`, up to `limit_bytes`. Raises BatchError. The work must not be dropped."""
        counted = min(limit_bytes, len(data) * EXPANSION_MAX[codec])
        yield self.account.take(counted)
        result = yield self.in_thread(lambda: decompress(codec, data, limit_bytes))
        if isinstance(result, Exception):
            self.account.give(counted)
            try:
                raise result
            finally:
                del result  # the error would keep this frame, and this frame the error and the batch
        return Unpacked(self.account, counted, result)

    def in_thread(self, work: Callable[[], T]) -> Pending[T | Exception]:
        """Run C code in a thread. Returns its result or the exception that it raised."""
        done: Pending[T | Exception] = Pending()
        if self._stopped:
            done.complete(BatchError("the broker is stopping"))
            return done

        def finish(future: Future[T]) -> None:
            error = future.exception()
            if error is None:
                done.complete(future.result())
            else:
                done.complete(_bare(error) if isinstance(error, Exception) else RuntimeError(str(error)))

        def finish_soon(future: Future[T]) -> None:
            if not future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(finish, future)

        self._threads.submit(work).add_done_callback(finish_soon)
        return done

    def stop(self) -> None:
        """Start nothing new. The results of running work are discarded."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)


def _bare(error: Exception) -> Exception:
    """The error without its traceback, whose frames hold what was unpacked before it."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
