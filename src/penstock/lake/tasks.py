"""What a worker does: fetch a range and write its files, or make one file out of several.

A task is plain data that can be sent anywhere; running it gives plain data back. Doing it twice, even at the same time,
gives the same files under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.lake.avro import AvroReader
from penstock.lake.buckets import Bucketing
from penstock.lake.columns import RECORD
from penstock.lake.data_files import DataFile, FileSet, read_file
from penstock.lake.fetching import fetch_range
from penstock.lake.places import Place
from penstock.lake.ranges import OffsetRange
from penstock.lake.settings import Values, ValueSettings
from penstock.lake.typed import Grown, JsonReader, Typing, ValueReader


@dataclass(frozen=True, slots=True)
class Written:
    """What a task did."""

    files: list[DataFile]
    grown: dict[str, str] = field(default_factory=dict)
    """Columns that the table does not have yet."""
    unreadable: int = 0
    """Rows with an `_error`."""


class Task(Protocol):
    def run(self) -> Written: ...


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """Fetch a range of offsets and write it as Parquet."""

    place: Place
    kafka: KafkaSettings
    topic: str
    range: OffsetRange
    bucketing: Bucketing
    value: ValueSettings
    known: dict[str, str]
    grown: dict[str, str]

    def wider(self, grown: dict[str, str]) -> ArchiveRange:
        """The same with columns that others found."""
        return replace(self, grown=grown)

    def run(self) -> Written:
        with KafkaClient(self.kafka) as client:
            if not self.value.is_typed:
                return self._write(RECORD, fetch_range(client, self.topic, self.range))
            reader = reader_of(self.value)
            typing = Typing(reader, self.known, self.grown)
            try:
                return self._write_typed(client, typing)
            except Grown:
                # A file has one schema from its first row on: look at all rows, then begin again.
                typing = Typing(reader, self.known, self.grown)
                for records in fetch_range(client, self.topic, self.range):
                    typing.learn(records)
                return self._write_typed(client, Typing(reader, self.known, typing.grown))

    def _write_typed(self, client: KafkaClient, typing: Typing) -> Written:
        records = fetch_range(client, self.topic, self.range)
        written = self._write(typing.schema, (typing.rows(rows) for rows in records))
        return replace(written, grown=typing.grown, unreadable=typing.unreadable)

    def _write(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Written:
        with FileSet(self.place, self.range.stem, self.range.partition, self.bucketing, schema) as files:
            for rows in batches:
                for bucket, some in self.bucketing.split(rows):
                    files.write(bucket, some)
        return Written(files.files())


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """Make one file of small ones that lie in one folder."""

    place: Place
    files: tuple[DataFile, ...]
    bucketing: Bucketing
    stem: str
    schema: pa.Schema

    def run(self) -> Written:
        with FileSet(self.place, self.stem, self.files[0].partition, self.bucketing, self.schema) as files:
            for rows in self._rows():
                files.write(self.files[0].bucket, rows)
        return Written(files.files())

    def _rows(self) -> Iterable[pa.RecordBatch]:
        for file in sorted(self.files, key=lambda one: one.first_offset):
            for rows in read_file(self.place, file.name):
                yield conformed(rows, self.schema)


def conformed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows in another schema: columns that they lack are empty."""
    there = set(rows.schema.names)
    arrays = [
        rows.column(field.name).cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def reader_of(value: ValueSettings) -> ValueReader:
    """Raises ArchiveError for a schema that is none."""
    if value.values is Values.AVRO:
        return AvroReader(value.schemas, value.kinds)
    return JsonReader(value.kinds)
