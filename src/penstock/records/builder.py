"""Batches to be written: records in, the bytes of a sound batch out.

A batch to be written is another thing than a batch read: its records have no offsets yet, and its length, CRC and counts
follow from them. Three ways to make one: `build_batch` for any records, `build_run` for many bare values that came at the
same time, `rebuild_batch` for what log cleaning keeps of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from penstock.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC,
    CRC_OFFSET,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Batch,
    BatchError,
)
from penstock.records.compression import CODECS, Codec, compress
from penstock.records.record import HEADER_NAME_ERRORS, Headers, Record
from penstock.records.varint import varint, varlong

Bytes = bytes | bytearray | memoryview
_T = TypeVar("_T")

NO_LEADER_EPOCH = -1
RECORD_OVERHEAD_BYTES_MAX = 32
"""What a record without headers has beside key and value, at most: its length (5 bytes), attributes (1), timestamp delta
(10), offset delta (5), both lengths (5 each) and the number of headers (1). For those who cut runs to a size."""


class NewRecord(NamedTuple):
    """A record before it has an offset."""

    timestamp: int
    key: Bytes | None = None
    value: Bytes | None = None
    headers: Headers = ()


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
) -> bytearray:
    """A batch of `records` at consecutive offsets; with `append_time_ms` its timestamp type is LogAppendTime."""
    if not records:
        raise BatchError("a batch has at least one record")
    base_timestamp = records[0].timestamp
    parts: list[Bytes] = []
    for offset_delta, (timestamp, key, value, headers) in enumerate(records):
        _append_record(parts, timestamp - base_timestamp, offset_delta, key, value, headers)
    if compression not in CODECS:
        raise BatchError(f"compression {compression} is not known")
    attributes = compression
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    if append_time_ms is None:
        max_timestamp = max(record.timestamp for record in records)
    else:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = append_time_ms
    return _with_header(
        _packed(parts, attributes & COMPRESSION_MASK),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )


def placeholder_batch(batch: Batch) -> bytearray:
    """An empty batch with the offsets of `batch`, and nothing of its producer."""
    return _with_header(
        _packed([], Codec.NONE),
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        attributes=batch.attributes & LOG_APPEND_TIME_BIT,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        count=0,
    )


def rebuild_batch(batch: Batch, records: Sequence[Record], delete_horizon_ms: int | None = None) -> bytearray:
    """`batch` with only `records` left of what was read from it: offsets, producer, sequences and epoch stay.

    With none left it is a bare header, which keeps the producer's last sequence known. A delete horizon, once there,
    stays: until then tombstones and markers are kept (KIP-534).
    """
    attributes = batch.attributes
    base_timestamp = batch.base_timestamp
    max_timestamp = batch.max_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    if not records:
        attributes &= ~COMPRESSION_MASK
    elif not batch.has_log_append_time:
        max_timestamp = max(record.timestamp for record in records)
    parts: list[Bytes] = []
    for offset, timestamp, key, value, headers in records:
        timestamp_delta = 0 if batch.has_log_append_time else timestamp - base_timestamp
        _append_record(parts, timestamp_delta, offset - batch.base_offset, key, value, headers)
    return _with_header(
        _packed(parts, attributes & COMPRESSION_MASK),
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        attributes=attributes,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        count=len(records),
    )


def build_run(
    values: Sequence[Bytes],
    timestamp_ms: int,
    keys: Sequence[Bytes | None] | None = None,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """A batch of bare values that share one timestamp: no headers, no compression, no producer.

    What lies between two values depends on two lengths and a place, so it is looked up and not computed; every step
    runs over all records at once, unless they are few.
    """
    count = len(values)
    if not count:
        raise BatchError("a batch has at least one record")
    if keys is not None and len(keys) != count:
        raise BatchError(f"{len(keys)} keys for {count} values")
    built = _few_records(values, keys) if count <= _FEW else _many_records(values, keys)
    size = len(built) - LENGTH_PREFIX_BYTES
    last = count - 1
    try:
        # `_with_header` with all that a run does not have: this is the hot path
        _PACK_HEADER(
            built, 0, base_offset, size, leader_epoch, MAGIC, 0, 0, last, timestamp_ms, timestamp_ms, -1, -1, -1, count
        )
    except struct.error as error:
        raise BatchError(f"a field of the header is out of range: {error}") from None
    _PACK_CRC(built, CRC_OFFSET, crc32c(memoryview(built)[CRC_START:]))
    return built


def _few_records(values: Sequence[Bytes], keys: Sequence[Bytes | None] | None) -> bytearray:
    """Room for the header, then the records of a run, one after the other."""
    parts: list[Bytes] = [_BLANK]
    deltas = _offset_deltas(len(values))
    if keys is None:
        for delta, value in zip(deltas, values, strict=True):
            length = len(value)
            size = 5 + _FIELD_BYTES[length]
            parts += (_LENGTH[size], b"\0\0", delta, _NULL_KEY_AND_LENGTH[length], value, _NO_HEADERS)
    else:
        for delta, key, value in zip(deltas, keys, values, strict=True):
            key_length = -1 if key is None else len(key)
            length = len(value)
            size = 4 + _FIELD_BYTES[key_length] + _FIELD_BYTES[length]
            parts += (
                _LENGTH[size],
                b"\0\0",
                delta,
                _LENGTH[key_length],
                key or b"",
                _LENGTH[length],
                value,
                _NO_HEADERS,
            )
    return bytearray().join(parts)


def _many_records(values: Sequence[Bytes], keys: Sequence[Bytes | None] | None) -> bytearray:
    """The same, step by step over all of them."""
    count = len(values)
    value_lengths = list(map(len, values))
    field_bytes = list(map(_FIELD_BYTES.__getitem__, value_lengths))
    if keys is None:
        # A record: head, offset delta, null key and value length, value.
        step = 4
        fixed_bytes = 4
        parts: list[Bytes] = [b""] * (step * count + 2)
        parts[3:-1:step] = map(_NULL_KEY_AND_LENGTH.__getitem__, value_lengths)
    else:
        # A record: head, offset delta, key length, key, value length, value.
        step = 6
        fixed_bytes = 3
        parts = [b""] * (step * count + 2)
        key_lengths = [-1 if key is None else len(key) for key in keys]
        field_bytes = list(map(add, field_bytes, map(_FIELD_BYTES.__getitem__, key_lengths)))
        parts[3:-1:step] = map(_LENGTH.__getitem__, key_lengths)
        parts[4:-1:step] = [b"" if key is None else key for key in keys]
        parts[5:-1:step] = map(_LENGTH.__getitem__, value_lengths)
    parts[0] = _BLANK_BEFORE_RUN
    parts[2:-1:step] = _offset_deltas(count)
    parts[step:-1:step] = values
    parts[-1] = _NO_HEADERS
    start = 0
    for width, stop in _OFFSET_DELTA_WIDTHS:
        heads = _HEADS[fixed_bytes + width]
        parts[1 + step * start : 1 + step * min(stop, count) : step] = map(heads.__getitem__, field_bytes[start:stop])
        if stop >= count:
            break
        start = stop
    return bytearray().join(parts)


def _append_record(
    parts: list[Bytes],
    timestamp_delta: int,
    offset_delta: int,
    key: Bytes | None,
    value: Bytes | None,
    headers: Headers,
) -> None:
    head = b"\0" + varlong(timestamp_delta) + varint(offset_delta)
    body: list[Bytes] = [head]
    _append_bytes(body, key)
    _append_bytes(body, value)
    body.append(varint(len(headers)))
    for name, header_value in headers:
        try:
            _append_bytes(body, name.encode("utf-8", HEADER_NAME_ERRORS))
        except UnicodeEncodeError as error:
            raise BatchError(f"the header name {name!r} cannot be encoded: {error.reason}") from None
        _append_bytes(body, header_value)
    parts.append(varint(sum(map(len, body))))
    parts += body


def _append_bytes(parts: list[Bytes], field: Bytes | None) -> None:
    if field is None:
        parts.append(_NULL)
    else:
        parts.append(varint(len(field)))
        parts.append(field)


def _packed(parts: list[Bytes], codec: int) -> bytearray:
    """Room for the header, then the records."""
    if codec != Codec.NONE:
        parts = [compress(codec, b"".join(parts))]
    return bytearray().join((bytes(HEADER_BYTES), *parts))


def _with_header(
    built: bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytearray:
    """`built`, its first bytes made the header that fits the rest."""
    try:
        _PACK_HEADER(
            built,
            0,
            base_offset,
            len(built) - LENGTH_PREFIX_BYTES,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
    except struct.error as error:
        raise BatchError(f"a field of the header is out of range: {error}") from None
    _PACK_CRC(built, CRC_OFFSET, crc32c(memoryview(built)[CRC_START:]))
    return built


class _Table(dict[int, _T]):
    """What `make` gives for a length, remembered where lengths are small enough to come again."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[int], _T]) -> None:
        self.make = make

    def __missing__(self, length: int) -> _T:
        made = self.make(length)
        if length <= _TABLE_LENGTH_MAX:
            self[length] = made
        return made


_TABLE_LENGTH_MAX = 4096
_FEW = 8
"""Up to so many records a loop is cheaper than the steps over all of them."""
_OFFSET_DELTAS_MAX = 65_536

_PACK_HEADER = HEADER.pack_into
_PACK_CRC = CRC.pack_into
_NULL = varint(-1)
_NO_HEADERS = varint(0)
_BLANK = bytes(HEADER_BYTES)
_BLANK_BEFORE_RUN = bytes(HEADER_BYTES - 1)
"""The head of a record begins with the header count of the one before; the first head's falls into the blank."""

_LENGTH = _Table(varint)
_NULL_KEY_AND_LENGTH = _Table(lambda length: _NULL + varint(length))
_FIELD_BYTES = _Table(lambda length: len(varint(length)) + max(0, length))


def _heads(fixed_bytes: int) -> _Table[bytes]:
    """By the bytes of key and value: header count of the record before, length, attributes, timestamp delta."""
    return _Table(lambda field_bytes: _NO_HEADERS + varint(fixed_bytes + field_bytes) + b"\0\0")


_HEADS = {fixed_bytes: _heads(fixed_bytes) for fixed_bytes in range(4, 10)}
_OFFSET_DELTA_WIDTHS = tuple((width, 1 << 7 * width - 1) for width in range(1, 6))
"""Bytes of an offset delta, and the first delta that needs more."""
_OFFSET_DELTAS: list[bytes] = []


def _offset_deltas(count: int) -> list[bytes]:
    global _OFFSET_DELTAS
    table = _OFFSET_DELTAS
    if count > len(table):
        # To the next power of two, since runs grow by small steps; replaced whole, since clients may be threads.
        table = list(map(varint, range(1 << (count - 1).bit_length())))
        if count <= _OFFSET_DELTAS_MAX:
            _OFFSET_DELTAS = table
    return table[:count]
