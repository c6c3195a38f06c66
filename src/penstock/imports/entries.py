"""Walks and opens an untrusted directory without leaving it or blocking.

Symbolic links below the directory are never followed. Only regular files are opened: opening a named pipe would wait for a
writer, and a device is not broker data. All of these are reported, as are folders that cannot be read. The names of one
folder are in memory at a time, and the number of entries is bounded.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.imports.source import OFFSET_END, Skips, SourceError, shown
from penstock.model.limits import IMPORT_ENTRIES_MAX

_NOT_DATA = frozenset({"lost+found"})
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class Folder(NamedTuple):
    path: Path
    name: str
    """Path relative to the root, with slashes; "" for the root itself."""
    files: dict[str, int]
    """Sizes of the regular files, in the order of names."""
    folders: list[str]
    """Subfolders. The walk continues in those that stay in the list."""

    @property
    def parts(self) -> list[str]:
        return self.name.split("/")

    def skip_rest(self, skips: Skips, why: str, is_known: Callable[[str], bool]) -> None:
        """Report the files that are left, except those known to hold no data. An empty file is not a loss."""
        for name, size in self.files.items():
            if not is_known(name):
                skips.add(f"{self.name}/{name}" if self.name else name, why, is_loss=size > 0)

    def skip_whole(self, skips: Skips, why: str) -> None:
        """Report the folder and do not enter it."""
        skips.add(self.name, why, is_loss=bool(self.files or self.folders))
        self.folders.clear()

    def take_segments(self, suffix: str, digits: int | None = None) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Remove the files named by their first offset from `files`. Returns their paths in order of offsets, and sizes."""
        found = []
        for name, size in list(self.files.items()):
            stem = name.removesuffix(suffix)
            if stem == name or not stem.isascii() or not stem.isdecimal() or digits not in (None, len(stem)):
                continue
            if int(stem) < OFFSET_END:
                found.append((int(stem), name, size))
                del self.files[name]
        found.sort()
        return tuple(str(self.path / name) for _, name, _ in found), tuple(size for *_, size in found)


def walk(root: Path, skips: Skips) -> Iterator[Folder]:
    """The folders of a directory, parents first. Raises OSError if the directory itself cannot be read."""
    seen = 0
    waiting = [""]
    while waiting:
        name = waiting.pop()
        folder = Folder(root / name, name, {}, [])
        try:
            with os.scandir(folder.path) as entries:
                for entry in entries:
                    seen += 1
                    if seen > IMPORT_ENTRIES_MAX:
                        raise SourceError(f"{shown(str(root))} has more than {IMPORT_ENTRIES_MAX:,} files and folders")
                    _note(entry, folder, skips)
        except OSError as error:
            if not name:
                raise
            if not isinstance(error, FileNotFoundError):  # a running broker may just have removed it
                skips.add(name, f"cannot be read: {error.strerror or error}")
            continue
        ordered = sorted(folder.files.items())
        folder.files.clear()
        folder.files.update(ordered)
        folder.folders.sort()
        yield folder
        waiting += [f"{name}/{inner}" if name else inner for inner in reversed(folder.folders)]


def _note(entry: os.DirEntry[str], folder: Folder, skips: Skips) -> None:
    if not folder.name and entry.name in _NOT_DATA:
        return
    name = f"{folder.name}/{entry.name}" if folder.name else entry.name
    with contextlib.suppress(FileNotFoundError):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            folder.files[entry.name] = status.st_size
        elif stat.S_ISDIR(status.st_mode):
            folder.folders.append(entry.name)
        elif stat.S_ISLNK(status.st_mode):
            skips.add(name, f"a symbolic link to {os.readlink(entry.path)}: links are not followed")
        else:
            kind = next((text for is_kind, text in _KINDS if is_kind(status.st_mode)), "neither a file nor a folder")
            skips.add(name, f"{kind}: only files are read")


def open_regular(path: str | Path) -> int:
    """Open a regular file. Raises OSError for anything else, without blocking."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_small(path: Path, bytes_max: int) -> bytes:
    """The content of a regular file. Raises OSError if it has more than `bytes_max` bytes."""
    with open(open_regular(path), "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(f"{path} has more than {bytes_max} bytes")
    return data
