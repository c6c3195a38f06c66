"""The calls that not every system has, and what stands in for them.

Linux has all of them. macOS has no fdatasync, and its fsync leaves the bytes in the drive's own memory, so F_FULLFSYNC is
asked for. Windows reads and writes only where a file's pointer stands, so the pointer is moved under a lock, and it locks
files in a way of its own. `shortfalls` says in words what is missing; the broker logs it once at its start.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

Buffer = bytes | bytearray | memoryview

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None

OPEN_FLAGS: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None

_pointer = threading.Lock()
"""Without positional calls all readers and writers take turns: a file has one pointer, and threads share the file."""


def _seek_and_read(fd: int, length: int, position: int, /) -> bytes:
    with _pointer:
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, length)


def _seek_and_write(fd: int, data: Buffer, position: int, /) -> int:
    with _pointer:
        os.lseek(fd, position, os.SEEK_SET)
        return os.write(fd, data)


def _join_and_write(fd: int, buffers: Sequence[Buffer], position: int, /) -> int:
    return write_at(fd, b"".join(buffers), position)


def _full_sync(fd: int, /) -> None:
    assert fcntl is not None
    fcntl.fcntl(fd, fcntl.F_FULLFSYNC)


def _sync() -> Callable[[int], None]:
    if hasattr(os, "fdatasync"):
        return os.fdatasync
    return _full_sync if hasattr(fcntl, "F_FULLFSYNC") else os.fsync


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
write_at: Callable[[int, Buffer, int], int] = getattr(os, "pwrite", _seek_and_write)
write_all_at: Callable[[int, Sequence[Buffer], int], int] = getattr(os, "pwritev", _join_and_write)
sync: Callable[[int], None] = _sync()
"""Make a file's bytes and size survive a power cut."""


def has_sync_file_system(kernel_min: tuple[int, int]) -> bool:
    """Whether this is a Linux of at least that version: an older one syncs too, but keeps the errors to itself."""
    if _syncfs is None:
        return False
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= kernel_min


def sync_file_system(fd: int, /) -> None:
    """Make everything safe that was written to the file system of `fd`; other threads run meanwhile."""
    assert _syncfs is not None
    if _syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def file_system_of(path: Path) -> str | None:
    """The kind of file system that `path` is on, by Linux's table of mounts; None when it is not there."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        place, _, kind = line.partition(" - ")
        if place.split(" ", 3)[2] == wanted:
            return kind.split(" ", 1)[0]
    return None


def unwritten_bytes() -> int:
    """What all programs of this machine wrote and Linux has not yet brought to its disks; all there can be when it does
    not say."""
    try:
        with open("/proc/meminfo", "rb") as table:
            for line in table:
                if line.startswith(b"Dirty:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return sys.maxsize


def lock(fd: int) -> None:
    """Lock the file for this process alone, until it is closed; OSError when another process has it."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    # a byte far behind the content: Windows lets nobody read what is locked, and the content names the holder
    os.lseek(fd, 1 << 30, os.SEEK_SET)
    msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]


def shortfalls() -> list[str]:
    """What this system does not have, and what that means; nothing on Linux."""
    found = []
    if not hasattr(os, "fdatasync"):
        way = "F_FULLFSYNC" if sync is _full_sync else "fsync"
        found.append(f"flush: this system has no fdatasync, {way} is used and takes longer")
    if not hasattr(os, "pread") or not hasattr(os, "pwrite"):
        found.append("storage: this system has no positional reads and writes, they take turns instead")
    return found
