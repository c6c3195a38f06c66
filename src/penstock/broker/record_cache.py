"""Records one at a time, for dialects that read single records: a bounded cache of unpacked batches.

A batch is fetched and unpacked once. Its records are decoded when they are read and not kept: what is kept beside the
bytes is where each record begins, so that reading a large batch record by record costs each reader its own record and no
more. Unpacking a large batch happens on a reader thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.record import Record, records_from, unpacked
from penstock.records.varint import read_varint

BATCH_OVERHEAD_BYTES = 600
"""What a batch costs besides its records."""
SPARSE_RECORD_BYTES = 300
"""What a decoded record costs, where they are kept decoded."""
_offset_of = attrgetter("offset")


class DecodedBatch:
    """The records of one batch. Making one and iterating raise BatchError when the batch is damaged."""

    __slots__ = (
        "_data",
        "_header",
        "_sparse",
        "_starts",
        "base_offset",
        "cost_bytes",
        "is_control",
        "is_transactional",
        "last_offset",
        "producer_id",
    )

    def __init__(self, batch: Batch) -> None:
        self.base_offset = batch.base_offset
        self.last_offset = batch.last_offset
        self.is_control = batch.is_control
        self.is_transactional = batch.is_transactional
        self.producer_id = batch.producer_id
        self._header = Batch.of_header(memoryview(bytes(batch.view[:HEADER_BYTES])))
        self._data = unpacked(batch)
        self._starts: array[int] | None = None
        self._sparse: list[Record] | None = None
        """All records, where log cleaning took some: their offsets do not say where they are."""
        self.cost_bytes = BATCH_OVERHEAD_BYTES + len(self._data)
        if batch.count == batch.last_offset_delta + 1:
            self.cost_bytes += 4 * batch.count
        else:
            self._sparse = list(records_from(self._header, self._data))
            self.cost_bytes += SPARSE_RECORD_BYTES * batch.count

    def find_starts(self) -> array[int]:
        """Where each record begins; of a large batch slow enough for a thread."""
        starts = array("I")
        add = starts.append
        data = self._data
        at = 0
        try:
            for _ in range(self._header.count):
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

    def from_offset(self, offset: int) -> Iterator[Record]:
        sparse = self._sparse
        if sparse is not None:
            return iter(sparse[bisect_left(sparse, offset, key=_offset_of) :])
        index = offset - self.base_offset
        if index <= 0:
            return records_from(self._header, self._data)
        starts = self._starts or self.find_starts()
        if index >= len(starts):
            return iter(())
        return records_from(self._header, self._data, starts[index], index)


class RecordCache:
    """The most recently used batches, bounded by what they cost.

    They are known by the segment that holds them: what log cleaning puts in its place is another one, so nothing that it
    took is read any more.
    """

    def __init__(self, bytes_max: int = 64 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[object, int], DecodedBatch] = OrderedDict()
        self._base_offsets: dict[object, list[int]] = {}
        """Of the batches of each segment, in order."""

    def find(self, segment: object, offset: int) -> DecodedBatch | None:
        """The batch that holds `offset`, if it is here."""
        base_offsets = self._base_offsets.get(segment)
        if base_offsets is None:
            return None
        at = bisect_right(base_offsets, offset)
        if at == 0:
            return None
        key = segment, base_offsets[at - 1]
        found = self._batches[key]
        if found.last_offset < offset:
            return None
        self._batches.move_to_end(key)
        return found

    def put(self, segment: object, batch: DecodedBatch) -> None:
        key = segment, batch.base_offset
        old = self._batches.pop(key, None)
        if old is not None:
            self._bytes -= old.cost_bytes
        else:
            insort(self._base_offsets.setdefault(segment, []), batch.base_offset)
        self._batches[key] = batch
        self._bytes += batch.cost_bytes
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            (where, base_offset), gone = self._batches.popitem(last=False)
            self._bytes -= gone.cost_bytes
            left = self._base_offsets[where]
            del left[bisect_left(left, base_offset)]
            if not left:
                del self._base_offsets[where]

    def __len__(self) -> int:
        return len(self._batches)
