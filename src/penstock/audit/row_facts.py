"""Facts of rows: what can be said of records as Arrow columns, whether they come from a log or from a table.

The digest of a record covers everything that an archive keeps of it: offset, timestamp and its type, key, value and headers.
It includes lengths, so null differs from empty, and a byte that moves from the value to the key is detected. Digests are
summed in pieces of 4,096 offsets: neither the order of rows nor their files matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.audit.distinct import Distinct
from penstock.audit.facts import DIGEST_MAX, Facts, Piece, add_run
from penstock.lake.columns import DECODED, RECORD

PIECE_BITS = 12
PIECE_OFFSETS = 1 << PIECE_BITS
COLUMNS = tuple(RECORD.names)
DECODED_COLUMNS = DECODED
"""The same columns, as `arrow.decode` names them."""
_HOUR_US = 3_600_000_000
_HEAD = struct.Struct(">qqiqqi")
_NO_TIME = -(1 << 63)
_NO_LENGTH = -1


def renamed(decoded: pa.RecordBatch) -> pa.RecordBatch:
    """Rows decoded with `DECODED_COLUMNS`, with the column names of a table."""
    return pa.RecordBatch.from_arrays(decoded.columns, schema=RECORD)


def row_digests(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """The offset and the digest of each row."""
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("offset", "timestamp_type", "key", "value", "headers"))
    for time, offset, kind, key, value, headers in zip(times, *columns, strict=True):
        head = _HEAD.pack(
            offset,
            _NO_TIME if time is None else time,
            -1 if kind is None else kind,
            _NO_LENGTH if key is None else len(key),
            _NO_LENGTH if value is None else len(value),
            len(headers) if headers else 0,
        )
        parts = [head, key or b"", value or b""]
        if headers:
            parts.append(repr(headers).encode())
        yield offset, int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "big")


class RowFacts:
    """Takes batches of rows of one partition, and completes its facts."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._keys = Distinct()

    def take(self, rows: pa.RecordBatch) -> None:
        """Rows in the order in which they lie there."""
        if not rows.num_rows:
            return
        facts = self._facts
        key, value = rows.column("key"), rows.column("value")
        times = rows.column("timestamp").cast(pa.int64())
        key_bytes = pc.fill_null(pc.binary_length(key), 0)
        value_bytes = pc.fill_null(pc.binary_length(value), 0)
        sizes = pc.add(key_bytes, value_bytes)
        facts.records += rows.num_rows
        facts.null_keys += key.null_count
        facts.null_values += value.null_count
        facts.key_bytes += pc.sum(key_bytes).as_py()
        facts.value_bytes += pc.sum(value_bytes).as_py()
        facts.record_bytes_max = max(facts.record_bytes_max, pc.max(sizes).as_py())
        if times.null_count < len(times):
            bounds = pc.min_max(times).as_py()
            _widen(facts, bounds["min"] // 1000, bounds["max"] // 1000)
        self._keys.add(one for one in pc.unique(key).to_pylist() if one is not None)
        self._count_hours(times, sizes)
        self._count_rows(rows)

    def _count_hours(self, times: Any, sizes: Any) -> None:
        hours = self._facts.hours
        table = pa.table({"hour": pc.floor(pc.divide(pc.cast(times, pa.float64()), float(_HOUR_US))), "size": sizes})
        for row in table.group_by("hour").aggregate([("size", "sum"), ("size", "count")]).to_pylist():
            if row["hour"] is not None:
                records, size = hours.get(int(row["hour"]), (0, 0))
                hours[int(row["hour"])] = (records + row["size_count"], size + row["size_sum"])

    def _count_rows(self, rows: pa.RecordBatch) -> None:
        visible, pieces = self._facts.visible, self._facts.pieces
        for offset, digest in row_digests(rows):
            piece = pieces.get(offset >> PIECE_BITS)
            if piece is None:
                piece = pieces[offset >> PIECE_BITS] = Piece()
            piece.records += 1
            piece.digest = (piece.digest + digest) & DIGEST_MAX
            add_run(visible, offset, offset)

    def finish(self) -> None:
        self._facts.keys, self._facts.is_sketch = self._keys.packed()


def _widen(facts: Facts, low: int, high: int) -> None:
    facts.timestamp_min = low if facts.timestamp_min is None else min(low, facts.timestamp_min)
    facts.timestamp_max = high if facts.timestamp_max is None else max(high, facts.timestamp_max)
