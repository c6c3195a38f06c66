"""The format `penstock`: what Spark knows of topics, as a table and as a stream, to read and to write.

    spark.read.format("penstock").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders").load()

Spark makes one of these for each load() and each write; it holds the options as they were given. Filters are not pushed
down: Spark 4.3 plans a DataFrame once, with the filters of whichever query came first. Offsets, timestamps and
`.schema()` say what to read.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.source.errors import SourceError
from penstock.spark.source.options import parse_options
from penstock.spark.source.schema import full_schema

NAME = "penstock"


class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Asked for when a read names no schema of its own: wrong options are told here, before any work."""
        return full_schema(bool(parse_options(self.options).include_headers))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.source.batch import BatchSource

        return BatchSource(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        from penstock.spark.source.stream import RefusedStream, StreamSource

        try:
            return StreamSource(parse_options(self.options), schema)
        except SourceError as problem:
            return RefusedStream(problem)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
