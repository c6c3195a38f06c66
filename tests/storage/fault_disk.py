"""A disk of real files on which the n-th change fails, or is the last thing that a process did."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.storage.files import Buffer, Disk, DiskFailed, LogFile


class Crash(BaseException):
    """Not an Exception: no code may take it for an error that can be handled."""


class FaultDisk(Disk):
    """Counts changes while it is `armed`. The one with number `fail_at` raises `errno`, or crashes the process: then no
    later call does anything either. With `for_good`, all later changes fail too.

    Syncs do nothing: what a process wrote outlives it. Power cuts are for the simulated disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.fail_at: int | None = None
        self.error = errno.EIO
        self.crash = False
        self.for_good = False
        self.calls: list[tuple[str, Path, threading.Thread]] = []
        self.before: Callable[[], None] | None = None
        """Called before each change, in its thread."""

    def arm(self, fail_at: int | None, *, error: int = errno.EIO, crash: bool = False, for_good: bool = False) -> None:
        self.armed, self.fail_at, self.error, self.crash, self.for_good = True, fail_at, error, crash, for_good
        self.calls = []

    def disarm(self) -> None:
        self.armed = False

    @property
    def has_failed(self) -> bool:
        return self.fail_at is not None and len(self.calls) > self.fail_at

    def _change(self, name: str, path: Path) -> None:
        if not self.armed:
            return
        number = len(self.calls)
        self.calls.append((name, path, threading.current_thread()))
        if self.before is not None:
            self.before()
        if self.fail_at is None or number < self.fail_at:
            return
        if self.crash:
            raise Crash
        if number == self.fail_at or self.for_good:
            failure = DiskFailed if name.startswith("sync") else OSError
            raise failure(self.error, os.strerror(self.error), str(path))

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        if create:
            self._change("create", path)
        return super().open(path, create=create)

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        self._change("write_at", file.path)
        super().write_at(file, position, buffers, total)

    def truncate(self, file: LogFile, size: int) -> None:
        self._change("truncate", file.path)
        super().truncate(file, size)

    def sync(self, file: LogFile) -> None:
        self._change("sync", file.path)

    def sync_directory(self, path: Path) -> None:
        self._change("sync_directory", path)

    def remove(self, path: Path) -> None:
        self._change("remove", path)
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self._change("rename", old)
        super().rename(old, new)

    def link(self, path: Path, name: Path) -> None:
        self._change("link", path)
        super().link(path, name)

    def append_to(self, path: Path, data: Buffer) -> None:
        self._change("append_to", path)
        super().append_to(path, data)

    def replace_whole(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        aside = path.with_name(path.name + ".tmp")
        file = self.open(aside, create=True)
        self.truncate(file, 0)
        self.write_at(file, 0, (data,), len(data))
        if durable:
            self.sync(file)
        self.rename(aside, path)
        if durable:
            self.sync_directory(path.parent)
