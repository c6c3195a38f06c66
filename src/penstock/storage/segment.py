"""A segment: one `.log` file of whole batches with its two indexes, named by the offset it begins at.

A segment knows where things lie in its file. It does not know what is committed, when to roll or what to delete: the log
does. Reading a header is the only look it takes at the bytes; everything that might wait for the disk raises Cold.

Only appends and recovery move `size`, where the next append goes. A read changes nothing but the indexes, and those only
as a whole: they are rebuilt aside and replace the old ones when the walk over the segment is complete.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock.model.chunks import FileRange
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, NO_TIMESTAMP, Batch
from penstock.storage.files import Cold, Disk, DiskFailed, FileCache, LogFile, ReadFailed
from penstock.storage.sparse_index import IndexDamaged, OffsetIndex, TimeIndex

RELATIVE_OFFSET_MAX = 2**31 - 1
WALK_BYTES = 8 * 1024
"""One read of a walk over headers: an index interval of small batches."""
REBUILD_HEADERS = 1_000
"""Headers that a rebuild of the indexes walks over before the event loop serves others: about two milliseconds."""
SEARCH_HEADERS_MAX = 1_000
"""Headers that a search on the event loop walks over in one go: more than any index interval has
(limits.INDEX_INTERVAL_BYTES_MAX)."""

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
    """The index points where no batch begins, or at another one, or too far before the batch."""


class Rebuilding(Cold):
    """The indexes are being rebuilt, and the loop has others to serve: ask again, which continues the rebuild."""


class Unfinished(Exception):
    """A search has passed many batches, and the loop has others to serve: search again from `offset` on."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"the search continues at offset {offset}")


class _ReplacedFiles(FileCache):
    """The files of segments that log cleaning replaced."""

    def open(self, path: Path) -> LogFile:
        raise DiskFailed(errno.ESTALE, f"{path}: the segment was replaced by log cleaning")


_REPLACED = _ReplacedFiles(Disk(), 0)


class Segment:
    __slots__ = (
        "_aside",
        "_bytes_since_index",
        "_disk",
        "_files",
        "_shortcut",
        "_timestamps_known",
        "base_offset",
        "created_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offsets",
        "path",
        "size",
        "tag",
        "times",
    )

    def __init__(
        self, disk: Disk, files: FileCache, directory: Path, base_offset: int, size: int = 0, tag: str = ""
    ) -> None:
        self._disk = disk
        self._files = files
        self._shortcut: Callable[[], LogFile | None] = _nothing
        self.base_offset = base_offset
        self.tag = tag
        """Follows the usual name of each file, while log cleaning has the segment under another one."""
        self.path = directory / file_name(base_offset, ".log" + tag)
        self.offsets = OffsetIndex(disk, directory / file_name(base_offset, ".index" + tag))
        self.times = TimeIndex(disk, directory / file_name(base_offset, ".timeindex" + tag))
        self.size = size
        self.created_ms = -1
        """Wall clock of the first append: what segment.ms counts from; -1 while empty or not known."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._timestamps_known = size == 0
        """Whether `max_timestamp` is that of all batches. A segment that was found on disk has not been looked at."""
        self._bytes_since_index = 0
        self._aside: Segment | None = None
        """Indexes and timestamps under construction, up to its `size`."""

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
        transactions = self.path.with_name(file_name(self.base_offset, ".txnindex" + self.tag))
        return [self.path, self.offsets.path, self.times.path, transactions]

    def use_tag(self, tag: str) -> None:
        """Find the files by other names from now on. Open files and loaded indexes stay valid."""
        self._files.forget(self.paths())
        self.tag = tag
        self.path = self.path.with_name(file_name(self.base_offset, ".log" + tag))
        self.offsets.path = self.path.with_name(file_name(self.base_offset, ".index" + tag))
        self.times.path = self.path.with_name(file_name(self.base_offset, ".timeindex" + tag))

    def retire(self) -> None:
        """Never open the file by name again: the name may belong to another segment. A file that is open stays readable."""
        self._files = _REPLACED

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

    def set_timestamps(self, max_timestamp: int, max_timestamp_offset: int) -> None:
        """The largest timestamp of the batches so far, as recovery knows it."""
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self._timestamps_known = True

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
        relative_end = self._relative_end(offset_end)
        parts = [(index.path, index.waiting(relative_end)) for index in (self.offsets, self.times)]
        return [part for part in parts if part[1]]

    def store_indexes(self, offset_end: int, *, closing: bool = False) -> bool:
        """Append what `index_tail` returns to the files; whether there was anything. Entries that cannot be written wait
        for the next call."""
        tail = self.index_tail(offset_end, closing=closing)
        for path, entries in tail:
            self._disk.append_to(path, entries)
            (self.offsets if path == self.offsets.path else self.times).stored(self._relative_end(offset_end))
        return bool(tail)

    def _relative_end(self, offset_end: int) -> int:
        return max(0, min(offset_end - self.base_offset, RELATIVE_OFFSET_MAX + 1))

    # ------------------------------------------------------------------------------------------------ reading

    def range(self, position: int, length: int) -> FileRange:
        return FileRange(self.file, position, length)

    def locate(self, offset: int, end: int, *, wait: bool = False) -> Place | None:
        """The first batch whose last offset is at or past `offset`, below file position `end`; None past the end.

        None means that the walk saw every batch up to `end`: a part of the file that cannot be read is an error.
        """
        if end == 0:
            return None
        try:
            relative_offset, position = self.offsets.floor(offset - self.base_offset)
            if position < end:
                indexed = relative_offset if position else None
                headers_max = sys.maxsize if wait else SEARCH_HEADERS_MAX
                return self._located(offset, position, end, indexed, headers_max, wait=wait)
        except (IndexDamaged, _Astray):
            pass
        try:
            self.rebuild_indexes(end, wait=wait)
            index = self.offsets
        except ReadFailed:
            if self._aside is None:
                raise
            index = self._aside.offsets  # what lies before the damage can be read
        position = index.floor(offset - self.base_offset)[1]
        return self._located(offset, position, end, None, sys.maxsize, wait=wait)

    def _located(
        self, offset: int, position: int, end: int, indexed: int | None, headers_max: int, *, wait: bool
    ) -> Place | None:
        """Walk from `position` to `offset`; the first batch must end at the relative offset `indexed`, or the index
        lies. If the walk is longer than `headers_max`, the index lacks entries."""
        places = self.walk_slowly(position, end) if wait else self.walk(position, end)
        try:
            for number, place in enumerate(places, 1):
                if indexed is not None:
                    if place.last_offset != self.base_offset + indexed:
                        raise _Astray
                    indexed = None
                if number > headers_max:
                    raise _Astray  # a rebuild pauses, and later walks are short
                position = place.position + place.size
                if place.last_offset >= offset:
                    if position > end:
                        raise DiskFailed(0, f"{self.path}: the batch at {place.position} is cut off at {end}")
                    return place
        except ReadFailed:
            raise  # says nothing about the index
        except DiskFailed:
            if indexed is not None:
                raise _Astray from None
            raise
        if indexed is not None:
            raise _Astray
        if position != end:
            raise DiskFailed(0, f"{self.path}: no batch ends at {end}, the last one ends at {position}")
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
                try:
                    window = memoryview(read(file, position, min(window_bytes, end - position)))
                except ReadFailed:  # perhaps only what follows the header
                    window = memoryview(read(file, position, HEADER_BYTES))
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

    def reader(self) -> Callable[[int, int], bytes]:
        """Reads (position, length) of the file that is open now, on any thread: it touches nothing of the segment, and
        keeps the file when another takes its name. Waits for the disk; a short read is DiskFailed."""
        return partial(self._disk.read_exactly, self.file)

    def read_span_now(self, position: int, length: int) -> memoryview:
        """As `read_span`, but raises Cold instead of waiting."""
        return self._disk.read_now(self.file, position, length)

    def largest_timestamp(self, *, wait: bool = True) -> int:
        """Of all its records; -1 if none has one. Closed segments know it from their time index. Raises Cold unless it may
        wait."""
        if not self._timestamps_known:
            try:
                last = self.latest_indexed(self.size, wait=wait)
            except IndexDamaged:
                last = None
            if last is None:
                self.rebuild_indexes(self.size, wait=wait)
            else:
                self.note_timestamp(last)
            self._timestamps_known = True
        return self.max_timestamp

    def latest_indexed(self, end: int, *, wait: bool = True) -> Place | None:
        """The batch that the last entry of the time index names; raises IndexDamaged when the log does not agree."""
        last = self.times.last()
        if last is None:
            return None
        place = self.locate(self.base_offset + last[1], end, wait=wait)
        if place is None or place.max_timestamp != last[0]:
            raise IndexDamaged(f"{self.times.path}: no batch with timestamp {last[0]} has offset {last[1]}")
        return place

    def first_batch_at_or_after(self, timestamp_ms: int, end: int, offset: int = 0) -> Place | None:
        """The first batch with a record at or after the timestamp, in offset order, from the one with `offset` on. Raises
        Cold, and Unfinished after many batches: any number of them may have the same timestamp."""
        start = self._indexed_before(timestamp_ms, end)
        if start is None or start.last_offset < offset:
            start = self.locate(max(offset, self.base_offset), end)
        if start is None:
            return None
        for passed, place in enumerate(self.walk(start.position, end), 1):
            if place.max_timestamp >= timestamp_ms:
                return place
            if passed == SEARCH_HEADERS_MAX:
                raise Unfinished(place.last_offset + 1)
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
        self.rebuild_indexes(end, wait=False)
        return None

    def rebuild_indexes(self, end: int, index_interval_bytes: int = 4096, *, wait: bool = True) -> None:
        """Build both indexes again from the batches below `end`, in the files too.

        Nothing changes before the walk has reached `end`. A walk that failed, or that must not wait and raised Cold,
        continues from where it was when it is called again.
        """
        aside = self._aside
        if aside is None or aside.size > end:
            aside = self._aside = Segment(self._disk, self._files, self.path.parent, self.base_offset)
            aside.offsets.ignore_file()
        walk = self.walk_slowly if wait else self.walk
        headers_left = REBUILD_HEADERS
        for place in walk(aside.size, end):
            if place.position + place.size > end:
                raise DiskFailed(0, f"{self.path}: the batch at {place.position} is cut off at {end}")
            aside.note_recovered(place, index_interval_bytes)
            headers_left -= 1
            if headers_left == 0 and not wait:
                raise Rebuilding(self.file, aside.size, WALK_BYTES)
        if aside.size != end:
            raise DiskFailed(0, f"{self.path}: no batch ends at {end}, the last one ends at {aside.size}")
        self._aside = None
        aside.offsets.path, aside.times.path = self.offsets.path, self.times.path
        # What is in memory serves; a damaged file that could not even be removed is found out again by the next start.
        with contextlib.suppress(OSError):
            aside.store_rebuilt()
        self.offsets, self.times = aside.offsets, aside.times
        self.set_timestamps(aside.max_timestamp, aside.max_timestamp_offset)
        self._bytes_since_index = aside._bytes_since_index

    def store_rebuilt(self) -> None:
        """Replace both index files by what a rebuild found."""
        if self.max_timestamp != NO_TIMESTAMP:
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        try:
            self.offsets.replace_file()
        finally:
            self.times.replace_file()
