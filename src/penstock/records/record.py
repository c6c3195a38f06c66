"""One record, and the reader that takes a batch apart.

    length varint | attributes i8 | timestamp delta varlong | offset delta varint |
    key length varint, key | value length varint, value | header count varint, (name length, name, value length, value)...

The reader believes no length: each is held against the bytes that are there before it is used, and whatever does not fit
is a BatchError. It does not look at the CRC: that is the caller's to ask of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.limits import DECOMPRESSED_BYTES_MAX, HEADERS_PER_BATCH_MAX, HEADERS_PER_RECORD_MAX
from penstock.records.batch import HEADER_BYTES, MAGIC, Batch, BatchError, BatchTooLarge
from penstock.records.compression import EXPANSION_MAX, Codec, decompress
from penstock.records.varint import INT64_MAX, INT64_MIN, read_varint, read_varlong

Headers = tuple[tuple[str, bytes | None], ...]

RECORD_BYTES_MIN = 7
"""Seven fields of one byte each: a null key, a null value, no headers."""
HEADER_BYTES_MIN = 2

HEADER_NAME_ERRORS = "surrogateescape"
"""Some clients send names that are not UTF-8; log cleaning has to write back the bytes that it read."""


class Record(NamedTuple):
    """A record as it lies in the log. A tuple, because it is made a million times: a frozen dataclass costs twice that."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def read_records(batch: Batch, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of `batch`, in offset order; raises BatchError at the first byte that is wrong.

    They are copies: the batch's bytes may go when the first one was asked for. `limit_bytes` bounds what it unpacks to.
    """
    return records_from(batch, unpacked(batch, limit_bytes))


def unpacked(batch: Batch, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """A copy of the records as they lie one behind the other. Raises BatchError when there cannot be so many."""
    if batch.magic != MAGIC:
        raise BatchError(f"a batch of magic {batch.magic}, only {MAGIC} is known")
    count = batch.count
    payload = batch.payload()
    if count == 0 and not payload:
        # Log cleaning leaves a bare header where a producer's last sequence must be remembered.
        return b""
    # One copy of all: slices of bytes are bytes.
    data = decompress(batch.compression, payload, limit_bytes)
    if not 0 <= count * RECORD_BYTES_MIN <= len(data):
        raise BatchError(f"{count} records in {len(data)} bytes")
    return data


def header_problem(batch: Batch) -> str | None:
    """Why no records can match the header, judged by its fields and the size of the payload; None if some can.

    The payload is not decompressed, so a count that passes may still be wrong. Log cleaning removes records and keeps the
    last offset, so a count may be smaller than the range of offsets.
    """
    count, delta, codec = batch.count, batch.last_offset_delta, batch.compression
    if not 0 <= count <= delta + 1:
        return f"a record count of {count} does not match the last offset delta {delta}"
    if codec >= len(EXPANSION_MAX):
        return f"unknown compression {codec}"
    size = batch.size - HEADER_BYTES
    if count * RECORD_BYTES_MIN > min(size * EXPANSION_MAX[codec], DECOMPRESSED_BYTES_MAX):
        return f"{count} records cannot fit into {size} bytes (compression: {Codec(codec).name.lower()})"
    return None


def records_from(
    batch: Batch, data: bytes, at: int = 0, index: int = 0, *, with_headers: bool = True
) -> Iterator[Record]:
    """The records in `data`, which is what `batch` unpacks to, from the one with that index on, which begins at `at`.

    Without `with_headers` headers are skipped unseen: one record may have thousands, for readers without a use for them.
    """
    size = len(data)
    base_offset = batch.base_offset
    if not INT64_MIN <= base_offset + batch.last_offset_delta <= INT64_MAX:
        raise BatchError(f"the last offset is {batch.last_offset_delta} behind {base_offset}")

    append_time = batch.max_timestamp if batch.has_log_append_time else None
    base_timestamp = batch.base_timestamp
    last_offset_delta = batch.last_offset_delta
    previous = index - 1
    headers_left = HEADERS_PER_BATCH_MAX
    try:
        for _ in range(batch.count - index):
            # Varints of one byte, and lengths of two, are taken in place: calls would double the cost. All others go
            # through the bounded readers.
            raw = data[at]
            if raw < 0x80:
                length = raw >> 1 ^ -(raw & 1)
                at += 1
            elif data[at + 1] < 0x80:
                raw = raw & 0x7F | data[at + 1] << 7
                length = raw >> 1 ^ -(raw & 1)
                at += 2
            else:
                length, at = read_varint(data, at)
            end = at + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise BatchError(f"a record of {length} bytes, {size - at} are there")

            at += 1
            if data[at]:
                timestamp_delta, at = read_varlong(data, at)
                timestamp = base_timestamp + timestamp_delta
                if not INT64_MIN <= timestamp <= INT64_MAX:
                    raise BatchError(f"the timestamp {timestamp} is out of range")
            else:
                timestamp = base_timestamp
                at += 1

            raw = data[at]
            if raw < 0x80:
                offset_delta = raw >> 1 ^ -(raw & 1)
                at += 1
            elif data[at + 1] < 0x80:
                raw = raw & 0x7F | data[at + 1] << 7
                offset_delta = raw >> 1 ^ -(raw & 1)
                at += 2
            else:
                offset_delta, at = read_varint(data, at)
            if not previous < offset_delta <= last_offset_delta:
                raise BatchError(f"offset delta {offset_delta} after {previous}, the last is {last_offset_delta}")
            previous = offset_delta

            raw = data[at]
            if raw == 1:
                key = None
                at += 1
            elif raw & 0x81 == 0 and (stop := at + 1 + (raw >> 1)) <= end:
                key = data[at + 1 : stop]
                at = stop
            else:
                key, at = _read_bytes(data, at, end)

            raw = data[at]
            if raw == 1:
                value = None
                at += 1
            elif raw & 0x81 == 0 and (stop := at + 1 + (raw >> 1)) <= end:
                value = data[at + 1 : stop]
                at = stop
            elif (
                raw & 0x81 == 0x80
                and data[at + 1] < 0x80
                and (stop := at + 2 + (raw >> 1 & 0x3F | data[at + 1] << 6)) <= end
            ):
                value = data[at + 2 : stop]
                at = stop
            else:
                value, at = _read_bytes(data, at, end)

            headers: Headers = ()
            if not with_headers and at < end:
                at = end
            elif data[at]:
                headers, at = _read_headers(data, at, end)
                headers_left -= len(headers)
                if headers_left < 0:
                    raise BatchTooLarge(f"more than {HEADERS_PER_BATCH_MAX} headers in a batch")
            else:
                at += 1
            if at != end:
                raise BatchError(f"a record ends at {at} and not at {end}")
            yield Record(
                base_offset + offset_delta, timestamp if append_time is None else append_time, key, value, headers
            )
    except IndexError:
        raise BatchError("a record is cut off") from None
    if at != size:
        raise BatchError(f"{size - at} bytes after the last of {batch.count} records")


def _read_bytes(data: bytes, offset: int, end: int) -> tuple[bytes | None, int]:
    length, start = read_varint(data, offset)
    if length == -1:
        return None, start
    stop = start + length
    if length < 0 or stop > end:
        raise BatchError(f"a field of {length} bytes, {end - start} are there")
    return data[start:stop], stop


def _read_headers(data: bytes, offset: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(data, offset)
    if not 0 <= count * HEADER_BYTES_MIN <= end - at:
        raise BatchError(f"{count} headers in {end - at} bytes")
    if count > HEADERS_PER_RECORD_MAX:
        raise BatchTooLarge(f"{count} headers, {HEADERS_PER_RECORD_MAX} are allowed")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        raw = data[at]
        name: bytes | None
        value: bytes | None
        if raw & 0x81 == 0 and (stop := at + 1 + (raw >> 1)) <= end:
            name = data[at + 1 : stop]
            at = stop
        else:
            name, at = _read_bytes(data, at, end)
            if name is None:
                raise BatchError("a header without a name")
        raw = data[at]
        if raw & 0x81 == 0 and (stop := at + 1 + (raw >> 1)) <= end:
            value = data[at + 1 : stop]
            at = stop
        else:
            value, at = _read_bytes(data, at, end)
        headers.append((name.decode("utf-8", HEADER_NAME_ERRORS), value))
    return tuple(headers), at
