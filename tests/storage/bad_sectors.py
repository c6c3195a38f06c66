"""System calls under which parts of files cannot be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.storage.system import SystemCalls

SECTOR_BYTES = 512


class BadSectors(SystemCalls):
    """Reads that touch a bad sector fail with EIO; a read that begins before one ends there, as the kernel's does.

    With `cold` the page cache does not have the sector, so that only a read which waits for the disk meets the error.
    """

    def __init__(self, *, cold: bool = False) -> None:
        super().__init__()
        self.cold = cold
        self.failed_reads = 0
        self._bad: dict[int, int] = {}
        self._read, self._read_now = self.read, self.read_now
        self.read = self._checked_read
        self.read_now = self._checked_read_now

    def spoil(self, path: Path, position: int) -> None:
        """Make the sector with `position` unreadable."""
        self._bad[path.stat().st_ino] = position // SECTOR_BYTES * SECTOR_BYTES

    def heal(self) -> None:
        self._bad.clear()

    def _readable(self, fd: int, length: int, position: int) -> int:
        """How many of the bytes can be read; raises when the first cannot."""
        bad = self._bad.get(os.fstat(fd).st_ino)
        if bad is None or position >= bad + SECTOR_BYTES or position + length <= bad:
            return length
        if position < bad:
            return bad - position
        self.failed_reads += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _checked_read(self, fd: int, length: int, position: int) -> bytes:
        return self._read(fd, self._readable(fd, length, position), position)

    def _checked_read_now(self, fd: int, buffer: bytearray, position: int) -> int:
        try:
            readable = self._readable(fd, len(buffer), position)
        except OSError:
            if self.cold:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
            raise
        part = bytearray(readable)
        got = self._read_now(fd, part, position)
        buffer[:got] = part[:got]
        return got
