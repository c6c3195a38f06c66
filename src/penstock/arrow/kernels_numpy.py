"""Records taken apart and put together with numpy: each step runs over all records at once.

Only the lengths of records must be walked one by one, since each says where the next begins. Many batches are walked side
by side; few are walked in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.arrow.layout import Bytes, Fields, Frame, HeaderFields, Ints, Layout, Longs, Wanted
from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.records.batch import BatchError
from penstock.records.record import HEADER_BYTES_MIN, RECORD_BYTES_MIN
from penstock.records.varint import VARINT_BYTES_MAX, VARLONG_BYTES_MAX, read_varint

SIDE_BY_SIDE_MIN = 192
"""Batches walked at once from which on a step over all of them is cheaper than a step of Python for each."""
HEADER_ROUND_MIN = 64
"""Records from which on a round over the next header of each is cheaper than Python's loop over all of theirs."""


def walk(frame: Frame, wanted: Wanted) -> Layout | None:
    """Where the fields of all records lie; None if a byte is wrong."""
    data = frame.data
    found = _record_bounds(frame)
    if found is None:
        return None
    at, ends = found
    per_record = np.repeat(np.arange(len(frame.counts)), frame.counts)
    timestamps = _timestamps(frame, data, at + 1, per_record)
    if timestamps is None:
        return None
    stamps, at = timestamps
    offset_deltas, at, is_sound = varints(data, at)
    if not is_sound or (at > ends).any() or not _deltas_rise(frame, offset_deltas, per_record):
        return None
    offsets = frame.base_offsets[per_record] + offset_deltas
    if not wanted.fields and not wanted.headers:
        return Layout(offsets, stamps, None, None, None)
    keys, at, is_sound = _fields(data, at)
    if not is_sound:
        return None
    values, at, is_sound = _fields(data, at)
    if not is_sound or (at >= ends).any():
        return None
    headers = None
    if wanted.headers:
        headers = _headers(data, at, ends)
        if headers is None:
            return None
    return Layout(offsets, stamps, keys, values, headers)


# ---- varints ------------------------------------------------------------------------------------------------------


def varints(data: Bytes, at: Longs) -> tuple[Longs, Longs, bool]:
    """The signed varints of up to 5 bytes at these places, the places behind them, and whether all are sound.

    A place past the end reads the last byte: the caller finds out, since what is behind it lies past the end too. And a
    number that is wider than 32 bits is larger than all that the caller can hold against it.
    """
    raw, behind, is_sound = _raw_varints(data, at, VARINT_BYTES_MAX)
    return _zigzag(raw), behind, is_sound


def varlongs(data: Bytes, at: Longs) -> tuple[Longs, Longs, bool]:
    """As `varints`, of 64 bits."""
    raw, behind, is_sound = _raw_varints(data, at, VARLONG_BYTES_MAX)
    return _zigzag(raw), behind, is_sound


def _zigzag(raw: NDArray[np.uint64]) -> Longs:
    signed = (raw >> np.uint64(1)).view(np.int64)
    signed ^= -(raw & np.uint64(1)).view(np.int64)
    return signed


def _raw_varints(data: Bytes, at: Longs, bytes_max: int) -> tuple[NDArray[np.uint64], Longs, bool]:
    byte = data.take(at, mode="clip")
    raw = (byte & 0x7F).astype(np.uint64)
    behind = at + 1
    more = np.flatnonzero(byte & 0x80)
    for index in range(1, bytes_max):
        if not more.size:
            return raw, behind, True
        if more.size == at.size:
            # Lengths of one kind have one width mostly: then nothing is picked out.
            byte = data.take(behind, mode="clip")
            raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            behind += 1
            more = np.flatnonzero(byte & 0x80)
        else:
            byte = data.take(behind[more], mode="clip")
            raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            behind[more] += 1
            more = more[byte >= 0x80]
        if index == VARLONG_BYTES_MAX - 1 and byte.size and int(byte.max()) > 1:
            return raw, behind, False
    return raw, behind, not more.size


# ---- the parts of a record ----------------------------------------------------------------------------------------


def _record_bounds(frame: Frame) -> tuple[Longs, Longs] | None:
    """Where each record begins behind its length, and where it ends; all inside their batch, which they fill."""
    counts_max = int(frame.counts.max())
    if frame.records >= SIDE_BY_SIDE_MIN * counts_max:
        return _bounds_side_by_side(frame, counts_max)
    starts: list[int] = []
    for start, end, count in zip(frame.starts.tolist(), frame.ends.tolist(), frame.counts.tolist(), strict=True):
        try:
            _walk_batch(frame.data[start:end].tobytes(), start, count, starts)
        except (IndexError, BatchError):
            return None
    at = np.array(starts, np.int64)
    lengths, behind, is_sound = varints(frame.data, at)
    ends = behind + lengths
    # Each record ends where the next begins, and the last of a batch where the batch does.
    due = np.empty(at.size, np.int64)
    due[:-1] = at[1:]
    due[np.cumsum(frame.counts)[frame.counts > 0] - 1] = frame.ends[frame.counts > 0]
    if not is_sound or (lengths < RECORD_BYTES_MIN - 1).any() or (ends != due).any():
        return None
    return behind, ends


def _walk_batch(data: bytes, shift: int, count: int, starts: list[int]) -> None:
    """Add where each record would begin if all lengths are right: that is looked at afterwards, for all at once."""
    add = starts.append
    at = 0
    for _ in range(count):
        add(at + shift)
        raw = data[at]
        if raw < 0x80:
            at += 1 + (raw >> 1)
        else:
            following = data[at + 1]
            if following < 0x80:
                at += 2 + (raw >> 1 & 0x3F | following << 6)
            else:
                length, at = read_varint(data, at)
                at += max(length, 0)


def _bounds_side_by_side(frame: Frame, counts_max: int) -> tuple[Longs, Longs] | None:
    """The n-th record of every batch in one step."""
    firsts = np.cumsum(frame.counts) - frame.counts
    starts = np.empty(frame.records, np.int64)
    ends = np.empty(frame.records, np.int64)
    # The batches with most records first, so that those with an n-th record are always at the front.
    order = np.argsort(-frame.counts, kind="stable")
    at, firsts, limits = frame.starts[order], firsts[order], frame.ends[order]
    falling = -frame.counts[order]
    going = len(at)
    for step in range(counts_max):
        going = int(np.searchsorted(falling[:going], -step, side="left"))
        lengths, behind, is_sound = varints(frame.data, at[:going])
        after = behind + lengths
        if not is_sound or (lengths < RECORD_BYTES_MIN - 1).any() or (after > limits[:going]).any():
            return None
        rows = firsts[:going] + step
        starts[rows] = behind
        ends[rows] = after
        at[:going] = after
    return (starts, ends) if (at == limits).all() else None


def _timestamps(frame: Frame, data: Bytes, at: Longs, per_record: Longs) -> tuple[Longs, Longs] | None:
    deltas, behind, is_sound = varlongs(data, at)
    if not is_sound:
        return None
    base = frame.base_timestamps[per_record]
    with np.errstate(over="ignore"):
        stamps = base + deltas
    # Two numbers of one sign whose sum has the other: it does not fit 64 bits.
    if (((base ^ stamps) & (deltas ^ stamps)) < 0).any():
        return None
    if frame.has_append_time.any():
        stamps = np.where(frame.has_append_time[per_record], frame.append_times[per_record], stamps)
    return stamps, behind


def _deltas_rise(frame: Frame, deltas: Longs, per_record: Longs) -> bool:
    """Whether offset deltas rise within each batch, from 0 or more to the last at most."""
    if not deltas.size:
        return True
    rises = np.empty(deltas.size, np.bool_)
    rises[0] = deltas[0] >= 0
    rises[1:] = (deltas[1:] > deltas[:-1]) | (per_record[1:] != per_record[:-1])
    is_within = (deltas >= 0) & (deltas <= frame.last_offset_deltas[per_record])
    return bool((rises & is_within).all())


def _fields(data: Bytes, at: Longs) -> tuple[Fields, Longs, bool]:
    lengths, behind, is_sound = varints(data, at)
    if not is_sound or (lengths < -1).any():
        return Fields(behind, lengths), behind, False
    return Fields(behind, lengths), behind + np.maximum(lengths, 0), True


def _headers(data: Bytes, at: Longs, ends: Longs) -> HeaderFields | None:
    """The headers of all records, in as many rounds as the record with most headers has."""
    counts, at, is_sound = varints(data, at)
    if not is_sound or (counts < 0).any() or (counts * HEADER_BYTES_MIN > ends - at).any():
        return None
    if (counts > HEADERS_PER_RECORD_MAX).any():
        return None
    total = int(counts.sum())
    arrays = tuple(np.empty(total, np.int64) for _ in range(4))
    name_starts, name_lengths, value_starts, value_lengths = arrays
    firsts = np.cumsum(counts) - counts
    going = np.flatnonzero(counts)
    step = 0
    while going.size >= HEADER_ROUND_MIN:
        names, behind, names_are_sound = _fields(data, at[going])
        values, behind, values_are_sound = _fields(data, behind)
        if not names_are_sound or not values_are_sound or (names.lengths < 0).any():
            return None
        rows = firsts[going] + step
        name_starts[rows], name_lengths[rows] = names
        value_starts[rows], value_lengths[rows] = values
        at[going] = behind
        # Past the end nothing is read any more, however many headers are claimed.
        if (behind > ends[going]).any():
            return None
        step += 1
        going = going[counts[going] > step]
    if not _headers_one_by_one(data, at, ends, going, firsts + step, counts - step, arrays):
        return None
    return HeaderFields(counts, Fields(name_starts, name_lengths), Fields(value_starts, value_lengths))


def _headers_one_by_one(
    data: Bytes, at: Longs, ends: Longs, going: Longs, rows: Longs, left: Longs, arrays: tuple[Longs, ...]
) -> bool:
    """The headers that are left of the records `going`; and whether every record is filled."""
    view = data.data
    name_starts, name_lengths, value_starts, value_lengths = arrays
    try:
        for record in going.tolist():
            here = int(at[record])
            row = int(rows[record])
            for header in range(row, row + int(left[record])):
                length, here = read_varint(view, here)
                name_starts[header], name_lengths[header] = here, length
                if length < 0:
                    return False
                here += length
                length, here = read_varint(view, here)
                value_starts[header], value_lengths[header] = here, length
                if length < -1:
                    return False
                here += max(length, 0)
                if here > len(view):
                    return False
            at[record] = here
    except BatchError:
        return False
    return bool((at == ends).all())


# ---- the other direction ------------------------------------------------------------------------------------------


class NumpyVarints:
    """Numbers written as varints, all at once."""

    def widths(self, numbers: Longs) -> Longs:
        raw = _raw(numbers)
        widths = np.ones(raw.size, np.int64)
        most = int(raw.max()) if raw.size else 0
        for bits in range(7, most.bit_length(), 7):
            widths += raw >= np.uint64(1 << bits)
        return widths

    def strings(self, columns: Sequence[Longs]) -> tuple[Bytes, Ints]:
        """For each row its varints one after the other; the bytes of all rows, and where each begins and ends."""
        written = [self._columns(_raw(numbers)) for numbers in columns]
        matrix = np.stack([column for one in written for column in one], axis=1)
        widths = [self.widths(numbers) for numbers in columns]
        is_used = [
            of_number > index for one, of_number in zip(written, widths, strict=True) for index in range(len(one))
        ]
        total = sum(widths[1:], widths[0])
        offsets = np.zeros(total.size + 1, np.int32)
        np.cumsum(total, out=offsets[1:])
        if int(offsets[-1]) == matrix.size:
            return matrix.reshape(-1), offsets
        return matrix[np.stack(is_used, axis=1)], offsets

    @staticmethod
    def _columns(raw: NDArray[np.uint64]) -> list[Bytes]:
        """The first byte of every varint, the second, and so on as far as the longest goes."""
        columns: list[Bytes] = []
        most = int(raw.max()) if raw.size else 0
        while True:
            low = (raw & np.uint64(0x7F)).astype(np.uint8)
            most >>= 7
            if not most:
                return [*columns, low]
            raw = raw >> np.uint64(7)
            columns.append(low | ((raw > 0).view(np.uint8) << np.uint8(7)))


def _raw(numbers: Longs) -> NDArray[np.uint64]:
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
