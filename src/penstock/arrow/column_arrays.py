"""Columns from where the fields lie: byte strings are gathered by Arrow, numbers are numpy's own memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.arrow.columns import HEADERS
from penstock.arrow.layout import Bytes, Fields, HeaderFields, Kernel, Longs, Wanted, frame_batches
from penstock.records.batch import Batch, BatchError
from penstock.records.record import read_records

MILLISECOND_US = 1_000
_MILLISECONDS_MAX = ((1 << 63) - 1) // MILLISECOND_US


def decode_columns(
    batches: Sequence[Batch], topic: str, partition: int, columns: Sequence[str], start: int, end: int, kernel: Kernel
) -> list[pa.Array]:
    """The columns of the records with offsets from `start` to before `end`."""
    frame = frame_batches(batches)
    wanted = Wanted(fields="key" in columns or "value" in columns, headers="headers" in columns)
    layout = kernel(frame, wanted)
    if layout is None:
        raise _explained(batches)
    rows = slice(int(np.searchsorted(layout.offsets, start)), int(np.searchsorted(layout.offsets, end)))
    count = rows.stop - rows.start

    def column(name: str) -> pa.Array:
        match name:
            case "key":
                assert layout.keys is not None
                return binary_column(frame.data, _sliced(layout.keys, rows))
            case "value":
                assert layout.values is not None
                return binary_column(frame.data, _sliced(layout.values, rows))
            case "topic":
                return pa.repeat(pa.scalar(topic, pa.string()), count)
            case "partition":
                return pa.array(np.full(count, partition, np.int32))
            case "offset":
                return pa.array(layout.offsets[rows])
            case "timestamp":
                return timestamp_column(layout.timestamps[rows])
            case "timestampType":
                # 0 and 1, as the attribute bit has it.
                return pa.array(np.repeat(frame.has_append_time, frame.counts)[rows].astype(np.int32))
        assert layout.headers is not None
        return header_column(frame.data, _headers_of(layout.headers, rows))

    return [column(name) for name in columns]


def _explained(batches: Sequence[Batch]) -> BatchError:
    """What is wrong with a byte that a kernel did not like: the plain reader finds the same one, and says it."""
    try:
        for batch in batches:
            for _ in read_records(batch):
                pass
    except BatchError as error:
        return error
    return BatchError("a record is shorter than its length field")


def _headers_of(headers: HeaderFields, rows: slice) -> HeaderFields:
    first = int(headers.counts[: rows.start].sum())
    counts = headers.counts[rows]
    some = slice(first, first + int(counts.sum()))
    return HeaderFields(counts, _sliced(headers.names, some), _sliced(headers.values, some))


def _sliced(fields: Fields, rows: slice) -> Fields:
    return Fields(fields.starts[rows], fields.lengths[rows])


def binary_column(data: Bytes, fields: Fields) -> pa.BinaryArray:
    """The byte strings, copied out of the buffer by `take`: every second piece of it, the others are what lies between."""
    count = len(fields.starts)
    is_null = fields.lengths < 0
    nulls = int(is_null.sum())
    if nulls == count:
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = fields.starts
    bounds[1::2] = fields.starts + np.maximum(fields.lengths, 0)
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)], null_count=0
    )
    taken = pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
    if not nulls:
        return taken
    _, offsets, gathered = taken.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [_bitmap(~is_null), offsets, gathered], null_count=nulls)


def header_column(data: Bytes, headers: HeaderFields) -> pa.ListArray:
    """A list of name and value, null for a record without headers."""
    count = len(headers.counts)
    if not headers.names.starts.size:
        return pa.nulls(count, HEADERS)
    pairs = pa.StructArray.from_arrays(
        [_texts(binary_column(data, headers.names)), binary_column(data, headers.values)],
        fields=list(HEADERS.value_type),
    )
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(headers.counts, out=offsets[1:])
    has_some = headers.counts > 0
    nulls = count - int(has_some.sum())
    return pa.ListArray.from_buffers(
        HEADERS,
        count,
        [_bitmap(has_some) if nulls else None, pa.py_buffer(offsets)],
        null_count=nulls,
        children=[pairs],
    )


def _texts(names: pa.BinaryArray) -> pa.StringArray:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Java's clients read such a name with replacement characters too.
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())


def timestamp_column(milliseconds: Longs) -> pa.TimestampArray:
    if ((milliseconds > _MILLISECONDS_MAX) | (milliseconds < -_MILLISECONDS_MAX)).any():
        raise BatchError("a timestamp in milliseconds exceeds 64 bits as microseconds")
    return pa.array(milliseconds * MILLISECOND_US).cast(pa.timestamp("us", "UTC"))


def _bitmap(is_valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))
