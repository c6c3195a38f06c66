"""Rows packed into records: varints are written by a kernel, and Arrow joins them with keys, values and headers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.layout import Longs, Varints
from penstock.arrow.rows import Headers, Rows


def pack(rows: Rows, ends: Sequence[int], varints: Varints) -> tuple[memoryview, list[int]]:
    """The records of all rows, and where each batch ends in them."""
    count = len(rows.values)
    bounds = np.array([0, *ends], np.int64)
    # The row that each row's batch begins with.
    firsts = np.repeat(bounds[:-1], np.diff(bounds))
    timestamps = rows.timestamps.to_numpy()
    timestamp_deltas = timestamps - timestamps[firsts]
    offset_deltas = np.arange(count) - firsts
    key_lengths, value_lengths = _lengths(rows.keys, count), _lengths(rows.values, count)
    sizes = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + 1
    for numbers in (timestamp_deltas, offset_deltas, key_lengths, value_lengths):
        sizes += varints.widths(numbers)
    if rows.headers is None:
        sizes += 1
        behind = [pa.scalar(_NO_HEADERS)]
    else:
        counts = rows.headers.counts.to_numpy().astype(np.int64)
        headers = _headers(rows.headers, counts, varints)
        sizes += varints.widths(counts) + _lengths(headers, count)
        behind = [_strings([counts], varints), headers]
    attributes = np.zeros(count, np.int64)
    packed = _joined(
        _strings([sizes, attributes, timestamp_deltas, offset_deltas, key_lengths], varints),
        *([] if rows.keys is None else [rows.keys]),
        _strings([value_lengths], varints),
        rows.values,
        *behind,
    )
    _, offsets, data = packed.buffers()
    return memoryview(data), np.frombuffer(offsets, np.int32)[bounds[1:]].tolist()


_NO_HEADERS = b"\0"


def _headers(headers: Headers, counts: Longs, varints: Varints) -> pa.BinaryArray:
    """The headers of each row."""
    total = len(headers.names)
    names = _strings([_lengths(headers.names, total)], varints)
    values = _strings([_lengths(headers.values, total)], varints)
    _, offsets, data = _joined(names, headers.names, values, headers.values).buffers()
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    of_rows = np.frombuffer(offsets, np.int32)[bounds]
    return pa.Array.from_buffers(pa.binary(), counts.size, [None, pa.py_buffer(of_rows), data], null_count=0)


def _joined(*pieces: pa.BinaryArray | pa.BinaryScalar) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement=b"")


def _strings(columns: Sequence[Longs], varints: Varints) -> pa.BinaryArray:
    data, offsets = varints.strings(columns)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), offsets.size - 1, buffers, null_count=0)


def _lengths(column: pa.BinaryArray | None, count: int) -> Longs:
    """-1 for a null."""
    if column is None:
        return np.full(count, -1, np.int64)
    lengths: Longs = pc.fill_null(pc.binary_length(column), -1).to_numpy().astype(np.int64)
    return lengths
