"""All disk access of Penstock goes through here, so that one object can be replaced to make the disk fail on cue.

`Disk` is the port: the few file operations that a log needs, on top of `SystemCalls`, where a test can fail every single
call. `LogFile` is an open file that closes when nobody holds it, so a segment can be deleted or fall out of the cache
while an answer is still being sent from it. `FileCache` bounds how many are open at once.

No file is mapped into memory: a bad sector must be an error of one read, not a SIGBUS of the process.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

from crc32c import crc32c

from penstock.model.errors import StartError
from penstock.storage import system
from penstock.storage.refusals import Refusals
from penstock.storage.room import FULL, Room, no_reserve
from penstock.storage.system import Buffer, SystemCalls

logger = logging.getLogger("penstock.storage")

T = TypeVar("T")

BUFFERS_PER_WRITE_MAX = 1024
"""IOV_MAX of Linux."""

TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""The system was short of descriptors or memory, or was interrupted: the call failed, the disk did not. The request that
needed the call is refused, and the next one may succeed. A failed sync is never one of these."""
_NO_ROOM = FULL | {errno.EFBIG}
_READ_CHUNK_BYTES = 1024 * 1024
UNREADABLE_REMEMBERED_S = 1.0
"""After that the disk is asked again."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class DiskFull(OSError):
    """No room, or a quota or file size limit: the log was cut back and goes on when there is room."""


class DiskFailed(OSError):
    """The disk cannot be trusted any more: EIO, a failed truncate, any failed sync. Never retried."""


class ReadFailed(DiskFailed):
    """One read failed. Only the request that needed the bytes fails: other bytes can be read, and the log can be written."""

    position = 0
    """The first byte that could not be read."""


def public_reason(error: OSError) -> str:
    """The text of an error for clients. Only the broker's log has the text with the path."""
    return os.strerror(error.errno) if error.errno else "see the broker's log"


def is_temporary(error: OSError) -> bool:
    """Whether a retry may succeed, because the disk did not fail."""
    return not isinstance(error, DiskFailed) and (error.errno in TEMPORARY or error.errno in _NO_ROOM)


def is_shortage(error: OSError) -> bool:
    """Whether the system had too few descriptors or too little memory for a call, or interrupted it."""
    return not isinstance(error, DiskFailed) and error.errno in TEMPORARY


def disk_failure(error: OSError) -> DiskFailed:
    """A copy of the error to keep: the traceback of the raised one would keep files open."""
    return DiskFailed(error.errno, error.strerror if isinstance(error, DiskFailed) else str(error))


def untraced(error: OSError) -> OSError:
    """A copy of an error that is not a disk failure."""
    return OSError(error.errno, error.strerror)


class Cold(Exception):
    """The bytes are not in memory: read them on a reader thread, then ask again."""

    def __init__(self, file: LogFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length
        super().__init__(f"{file.path}: {length} bytes at {position} are not in the page cache")


class LogFile:
    """An open file. It is closed when the last holder drops it, by reference count."""

    __slots__ = ("__weakref__", "device", "fd", "path", "unreadable")

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path
        self.device: int | None = None
        """Of the file system that it is on, once somebody asked."""
        self.unreadable: tuple[int, float, int | None, str | None] | None = None
        """Where a reader thread failed last, until when that is remembered, the errno and its text. Not the exception: its
        traceback would keep this file open."""

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.fd)


class Disk:
    """The file operations of a log, made of `SystemCalls`.

    A failed write comes out as DiskFull or DiskFailed, a failed read as ReadFailed. Nothing is retried.
    """

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self.system_calls = calls or SystemCalls()
        self.nowait = system.has_nowait()
        self.refusals = Refusals()
        self.room = Room.AMPLE
        """Worse than ample only if there is a reserve (`Reserve`), which also resets it."""
        self.make_room: Callable[[Room], bool] = no_reserve
        """Free a part of the reserve, unless the state differs from the given one. Returns whether to retry the write."""
        self.may_owe = False
        """Whether a file that does not fit on the disk may be written later; the owner of a reserve takes care of that."""
        self.owed: dict[Path, bytes] = {}
        """Files to be replaced as soon as the disk has space. Until then nothing is appended to any log."""
        self._owed_lock = threading.RLock()

    def with_room(self, write: Callable[..., T], *args: Any) -> T:
        """Perform a small write of the broker itself. On a full disk, free a part of the reserve and retry."""
        while True:
            seen = self.room
            try:
                return write(*args)
            except OSError as error:
                if error.errno not in FULL or not self.make_room(seen):
                    raise

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        flags = os.O_RDWR | system.OPEN_FLAGS
        if create:
            return LogFile(self.with_room(self.system_calls.open, path, flags | os.O_CREAT, 0o640), path)
        return LogFile(self.system_calls.open(path, flags, 0o640), path)

    def open_to_read(self, path: Path) -> LogFile:
        return LogFile(self.system_calls.open(path, os.O_RDONLY | system.OPEN_FLAGS, 0), path)

    def open_size(self, file: LogFile) -> int:
        """The size of an open file, whatever its name is by now."""
        return self.system_calls.stat_open(file.fd).st_size

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        """Write all of `buffers` at `position` or nothing: a short or failed write is cut back."""
        self._write_all(file, position, buffers, total)

    def _write_all(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        done = 0
        try:
            if len(buffers) == 1:
                done = self.system_calls.write(file.fd, buffers[0], position)
            else:
                for first in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
                    part = buffers[first : first + BUFFERS_PER_WRITE_MAX]
                    wanted = sum(map(len, part))
                    written = self.system_calls.write_many(file.fd, part, position + done)
                    done += written
                    if written < wanted:
                        break
        except OSError as error:
            self._cut_back(file, position, error)
            text = f"{file.path}: {error.strerror}"
            if error.errno in _NO_ROOM:
                raise DiskFull(error.errno, text) from error
            if error.errno in TEMPORARY:
                raise OSError(error.errno, text) from error
            raise DiskFailed(error.errno, text) from error
        if done < total:
            code = self._why_short(file, position + done)
            text = f"{file.path}: only {done} of {total} bytes were written: {os.strerror(code)}"
            self._cut_back(file, position, text)
            raise DiskFull(code, text)

    def _why_short(self, file: LogFile, position: int) -> int:
        """The errno of a short write that ended at `position`: the system reports it to the next write there."""
        try:
            self.system_calls.write(file.fd, b"\0", position)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return error.errno
        return errno.ENOSPC

    def _cut_back(self, file: LogFile, position: int, cause: object) -> None:
        try:
            self.truncate(file, position)
        except OSError as error:
            raise DiskFailed(error.errno, f"{file.path}: cannot cut back after {cause}: {error}") from error

    def truncate(self, file: LogFile, size: int) -> None:
        self.system_calls.truncate(file.fd, size)

    def sync(self, file: LogFile) -> None:
        """Make the file's bytes and size survive a power cut. An error is final: the kernel forgets what failed."""
        try:
            self.system_calls.sync(file.fd)
        except OSError as error:
            raise DiskFailed(error.errno, f"{file.path}: sync failed: {error.strerror}") from error

    def is_deleted(self, file: LogFile) -> bool:
        """Whether no name leads to the open file any more, so that what is written to it is lost with its descriptor."""
        return self.system_calls.stat_open(file.fd).st_nlink == 0

    def sync_directory(self, path: Path) -> None:
        if not system.HAS_DIRECTORY_SYNC:
            return
        fd = self.system_calls.open(path, os.O_RDONLY, 0)
        try:
            self.system_calls.sync_full(fd)
        except OSError as error:
            raise DiskFailed(error.errno, f"{path}: sync failed: {error.strerror}") from error
        finally:
            os.close(fd)

    def read_at(self, file: LogFile, position: int, length: int) -> bytes:
        """`length` bytes from `position`, fewer only where the file ends; may wait for the disk."""
        data = b""
        try:
            data = self.system_calls.read(file.fd, length, position)
            while 0 < len(data) < length:
                more = self.system_calls.read(file.fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _read_failed(file, position + len(data), length - len(data), error) from error
        return data

    def read_exactly(self, file: LogFile, position: int, length: int) -> bytes:
        """`length` bytes from `position`; may wait for the disk. A file that ends before is DiskFailed."""
        data = self.read_at(file, position, length)
        if len(data) < length:
            raise DiskFailed(0, f"{file.path}: {len(data)} of {length} bytes at {position}, the file ends there")
        return data

    def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
        """As `read_at`, but raises Cold instead of waiting for the disk."""
        if not self.nowait:
            return memoryview(self.read_at(file, position, length))
        buffer = bytearray(length)
        try:
            got = self.system_calls.read_now(file.fd, buffer, position)
        except BlockingIOError:
            raise self._not_now(file, position, length) from None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                self.nowait = False  # a file system that cannot tell (overlay, FUSE)
                return memoryview(self.read_at(file, position, length))
            raise _read_failed(file, position, length, error) from error
        if got < length and self.open_size(file) > position + got:
            raise self._not_now(file, position, length)
        return memoryview(buffer)[:got]

    @staticmethod
    def _not_now(file: LogFile, position: int, length: int) -> Cold | ReadFailed:
        """Cold, unless a reader thread has tried already: bytes that cannot be read never come into memory."""
        if file.unreadable is not None:
            at, until, code, text = file.unreadable
            if position <= at < position + length and time.monotonic() < until:
                failed = ReadFailed(code, text)
                failed.position = at
                return failed
        return Cold(file, position, length)

    def read_ahead(self, cold: Cold, ahead_bytes: int) -> None:
        """Bring the bytes into memory, and up to `ahead_bytes` in all; on a reader thread. If they cannot be read, the next
        `read_now` says so."""
        for length in (max(cold.length, ahead_bytes), cold.length):
            try:
                self.read_at(cold.file, cold.position, length)
                return
            except ReadFailed as error:
                until = time.monotonic() + UNREADABLE_REMEMBERED_S
                unreadable = error.position, until, error.errno, error.strerror
        cold.file.unreadable = unreadable

    def size(self, path: Path) -> int:
        return self.system_calls.stat(path).st_size

    def exists(self, path: Path) -> bool:
        try:
            self.system_calls.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        try:
            return stat.S_ISDIR(self.system_calls.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self, path: Path) -> list[str]:
        return sorted(self.system_calls.list(path))

    def sizes(self, path: Path) -> dict[str, int]:
        """The names in a directory with their sizes."""
        return self.system_calls.sizes(path)

    def modified_ms(self, path: Path) -> int:
        return self.system_calls.stat(path).st_mtime_ns // 1_000_000

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """Create the directory, and with the default mode those above it, unless it exists."""
        try:
            self.with_room(self.system_calls.make_directory, path, mode)
        except FileNotFoundError:
            self.make_directory(path.parent, 0o777)
            self.with_room(self.system_calls.make_directory, path, mode)
        except FileExistsError:
            if not self.is_directory(path):
                raise

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system_calls.unlink(path)

    def remove_directory(self, path: Path) -> None:
        """Remove a partition's folder with the plain files in it."""
        for name in self.system_calls.list(path):
            self.remove(path / name)
        self.system_calls.remove_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self.with_room(self.system_calls.rename, old, new)

    def link(self, path: Path, name: Path) -> None:
        """Give a file a second name. A file system without hard links (exFAT, some network mounts) gets a copy."""
        try:
            self.with_room(self.system_calls.link, path, name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy(path, name)

    def _copy(self, path: Path, name: Path) -> None:
        aside = name.with_name(name.name + ".tmp")
        source = self.open_to_read(path)
        copy = self.open(aside, create=True)
        self.truncate(copy, 0)
        done = 0
        while data := self.read_at(source, done, _READ_CHUNK_BYTES):
            self.write_at(copy, done, (data,), len(data))
            done += len(data)
        self.sync(copy)
        self.rename(aside, name)

    def append_to(self, path: Path, data: Buffer) -> None:
        """Append all of `data` to a file, created if there is none, or nothing."""
        self.with_room(self._append_to, path, data)

    def _append_to(self, path: Path, data: Buffer) -> None:
        flags = os.O_RDWR | os.O_CREAT | system.OPEN_FLAGS
        file = LogFile(self.system_calls.open(path, flags, 0o640), path)
        self._write_all(file, self.open_size(file), (data,), len(data))

    def read_whole(self, path: Path) -> bytes:
        file = self.open_to_read(path)
        data = self.system_calls.read(file.fd, self.open_size(file), 0)
        while more := self.system_calls.read(file.fd, _READ_CHUNK_BYTES, len(data)):
            data += more
        return data

    def replace_whole(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """The file has the old content or the new one, whatever happens in between."""
        if path not in self.owed:
            self.with_room(self._replace_whole, path, data, durable)
            return
        with self._owed_lock:
            self.with_room(self._replace_whole, path, data, durable)
            self.owed.pop(path, None)

    def replace_or_owe(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """As `replace_whole`, but a full disk is not an error: the file is written once there is space."""
        try:
            self.replace_whole(path, data, durable=durable)
        except OSError as error:
            if error.errno not in FULL or not self.may_owe:
                raise
            self.owe(path, data)

    def owe(self, path: Path, data: Buffer) -> None:
        if not self.owed:
            logger.warning("disk full: %s is kept in memory, and nothing is appended until it is on disk", path)
        with self._owed_lock:
            self.owed[path] = bytes(data)

    def settle(self) -> None:
        """Write the owed files. Raises OSError if the disk is still full. Waits for the disk."""
        with self._owed_lock:
            for path, data in list(self.owed.items()):
                with contextlib.suppress(FileNotFoundError):  # the folder was deleted meanwhile
                    self.replace_whole(path, data)
                self.owed.pop(path, None)

    def _replace_whole(self, path: Path, data: Buffer, durable: bool) -> None:
        aside = path.with_name(path.name + ".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.OPEN_FLAGS
        file = LogFile(self.system_calls.open(aside, flags, 0o640), aside)
        try:
            done = 0
            while done < len(data):
                done += self.system_calls.write(file.fd, data[done:] if done else data, done)
            if durable:
                self.system_calls.sync_full(file.fd)
        except OSError:
            del file
            with contextlib.suppress(OSError):
                self.system_calls.unlink(aside)  # a partial file would use scarce disk space
            raise
        del file
        self.system_calls.rename(aside, path)
        if durable:
            self.sync_directory(path.parent)


def _read_failed(file: LogFile, position: int, length: int, error: OSError) -> ReadFailed:
    failed = ReadFailed(
        error.errno, f"{file.path}: reading {length} bytes at position {position} failed: {error.strerror}"
    )
    failed.position = position
    return failed


class ChecksumMismatch(ValueError):
    """A small file whose bytes are not what was written."""


def checked(payload: bytes) -> bytes:
    """The content of a small file, with the CRC-32C of its payload on the first line."""
    return b"crc32c %08x\n%s" % (crc32c(payload), payload)


def write_checked(disk: Disk, path: Path, payload: bytes, *, durable: bool = True) -> None:
    disk.replace_whole(path, checked(payload), durable=durable)


def read_checked(disk: Disk, path: Path) -> bytes:
    data = disk.read_whole(path)
    line, newline, payload = data.partition(b"\n")
    if not newline or line != b"crc32c %08x" % crc32c(payload):
        raise ChecksumMismatch(f"{path}: the checksum does not fit the content")
    return payload


class FileCache:
    """At most `capacity` open files by path; the least recently used is let go, and closes once nobody holds it.

    Files that wait for a flush cannot be closed before. They count too (`hold`), so that the cache keeps fewer others. When
    half of the capacity waits, the cache is crowded: no further flush begins and no segment is closed until some end.

    It has no lock and belongs to the first thread that uses it. Work on another thread gets a `LogFile`, a position and a
    length, never a segment or a log.
    """

    def __init__(self, disk: Disk, capacity: int) -> None:
        self._disk = disk
        self._capacity = capacity
        self._files: OrderedDict[Path, LogFile] = OrderedDict()
        self._held: set[LogFile] = set()
        self._owner: int | None = None

    def _check_thread(self) -> None:
        thread = get_ident()
        if self._owner != thread:
            assert self._owner is None, "the file cache belongs to another thread: hand over an open file"
            self._owner = thread

    def open(self, path: Path) -> LogFile:
        self._check_thread()
        try:
            self._files.move_to_end(path)
            return self._files[path]
        except KeyError:
            pass
        file = self._disk.open(path)
        self._keep(path, file)
        return file

    def create(self, path: Path) -> LogFile:
        self._check_thread()
        file = self._disk.open(path, create=True)
        self._keep(path, file)
        return file

    def forget(self, paths: Iterable[Path]) -> None:
        self._check_thread()
        for path in paths:
            self._files.pop(path, None)

    def hold(self, file: LogFile) -> LogFile:
        """Count a file that stays open until it is flushed, and keep it open until `release`."""
        self._held.add(file)
        self._shrink()
        return file

    def release(self, files: Iterable[LogFile]) -> None:
        """These wait for no flush any more."""
        self._held.difference_update(files)

    @property
    def is_crowded(self) -> bool:
        return len(self._held) >= max(self._capacity // 2, 1)

    def _keep(self, path: Path, file: LogFile) -> None:
        self._files[path] = file
        self._shrink()

    def _shrink(self) -> None:
        room = max(self._capacity - len(self._held), self._capacity // 2)
        while len(self._files) > room:
            self._files.popitem(last=False)

    def __len__(self) -> int:
        return len(self._files)


class DirectoryLock:
    """One broker a data directory: an advisory lock that the kernel drops with the process."""

    __slots__ = ("_calls", "_fd", "_path")

    def __init__(self, path: Path, calls: SystemCalls | None = None) -> None:
        calls = calls or SystemCalls()
        self._calls = calls
        self._path = path
        self._fd = calls.open(path, os.O_RDWR | os.O_CREAT | system.OPEN_FLAGS, 0o640)
        try:
            system.lock(self._fd)
        except OSError:
            holder = system.read_at(self._fd, 64, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise StartError(
                f"data directory {path.parent} is in use by another broker" + (f" (process {holder})" if holder else "")
            ) from None
        try:
            calls.truncate(self._fd, 0)
            calls.write(self._fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            if error.errno not in FULL:  # the lock is valid without the process id in it
                self.release()
                raise

    def check(self) -> None:
        """Raise FileNotFoundError if the file was deleted: another broker could lock a new one in its place."""
        if self._calls.stat_open(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, f"{self._path} was deleted while the broker was using it")

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
