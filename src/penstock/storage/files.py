"""All disk access of Penstock goes through here, so that one object can be replaced to make the disk fail on cue.

`Disk` is the port: the few system calls that a log needs. `LogFile` is an open file that closes when nobody holds it, so a
segment can be deleted or fall out of the cache while an answer is still being sent from it. `FileCache` bounds how many
are open at once.

No file is mapped into memory: a bad sector must be an error of one read, not a SIGBUS of the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from crc32c import crc32c

from penstock.model.errors import StartError
from penstock.storage import system
from penstock.storage.system import Buffer

BUFFERS_PER_WRITE_MAX = 1024
"""IOV_MAX of Linux."""

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class DiskFull(OSError):
    """No room, or a quota or file size limit: the log was cut back and goes on when there is room."""


class DiskFailed(OSError):
    """The disk cannot be trusted any more: EIO, a failed truncate, any failed sync. Never retried."""


class Cold(Exception):
    """The bytes are not in memory: read them on a reader thread, then ask again."""

    def __init__(self, file: LogFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length
        super().__init__(f"{file.path}: {length} bytes at {position} are not in the page cache")


class LogFile:
    """An open file. It is closed when the last holder drops it, by reference count."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    def fileno(self) -> int:
        return self.fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.fd)


class Disk:
    """The system calls. Short writes and errors come out as DiskFull or DiskFailed; nothing is retried."""

    def __init__(self) -> None:
        self.nowait = bool(_NOWAIT)

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        flags = os.O_RDWR | system.OPEN_FLAGS | (os.O_CREAT if create else 0)
        return LogFile(os.open(path, flags, 0o640), path)

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        """Write all of `buffers` at `position` or nothing: a short or failed write is cut back."""
        done = 0
        try:
            if len(buffers) == 1:
                done = system.write_at(file.fd, buffers[0], position)
            else:
                for first in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
                    part = buffers[first : first + BUFFERS_PER_WRITE_MAX]
                    wanted = sum(map(len, part))
                    written = system.write_all_at(file.fd, part, position + done)
                    done += written
                    if written < wanted:
                        break
        except OSError as error:
            self._cut_back(file, position, error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise DiskFull(error.errno, f"{file.path}: {error.strerror}") from error
            raise DiskFailed(error.errno, f"{file.path}: {error.strerror}") from error
        if done < total:
            full = DiskFull(errno.ENOSPC, f"{file.path}: only {done} of {total} bytes were written")
            self._cut_back(file, position, full)
            raise full

    def _cut_back(self, file: LogFile, position: int, cause: OSError) -> None:
        try:
            self.truncate(file, position)
        except OSError as error:
            raise DiskFailed(error.errno, f"{file.path}: cannot cut back after {cause}: {error}") from error

    def truncate(self, file: LogFile, size: int) -> None:
        os.ftruncate(file.fd, size)

    def sync(self, file: LogFile) -> None:
        """Make the file's bytes and size survive a power cut. An error is final: the kernel forgets what failed."""
        try:
            system.sync(file.fd)
        except OSError as error:
            raise DiskFailed(error.errno, f"{file.path}: sync failed: {error.strerror}") from error

    def sync_directory(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except PermissionError:  # Windows cannot open a directory; its renames are journaled
            return
        try:
            os.fsync(fd)
        except OSError as error:
            raise DiskFailed(error.errno, f"{path}: sync failed: {error.strerror}") from error
        finally:
            os.close(fd)

    def read_at(self, file: LogFile, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; may wait for the disk."""
        try:
            return system.read_at(file.fd, length, position)
        except OSError as error:
            raise DiskFailed(error.errno, f"{file.path}: read failed: {error.strerror}") from error

    def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
        """As `read_at`, but raises Cold instead of waiting for the disk."""
        if not self.nowait:
            return memoryview(self.read_at(file, position, length))
        buffer = bytearray(length)
        try:
            got = os.preadv(file.fd, (buffer,), position, _NOWAIT)
        except BlockingIOError:
            raise Cold(file, position, length) from None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                self.nowait = False  # a file system that cannot tell (overlay, FUSE)
                return memoryview(self.read_at(file, position, length))
            raise DiskFailed(error.errno, f"{file.path}: read failed: {error.strerror}") from error
        if got < length and os.fstat(file.fd).st_size > position + got:
            raise Cold(file, position, length)
        return memoryview(buffer)[:got]

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def sizes(self, path: Path) -> dict[str, int]:
        """The names in a directory with their sizes."""
        with os.scandir(path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove a partition's folder with the plain files in it."""
        for name in os.listdir(path):
            (path / name).unlink(missing_ok=True)
        path.rmdir()

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def append_to(self, path: Path, data: Buffer) -> None:
        """Append to a file that is only a cache (an index): no cut-back."""
        with open(path, "ab") as file:
            file.write(data)

    def read_whole(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace_whole(self, path: Path, data: Buffer, *, durable: bool = True) -> None:
        """The file has the old content or the new one, whatever happens in between."""
        aside = path.with_name(path.name + ".tmp")
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | system.OPEN_FLAGS, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(aside, path)
        if durable:
            self.sync_directory(path.parent)


class ChecksumMismatch(ValueError):
    """A small file whose bytes are not what was written."""


def write_checked(disk: Disk, path: Path, payload: bytes, *, durable: bool = True) -> None:
    """A small file with the CRC-32C of its payload on the first line: readable by people, checked by us."""
    disk.replace_whole(path, b"crc32c %08x\n%s" % (crc32c(payload), payload), durable=durable)


def read_checked(disk: Disk, path: Path) -> bytes:
    data = disk.read_whole(path)
    line, newline, payload = data.partition(b"\n")
    if not newline or line != b"crc32c %08x" % crc32c(payload):
        raise ChecksumMismatch(f"{path}: the checksum does not fit the content")
    return payload


class FileCache:
    """At most `capacity` open files by path; the least recently used is let go, and closes once nobody holds it."""

    def __init__(self, disk: Disk, capacity: int) -> None:
        self._disk = disk
        self._capacity = capacity
        self._files: OrderedDict[Path, LogFile] = OrderedDict()

    def open(self, path: Path) -> LogFile:
        try:
            self._files.move_to_end(path)
            return self._files[path]
        except KeyError:
            pass
        file = self._disk.open(path)
        self._keep(path, file)
        return file

    def create(self, path: Path) -> LogFile:
        file = self._disk.open(path, create=True)
        self._keep(path, file)
        return file

    def forget(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._files.pop(path, None)

    def _keep(self, path: Path, file: LogFile) -> None:
        self._files[path] = file
        if len(self._files) > self._capacity:
            self._files.popitem(last=False)

    def __len__(self) -> int:
        return len(self._files)


class DirectoryLock:
    """One broker a data directory: an advisory lock that the kernel drops with the process."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | system.OPEN_FLAGS, 0o640)
        try:
            system.lock(self._fd)
        except OSError:
            holder = system.read_at(self._fd, 64, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise StartError(
                f"data directory {path.parent} is in use by another broker" + (f" (process {holder})" if holder else "")
            ) from None
        os.ftruncate(self._fd, 0)
        system.write_at(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
