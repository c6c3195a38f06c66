"""System calls of which one fails: the n-th of a run."""

from __future__ import annotations

import errno
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from penstock.storage.system import SystemCalls

SHORT = 0
"""Stands for an errno: the call does a part of its work and says so."""
KINDS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR, SHORT)
_READS = ("read", "read_now")
_WRITES = ("write", "write_many")
_SYNCS = ("sync", "sync_full")


def kind_name(kind: int) -> str:
    return errno.errorcode.get(kind, "short")


class FailingCalls(SystemCalls):
    """Files are real; syncs do nothing but count, for a process that ends keeps what it wrote.

    Call number `fail_at` fails, all others succeed. A short read or write does half of what it was asked for; a write that
    fails has written half too. Calls that cannot be short are left alone. After a failed sync the kernel takes what was
    written since the last one for written, and forgets it: `forget_lost` does that.
    """

    MAY_BE_SHORT = (*_READS, *_WRITES)

    def __init__(self, fail_at: int | None = None, kind: int = errno.EIO) -> None:
        super().__init__()
        self.names: list[str] = []
        """The calls so far."""
        self.failed: str | None = None
        """The call that failed."""
        self._fail_at = fail_at
        self._kind = kind
        self._lock = threading.Lock()
        self._unsynced: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """Position and length of each write since the last sync, by inode."""
        self._lost: list[tuple[int, list[tuple[int, int]]]] = []
        """The same of files whose sync failed, by descriptor."""
        self.paused = False
        """Whether calls are not counted, and none fails."""
        for name in _SYNCS:
            setattr(self, name, lambda fd: None)
        for name, call in vars(self).copy().items():
            if not name.startswith("_") and callable(call):
                setattr(self, name, self._counted(name, call))

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def blames_the_disk(self) -> bool:
        """Whether the call that failed says something about the disk."""
        return self._kind == errno.EIO or self.failed in _SYNCS

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            with self._lock:
                number = -1 if self.paused else len(self.names)
                if not self.paused:
                    self.names.append(name)
            if number != self._fail_at:
                return self._noted(name, call, *args)
            if self._kind == SHORT:
                if name not in self.MAY_BE_SHORT:
                    return call(*args)
                self.failed = name
                return _half(name, call, *args)
            self.failed = name
            if name in _WRITES:
                _half(name, call, *args)
            elif name in _SYNCS:
                fd = args[0]
                self._lost.append((os.dup(fd), self._unsynced.pop(os.fstat(fd).st_ino, [])))
            raise OSError(self._kind, os.strerror(self._kind))

        return counted

    def _noted(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        if name in _WRITES:
            inode, position = os.fstat(args[0]).st_ino, args[2]
            self._unsynced[inode].append((position, result))
            for fd, writes in self._lost:
                if os.fstat(fd).st_ino == inode:  # what is written again is not lost
                    writes[:] = [one for one in writes if not position <= one[0] < position + result]
        elif name in _SYNCS:
            self._unsynced.pop(os.fstat(args[0]).st_ino, None)
        return result

    def forget_lost(self) -> None:
        """What a failed sync did not bring to the disk is gone with the page cache."""
        for fd, writes in self._lost:
            for position, length in writes:
                left = min(length, os.fstat(fd).st_size - position)
                if left > 0:
                    os.pwrite(fd, bytes(left), position)
            os.close(fd)
        self._lost.clear()


def _half(name: str, call: Callable[..., Any], fd: int, what: Any, position: int) -> Any:
    if name == "read":
        return call(fd, max(what // 2, 1), position)
    if name == "read_now":
        part = bytearray(max(len(what) // 2, 1))
        got = call(fd, part, position)
        what[:got] = part[:got]
        return got
    data = what if name == "write" else b"".join(what)
    return os.pwrite(fd, data[: max(len(data) // 2, 1)], position)
