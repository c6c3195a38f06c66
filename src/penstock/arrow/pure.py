"""The plain way: `penstock.records` reads and builds, Python lists are in between. What the fast ways are held against."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.arrow.columns import CREATE_TIME, LOG_APPEND_TIME, SCHEMA
from penstock.arrow.rows import Rows
from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import HEADER_NAME_ERRORS, Headers, Record, read_records

_INT64_MAX = (1 << 63) - 1


def decode_columns(
    batches: Sequence[Batch], topic: str, partition: int, columns: Sequence[str], start: int, end: int
) -> list[pa.Array]:
    """The columns of the records with offsets from `start` to before `end`."""
    records: list[Record] = []
    types: list[int] = []
    for batch in batches:
        read = [record for record in read_records(batch) if start <= record.offset < end]
        records += read
        types += [LOG_APPEND_TIME if batch.has_log_append_time else CREATE_TIME] * len(read)
    return [_column(name, records, types, topic, partition) for name in columns]


def _column(name: str, records: list[Record], types: list[int], topic: str, partition: int) -> pa.Array:
    kind = SCHEMA.field(name).type
    match name:
        case "key":
            return pa.array([record.key for record in records], kind)
        case "value":
            return pa.array([record.value for record in records], kind)
        case "topic":
            return pa.array([topic] * len(records), kind)
        case "partition":
            return pa.array([partition] * len(records), kind)
        case "offset":
            return pa.array([record.offset for record in records], kind)
        case "timestamp":
            return pa.array([_microseconds(record.timestamp) for record in records], kind)
        case "timestampType":
            return pa.array(types, kind)
    assert name == "headers"
    return pa.array([_header_list(record.headers) for record in records], kind)


def _microseconds(milliseconds: int) -> int:
    if abs(milliseconds) * 1_000 > _INT64_MAX:
        raise BatchError("a timestamp in milliseconds exceeds 64 bits as microseconds")
    return milliseconds * 1_000


def _header_list(headers: Headers) -> list[dict[str, str | bytes | None]] | None:
    if not headers:
        return None
    return [
        {"key": name.encode("utf-8", HEADER_NAME_ERRORS).decode("utf-8", "replace"), "value": value}
        for name, value in headers
    ]


def pack(rows: Rows, ends: Sequence[int]) -> tuple[memoryview, list[int]]:
    """The records of all rows, and where each batch ends in them."""
    keys = [None] * len(rows.values) if rows.keys is None else rows.keys.to_pylist()
    records = [
        NewRecord(*row)
        for row in zip(rows.timestamps.to_pylist(), keys, rows.values.to_pylist(), _headers(rows), strict=True)
    ]
    packed = bytearray()
    bounds: list[int] = []
    first = 0
    for end in ends:
        packed += build_batch(records[first:end])[HEADER_BYTES:]
        bounds.append(len(packed))
        first = end
    return memoryview(packed), bounds


def _headers(rows: Rows) -> list[Headers]:
    if rows.headers is None:
        return [()] * len(rows.values)
    names = [name.decode("utf-8", HEADER_NAME_ERRORS) for name in rows.headers.names.to_pylist()]
    pairs = list(zip(names, rows.headers.values.to_pylist(), strict=True))
    found: list[Headers] = []
    first = 0
    for count in rows.headers.counts.to_pylist():
        found.append(tuple(pairs[first : first + count]))
        first += count
    return found
