"""A file as bytes that can be looked at anywhere, of which only a window is in memory.

Readers ask for a range and get exactly that, or less at the end of the file. No file is mapped: a bad sector must be an
error of one read, not the end of the process. A file that cannot be opened or read is damage from there on (`read_frames`).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from penstock.imports.entries import open_regular
from penstock.imports.source import Findings

WINDOW_BYTES = 4 * 1024 * 1024
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
"""What another try would not change. Anything else, such as too many open files, ends the import."""

T = TypeVar("T")


class FileBytes:
    __slots__ = ("_fd", "_window", "_window_start", "asked_for", "modified_ms", "path", "size")

    def __init__(self, path: str | Path, size: int | None = None) -> None:
        """Only the first `size` bytes are read: a running broker may append meanwhile."""
        self.path = path
        self._fd = open_regular(path)
        status = os.fstat(self._fd)
        self.size = status.st_size if size is None else min(size, status.st_size)
        self.modified_ms = status.st_mtime_ns // 1_000_000
        self._window = b""
        self._window_start = 0
        self.asked_for = 0
        """The last position that was not in memory."""

    def at(self, position: int, length: int) -> bytes:
        """`length` bytes from `position`, or as many as there are."""
        start = position - self._window_start
        if start >= 0 and start + length <= len(self._window):
            return self._window[start : start + length]
        length = max(0, min(length, self.size - position))
        wanted = min(max(length, WINDOW_BYTES), max(0, self.size - position))
        self.asked_for = position
        try:
            window = self._read(position, wanted)
        except OSError:
            window = self._read(position, length)  # what was asked for may lie before the bad sector
        self._window = window
        self._window_start = position
        return window[:length]

    def _read(self, position: int, wanted: int) -> bytes:
        parts = []
        while wanted > 0 and (part := os.pread(self._fd, wanted, position)):
            parts.append(part)
            position += len(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def find(self, needle: bytes, position: int, end: int) -> int:
        """Where `needle` next begins at or behind `position` and before `end`; -1 if it does not."""
        overlap = len(needle) - 1
        while position < end:
            window = self.at(position, min(WINDOW_BYTES, end - position + overlap))
            at = window.find(needle)
            if at >= 0:
                return position + at if position + at < end else -1
            if len(window) <= overlap:
                return -1
            position += len(window) - overlap
        return -1

    def matches(self, pattern: re.Pattern[bytes], pattern_bytes: int, position: int, end: int) -> Iterator[int]:
        """Every position from `position` up to, but not including, `end` where `pattern` matches `pattern_bytes` bytes.

        Matches may overlap. The caller may read other parts of the file between two matches.
        """
        end = min(end, self.size - pattern_bytes + 1)
        while position < end:
            length = min(WINDOW_BYTES, end - position + pattern_bytes - 1)
            window = self.at(position, length)
            found = pattern.search(window)
            while found is not None:
                yield position + found.start()
                found = pattern.search(window, found.start() + 1)
            if len(window) < length:  # the file was truncated
                return
            position += length - pattern_bytes + 1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_frames(path: str, size: int, findings: Findings, frames_of: Callable[[FileBytes], Iterator[T]]) -> Iterator[T]:
    """What `frames_of` finds in a file; from where it cannot be read, the rest of the file is reported as lost."""
    file: FileBytes | None = None
    try:
        with FileBytes(path, size) as file:
            yield from frames_of(file)
    except OSError as error:
        note_unreadable(error, path, 0 if file is None else file.asked_for, size, findings)


def note_unreadable(error: OSError, path: str, position: int, size: int, findings: Findings) -> None:
    """Report the rest of a file as lost; raises the error if another try may succeed."""
    if error.errno not in _UNREADABLE:
        raise error
    findings.add(path, position, size - position, f"cannot be read: {os.strerror(error.errno)}")
