"""Receive memory: the pool of frame buffers, and the account of what all connections hold at once.

A socket is read into the scratch buffer that all connections of a loop share; only a frame that is not whole yet gets a
buffer of its own, and gives it back when its request has been performed. Large frames come again and again in the same
sizes, so their buffers are kept by power of two: a fresh megabyte costs 256 page faults, more than reading it does.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from typing import Protocol

from penstock.model import limits

SMALL_BYTES_MAX = 32 * 1024
"""Up to here the allocator of the language is as good as a pool."""
CLASS_BYTES_MAX = 16 * 1024 * 1024
"""Larger frames are rare, and one of them would empty the pool of everything else."""


def _fresh(size: int) -> memoryview:
    """Zeroed memory that costs nothing until it is written: a peer that only promises 100 MB takes none."""
    if sys.platform == "win32":
        return memoryview(mmap.mmap(-1, size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class FramePool:
    """Buffers for half-received frames; keeps at most `bytes_max` of the large ones for the next frame."""

    __slots__ = ("_free", "_unused", "bytes_kept", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_kept = 0
        self._free: dict[int, list[memoryview]] = {}
        self._unused: dict[int, int] = {}
        """The fewest free buffers of a class since the last trim: nobody needed those."""

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes with any content."""
        if size <= SMALL_BYTES_MAX:
            return memoryview(bytearray(size))
        if size > CLASS_BYTES_MAX:
            return _fresh(size)
        size_class = 1 << (size - 1).bit_length()
        free = self._free.get(size_class)
        if not free:
            return _fresh(size_class)
        view = free.pop()
        self.bytes_kept -= size_class
        if len(free) < self._unused[size_class]:
            self._unused[size_class] = len(free)
        return view

    def give(self, view: memoryview) -> None:
        """Take a buffer back whose bytes nobody will look at any more."""
        size = len(view)
        if size <= SMALL_BYTES_MAX or size > CLASS_BYTES_MAX or size & (size - 1):
            return
        if self.bytes_kept + size > self.bytes_max:
            return
        free = self._free.get(size)
        if free is None:
            free = self._free[size] = []
            self._unused[size] = 0
        free.append(view)
        self.bytes_kept += size

    def trim(self) -> None:
        """Give the system what was not needed since the last trim: a burst must not be paid for ever."""
        for size_class, free in self._free.items():
            unused = self._unused[size_class]
            del free[:unused]
            self.bytes_kept -= unused * size_class
            self._unused[size_class] = len(free)


class Reader(Protocol):
    """A connection that waits until it may read its socket again."""

    def memory_is_free(self) -> None: ...


class InFlight:
    """Bytes of half-received frames and unsent answers over all connections, and who waits for them to become fewer.

    Above the bound no socket is read, but for one connection at a time that has the turn: half-received frames alone
    could fill the account, and only a frame that becomes whole empties it. The turn goes on when its frame is whole and
    at each sweep, so a peer that drips bytes has it for a second at most.
    """

    __slots__ = ("_turn", "_waiting", "bytes_held", "bytes_max", "pressed")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_held = 0
        self.bytes_max = bytes_max
        self.pressed = False
        """Above the bound, or somebody still waits: `may_read` has to be asked after each read."""
        self._turn: Reader | None = None
        self._waiting: deque[Reader] = deque()

    def charge(self, delta: int) -> None:
        self.bytes_held += delta
        if self.bytes_held > self.bytes_max:
            self.pressed = True
        elif self.pressed:
            self._relieve()

    def may_read(self, reader: Reader, mid_frame: bool) -> bool:
        """False: the reader is queued, and told by `memory_is_free` when it may go on."""
        if self.bytes_held <= self.bytes_max:
            self._relieve()
            return True
        if self._turn is reader:
            if mid_frame:
                return True
            self._turn = None
        if self._turn is None and not self._waiting:
            if mid_frame:
                self._turn = reader
            return True
        self._waiting.append(reader)
        if self._turn is None:
            self._pass_turn()
        return self._turn is reader

    def forget(self, reader: Reader) -> None:
        """The connection is gone."""
        try:
            self._waiting.remove(reader)
        except ValueError:
            pass
        if self._turn is reader:
            self._turn = None
            if self._waiting:
                self._pass_turn()

    def sweep(self) -> None:
        """Once a second: the turn goes on, whether it was used or not."""
        if self.bytes_held <= self.bytes_max:
            self._relieve()
        elif self._waiting:
            self._pass_turn()

    @property
    def readers_waiting(self) -> int:
        return len(self._waiting)

    def _pass_turn(self) -> None:
        self._turn = self._waiting.popleft()
        self._turn.memory_is_free()

    def _relieve(self) -> None:
        # As many as there is room for, first come first served: all at once would fill the account again.
        room = 1 + (self.bytes_max - self.bytes_held) // limits.SCRATCH_BYTES
        while self._waiting and room:
            room -= 1
            self._waiting.popleft().memory_is_free()
        if not self._waiting:
            self._turn = None
            self.pressed = False
