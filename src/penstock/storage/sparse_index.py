"""The two sparse indexes of a segment, in Kafka's file formats.

`.index`: i32 relative offset, i32 position; an entry names the last offset of a batch and where that batch begins.
`.timeindex`: i64 timestamp, i32 relative offset; the largest timestamp so far and the offset that carries it.

They are caches of the log: entries wait in memory (`tail`) and are appended to the file when a recovery point is written
or the segment is closed; the file is loaded only when somebody looks something up; what does not fit the segment, or cannot
be read, raises IndexDamaged and is rebuilt from the log. Offsets here are relative to the segment's base offset.
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from bisect import bisect_right
from pathlib import Path

from penstock.storage.files import Disk, is_temporary

_TIME_ENTRY = struct.Struct(">qi")
_SWAP = sys.byteorder == "little"


class IndexDamaged(ValueError):
    """The file does not fit the segment it belongs to, or cannot be read."""


def _read_file(disk: Disk, path: Path, entry_bytes: int) -> bytes:
    try:
        data = disk.read_whole(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if is_temporary(error):
            raise
        raise IndexDamaged(f"{path}: {error}") from error
    if len(data) % entry_bytes:
        raise IndexDamaged(f"{path}: {len(data)} bytes are not whole entries")
    return data


def _replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """Replace the file, or remove it where there is no room: without an index the log is walked, and a wrong one would have
    to be found out first."""
    try:
        disk.replace_whole(path, data, durable=False)
    except OSError:
        disk.remove(path)


class OffsetIndex:
    """Relative offset to position. `array`s, so a million entries are eight megabytes."""

    __slots__ = ("_disk", "_loaded", "_tail_offsets", "_tail_positions", "path")

    ENTRY_BYTES = 8

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._loaded: tuple[array[int], array[int]] | None = None
        self._tail_offsets: array[int] = array("I")
        self._tail_positions: array[int] = array("I")

    def add(self, relative_last_offset: int, position: int) -> None:
        self._tail_offsets.append(relative_last_offset)
        self._tail_positions.append(position)

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """The last entry at or below `relative_offset`, else (0, 0): the start of the segment."""
        tail = self._tail_offsets
        if tail and relative_offset >= tail[0]:
            at = bisect_right(tail, relative_offset) - 1
            return tail[at], self._tail_positions[at]
        offsets, positions = self._load()
        at = bisect_right(offsets, relative_offset) - 1
        return (offsets[at], positions[at]) if at >= 0 else (0, 0)

    def above(self, relative_offset: int, count: int) -> list[tuple[int, int]]:
        """Up to `count` entries above `relative_offset`, in order."""
        offsets, positions = self._load()
        at = bisect_right(offsets, relative_offset)
        found = list(zip(offsets[at : at + count], positions[at : at + count], strict=True))
        at = bisect_right(self._tail_offsets, relative_offset)
        left = at + count - len(found)
        return found + list(zip(self._tail_offsets[at:left], self._tail_positions[at:left], strict=True))

    def last(self) -> tuple[int, int] | None:
        if self._tail_offsets:
            return self._tail_offsets[-1], self._tail_positions[-1]
        offsets, positions = self._load()
        return (offsets[-1], positions[-1]) if offsets else None

    def waiting(self, relative_offset_end: int) -> bytes:
        """The waiting entries below `relative_offset_end` in file form."""
        count = bisect_right(self._tail_offsets, relative_offset_end - 1)
        return _encoded(self._tail_offsets[:count], self._tail_positions[:count])

    def stored(self, relative_offset_end: int) -> None:
        """The waiting entries below `relative_offset_end` are in the file now."""
        count = bisect_right(self._tail_offsets, relative_offset_end - 1)
        if self._loaded is not None:
            self._loaded[0].extend(self._tail_offsets[:count])
            self._loaded[1].extend(self._tail_positions[:count])
        del self._tail_offsets[:count]
        del self._tail_positions[:count]

    def replace_file(self) -> None:
        """Write a file with the waiting entries alone. They are all there is from now on, written or not."""
        self._loaded = self._tail_offsets, self._tail_positions
        self._tail_offsets, self._tail_positions = array("I"), array("I")
        _replace_file(self._disk, self.path, _encoded(*self._loaded))

    def _load(self) -> tuple[array[int], array[int]]:
        if self._loaded is None:
            self._loaded = self._read_file()
        return self._loaded

    def _read_file(self) -> tuple[array[int], array[int]]:
        pairs = array("I", _read_file(self._disk, self.path, self.ENTRY_BYTES))
        if _SWAP:
            pairs.byteswap()
        offsets, positions = pairs[0::2], pairs[1::2]
        for values in (offsets, positions):
            if any(map(int.__ge__, values, values[1:])):
                raise IndexDamaged(f"{self.path}: entries do not rise")
        return offsets, positions

    def forget(self) -> None:
        """Drop what was loaded; the next look-up reads the file again."""
        self._loaded = None

    def ignore_file(self) -> None:
        """Begin without entries, whatever the file has."""
        self._loaded = array("I"), array("I")

    def check(self, segment_bytes: int) -> None:
        """Raise IndexDamaged when the file has entries that cannot belong to a segment of that size."""
        last = self.last()
        if last is not None and last[1] >= segment_bytes:
            raise IndexDamaged(f"{self.path}: last entry points at {last[1]}, the segment has {segment_bytes} bytes")

    def cut(self, relative_offset_end: int) -> None:
        """Forget every entry at or past `relative_offset_end`, in the file too."""
        offsets, positions = self._load()
        keep = bisect_right(offsets, relative_offset_end - 1)
        if keep < len(offsets):
            _replace_file(self._disk, self.path, _encoded(offsets[:keep], positions[:keep]))
            del offsets[keep:]
            del positions[keep:]
        del self._tail_offsets[:]
        del self._tail_positions[:]

    def clear(self) -> None:
        """Forget every entry, in the file too."""
        _replace_file(self._disk, self.path, b"")
        self._loaded = array("I"), array("I")
        del self._tail_offsets[:]
        del self._tail_positions[:]


def _encoded(offsets: array[int], positions: array[int]) -> bytes:
    pairs = array("I", bytes(8 * len(offsets)))
    pairs[0::2] = offsets
    pairs[1::2] = positions
    if _SWAP:
        pairs.byteswap()
    return pairs.tobytes()


class TimeIndex:
    """Timestamp to relative offset: every record later than an entry's timestamp comes after its offset."""

    __slots__ = ("_disk", "_latest_ms", "_loaded", "_tail", "path")

    ENTRY_BYTES = 12

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._loaded: list[tuple[int, int]] | None = None
        self._tail: list[tuple[int, int]] = []
        self._latest_ms = -1
        """The largest timestamp that was added here."""

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Only rising timestamps are kept; Kafka does the same."""
        if timestamp_ms > self._latest_ms:
            self._latest_ms = timestamp_ms
            self._tail.append((timestamp_ms, relative_offset))

    def floor(self, timestamp_ms: int) -> tuple[int, int]:
        """The last entry with a timestamp at or below, else (-1, 0)."""
        for entries in (self._tail, self._load()):
            at = bisect_right(entries, timestamp_ms, key=lambda entry: entry[0]) - 1
            if at >= 0:
                return entries[at]
        return -1, 0

    def last(self) -> tuple[int, int] | None:
        if self._tail:
            return self._tail[-1]
        loaded = self._load()
        return loaded[-1] if loaded else None

    def waiting(self, relative_offset_end: int) -> bytes:
        """The waiting entries below `relative_offset_end` in file form."""
        return _encoded_times(self._tail[: self._count(relative_offset_end)])

    def stored(self, relative_offset_end: int) -> None:
        """The waiting entries below `relative_offset_end` are in the file now."""
        count = self._count(relative_offset_end)
        if self._loaded is not None:
            self._loaded.extend(self._tail[:count])
        del self._tail[:count]

    def _count(self, relative_offset_end: int) -> int:
        count = 0
        for _, relative_offset in self._tail:
            if relative_offset >= relative_offset_end:
                break
            count += 1
        return count

    def replace_file(self) -> None:
        """Write a file with the waiting entries alone. They are all there is from now on, written or not."""
        self._loaded, self._tail = self._tail, []
        _replace_file(self._disk, self.path, _encoded_times(self._loaded))

    def _load(self) -> list[tuple[int, int]]:
        if self._loaded is None:
            entries = list(_TIME_ENTRY.iter_unpack(_read_file(self._disk, self.path, self.ENTRY_BYTES)))
            for before, after in itertools.pairwise(entries):
                # the last entry of a closed segment may repeat: Kafka appends it again when it closes one
                if after[0] < before[0] or after[1] < before[1]:
                    raise IndexDamaged(f"{self.path}: entries do not rise")
            self._loaded = entries
        return self._loaded

    def forget(self) -> None:
        self._loaded = None

    def cut(self, relative_offset_end: int) -> None:
        entries = self._load()
        keep = [entry for entry in entries if entry[1] < relative_offset_end]
        if len(keep) < len(entries):
            _replace_file(self._disk, self.path, _encoded_times(keep))
            self._loaded = keep
        self._tail.clear()
        self._latest_ms = -1

    def clear(self) -> None:
        """Forget every entry, in the file too."""
        _replace_file(self._disk, self.path, b"")
        self._loaded = []
        self._tail.clear()
        self._latest_ms = -1


def _encoded_times(entries: list[tuple[int, int]]) -> bytes:
    return b"".join(_TIME_ENTRY.pack(*entry) for entry in entries)
