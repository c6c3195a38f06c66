"""A segment: one `.log` file of whole batches with its two indexes, named by the offset it begins at.

A segment knows where things lie in its file. It does not know what is committed, when to roll or what to delete: the log
does. Reading a header is the only look it takes at the bytes; everything that might wait for the disk raises Cold.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.model.chunks import FileRange
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, NO_TIMESTAMP, Batch
from penstock.storage.files import Disk, DiskFailed, FileCache, LogFile
from penstock.storage.sparse_index import IndexDamaged, OffsetIndex, TimeIndex

RELATIVE_OFFSET_MAX = 2**31 - 1
WALK_BYTES = 8 * 1024
"""One read of a walk over headers: an index interval of small batches."""

Reader = Callable[[LogFile, int, int], bytes | memoryview]


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


class Place(NamedTuple):
    """Where a batch lies in its segment."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int


def _nothing() -> None:
    return None


class _Astray(Exception):
    """The index points where no batch begins, or at another one."""


class Segment:
    __slots__ = (
        "_bytes_since_index",
        "_disk",
        "_files",
        "_shortcut",
        "base_offset",
        "created_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "path",
        "size",
        "times",
    )

    def __init__(self, disk: Disk, files: FileCache, directory: Path, base_offset: int, size: int = 0) -> None:
        self._disk = disk
        self._files = files
        self._shortcut: Callable[[], LogFile | None] = _nothing
        self.base_offset = base_offset
        self.path = directory / file_name(base_offset, ".log")
        self.offsets = OffsetIndex(disk, directory / file_name(base_offset, ".index"))
        self.times = TimeIndex(disk, directory / file_name(base_offset, ".timeindex"))
        self.size = size
        self.created_ms = -1
        """Wall clock of the first append: what segment.ms counts from; -1 while empty or not known."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._bytes_since_index = 0

    def __repr__(self) -> str:
        return f"Segment({self.path.parent.name}/{self.path.name}, {self.size} bytes)"

    @property
    def file(self) -> LogFile:
        """The open file. Whether it stays open is the cache's business: here is only a shortcut to it."""
        file = self._shortcut()
        if file is None:
            file = self._files.open(self.path)
            self._shortcut = weakref.ref(file)
        return file

    def modified_ms(self) -> int:
        return self._disk.modified_ms(self.path)

    def paths(self) -> list[Path]:
        return [self.path, self.offsets.path, self.times.path, self.path.with_suffix(".txnindex")]

    # ------------------------------------------------------------------------------------------------ writing

    def append(self, batches: Sequence[Batch], total: int, index_interval_bytes: int) -> None:
        """Write the batches in one go; the state changes only when all of it is written."""
        if len(batches) == 1:
            self._disk.write_at(self.file, self.size, (batches[0].view,), total)
        else:
            self._disk.write_at(self.file, self.size, [batch.view for batch in batches], total)
        position = self.size
        since = self._bytes_since_index
        for batch in batches:
            last_offset = batch.base_offset + batch.last_offset_delta
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp = batch.max_timestamp
                self.max_timestamp_offset = last_offset
            if since >= index_interval_bytes:
                self.offsets.add(last_offset - self.base_offset, position)
                self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
                since = 0
            position += batch.size
            since += batch.size
        self._bytes_since_index = since
        self.size = position

    def note_timestamp(self, place: Place) -> None:
        if place.max_timestamp > self.max_timestamp:
            self.max_timestamp = place.max_timestamp
            self.max_timestamp_offset = place.last_offset

    def forget_timestamps(self) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset

    def note_recovered(self, place: Place, index_interval_bytes: int) -> None:
        """Take a batch that recovery found in the file into size, timestamps and indexes."""
        if place.max_timestamp > self.max_timestamp:
            self.max_timestamp = place.max_timestamp
            self.max_timestamp_offset = place.last_offset
        if self._bytes_since_index >= index_interval_bytes:
            self.offsets.add(place.last_offset - self.base_offset, place.position)
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += place.size
        self.size = place.position + place.size

    def index_tail(self, offset_end: int, *, closing: bool = False) -> list[tuple[Path, bytes]]:
        """Index entries below `offset_end` that are not in the files yet, to be appended to them."""
        if closing and self.max_timestamp != NO_TIMESTAMP:
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        relative_end = min(offset_end - self.base_offset, RELATIVE_OFFSET_MAX + 1)
        if relative_end <= 0:
            return []
        parts = [
            (self.offsets.path, self.offsets.take_tail(relative_end)),
            (self.times.path, self.times.take_tail(relative_end)),
        ]
        return [part for part in parts if part[1]]

    # ------------------------------------------------------------------------------------------------ reading

    def range(self, position: int, length: int) -> FileRange:
        return FileRange(self.file, position, length)

    def locate(self, offset: int, end: int, *, wait: bool = False) -> Place | None:
        """The first batch whose last offset is at or past `offset`, below file position `end`; None past the end."""
        walk = self.walk_slowly if wait else self.walk
        try:
            relative_offset, position = self.offsets.floor(offset - self.base_offset)
            if position < end:
                return self._located(offset, end, walk(position, end), relative_offset if position else None)
        except (IndexDamaged, _Astray):
            pass
        self.rebuild_indexes(end)
        position = self.offsets.floor(offset - self.base_offset)[1]
        return self._located(offset, end, walk(position, end), None)

    def _located(self, offset: int, end: int, places: Iterator[Place], indexed: int | None) -> Place | None:
        """Walk to `offset`; the first batch must end at the relative offset `indexed`, or the index lies."""
        try:
            for place in places:
                if indexed is not None:
                    if place.last_offset != self.base_offset + indexed:
                        raise _Astray
                    indexed = None
                if place.last_offset >= offset:
                    if place.position + place.size > end:
                        raise DiskFailed(0, f"{self.path}: the batch at {place.position} is cut off at {end}")
                    return place
        except DiskFailed:
            if indexed is not None:
                raise _Astray from None
            raise
        if indexed is not None:
            raise _Astray
        return None

    def walk(self, position: int, end: int) -> Iterator[Place]:
        """Header by header from `position`, which is the start of a batch, to `end`. Raises Cold and DiskFailed."""
        return self._walk(position, end, self._disk.read_now)

    def walk_slowly(self, position: int, end: int) -> Iterator[Place]:
        """As `walk`, but waits for the disk."""
        return self._walk(position, end, self._disk.read_at)

    def _walk(self, position: int, end: int, read: Reader) -> Iterator[Place]:
        for at, header in self._headers(position, end, read):
            base_offset, length, epoch, _, _, _, delta, _, max_timestamp, *_ = HEADER.unpack_from(header)
            yield Place(at, length + LENGTH_PREFIX_BYTES, base_offset, base_offset + delta, max_timestamp, epoch)

    def headers(self, position: int, end: int) -> Iterator[tuple[int, Batch]]:
        """Each batch's header with its position, waiting for the disk."""
        for at, header in self._headers(position, end, self._disk.read_at):
            yield at, Batch.of_header(header)

    def _headers(self, position: int, end: int, read: Reader) -> Iterator[tuple[int, memoryview]]:
        file = self.file
        window = memoryview(b"")
        window_start = position
        window_bytes = WALK_BYTES
        while position + HEADER_BYTES <= end:
            at = position - window_start
            if at + HEADER_BYTES > len(window):
                window = memoryview(read(file, position, min(window_bytes, end - position)))
                window_start, at = position, 0
                if len(window) < HEADER_BYTES:
                    raise DiskFailed(0, f"{self.path}: the file ends at {position + len(window)}, expected {end}")
            base_offset, length, _, magic, _, _, delta, *_ = HEADER.unpack_from(window, at)
            size = length + LENGTH_PREFIX_BYTES
            if magic != MAGIC or size < HEADER_BYTES or delta < 0 or base_offset < self.base_offset:
                raise DiskFailed(0, f"{self.path}: no batch header at {position}")
            yield position, window[at : at + HEADER_BYTES]
            position += size
            # behind a large batch the next header is all there is to see
            window_bytes = WALK_BYTES if size < WALK_BYTES else HEADER_BYTES

    def read_batch(self, place: Place) -> bytes:
        """The whole batch, waiting for the disk if need be."""
        data = self._disk.read_at(self.file, place.position, place.size)
        if len(data) < place.size:
            raise DiskFailed(0, f"{self.path}: batch at {place.position} is cut off")
        return data

    def read_span(self, position: int, length: int) -> bytes:
        """Bytes of the file as they lie, waiting for the disk: for those who replay a log."""
        return self._disk.read_at(self.file, position, length)

    def read_span_now(self, position: int, length: int) -> memoryview:
        """As `read_span`, but raises Cold instead of waiting."""
        return self._disk.read_now(self.file, position, length)

    def largest_timestamp(self) -> int:
        """Of all its records; -1 if none has one. Closed segments know it from their time index."""
        if self.max_timestamp == NO_TIMESTAMP and self.size:
            try:
                last = self.latest_indexed(self.size)
            except IndexDamaged:
                self.rebuild_indexes(self.size)
                return self.max_timestamp
            if last is not None:
                self.note_timestamp(last)
            else:
                for place in self.walk_slowly(0, self.size):
                    self.note_timestamp(place)
        return self.max_timestamp

    def latest_indexed(self, end: int) -> Place | None:
        """The batch that the last entry of the time index names; raises IndexDamaged when the log does not agree."""
        last = self.times.last()
        if last is None:
            return None
        place = self.locate(self.base_offset + last[1], end, wait=True)
        if place is None or place.max_timestamp != last[0]:
            raise IndexDamaged(f"{self.times.path}: no batch with timestamp {last[0]} has offset {last[1]}")
        return place

    def first_batch_at_or_after(self, timestamp_ms: int, end: int, offset: int = 0) -> Place | None:
        """The first batch with a record at or after the timestamp, in offset order, from the one with `offset` on."""
        start = self._indexed_before(timestamp_ms, end)
        if start is None or start.last_offset < offset:
            start = self.locate(max(offset, self.base_offset), end)
        if start is None:
            return None
        for place in self.walk(start.position, end):
            if place.max_timestamp >= timestamp_ms:
                return place
        return None

    def _indexed_before(self, timestamp_ms: int, end: int) -> Place | None:
        """The batch of the last entry below the timestamp, if the log agrees; else the indexes are made again."""
        try:
            timestamp, relative_offset = self.times.floor(timestamp_ms - 1)
            if timestamp < 0:
                return None
            place = self.locate(self.base_offset + relative_offset, end)
            if place is not None and place.max_timestamp == timestamp:
                return place
        except IndexDamaged:
            pass
        self.rebuild_indexes(end)
        return None

    def rebuild_indexes(self, end: int, index_interval_bytes: int = 4096) -> None:
        """Make both indexes again from the log itself, in the files too."""
        self.offsets.clear()
        self.times.clear()
        self._bytes_since_index = 0
        self.forget_timestamps()
        size = self.size
        for place in self.walk_slowly(0, end):
            self.note_recovered(place, index_interval_bytes)
        self.size = size
        for path, entries in self.index_tail(self.base_offset + RELATIVE_OFFSET_MAX + 1, closing=True):
            self._disk.append_to(path, entries)
