"""The writers that Spark asks the data source for: rows of a DataFrame to topics, in batch and in streaming.

Spark makes a writer on the driver, once for a batch write and once for every micro-batch of a stream: options, columns,
the topic and the broker are looked at there, before a task starts. The writer then goes to each task as a pickle; `write`
runs there, `commit` and `abort` on the driver again. How rows travel is in `delivery`, how they come to be there exactly
once in exactly_once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.arrow.encode import NOBODY, Writer
from penstock.client.kafka import KafkaClient, KafkaError
from penstock.spark.sink import exactly_once, journal
from penstock.spark.sink.delivery import Sender
from penstock.spark.sink.options import SinkError, SinkOptions
from penstock.spark.sink.rows import partitions_of
from penstock.spark.sink.transactions import with_timeout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

Messages = Sequence[WriterCommitMessage | None]

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of every task of a streaming query."""
ONLY_BATCH = 0
"""The number of a batch write."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """For `df.write`; raises SinkError for what can be known before a row is written."""
    if overwrite:
        raise SinkError('mode("overwrite") is not supported: a topic can only be appended to; use mode("append")')
    known = checked(SinkOptions.of(options, schema))
    return ExactlyOnceBatchWriter(known) if known.is_exactly_once else BatchWriter(known)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """For `df.writeStream`. `overwrite` is output mode complete: all rows of the result go out in every micro-batch, as
    with Spark's Kafka sink."""
    known = SinkOptions.of(options, schema)
    if known.write_id is not None:
        raise SinkError("writeId is for batch writes only: a stream is identified by its checkpoint")
    known = checked(known)
    return ExactlyOnceStreamWriter(known) if known.is_exactly_once else StreamWriter(known)


def checked(options: SinkOptions) -> SinkOptions:
    """Ask the cluster what tasks will rely on, so that a wrong name or a broker that is down is known before they run."""
    with told(options), KafkaClient(options.settings) as client:
        if options.topic is None:
            client.metadata([])
        else:
            partitions_of(lambda topic: client.metadata([topic]).topics.get(topic))(options.topic)
        if not options.is_exactly_once:
            return options
        journal.prepare(client)
        return with_timeout(client, options)


@contextmanager
def told(options: SinkOptions) -> Iterator[None]:
    """A KafkaError becomes a SinkError that names the cluster."""
    try:
        yield
    except KafkaError as error:
        servers = ",".join(str(address) for address in options.settings.bootstrap)
        if error.name == "BROKER_NOT_AVAILABLE":
            text = (
                f"{error.text}; check that the broker is running and that kafka.bootstrap.servers={servers} is correct"
            )
        else:
            text = f"error from the cluster at {servers}: {error}"
        raise SinkError(text) from None


# ---------------------------------------------------------------------------------------------------- at least once


@dataclass
class Written(WriterCommitMessage):
    """What a task says when every row of it is acknowledged."""

    rows: int


def write_at_least_once(options: SinkOptions, tables: Iterator[pa.RecordBatch]) -> Written:
    """The rows of one task. A task that is done again writes them again."""
    with told(options), KafkaClient(options.settings) as client:
        writer = Writer(*client.init_producer_id()) if options.is_idempotent else NOBODY
        sender = Sender(client, options, writer)
        sender.send_all(tables)
        return Written(sender.rows)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_at_least_once(self.options, iterator)

    def commit(self, messages: Messages) -> None:
        """Every row was acknowledged when its task ended."""

    def abort(self, messages: Messages) -> None:
        """What tasks have written stays: at least once."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_at_least_once(self.options, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """Every row was acknowledged when its task ended."""

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        """What tasks have written stays: at least once."""


# ---------------------------------------------------------------------------------------------------- exactly once


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """Without `writeId` it has a name that nobody knows: tasks come whole, and a second run is another write."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.query = options.write_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        task = exactly_once.Task(
            self.query,
            ONLY_BATCH,
            context.partitionId(),
            context.attemptNumber(),
            is_journaled=self.options.write_id is not None,
        )
        with told(self.options):
            return exactly_once.write(self.options, task, iterator)

    def commit(self, messages: Messages) -> None:
        with told(self.options):
            exactly_once.commit(self.options, messages)

    def abort(self, messages: Messages) -> None:
        # A named write may have been decided by a run before, which only its tasks' messages tell.
        exactly_once.abort(self.options, messages, None if self.options.write_id else self.query)


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError(
                f"this version of Spark does not provide the query and batch of a task ({QUERY_ID}, {BATCH_ID})"
            )
        task = exactly_once.Task(query, int(batch), context.partitionId(), context.attemptNumber())
        with told(self.options):
            return exactly_once.write(self.options, task, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        with told(self.options):
            exactly_once.commit(self.options, messages)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        exactly_once.abort(self.options, messages)


def _context() -> TaskContext:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "rows are written in tasks"
    return context
