"""A task: a range of one partition, and the way to read it, over the wire or from segment files.

The driver makes tasks, an executor reads them; both ways give the same records. With `read=auto` the brokers are asked where
their data directories are, and an executor that sees the partition's folder there, of the same topic id, reads its files.

A task carries the id of the topic that it was planned for. After the last record is read, the topic must still have that id.
Then all records are from that topic, because ids are never reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.client.kafka import Isolation
from penstock.records.batch import BatchError
from penstock.spark.source.errors import SourceError, lost, recreated
from penstock.spark.source.offsets import TopicIds
from penstock.spark.source.options import ReadWay, SourceOptions
from penstock.spark.source.planning import Range
from penstock.spark.source.schema import arrow_schema_of, columns_of
from penstock.spark.source.segments import folder_of, other_topic_in, read_segments
from penstock.spark.source.topics import Topics
from penstock.spark.source.wire_reader import WireReader


class Task(InputPartition):
    """A task that Spark sends to an executor; `topic_id` is None if the cluster has no ids."""

    def __init__(self, work: Range, data_dirs: tuple[str, ...], topic_id: str | None) -> None:
        super().__init__(None)
        self.work = work
        self.data_dirs = data_dirs
        self.topic_id = topic_id


def tasks_of(
    ranges: Sequence[Range], topics: Topics, options: SourceOptions, ids: TopicIds | None = None
) -> list[InputPartition]:
    """`ids` are those of the topics for which the offsets were found. Raises SourceError when read=segments is asked for and
    nobody knows where they are."""
    dirs: tuple[str, ...] = ()
    if ranges and options.read is not ReadWay.WIRE and options.isolation is Isolation.READ_COMMITTED:
        dirs = (options.segments_dir,) if options.segments_dir else topics.data_dirs()
        if not dirs and options.read is ReadWay.SEGMENTS:
            raise SourceError("read=segments: the cluster does not report its log directories; set segments.dir")
    known = topics.topic_ids() if ids is None else ids
    return [Task(one, dirs, known.get(one.topic)) for one in ranges]


@dataclass(frozen=True, slots=True)
class RangeReader:
    """What an executor needs to know; picklable."""

    schema: pa.Schema
    wire: WireReader
    needs_segments: bool

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> RangeReader:
        columns_of(schema, options.include_headers)
        wire = WireReader(
            options.settings,
            options.isolation,
            options.fail_on_data_loss,
            options.poll_timeout_ms,
            options.fetch_bytes_max,
            options.partition_fetch_bytes_max,
        )
        return cls(arrow_schema_of(schema), wire, options.read is ReadWay.SEGMENTS)

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._read(task):
                yield batch if batch.schema.equals(self.schema) else batch.cast(self.schema)
        except BatchError as error:
            raise SourceError(f"{task.work.topic}-{task.work.partition}: corrupt batch: {error}") from None

    def _read(self, task: Task) -> Iterator[pa.RecordBatch]:
        work, columns = task.work, self.schema.names
        folder = folder_of(work, task.data_dirs, task.topic_id)
        if folder is not None:
            reached = yield from read_segments(folder, work, columns)
            other = other_topic_in(folder, task.topic_id)
            if other is not None:
                lost(recreated(work.topic, str(task.topic_id), other), self.wire.fail_on_data_loss)
                return
            if reached >= work.end:
                return
            work = work._replace(start=reached)
        elif self.needs_segments:
            if self.wire.is_recreated(work, task.topic_id):
                return
            raise SourceError(
                f"read=segments: {work.topic}-{work.partition} of this cluster is not in {', '.join(task.data_dirs)} "
                "on this executor; set segments.dir to the broker's data directory, or read=auto"
            )
        yield from self.wire.read(work, columns, task.topic_id)
