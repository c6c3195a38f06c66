"""Records taken apart and put together by loops that numba compiles: at the first use, and from its cache afterwards.

Importing this module needs the extra `fast`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
import numpy as np

from penstock.arrow.layout import Bytes, Fields, Frame, HeaderFields, Ints, Layout, Longs, Wanted
from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.records.record import HEADER_BYTES_MIN, RECORD_BYTES_MIN
from penstock.records.varint import VARLONG_BYTES_MAX

F = TypeVar("F", bound=Callable[..., Any])

_BROKEN = -1
"""A place that no byte has: the varint there is not sound."""


def _compiled(function: F) -> F:
    """Compiled for each kind of arguments at the first call with it."""
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # Neither the package nor the home can be written to: compiled anew in each process.
        return cast("F", numba.njit(nogil=True)(function))


@_compiled
def _varint(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    """A signed varint of up to 5 bytes before `end`, and the place behind it. One that is wider than 32 bits is larger
    than all that the caller holds against it."""
    raw = np.int64(0)
    for index in range(5):
        if at >= end:
            return 0, _BROKEN
        byte = np.int64(data[at])
        at += 1
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    return 0, _BROKEN


@_compiled
def _varlong(data: Bytes, at: int, end: int) -> tuple[Any, Any]:
    raw = np.uint64(0)
    for index in range(10):
        if at >= end:
            return np.int64(0), _BROKEN
        byte = np.uint64(data[at])
        at += 1
        if index == 9 and byte > np.uint64(1):
            return np.int64(0), _BROKEN
        raw |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
    return np.int64(0), _BROKEN


@_compiled
def _walk(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    counts: Longs,
    base_offsets: Longs,
    last_offset_deltas: Longs,
    base_timestamps: Longs,
    append_times: Longs,
    has_append_time: Any,
    fields_wanted: bool,
    headers_wanted: bool,
    offsets: Longs,
    timestamps: Longs,
    key_starts: Longs,
    key_lengths: Longs,
    value_starts: Longs,
    value_lengths: Longs,
    header_starts: Longs,
    header_counts: Longs,
    record_ends: Longs,
) -> bool:
    """Fill the arrays below `headers_wanted`; false if a byte is wrong."""
    row = 0
    for batch in range(len(counts)):
        at = starts[batch]
        batch_end = ends[batch]
        previous = -1
        for _ in range(counts[batch]):
            length, at = _varint(data, at, batch_end)
            if at == _BROKEN or length < RECORD_BYTES_MIN - 1 or length > batch_end - at:
                return False
            end = at + length
            delta, at = _varlong(data, at + 1, end)
            if at == _BROKEN:
                return False
            base = base_timestamps[batch]
            stamp = base + delta
            if ((base ^ stamp) & (delta ^ stamp)) < 0:
                return False
            offset_delta, at = _varint(data, at, end)
            if at == _BROKEN or offset_delta <= previous or offset_delta > last_offset_deltas[batch]:
                return False
            previous = offset_delta
            offsets[row] = base_offsets[batch] + offset_delta
            timestamps[row] = append_times[batch] if has_append_time[batch] else stamp
            if fields_wanted or headers_wanted:
                length, at = _varint(data, at, end)
                if at == _BROKEN or length < -1 or length > end - at:
                    return False
                key_starts[row] = at
                key_lengths[row] = length
                at += max(length, 0)
                length, at = _varint(data, at, end)
                if at == _BROKEN or length < -1 or length > end - at:
                    return False
                value_starts[row] = at
                value_lengths[row] = length
                at += max(length, 0)
                if at >= end:
                    return False
            if headers_wanted:
                count, at = _varint(data, at, end)
                if at == _BROKEN or count < 0 or count > HEADERS_PER_RECORD_MAX or count * HEADER_BYTES_MIN > end - at:
                    return False
                header_starts[row] = at
                header_counts[row] = count
                record_ends[row] = end
                if count == 0 and at != end:
                    return False
            at = end
            row += 1
        if at != batch_end:
            return False
    return True


@_compiled
def _walk_headers(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    counts: Longs,
    name_starts: Longs,
    name_lengths: Longs,
    value_starts: Longs,
    value_lengths: Longs,
) -> bool:
    row = 0
    for record in range(len(counts)):
        at = starts[record]
        end = ends[record]
        for _ in range(counts[record]):
            length, at = _varint(data, at, end)
            if at == _BROKEN or length < 0 or length > end - at:
                return False
            name_starts[row] = at
            name_lengths[row] = length
            at += length
            length, at = _varint(data, at, end)
            if at == _BROKEN or length < -1 or length > end - at:
                return False
            value_starts[row] = at
            value_lengths[row] = length
            at += max(length, 0)
            row += 1
        if at != end:
            return False
    return True


def walk(frame: Frame, wanted: Wanted) -> Layout | None:
    """Where the fields of all records lie; None if a byte is wrong."""
    count = frame.records
    looks_inside = wanted.fields or wanted.headers
    with_fields = count if looks_inside else 0
    with_headers = count if wanted.headers else 0
    offsets, timestamps = np.empty(count, np.int64), np.empty(count, np.int64)
    keys, values = _empty_fields(with_fields), _empty_fields(with_fields)
    starts, counts, ends = (np.empty(with_headers, np.int64) for _ in range(3))
    is_sound = _walk(*frame, wanted.fields, wanted.headers, offsets, timestamps, *keys, *values, starts, counts, ends)
    if not is_sound:
        return None
    headers = None
    if wanted.headers:
        total = int(counts.sum())
        headers = HeaderFields(counts, _empty_fields(total), _empty_fields(total))
        if not _walk_headers(frame.data, starts, ends, counts, *headers.names, *headers.values):
            return None
    if not looks_inside:
        return Layout(offsets, timestamps, None, None, None)
    return Layout(offsets, timestamps, keys, values, headers)


def _empty_fields(count: int) -> Fields:
    return Fields(np.empty(count, np.int64), np.empty(count, np.int64))


# ---- the other direction ------------------------------------------------------------------------------------------


@_compiled
def _width(number: int) -> int:
    raw = np.uint64((number << 1) ^ (number >> 63))
    width = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        width += 1
    return width


@_compiled
def _widths(numbers: Longs, widths: Longs) -> None:
    for row in range(len(numbers)):
        widths[row] = _width(numbers[row])


@_compiled
def _write(columns: Any, out: Bytes, offsets: Any) -> None:
    at = 0
    for row in range(columns.shape[1]):
        for column in range(columns.shape[0]):
            number = columns[column, row]
            raw = np.uint64((number << 1) ^ (number >> 63))
            while raw >= np.uint64(0x80):
                out[at] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
                raw >>= np.uint64(7)
                at += 1
            out[at] = np.uint8(raw)
            at += 1
        offsets[row + 1] = at


class NumbaVarints:
    """Numbers written as varints."""

    def widths(self, numbers: Longs) -> Longs:
        widths = np.empty(numbers.size, np.int64)
        _widths(numbers, widths)
        return widths

    def strings(self, columns: Sequence[Longs]) -> tuple[Bytes, Ints]:
        """For each row its varints one after the other; the bytes of all rows, and where each begins and ends."""
        stacked = np.stack(columns)
        out = np.empty(stacked.size * VARLONG_BYTES_MAX, np.uint8)
        offsets = np.zeros(stacked.shape[1] + 1, np.int32)
        _write(stacked, out, offsets)
        return out, offsets
