"""The calls that not every system has, and what stands in for them.

Linux has all of them. macOS has no fdatasync, and its fsync leaves the bytes in the drive's own memory, so F_FULLFSYNC is
asked for. Windows reads and writes only where a file's pointer stands, so the pointer is moved under a lock, and it locks
files in a way of its own. `shortfalls` says in words what is missing; the broker logs it once at its start.

`SystemCalls` collects every call that the data of a log depends on, so that a test can fail each of them in turn.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
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

HAS_DIRECTORY_SYNC = os.name != "nt"
"""Windows cannot open a directory; its renames are journaled."""

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

_ALLOCATE_BYTES = 1024 * 1024
_NO_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def allocate(fd: int, size: int, /) -> None:
    """Allocate disk space for the first `size` bytes of an empty file."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in _NO_ALLOCATE:
                raise
    done = 0
    while done < size:
        done += write_at(fd, bytes(min(_ALLOCATE_BYTES, size - done)), done)


def room(path: Path, /) -> tuple[int, int]:
    """Size of the file system of `path`, and the number of bytes that this user can still write."""
    if not hasattr(os, "statvfs"):
        usage = shutil.disk_usage(path)
        return usage.total, usage.free
    found = os.statvfs(path)
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return found.f_blocks * found.f_frsize, free * found.f_frsize


_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class SystemCalls:
    """The system calls below `Disk`, one attribute each. A test replaces them to count calls or to make one fail."""

    def __init__(self) -> None:
        self.open: Callable[[Path, int, int], int] = os.open
        self.read: Callable[[int, int, int], bytes] = read_at
        self.read_now: Callable[[int, bytearray, int], int] = _read_now
        self.write: Callable[[int, Buffer, int], int] = write_at
        self.write_many: Callable[[int, Sequence[Buffer], int], int] = write_all_at
        self.truncate: Callable[[int, int], None] = os.ftruncate
        self.allocate: Callable[[int, int], None] = allocate
        self.room: Callable[[Path], tuple[int, int]] = room
        self.sync: Callable[[int], None] = sync
        self.sync_full: Callable[[int], None] = os.fsync
        """Of a directory, or of a small file with its name and size."""
        self.rename: Callable[[Path, Path], None] = os.replace
        self.link: Callable[[Path, Path], None] = os.link
        self.unlink: Callable[[Path], None] = os.unlink
        self.make_directory: Callable[[Path, int], None] = os.mkdir
        self.remove_directory: Callable[[Path], None] = os.rmdir
        self.list: Callable[[Path], list[str]] = os.listdir
        self.sizes: Callable[[Path], dict[str, int]] = _sizes
        self.stat: Callable[[Path], os.stat_result] = os.stat
        self.stat_open: Callable[[int], os.stat_result] = os.fstat


def _read_now(fd: int, buffer: bytearray, position: int, /) -> int:
    """Read what is in memory; BlockingIOError when nothing is."""
    return os.preadv(fd, (buffer,), position, _NOWAIT)


def _sizes(path: Path, /) -> dict[str, int]:
    with os.scandir(path) as entries:
        return {entry.name: entry.stat().st_size for entry in entries}


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


def has_nowait() -> bool:
    """Whether this system can be asked for what is in memory alone."""
    return bool(_NOWAIT)


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
