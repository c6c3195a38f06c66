"""Records one at a time, for dialects that read single records: a bounded cache of unpacked batches.

A batch is fetched, checked and unpacked once. The records of a small one are decoded together and kept. Of a large one they
are decoded when they are read and not kept; besides the bytes, only the start of every 64th record is kept. These marks are
set as readers advance, because a walk over a million records takes a tenth of a second: a reader that skips far ahead has to
`seek` first, in slices. A large batch is unpacked on a thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from penstock.model.limits import DECOMPRESSED_BYTES_MAX
from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.record import Record, records_from, unpacked
from penstock.records.walk import Walk, offset_delta_at, skip_records

BATCH_OVERHEAD_BYTES = 600
"""What a batch costs besides its records."""
DECODED_RECORD_BYTES = 300
DECODED_HEADER_BYTES = 200
"""Memory of a decoded record and a decoded header."""
DECODED_RECORDS_MAX = 64
"""Of a batch with no more, all records are decoded at the first read of one: about what four reads alone would cost."""
DECODED_HEADERS_MAX = 1_000
"""Batches with more headers are not kept decoded."""
MARK_RECORDS = 64
"""Records between two marks."""
_MARKS_AT_ONCE = 16
"""Marks set between two pauses: about a tenth of a millisecond."""
_SEEK_MARKS_MAX = 4 * _MARKS_AT_ONCE
"""Marks that a read sets by itself, without `seek`."""
_offset_of = attrgetter("offset")


class Far(Exception):
    """The offset is far beyond the records read so far: `seek` first."""

    def __init__(self, offset: int, size: int) -> None:
        super().__init__(offset, size)
        self.offset = offset
        self.size = size
        """Bytes of the unpacked batch."""


class DecodedBatch:
    """The records of one batch. Making one and reading from it raise BatchError when the batch is damaged."""

    __slots__ = (
        "_data",
        "_dense",
        "_has_many_headers",
        "_mark_offsets",
        "_marks",
        "_whole",
        "base_offset",
        "charged_bytes",
        "cost_bytes",
        "header",
        "is_control",
        "is_transactional",
        "last_offset",
        "producer_id",
        "was_read",
    )

    def __init__(self, batch: Batch, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> None:
        """`limit_bytes` bounds the unpacked size; raises BatchTooLarge if it is exceeded."""
        if not batch.crc_is_right():
            raise BatchError(f"the batch at offset {batch.base_offset} is not what was written: its checksum differs")
        self.base_offset = batch.base_offset
        self.last_offset = batch.last_offset
        self.is_control = batch.is_control
        self.is_transactional = batch.is_transactional
        self.producer_id = batch.producer_id
        self.was_read = False
        """Since the cache last looked."""
        self._data = unpacked(batch, limit_bytes)
        self.header = Batch.of_header(memoryview(bytes(batch.view[:HEADER_BYTES])))
        self._whole: list[Record] | None = None
        """All records of a small batch."""
        self._has_many_headers = False
        count = batch.count
        self._dense = count == batch.last_offset_delta + 1
        """Whether log cleaning removed no records, so that an offset gives the position of its record."""
        self._marks = array("I", (0,))
        """Start of every 64th record, as far as readers have advanced."""
        self._mark_offsets = array("q")
        """The offsets of the marked records, unless the batch is dense."""
        self.cost_bytes = BATCH_OVERHEAD_BYTES + len(self._data)
        if count <= DECODED_RECORDS_MAX:
            self.cost_bytes += DECODED_RECORD_BYTES * count
        else:
            self.cost_bytes += (4 if self._dense else 12) * (count // MARK_RECORDS + 1)
        self.charged_bytes = 0
        """Bytes that the cache has counted for the batch."""

    @property
    def size(self) -> int:
        """Bytes of the unpacked records."""
        return len(self._data)

    def record_at(self, offset: int, *, with_headers: bool = True) -> Record | None:
        """The record with that offset, or the next one; None behind the last. Raises Far."""
        if self._dense and self._whole is not None:
            return self._whole[max(0, offset - self.base_offset)] if offset <= self.last_offset else None
        return next(self.from_offset(offset, with_headers=with_headers), None)

    def from_offset(self, offset: int, *, with_headers: bool = True) -> Iterator[Record]:
        """The records from that offset on. Without `with_headers` they may lack their headers. Raises Far."""
        whole = self._whole
        if whole is None and self.header.count <= DECODED_RECORDS_MAX and not self._has_many_headers:
            whole = self._decode_whole()
        if whole is not None:
            index = max(0, offset - self.base_offset) if self._dense else bisect_left(whole, offset, key=_offset_of)
            return iter(whole[index:])
        if offset <= self.base_offset:
            return records_from(self.header, self._data, with_headers=with_headers)
        if offset > self.last_offset:
            return iter(())
        for _ in range(_SEEK_MARKS_MAX):
            if self._reaches(offset):
                return self._from_mark(offset, with_headers)
            self._set_mark()
        raise Far(offset, len(self._data))

    def seek(self, offset: int) -> Walk[None]:
        """Set marks up to that offset, so that reading from it is not far. Raises BatchError."""
        set_now = 0
        while not self._reaches(offset):
            self._set_mark()
            set_now += 1
            if set_now % _MARKS_AT_ONCE == 0:
                yield

    def _decode_whole(self) -> list[Record] | None:
        """All records of a small batch; None if they have too many headers to be kept."""
        records: list[Record] = []
        headers = 0
        for record in records_from(self.header, self._data):
            records.append(record)
            headers += len(record.headers)
            if headers > DECODED_HEADERS_MAX:
                self._has_many_headers = True
                return None
        self._whole = records
        self.cost_bytes += DECODED_HEADER_BYTES * headers
        return records

    def _reaches(self, offset: int) -> bool:
        """Whether the last mark before that offset is set."""
        marks = len(self._marks)
        if marks * MARK_RECORDS >= self.header.count:
            return True
        if self._dense:
            return (offset - self.base_offset) // MARK_RECORDS < marks
        return marks > 1 and self._mark_offsets[-1] > offset

    def _set_mark(self) -> None:
        at = skip_records(self._data, self._marks[-1], MARK_RECORDS)
        if not self._dense:
            self._mark_offsets.append(self.base_offset + offset_delta_at(self._data, at))
        self._marks.append(at)

    def _from_mark(self, offset: int, with_headers: bool) -> Iterator[Record]:
        data, base_offset = self._data, self.base_offset
        if self._dense:
            index = offset - base_offset
            mark = index // MARK_RECORDS
            at = skip_records(data, self._marks[mark], index % MARK_RECORDS)
        else:
            mark = bisect_right(self._mark_offsets, offset)
            at, index = self._marks[mark], mark * MARK_RECORDS
            count = self.header.count
            while index < count and base_offset + offset_delta_at(data, at) < offset:
                at = skip_records(data, at, 1)
                index += 1
        return records_from(self.header, data, at, index, with_headers=with_headers)


class RecordCache:
    """The batches that were read lately, bounded by what they cost.

    They are known by the segment that holds them: what log cleaning puts in its place is another one, so nothing that it
    took is read any more. When there are too many, the oldest goes, unless it was read since it was last looked at: reading
    must cost as little as a flag.
    """

    def __init__(self, bytes_max: int = 64 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._by_segment: dict[object, tuple[list[int], list[DecodedBatch]]] = {}
        """Base offsets in order, and the batches that have them."""
        self._by_age: deque[tuple[object, DecodedBatch]] = deque()

    def find(self, segment: object, offset: int) -> DecodedBatch | None:
        """The batch that holds `offset`, if it is here."""
        held = self._by_segment.get(segment)
        if held is None:
            return None
        at = bisect_right(held[0], offset)
        if at == 0:
            return None
        found = held[1][at - 1]
        if found.last_offset < offset:
            return None
        found.was_read = True
        if found.cost_bytes != found.charged_bytes:
            self._charge(found)
        return found

    def put(self, segment: object, batch: DecodedBatch) -> None:
        base_offset = batch.base_offset
        base_offsets, batches = self._by_segment.setdefault(segment, ([], []))
        at = bisect_left(base_offsets, base_offset)
        if at < len(base_offsets) and base_offsets[at] == base_offset:
            return
        base_offsets.insert(at, base_offset)
        batches.insert(at, batch)
        self._charge(batch)
        self._by_age.append((segment, batch))

    def _charge(self, batch: DecodedBatch) -> None:
        """Update the counted size of a batch: its records may have been decoded since."""
        self._bytes += batch.cost_bytes - batch.charged_bytes
        batch.charged_bytes = batch.cost_bytes
        while self._bytes > self._bytes_max and self._by_age:
            self._let_one_go()

    def _let_one_go(self) -> None:
        by_age = self._by_age
        segment, batch = by_age.popleft()
        while batch.was_read:
            batch.was_read = False
            by_age.append((segment, batch))
            segment, batch = by_age.popleft()
        self._bytes -= batch.charged_bytes
        batch.charged_bytes = 0
        base_offsets, batches = self._by_segment[segment]
        at = bisect_left(base_offsets, batch.base_offset)
        del base_offsets[at], batches[at]
        if not base_offsets:
            del self._by_segment[segment]

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def bytes_counted(self) -> int:
        return self._bytes
