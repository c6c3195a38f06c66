"""Facts of rows: what can be said of records as Arrow columns, whether they come from a log or from a table.

The checksum of a record covers offset, time, key, value and headers, and tells null from empty. Checksums are added up by
pieces of 4,096 offsets, so neither order nor files matter, and what differs can be named to within a piece.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.audit.distinct import Distinct
from penstock.spark.audit.facts import Facts, Piece, add_run

PIECE_BITS = 12
COLUMNS = ("key", "value", "headers", "timestamp", "offset")
_HOUR_US = 3_600_000_000
_HEAD = struct.Struct(">qq??")


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
        bounds = pc.min_max(times).as_py()
        _widen(facts, bounds["min"] // 1000, bounds["max"] // 1000)
        self._keys.add(one for one in pc.unique(key).to_pylist() if one is not None)
        self._count_hours(times, sizes)
        self._count_rows(rows, times)

    def _count_hours(self, times: Any, sizes: Any) -> None:
        hours = self._facts.hours
        table = pa.table({"hour": pc.floor(pc.divide(pc.cast(times, pa.float64()), float(_HOUR_US))), "size": sizes})
        for row in table.group_by("hour").aggregate([("size", "sum"), ("size", "count")]).to_pylist():
            records, size = hours.get(int(row["hour"]), (0, 0))
            hours[int(row["hour"])] = (records + row["size_count"], size + row["size_sum"])

    def _count_rows(self, rows: pa.RecordBatch, times: Any) -> None:
        visible, pieces = self._facts.visible, self._facts.pieces
        columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value", "headers"))
        for offset, key, value, headers, time in zip(*columns, times.to_pylist(), strict=True):
            checksum = zlib.crc32(_HEAD.pack(offset, time, key is None, value is None))
            checksum = zlib.crc32(value or b"", zlib.crc32(key or b"", checksum))
            if headers:
                checksum = zlib.crc32(repr([(one["key"], one["value"]) for one in headers]).encode(), checksum)
            piece = pieces.get(offset >> PIECE_BITS)
            if piece is None:
                piece = pieces[offset >> PIECE_BITS] = Piece()
            piece.records += 1
            piece.checksum += checksum
            add_run(visible, offset, offset)

    def finish(self) -> None:
        self._facts.keys, self._facts.is_sketch = self._keys.packed()


def _widen(facts: Facts, low: int, high: int) -> None:
    facts.timestamp_min = low if facts.timestamp_min is None else min(low, facts.timestamp_min)
    facts.timestamp_max = high if facts.timestamp_max is None else max(high, facts.timestamp_max)
