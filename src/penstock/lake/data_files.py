"""Parquet files of a table: writing the rows of a range to them, a file a day or hour, and reading them again.

Keys, values and offsets hardly ever repeat, so dictionaries would only cost time; offsets and timestamps grow, so their
differences are what is kept (DELTA_BINARY_PACKED). Statistics are kept of numbers and of typed columns, not of
keys and values, whose smallest and largest may be a megabyte each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lake.buckets import Bucketing
from penstock.lake.columns import ERROR, RECORD
from penstock.lake.places import Place

ROW_GROUP_ROWS: Final = 128 * 1024
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
HELD_BYTES_MAX: Final = 192 * 1024 * 1024
"""Of all row groups that are being filled, in one task."""
OPEN_MAX: Final = 100
"""Files at once: records of more days than that wait in memory, which a range of offsets bounds."""
SUFFIX: Final = ".parquet"
MIXED: Final = -1

_UNLIKE: Final = frozenset({"key", "value", "offset", "timestamp", "headers", ERROR})
_GROWING: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_ORDERED: Final = ("timestamp", "timestamp_type", "partition", "offset")


class DataFile(msgspec.Struct, frozen=True):
    """A file of the table, and what is in it."""

    name: str
    partition: int
    """`MIXED` if it holds several, as other tools may write them when they rewrite a table."""
    bucket: str
    rows: int
    bytes: int
    first_offset: int
    last_offset: int
    first_us: int
    last_us: int


class FileSet:
    """The files of one range, or of one compaction. They appear when the block ends well."""

    def __init__(self, place: Place, stem: str, partition: int, bucketing: Bucketing, schema: pa.Schema) -> None:
        self._place = place
        self._stem = stem
        self._partition = partition
        self._bucketing = bucketing
        self._schema = schema
        self._open: dict[str, _Open] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._written: list[_Open] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._finish()
            except BaseException as failure:
                self._stack.__exit__(type(failure), failure, failure.__traceback__)
                raise
        else:
            self._stack.__exit__(kind, error, trace)

    def write(self, bucket: str, rows: pa.RecordBatch) -> None:
        file = self._open.get(bucket)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._waiting.setdefault(bucket, []).append(rows)
                return
            file = self._opened(bucket)
        file.add(rows)
        if sum(one.held_bytes for one in self._open.values()) > HELD_BYTES_MAX:
            for one in self._open.values():
                one.flush()

    def _opened(self, bucket: str) -> _Open:
        name = f"{self._bucketing.folder(bucket)}{self._stem}{SUFFIX}"
        sink = self._stack.enter_context(self._place.sink(name))
        file = _Open(name, bucket, pq.ParquetWriter(sink, self._schema, **how(self._schema)), self._schema)
        self._stack.callback(file.writer.close)
        self._open[bucket] = file
        return file

    def _finish(self) -> None:
        """In waves, so that no more files than allowed are open."""
        while True:
            for file in self._open.values():
                file.flush()
            self._stack.close()
            self._written += self._open.values()
            self._open = {}
            if not self._waiting:
                return
            for bucket in list(self._waiting)[:OPEN_MAX]:
                file = self._opened(bucket)
                for rows in self._waiting.pop(bucket):
                    file.add(rows)

    def files(self) -> list[DataFile]:
        """After the block."""
        return [
            DataFile(
                one.name,
                self._partition,
                one.bucket,
                one.rows,
                self._place.bytes_of(one.name),
                one.first_offset,
                one.last_offset,
                one.first_us,
                one.last_us,
            )
            for one in self._written
        ]


class _Open:
    """A file that is being written."""

    def __init__(self, name: str, bucket: str, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.name = name
        self.bucket = bucket
        self.writer = writer
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.held_bytes = 0
        self.rows = 0
        self.first_offset = self.last_offset = self.first_us = self.last_us = 0

    def add(self, rows: pa.RecordBatch) -> None:
        offsets = pc.min_max(rows.column("offset"))
        times = pc.min_max(rows.column("timestamp").cast(pa.int64()))
        first_offset, last_offset = offsets["min"].as_py(), offsets["max"].as_py()
        first_us, last_us = times["min"].as_py(), times["max"].as_py()
        is_first = not self.rows
        self.first_offset = first_offset if is_first else min(first_offset, self.first_offset)
        self.last_offset = last_offset if is_first else max(last_offset, self.last_offset)
        self.first_us = first_us if is_first else min(first_us, self.first_us)
        self.last_us = last_us if is_first else max(last_us, self.last_us)
        self.rows += rows.num_rows
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self.held_bytes += rows.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self.writer.write_table(pa.Table.from_batches(self._held, self._schema), row_group_size=self._held_rows)
        self._held, self._held_rows, self.held_bytes = [], 0, 0


def how(schema: pa.Schema) -> dict[str, Any]:
    """pyarrow's options for files of this schema."""
    repeating = [name for name in schema.names if name not in _UNLIKE and not _is_nested(schema.field(name).type)]
    typed = [name for name in schema.names if name not in RECORD.names and name != ERROR]
    return {
        "compression": "zstd",
        "use_dictionary": [*repeating, "headers.list.element.key"],
        "column_encoding": _GROWING,
        "write_statistics": [*_ORDERED, *typed],
    }


def _is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def read_file(place: Place, name: str, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in their order."""
    wanted = None if columns is None else list(columns)
    with place.source(name) as source, pq.ParquetFile(source) as file:
        yield from file.iter_batches(batch_size=50_000, columns=wanted)
