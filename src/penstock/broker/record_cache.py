"""Records one at a time, for dialects that read single records: a bounded cache of decoded batches.

A batch is fetched and unpacked once; its records are decoded as far as somebody asked, so that reading a large batch
record by record costs each reader its own record and no more. Unpacking a large batch happens on a reader thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from penstock.records.batch import Batch
from penstock.records.record import Record, read_records

RECORD_OVERHEAD_BYTES = 200
"""What a decoded record costs besides its key and value."""


class DecodedBatch:
    """The records of one batch, decoded on demand. Iterating raises BatchError when the batch is damaged."""

    __slots__ = (
        "_rest",
        "_taken",
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
        self._rest: Iterator[Record] | None = read_records(batch)
        self._taken: list[Record] = []
        self.cost_bytes = 4 * batch.size + batch.count * RECORD_OVERHEAD_BYTES
        """An estimate; a compressed batch unpacks to about four times its size."""

    def unpack(self) -> None:
        """Decode the first record, which unpacks all of them; may be slow, so it is done on a reader thread."""
        self._more()

    def from_offset(self, offset: int) -> Iterator[Record]:
        at = 0
        taken = self._taken
        if len(taken) == self.last_offset - self.base_offset + 1:
            at = max(0, offset - self.base_offset)  # dense: every offset is there
        while at < len(taken) or self._more():
            record = taken[at]
            at += 1
            if record.offset >= offset:
                yield record

    def _more(self) -> bool:
        if self._rest is None:
            return False
        record = next(self._rest, None)
        if record is None:
            self._rest = None
            return False
        self._taken.append(record)
        return True


class RecordCache:
    """The most recently used decoded batches, bounded by what they cost. Keys are the caller's."""

    def __init__(self, bytes_max: int = 64 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[object, int], DecodedBatch] = OrderedDict()

    def get(self, key: tuple[object, int]) -> DecodedBatch | None:
        found = self._batches.get(key)
        if found is not None:
            self._batches.move_to_end(key)
        return found

    def put(self, key: tuple[object, int], batch: DecodedBatch) -> None:
        old = self._batches.pop(key, None)
        if old is not None:
            self._bytes -= old.cost_bytes
        self._batches[key] = batch
        self._bytes += batch.cost_bytes
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            _, gone = self._batches.popitem(last=False)
            self._bytes -= gone.cost_bytes

    def __len__(self) -> int:
        return len(self._batches)
