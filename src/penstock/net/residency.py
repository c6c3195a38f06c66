"""Is a range of a file in the page cache? Reading it on the event loop is only allowed then.

Three ways, the first that the system has: cachestat(2) (Linux 6.5) counts the cached pages of the range, and a
one-byte preadv(RWF_NOWAIT) at its end makes sure that the last read-ahead has arrived (a page under I/O counts as
cached); else preadv(RWF_NOWAIT) probes every 128 KB, the usual read-ahead; else the answer is always yes, because a
system that cannot tell cannot be asked. A page can still be evicted between the question and the read: that costs one
late turn of the loop and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable

from penstock.model.chunks import OpenFile

PROBE_BYTES = 128 * 1024

Resident = Callable[[int, int, int], bool]
"""(file descriptor, position, length) -> the whole range can be read without waiting for a disk."""

_CACHESTAT = 451
"""The same number on every architecture: system calls are numbered alike since Linux 5.1."""

_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def _cachestat() -> Resident | None:
    if not sys.platform.startswith("linux"):
        return None
    # PyDLL keeps the GIL: the call takes a microsecond, and getting the GIL back from a thread may take milliseconds.
    call = ctypes.PyDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
    call.restype = ctypes.c_long
    asked, counts = _Range(), _Counts()
    asked_ref, counts_ref = ctypes.byref(asked), ctypes.byref(counts)
    if call(_CACHESTAT, -1, asked_ref, counts_ref, 0) != -1 or ctypes.get_errno() != errno.EBADF:
        return None
    page = mmap.PAGESIZE

    def resident(fd: int, position: int, length: int) -> bool:
        asked.offset = position
        asked.length = length
        if call(_CACHESTAT, fd, asked_ref, counts_ref, 0) != 0:
            return _probed(fd, position, length)  # a file system without a page cache of its own
        pages = (position + length - 1) // page - position // page + 1
        return counts.cached >= pages and _probe(fd, position + length - 1)

    return resident


def _probe(fd: int, position: int) -> bool:
    try:
        # 0 bytes: the file ends before the range does, which whoever reads it will report.
        return os.preadv(fd, [bytearray(1)], position, _RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except OSError as error:
        # A sick disk shows itself to the reader thread, which closes the connection that asked.
        return error.errno in _UNSUPPORTED


def _probed(fd: int, position: int, length: int) -> bool:
    if not all(_probe(fd, at) for at in range(position, position + length, PROBE_BYTES)):
        return False
    return _probe(fd, position + length - 1)


def _unknown(fd: int, position: int, length: int) -> bool:
    return True


def residency() -> tuple[Resident, str]:
    """The best way that this system has, and its name."""
    counted = _cachestat() if _RWF_NOWAIT else None
    if counted is not None:
        return counted, "cachestat"
    if _RWF_NOWAIT:
        return _probed, "preadv"
    return _unknown, "none"


if hasattr(os, "pread"):
    _read_at = os.pread
else:
    _seek_lock = threading.Lock()

    def _read_at(fd: int, length: int, position: int, /) -> bytes:
        with _seek_lock:
            os.lseek(fd, position, os.SEEK_SET)
            return os.read(fd, length)


def read_resident(file: OpenFile, position: int, length: int) -> bytes | bytearray | None:
    """A small range if it can be had without waiting for the disk: one call asks and reads."""
    if not _RWF_NOWAIT:
        return read_range(file, position, length)
    data = bytearray(length)
    try:
        count = os.preadv(file.fileno(), [data], position, _RWF_NOWAIT)
    except OSError as error:
        return read_range(file, position, length) if error.errno in _UNSUPPORTED else None
    return data if count == length else None


def read_range(file: OpenFile, position: int, length: int) -> bytes:
    """The bytes of the range; fewer where the file ends early. Waits for the disk."""
    fd = file.fileno()
    data = _read_at(fd, length, position)
    while len(data) < length:
        more = _read_at(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data
