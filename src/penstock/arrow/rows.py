"""Arrow columns as records are made of them: keys and values of bytes, headers flat, timestamps in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

_PER_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_PER_SECOND_MS = 1_000


class Headers(NamedTuple):
    """The headers of all rows, one after the other."""

    counts: pa.Int32Array
    """An entry a row."""
    names: pa.BinaryArray
    values: pa.BinaryArray


class Rows(NamedTuple):
    """Columns of one length: what is put into batches."""

    keys: pa.BinaryArray | None
    """None if no row has a key."""
    values: pa.BinaryArray
    headers: Headers | None
    timestamps: pa.Int64Array
    """In milliseconds."""

    def part(self, start: int, end: int) -> Rows:
        headers = self.headers
        if headers is not None:
            first = pc.sum(headers.counts.slice(0, start)).as_py() or 0
            counts = headers.counts.slice(start, end - start)
            total = pc.sum(counts).as_py() or 0
            headers = Headers(counts, headers.names.slice(first, total), headers.values.slice(first, total))
        return Rows(
            None if self.keys is None else self.keys.slice(start, end - start),
            self.values.slice(start, end - start),
            headers,
            self.timestamps.slice(start, end - start),
        )


class Packer(Protocol):
    """A way to pack rows into records: the bytes of all, and where each batch ends in them."""

    def __call__(self, rows: Rows, ends: Sequence[int], /) -> tuple[memoryview, list[int]]: ...


def rows_of(table: pa.RecordBatch, timestamp_ms: int | None = None) -> Rows:
    """The columns `value`, and if they are there `key`, `headers` and `timestamp`; raises ValueError for one that does
    not fit. Without a column `timestamp` every row has `timestamp_ms`."""
    names = table.schema.names
    if "value" not in names:
        raise ValueError("column value is missing")
    values = _bytes(table.column("value"), "value")
    keys = _bytes(table.column("key"), "key") if "key" in names else None
    if keys is not None and keys.null_count == len(keys):
        keys = None
    headers = _headers(table.column("headers")) if "headers" in names else None
    if "timestamp" in names:
        timestamps = _milliseconds(table.column("timestamp"))
    elif timestamp_ms is None:
        raise ValueError("column timestamp is missing, and no default timestamp is set")
    else:
        timestamps = pa.repeat(pa.scalar(timestamp_ms, pa.int64()), table.num_rows)
    return Rows(keys, values, headers, timestamps)


def _bytes(column: pa.Array, name: str) -> pa.BinaryArray:
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if not (_is_binary(kind) or _is_text(kind)):
        raise ValueError(f"column {name} is {kind}, not binary or string")
    try:
        return column.cast(pa.binary())
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name}: {error}") from None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _headers(column: pa.Array) -> Headers | None:
    kind = column.type
    if pa.types.is_null(kind):
        return None
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise ValueError(f"column headers is {kind}, not array<struct<key: string, value: binary>>")
    pairs = column.flatten()
    if not len(pairs):
        return None
    names, values = pairs.flatten()
    if names.null_count or pairs.null_count:
        raise ValueError("column headers: a header has no key")
    counts = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    return Headers(counts, _bytes(names, "headers.key"), _bytes(values, "headers.value"))


def _milliseconds(column: pa.Array) -> pa.Int64Array:
    if column.null_count:
        raise ValueError("column timestamp: a row has no timestamp")
    kind = column.type
    if pa.types.is_int64(kind):
        return column
    if not pa.types.is_timestamp(kind):
        raise ValueError(f"column timestamp is {kind}, not timestamp or long")
    numbers = column.cast(pa.int64())
    if kind.unit == "s":
        return pc.multiply_checked(numbers, _PER_SECOND_MS)
    per = _PER_MILLISECOND[kind.unit]
    if per == 1:
        return numbers
    # Arrow divides towards zero; a time before 1970 is rounded down like any other.
    quotients = pc.divide(numbers, per)
    is_rounded_up = pc.greater(pc.multiply(quotients, per), numbers)
    return pc.subtract(quotients, is_rounded_up.cast(pa.int64()))
