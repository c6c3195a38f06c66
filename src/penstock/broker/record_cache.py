"""Records one at a time, for dialects that read single records: a bounded cache of unpacked batches.

A batch is fetched, checked and unpacked once. The records of a small one are decoded together and kept. Of a large one they
are decoded when they are read and not kept: what is kept beside the bytes is where each record begins, so that reading it
record by record costs each reader its own record and no more. Unpacking a large batch happens on a reader thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.record import Record, records_from, unpacked
from penstock.records.varint import read_varint

BATCH_OVERHEAD_BYTES = 600
"""What a batch costs besides its records."""
DECODED_RECORD_BYTES = 300
"""What a decoded record costs, where they are kept decoded."""
DECODED_RECORDS_MAX = 64
"""Of a batch with no more, all records are decoded at the first read of one: about what four reads alone would cost."""
_offset_of = attrgetter("offset")


class DecodedBatch:
    """The records of one batch. Making one and reading from it raise BatchError when the batch is damaged."""

    __slots__ = (
        "_data",
        "_dense",
        "_starts",
        "_whole",
        "base_offset",
        "cost_bytes",
        "header",
        "is_control",
        "is_transactional",
        "last_offset",
        "producer_id",
        "was_read",
    )

    def __init__(self, batch: Batch) -> None:
        if not batch.crc_is_right():
            raise BatchError(f"the batch at offset {batch.base_offset} is not what was written: its checksum differs")
        self.base_offset = batch.base_offset
        self.last_offset = batch.last_offset
        self.is_control = batch.is_control
        self.is_transactional = batch.is_transactional
        self.producer_id = batch.producer_id
        self.was_read = False
        """Since the cache last looked."""
        self._data = unpacked(batch)
        self.header = Batch.of_header(memoryview(bytes(batch.view[:HEADER_BYTES])))
        self._starts: array[int] | None = None
        self._whole: list[Record] | None = None
        """All records, of a small batch, and where log cleaning took some: there, offsets do not say where they are."""
        count = batch.count
        self._dense = count == batch.last_offset_delta + 1
        self.cost_bytes = BATCH_OVERHEAD_BYTES + len(self._data)
        if not self._dense:
            self._whole = list(records_from(self.header, self._data))
            self.cost_bytes += DECODED_RECORD_BYTES * count
        elif count <= DECODED_RECORDS_MAX:
            self.cost_bytes += DECODED_RECORD_BYTES * count
        else:
            self.cost_bytes += 4 * count

    def find_starts(self) -> array[int]:
        """Where each record begins; of a large batch slow enough for a thread."""
        starts = array("I")
        add = starts.append
        data = self._data
        at = 0
        try:
            for _ in range(self.header.count):
                add(at)
                raw = data[at]
                if raw < 0x80:
                    at += 1 + (raw >> 1)
                elif data[at + 1] < 0x80:
                    at += 2 + (raw >> 1 & 0x3F | data[at + 1] << 6)
                else:
                    length, at = read_varint(data, at)
                    at += max(0, length)
        except IndexError:
            raise BatchError("a record is cut off") from None
        self._starts = starts
        return starts

    def record_at(self, offset: int) -> Record | None:
        """The record with that offset, or the next one; None behind the last."""
        if self._dense and self._whole is not None:
            return self._whole[max(0, offset - self.base_offset)] if offset <= self.last_offset else None
        return next(self.from_offset(offset), None)

    def from_offset(self, offset: int) -> Iterator[Record]:
        """The records from that offset on."""
        index = max(0, offset - self.base_offset)
        whole = self._whole
        if whole is None and self.header.count <= DECODED_RECORDS_MAX:
            whole = self._whole = list(records_from(self.header, self._data))
        if whole is not None:
            return iter(whole[index if self._dense else bisect_left(whole, offset, key=_offset_of) :])
        if index == 0:
            return records_from(self.header, self._data)
        starts = self._starts or self.find_starts()
        if index >= len(starts):
            return iter(())
        return records_from(self.header, self._data, starts[index], index)


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
        return found

    def put(self, segment: object, batch: DecodedBatch) -> None:
        base_offset = batch.base_offset
        base_offsets, batches = self._by_segment.setdefault(segment, ([], []))
        at = bisect_left(base_offsets, base_offset)
        if at < len(base_offsets) and base_offsets[at] == base_offset:
            return
        base_offsets.insert(at, base_offset)
        batches.insert(at, batch)
        self._bytes += batch.cost_bytes
        while self._bytes > self._bytes_max and self._by_age:
            self._let_one_go()
        self._by_age.append((segment, batch))

    def _let_one_go(self) -> None:
        by_age = self._by_age
        segment, batch = by_age.popleft()
        while batch.was_read:
            batch.was_read = False
            by_age.append((segment, batch))
            segment, batch = by_age.popleft()
        self._bytes -= batch.cost_bytes
        base_offsets, batches = self._by_segment[segment]
        at = bisect_left(base_offsets, batch.base_offset)
        del base_offsets[at], batches[at]
        if not base_offsets:
            del self._by_segment[segment]

    def __len__(self) -> int:
        return len(self._by_age)
