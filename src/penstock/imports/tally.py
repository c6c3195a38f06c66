"""Counting what was written, so that it can be compared with what is read back: records, bytes, and a checksum.

The checksum is a CRC-32C over the records as they lie in their batches, one batch after the other. What a broker may write
into a header (offset, epoch, producer, append time) is not in it; a record lost, doubled, changed or moved is.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from penstock.records.batch import Batch


class Tally(msgspec.Struct):
    records: int = 0
    bytes: int = 0
    checksum: int = 0

    def add(self, batch: Batch) -> None:
        self.records += batch.count
        self.bytes += batch.size
        self.checksum = crc32c(batch.payload(), self.checksum)

    def count(self, batch: Batch) -> None:
        """Without the checksum, where another one is taken."""
        self.records += batch.count
        self.bytes += batch.size

    def copy(self) -> Tally:
        return Tally(self.records, self.bytes, self.checksum)

    def __str__(self) -> str:
        return f"{self.records} records, {self.bytes} bytes, checksum {self.checksum:08x}"
