"""The frame that a connection has begun to receive: where its next bytes go, and the buffer that it holds meanwhile."""

from __future__ import annotations

from penstock.net.buffers import FramePool

FIRST_BYTES = 1024
"""The first buffer for a frame whose size is not known yet."""
STRAIGHT_BYTES_MIN = 256 * 1024
STRAIGHT_BYTES_MAX = 4 * 1024 * 1024
"""After a frame of such a size the next is read straight into a buffer for one like it, and not copied."""


class HalfFrame:
    """Has a buffer only between the first and the last byte of a frame, `filled` of whose bytes are there."""

    __slots__ = ("_expected", "_limit", "_pool", "buffer", "filled", "needed", "since_ms")

    def __init__(self, pool: FramePool) -> None:
        self._pool = pool
        self.buffer: memoryview | None = None
        self.filled = 0
        self.needed = 0
        """The whole frame, or 0 while the session cannot tell."""
        self.since_ms = 0
        self._limit = 0
        self._expected = 0

    def space(self) -> memoryview | None:
        """Where the next bytes go; None when any shared buffer will do."""
        buffer = self.buffer
        if buffer is None:
            if not self._expected:
                return None
            self.buffer = buffer = self._pool.take(self._expected)
            self.needed = 0
            self._limit = self._expected
        return buffer[self.filled : self._limit]

    def keep(self, view: memoryview, start: int, needed: int, now_ms: int) -> None:
        """The frame begins at `start` of `view`: hold it in a buffer of its size if that is known, else of a growing one."""
        rest = len(view) - start
        size = max(needed, rest) if needed else max(FIRST_BYTES, 2 * rest)
        buffer = self.buffer
        if start or buffer is None or not self.since_ms:
            self.since_ms = now_ms
        if start or buffer is None or not size <= len(buffer) <= 2 * max(size, FIRST_BYTES):
            self.buffer = self._pool.take(size)
            self.buffer[:rest] = view[start:]
            if buffer is not None:
                self._pool.give(buffer)
        self.filled = rest
        self.needed = needed
        self._limit = size
        self._expected = needed if STRAIGHT_BYTES_MIN <= needed <= STRAIGHT_BYTES_MAX else 0

    def is_whole(self) -> bool:
        """Received to its end, but not fed again yet."""
        return 0 < self.needed <= self.filled

    def performed(self) -> None:
        """All that was received is done with: the buffer goes back."""
        if self.buffer is not None:
            if self.filled < self._expected:
                self._expected = 0
            self.drop()

    def lend(self) -> memoryview | None:
        """The buffer, out of the hands of the next read, for requests that still borrow from it."""
        buffer, self.buffer = self.buffer, None
        self.filled = self.since_ms = 0
        return buffer

    def drop(self) -> None:
        if self.buffer is not None:
            self._pool.give(self.buffer)
            self.buffer = None
        self.filled = self.since_ms = 0
