"""The 61-byte header of a record batch, read in place over a memoryview.

    base offset i64 | batch length i32 | leader epoch i32 | magic i8 | CRC-32C u32 | attributes i16 |
    last offset delta i32 | base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 |
    base sequence i32 | record count i32 | records ...

The batch length counts what follows it; the CRC covers everything from the attributes on, so the broker may write base
offset and leader epoch without touching it (KIP-98, KIP-101).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

HEADER_BYTES = 61
LENGTH_PREFIX_BYTES = 12
"""Base offset and batch length: what a batch has outside its own length."""
CRC_OFFSET = 17
CRC_START = 21
"""Where the bytes begin that the CRC covers: the attributes."""
MAGIC = 2
BATCH_BYTES_MIN = HEADER_BYTES

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""The base timestamp says until when tombstones and markers are kept (KIP-534)."""

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_OFFSET = 35
_ATTRIBUTES = struct.Struct(">h")


class BatchError(ValueError):
    """Bytes that are not a whole, sound record batch."""


class BatchTooLarge(BatchError):
    """The batch exceeds a limit of bytes, records or headers. It may be valid otherwise."""


class Batch:
    """A view of one batch: the header's fields, and the bytes they came from. The bytes are borrowed."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
        "view",
    )

    attributes: int
    base_offset: int
    base_sequence: int
    base_timestamp: int
    count: int
    crc: int
    last_offset_delta: int
    leader_epoch: int
    magic: int
    max_timestamp: int
    producer_epoch: int
    producer_id: int

    def __init__(self, view: memoryview) -> None:
        """`view` starts at the batch and may be longer; raises BatchError when a header does not fit or lies."""
        try:
            (
                self.base_offset,
                length,
                self.leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            ) = HEADER.unpack_from(view)
        except struct.error:
            raise BatchError(f"{len(view)} bytes are too few for a batch header") from None
        size = length + LENGTH_PREFIX_BYTES
        if size < BATCH_BYTES_MIN:
            raise BatchError(f"batch length {length} is too small")
        self.size = size
        if size == len(view):
            self.view = view
        elif size < len(view):
            self.view = view[:size]
        else:
            raise BatchError(f"batch of {size} bytes is cut off at {len(view)}")

    @classmethod
    def of_header(cls, header: memoryview) -> Batch:
        """A batch of which only the 61 header bytes are at hand: all fields are there, the payload is not."""
        batch = cls.__new__(cls)
        (
            batch.base_offset,
            length,
            batch.leader_epoch,
            batch.magic,
            batch.crc,
            batch.attributes,
            batch.last_offset_delta,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.count,
        ) = HEADER.unpack_from(header)
        batch.size = length + LENGTH_PREFIX_BYTES
        batch.view = header[:HEADER_BYTES]
        return batch

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap at 2**31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    def crc_is_right(self) -> bool:
        return crc32c(self.view[CRC_START:]) == self.crc

    def payload(self) -> memoryview:
        """The records as they lie there, compressed or not."""
        return self.view[HEADER_BYTES:]

    def place(self, base_offset: int, leader_epoch: int) -> None:
        """Write where the batch lands into its buffer; the CRC does not cover it."""
        _OFFSET_LENGTH_EPOCH.pack_into(self.view, 0, base_offset, self.size - LENGTH_PREFIX_BYTES, leader_epoch)
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch

    def stamp(self, append_time_ms: int) -> None:
        """Make it LogAppendTime: attribute bit, max timestamp, and the CRC that covers them."""
        self.attributes |= LOG_APPEND_TIME_BIT
        self.max_timestamp = append_time_ms
        _ATTRIBUTES.pack_into(self.view, CRC_START, self.attributes)
        _MAX_TIMESTAMP.pack_into(self.view, _MAX_TIMESTAMP_OFFSET, append_time_ms)
        self.crc = crc32c(self.view[CRC_START:])
        CRC.pack_into(self.view, CRC_OFFSET, self.crc)


def batches(view: memoryview) -> Iterator[Batch]:
    """The batches of `view`, one after the other; raises BatchError at the first that is not whole."""
    start = 0
    end = len(view)
    while start < end:
        batch = Batch(view[start:])
        yield batch
        start += batch.size


def whole_batches(view: memoryview) -> Iterator[Batch]:
    """As `batches`, but a batch that is cut off at the end is left out: what a fetch answer may hold."""
    start = 0
    end = len(view)
    while end - start >= HEADER_BYTES:
        size = _LENGTH.unpack_from(view, start + 8)[0] + LENGTH_PREFIX_BYTES
        if size < BATCH_BYTES_MIN:
            raise BatchError(f"batch length {size - LENGTH_PREFIX_BYTES} is too small")
        if start + size > end:
            return
        yield Batch(view[start : start + size])
        start += size
