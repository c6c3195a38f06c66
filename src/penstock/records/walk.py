"""Walks over the records of a batch that decode only the fields they need, without objects for keys, values or headers.

Each walk is a generator that pauses every few records, about ten times per millisecond, so that long walks can run on the
event loop in slices. The buffer is the decompressed payload of the batch, or the payload of a plain batch in place.

Every length is compared with the bytes that are left before it is used. A mismatch raises BatchError.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeVar

from penstock.model.limits import (
    DECOMPRESSED_BYTES_MAX,
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    UNPACKED_BYTES_FREE,
    UNPACKED_RATIO_MAX,
)
from penstock.records.batch import Batch, BatchError, BatchTooLarge
from penstock.records.record import HEADER_BYTES_MIN, RECORD_BYTES_MIN
from penstock.records.varint import INT64_MAX, INT64_MIN, Buffer, read_varint, read_varlong

T = TypeVar("T")

Walk = Generator[None, None, T]

PAUSE_RECORDS = 128
PAUSE_HEADERS = 512
"""Between two pauses: about a tenth of a millisecond."""


class Violation(NamedTuple):
    """The first record that breaks a rule."""

    record_index: int
    timestamp: int | None
    """None: the record has no key."""


def unpacked_bytes_max(size: int) -> int:
    """Maximum size that the broker unpacks a compressed batch of this size to."""
    return min(DECOMPRESSED_BYTES_MAX, max(UNPACKED_BYTES_FREE, UNPACKED_RATIO_MAX * size))


def find_violation(
    batch: Batch,
    data: Buffer,
    *,
    needs_keys: bool,
    oldest_ms: int = INT64_MIN,
    headers_max: int = HEADERS_PER_BATCH_MAX,
) -> Walk[Violation | None]:
    """The first record without a key, if keys are required, or with a timestamp before `oldest_ms`; None if there is none.

    All records before it are checked in full, including headers. Raises BatchError, or BatchTooLarge if the batch has
    more than `headers_max` headers.
    """
    size = len(data)
    count = batch.count
    if not 0 <= count * RECORD_BYTES_MIN <= size:
        raise BatchError(f"{count} records in {size} bytes")
    base_timestamp = batch.base_timestamp
    last_offset_delta = batch.last_offset_delta
    at = headers = 0
    previous = -1
    pause = PAUSE_RECORDS
    try:
        for index in range(count):
            if index == pause:
                pause += PAUSE_RECORDS
                yield
            # Varints of one byte, and lengths of two, are decoded inline: calls would double the cost.
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
                raise BatchError(f"record length {length} exceeds the {size - at} bytes left")

            at += 1
            if data[at]:
                delta, at = read_varlong(data, at)
                timestamp = base_timestamp + delta
                if not INT64_MIN <= timestamp <= INT64_MAX:
                    raise BatchError(f"the timestamp {timestamp} is out of range")
            else:
                timestamp = base_timestamp
                at += 1

            raw = data[at]
            if raw < 0x80:
                delta = raw >> 1 ^ -(raw & 1)
                at += 1
            elif data[at + 1] < 0x80:
                raw = raw & 0x7F | data[at + 1] << 7
                delta = raw >> 1 ^ -(raw & 1)
                at += 2
            else:
                delta, at = read_varint(data, at)
            if not previous < delta <= last_offset_delta:
                raise BatchError(f"offset delta {delta} after {previous}; the last offset delta is {last_offset_delta}")
            previous = delta

            has_key = True
            raw = data[at]
            if raw & 0x81 == 0:
                at += 1 + (raw >> 1)
            else:
                length, at = _field(data, at, end)
                has_key = length >= 0

            raw = data[at]
            if raw & 0x81 == 0:
                at += 1 + (raw >> 1)
            elif raw & 0x81 == 0x80 and data[at + 1] < 0x80:
                at += 2 + (raw >> 1 & 0x3F | data[at + 1] << 6)
            else:
                _, at = _field(data, at, end)
            if at >= end:
                raise BatchError(f"record ends at {end}, but its fields end at {at}")
            if data[at]:
                number, at = read_varint(data, at)
                headers = _count_headers(number, headers, end - at, headers_max)
                while number:
                    some = min(number, PAUSE_HEADERS)
                    number -= some
                    at = _after_headers(data, at, end, some)
                    if number:
                        yield
            else:
                at += 1
            if at != end:
                raise BatchError(f"record ends at {at}, expected {end}")
            if needs_keys and not has_key:
                return Violation(index, None)
            if timestamp < oldest_ms:
                return Violation(index, timestamp)
    except IndexError:
        raise BatchError("truncated record") from None
    if at != size:
        raise BatchError(f"{size - at} bytes after the last of {count} records")
    return None


def find_timestamp(batch: Batch, data: Buffer, timestamp: int, offset: int) -> Walk[tuple[int, int] | None]:
    """Offset and timestamp of the first record at or after both arguments; None if there is none. Raises BatchError."""
    size = len(data)
    append_time = batch.max_timestamp if batch.has_log_append_time else None
    at = 0
    try:
        for index in range(batch.count):
            if index % PAUSE_RECORDS == PAUSE_RECORDS - 1:
                yield
            length, at = read_varint(data, at)
            end = at + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise BatchError(f"record length {length} exceeds the {size - at} bytes left")
            delta, at = read_varlong(data, at + 1)
            found = batch.base_timestamp + delta if append_time is None else append_time
            delta, at = read_varint(data, at)
            if found >= timestamp and batch.base_offset + delta >= offset:
                return batch.base_offset + delta, found
            at = end
    except IndexError:
        raise BatchError("truncated record") from None
    return None


def skip_records(data: Buffer, at: int, count: int) -> int:
    """Start of the record that is `count` records after the one at `at`. Raises BatchError."""
    try:
        for _ in range(count):
            raw = data[at]
            if raw < 0x80:
                at += 1 + (raw >> 1)
            elif data[at + 1] < 0x80:
                at += 2 + (raw >> 1 & 0x3F | data[at + 1] << 6)
            else:
                length, at = read_varint(data, at)
                at += max(0, length)
    except IndexError:
        raise BatchError("truncated record") from None
    return at


def offset_delta_at(data: Buffer, at: int) -> int:
    """The offset delta of the record at `at`. Raises BatchError."""
    _, at = read_varint(data, at)
    _, at = read_varlong(data, at + 1)
    return read_varint(data, at)[0]


def _field(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Length of a key, name or value (-1 for null) and its end."""
    length, start = read_varint(data, at)
    stop = start + max(0, length)
    if length < -1 or stop > end:
        raise BatchError(f"field length {length} exceeds the {end - start} bytes left")
    return length, stop


def _count_headers(number: int, before: int, left: int, headers_max: int) -> int:
    if not 0 <= number * HEADER_BYTES_MIN <= left:
        raise BatchError(f"{number} headers in {left} bytes")
    if number > HEADERS_PER_RECORD_MAX:
        raise BatchTooLarge(f"{number} headers, {HEADERS_PER_RECORD_MAX} are allowed")
    if before + number > headers_max:
        raise BatchTooLarge(f"more than {headers_max} headers in a batch")
    return before + number


def _after_headers(data: Buffer, at: int, end: int, number: int) -> int:
    """End of the given number of headers."""
    for _ in range(number):
        raw = data[at]
        if raw & 0x81 == 0:
            at += 1 + (raw >> 1)
        else:
            length, at = _field(data, at, end)
            if length < 0:
                raise BatchError("header without a name")
        raw = data[at]
        if raw & 0x81 == 0:
            at += 1 + (raw >> 1)
        else:
            _, at = _field(data, at, end)
    if at > end:
        raise BatchError(f"headers end at {at}, but their record ends at {end}")
    return at
