"""A disk in memory that can lose power.

What a program wrote and did not sync is lost by chance: any subset of the unsynced 512-byte sectors survives a cut, a lost
sector of a file that grew reads as zeros or as something else, the size is any that the file had since its last sync, and
any subset of the unsynced changes of directories (new, renamed and removed entries) survives too. That is more than any real
file system does to its users, and all that POSIX promises them.

A cut may be set to come in the middle of something: after so many more changes `PowerCut` is raised, and the change that
was under way is one of the unsynced ones.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

from penstock.storage.files import Buffer, Cold, Disk, LogFile

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """Not an Exception: no code may take it for an error that can be handled."""


class FileNode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.stable = bytes(data)
        self.unsynced: list[tuple[int, bytes | None]] = []
        """Position and bytes of each write; None for a truncate to that size."""

    def write(self, position: int, data: bytes) -> None:
        self.unsynced.append((position, data))
        _put(self.data, position, data)

    def truncate(self, size: int) -> None:
        self.unsynced.append((size, None))
        _resize(self.data, size)

    def sync(self) -> None:
        self.stable = bytes(self.data)
        self.unsynced.clear()

    def after_cut(self, random: Random) -> FileNode:
        chance = random.choice((0.0, 0.3, 0.9, 1.0))
        data = bytearray(self.stable)
        sizes = [len(data)]
        size = len(data)
        for position, written in self.unsynced:
            if written is None:
                size = position
                if random.random() < chance:
                    _resize(data, position)
            else:
                size = max(size, position + len(written))
                begin = position
                while begin < position + len(written):
                    end = min((begin // SECTOR_BYTES + 1) * SECTOR_BYTES, position + len(written))
                    if random.random() < chance:
                        _put(data, begin, written[begin - position : end - position])
                    elif begin >= len(data) and random.random() < 0.2:
                        _put(data, begin, random.randbytes(end - begin))
                    begin = end
            sizes.append(size)
        _resize(data, sizes[-1] if random.random() < chance else random.choice(sizes))
        return FileNode(bytes(data))


class FolderNode:
    def __init__(self) -> None:
        self.entries: dict[str, FileNode | FolderNode] = {}
        self.stable: dict[str, FileNode | FolderNode] = {}


Change = list[tuple[FolderNode, str, FileNode | FolderNode | None]]
"""Entries that are set or removed together: a rename is one change."""


class MemoryFile(LogFile):
    __slots__ = ("node",)

    def __init__(self, node: FileNode, path: Path) -> None:
        super().__init__(-1, path)
        self.node = node


class SimulatedDisk(Disk):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._top = FolderNode()
        self._changes: list[Change] = []
        self.changes_left: int | None = None
        """How many more changes succeed before the power goes."""
        self.cold = False
        """Whether nothing is in memory: `read_now` raises Cold until the bytes were read the slow way."""
        self._warm: set[tuple[FileNode, int]] = set()
        self.slow_reads = 0

    # ------------------------------------------------------------------------------------------------ the power

    def after_cut(self, random: Random) -> SimulatedDisk:
        """The disk as it is found when the power is back."""
        chance = random.choice((0.0, 0.3, 0.9, 1.0))
        for change in self._changes:
            if random.random() < chance:
                _apply(change)
        disk = SimulatedDisk(self.root)
        disk._top = _folder_after_cut(self._top, random, {})
        return disk

    def copy(self) -> SimulatedDisk:
        """A disk with the same files, all synced."""
        disk = SimulatedDisk(self.root)
        disk._top = _folder_copy(self._top)
        return disk

    def files(self) -> dict[Path, bytes]:
        """Every file and what is in it."""
        return dict(_walk(self._top, self.root))

    def put(self, path: Path, data: bytes) -> None:
        """Make a file have this content, as if it always had."""
        folder, name = self._parent(path)
        folder.entries[name] = folder.stable[name] = FileNode(data)

    # ------------------------------------------------------------------------------------------------ the disk

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        if create and not self.exists(path):
            folder, name = self._parent(path)
            self._change([(folder, name, FileNode())])
        return MemoryFile(self._file(path), path)

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Buffer], total: int) -> None:
        data = b"".join(buffers)
        assert len(data) == total
        _node(file).write(position, data)
        self._count()

    def truncate(self, file: LogFile, size: int) -> None:
        _node(file).truncate(size)
        self._count()

    def sync(self, file: LogFile) -> None:
        self._count()
        _node(file).sync()

    def open_to_read(self, path: Path) -> LogFile:
        return self.open(path)

    def open_size(self, file: LogFile) -> int:
        return len(_node(file).data)

    def is_deleted(self, file: LogFile) -> bool:
        return False  # nobody but the program itself uses this disk

    def sync_directory(self, path: Path) -> None:
        self._count()
        folder = self._folder(path)
        done = [change for change in self._changes if any(where is folder for where, _, _ in change)]
        self._changes = [change for change in self._changes if change not in done]
        for change in done:
            _apply(change)

    def read_at(self, file: LogFile, position: int, length: int) -> bytes:
        self.slow_reads += 1
        node = _node(file)
        if self.cold:
            self._warm.update((node, page) for page in range(position >> 12, (position + length >> 12) + 1))
        return bytes(node.data[position : position + length])

    def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
        node = _node(file)
        end = min(position + length, len(node.data))
        if self.cold and any(
            (node, page) not in self._warm for page in range(position >> 12, (max(end, 1) - 1 >> 12) + 1)
        ):
            raise Cold(file, position, length)
        return memoryview(bytes(node.data[position:end]))

    def size(self, path: Path) -> int:
        return len(self._file(path).data)

    def exists(self, path: Path) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        return self.exists(path) and isinstance(self._find(path), FolderNode)

    def names(self, path: Path) -> list[str]:
        return sorted(self._folder(path).entries)

    def sizes(self, path: Path) -> dict[str, int]:
        return {
            name: len(node.data) if isinstance(node, FileNode) else 0
            for name, node in self._folder(path).entries.items()
        }

    def modified_ms(self, path: Path) -> int:
        return 0

    def make_directory(self, path: Path) -> None:
        at = self._top
        for name in path.relative_to(self.root).parts:
            if name not in at.entries:
                self._change([(at, name, FolderNode())])
            found = at.entries[name]
            assert isinstance(found, FolderNode)
            at = found

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self._change([(*self._parent(path), None)])

    def remove_directory(self, path: Path) -> None:
        for name in self.names(path):
            self.remove(path / name)
        self.remove(path)

    def rename(self, old: Path, new: Path) -> None:
        node = self._find(old)
        self._change([(*self._parent(old), None), (*self._parent(new), node)])

    def link(self, path: Path, name: Path) -> None:
        if self.exists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(name))
        self._change([(*self._parent(name), self._find(path))])

    def append_to(self, path: Path, data: Buffer) -> None:
        file = self.open(path, create=True)
        self.write_at(file, self.size(path), (data,), len(data))

    def read_whole(self, path: Path) -> bytes:
        return bytes(self._file(path).data)

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

    # ------------------------------------------------------------------------------------------------ inside

    def _count(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise PowerCut

    def _change(self, change: Change) -> None:
        for folder, name, node in change:
            _set(folder.entries, name, node)
        self._changes.append(change)
        self._count()

    def _find(self, path: Path) -> FileNode | FolderNode:
        at: FileNode | FolderNode = self._top
        for name in path.relative_to(self.root).parts:
            if not isinstance(at, FolderNode) or name not in at.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            at = at.entries[name]
        return at

    def _file(self, path: Path) -> FileNode:
        node = self._find(path)
        assert isinstance(node, FileNode)
        return node

    def _folder(self, path: Path) -> FolderNode:
        node = self._find(path)
        assert isinstance(node, FolderNode)
        return node

    def _parent(self, path: Path) -> tuple[FolderNode, str]:
        return self._folder(path.parent), path.name


def _node(file: LogFile) -> FileNode:
    assert isinstance(file, MemoryFile)
    return file.node


def _put(data: bytearray, position: int, written: bytes) -> None:
    if len(data) < position:
        _resize(data, position)
    data[position : position + len(written)] = written


def _resize(data: bytearray, size: int) -> None:
    if len(data) > size:
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _set(entries: dict[str, FileNode | FolderNode], name: str, node: FileNode | FolderNode | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _apply(change: Change) -> None:
    for folder, name, node in change:
        _set(folder.stable, name, node)


def _folder_after_cut(folder: FolderNode, random: Random, found: dict[int, FileNode]) -> FolderNode:
    """`found` keeps a file that is found under two names one file."""
    after = FolderNode()
    for name, node in folder.stable.items():
        kept: FileNode | FolderNode
        if isinstance(node, FolderNode):
            kept = _folder_after_cut(node, random, found)
        else:
            kept = found.setdefault(id(node), node.after_cut(random))
        after.entries[name] = after.stable[name] = kept
    return after


def _folder_copy(folder: FolderNode) -> FolderNode:
    copy = FolderNode()
    for name, node in folder.entries.items():
        copied = _folder_copy(node) if isinstance(node, FolderNode) else FileNode(bytes(node.data))
        copy.entries[name] = copy.stable[name] = copied
    return copy


def _walk(folder: FolderNode, path: Path) -> list[tuple[Path, bytes]]:
    found = []
    for name, node in folder.entries.items():
        if isinstance(node, FolderNode):
            found.extend(_walk(node, path / name))
        else:
            found.append((path / name, bytes(node.data)))
    return found
