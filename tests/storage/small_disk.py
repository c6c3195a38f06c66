"""A file system of a given size below a real disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.storage.files import Disk
from penstock.storage.reserve import FILE_NAME

PLENTY = 1 << 30


class Quota:
    """Bounds what the files of a disk may take. Files are real; what was written counts until it is deleted."""

    def __init__(self, disk: Disk, root: Path, free: int = PLENTY, total: int = PLENTY) -> None:
        self.code = errno.ENOSPC
        self.free = free
        """What is free when the reserve takes nothing."""
        self._root = root
        calls = disk.system_calls
        for name in ("write", "write_many"):
            setattr(calls, name, self._limited(getattr(calls, name)))
        real_allocate = calls.allocate

        def allocate(fd: int, size: int) -> None:
            if size > self.left:
                raise OSError(self.code, os.strerror(self.code))
            real_allocate(fd, size)

        calls.allocate = allocate
        real_unlink = calls.unlink

        def unlink(path: Path) -> None:
            size = path.stat().st_size
            real_unlink(path)
            self.free += size

        calls.unlink = unlink
        calls.room = lambda path: (total, max(self.left, 0))

    @property
    def left(self) -> int:
        reserve = self._root / FILE_NAME
        return self.free - (reserve.stat().st_size if reserve.exists() else 0)

    def _limited(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(fd: int, what: Any, position: int) -> int:
            size = len(what) if isinstance(what, bytes | bytearray | memoryview) else sum(map(len, what))
            if size > self.left:
                raise OSError(self.code, os.strerror(self.code))
            self.free -= size
            return real(fd, what, position)

        return write
