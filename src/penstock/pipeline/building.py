"""A declared flow as a Spark query.

Each flow has a session of its own: its views are called as in the file, and flows do not see each other's. What Spark finds
wrong (a column that is not there, a query that it cannot parse) becomes InvalidPipeline with the line of the file.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from penstock.pipeline import rows, topic_options
from penstock.pipeline.batches import query_id
from penstock.pipeline.declaration import (
    AnyFlow,
    ConsoleSink,
    DeadLetterFlow,
    Delivery,
    FileSource,
    Flow,
    Mode,
    Pipeline,
    PythonTransform,
    RowRules,
    Source,
    SqlTransform,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    Transform,
    Trigger,
)
from penstock.pipeline.delta import DeltaWriter, read_delta
from penstock.pipeline.functions import load_function, module_beside
from penstock.pipeline.groups import group_of
from penstock.pipeline.problems import InvalidPipeline, PipelineFailed, Problem
from penstock.spark.failures import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT = "penstock"
_SQL_PLACE = re.compile(r"\bline (\d+),? pos(?:ition)? \d+")

Show = Callable[[str, int, list[dict[str, Any]], bool], None]
"""Shows rows of a console flow: the flow's name, the batch, the rows, and whether there are more."""


def start_query(spark: SparkSession, pipeline: Pipeline, flow: AnyFlow, show: Show) -> StreamingQuery:
    """Start a flow's query; raises InvalidPipeline when the declaration cannot be run."""
    writer = build_query(spark, pipeline, flow, show)
    with _problems_at(pipeline, flow.line, f"flows.{flow.name}"):
        return writer.start()


def build_query(spark: SparkSession, pipeline: Pipeline, flow: AnyFlow, show: Show) -> DataStreamWriter:
    """The query of a flow with checkpoint, trigger and sink, not started yet."""
    from penstock.spark import register

    session = spark.newSession()
    register(session)
    frame = _FrameBuilder(session, pipeline, flow).frame()
    if not frame.isStreaming:
        raise InvalidPipeline(pipeline.file, [Problem(flow.line, f"flows.{flow.name}: the result is not a stream")])
    with _problems_at(pipeline, flow.line, f"flows.{flow.name}"):
        writer = _to_sink(frame, flow, show) if isinstance(flow, Flow) else _to_dead_letters(frame, flow)
        return _triggered(writer, flow.trigger).option("checkpointLocation", flow.checkpoint).queryName(flow.name)


@contextmanager
def _problems_at(pipeline: Pipeline, line: int, what: str) -> Iterator[None]:
    try:
        yield
    except (PySparkException, PipelineFailed) as error:
        raise InvalidPipeline(pipeline.file, [Problem(line, f"{what}: {one_line(error)}")]) from None


# ------------------------------------------------------------------------------------------------ rows


class _FrameBuilder:
    def __init__(self, session: SparkSession, pipeline: Pipeline, flow: AnyFlow) -> None:
        self._session = session
        self._pipeline = pipeline
        self._flow = flow
        self._frames: dict[str, DataFrame] = {}

    def frame(self) -> DataFrame:
        for origin in self._pipeline.upstream(self._flow.origin):
            wants_letters = isinstance(self._flow, DeadLetterFlow) and origin.name == self._flow.origin
            what = f"{'sources' if _is_source(origin) else 'transforms'}.{origin.name}"
            with _problems_at(self._pipeline, origin.line, what):
                judged = self._judged(origin, wants_letters=wants_letters)
            judged = self._checked(judged, origin.rules, what)
            if wants_letters:
                return rows.letters(judged, self._pipeline.name, origin.name)
            frame = self._watermarked(rows.accepted(judged, origin.rules, what), origin.rules, what)
            self._frames[origin.name] = frame
            frame.createOrReplaceTempView(origin.name)
        return self._frames[self._flow.origin]

    def _judged(self, origin: Source | Transform, *, wants_letters: bool) -> DataFrame:
        if isinstance(origin, TopicSource):
            return rows.decoded_topic(self._topic(origin, wants_letters=wants_letters), origin)
        if isinstance(origin, TableSource):
            return rows.with_verdict(self._table(origin))
        if isinstance(origin, FileSource):
            return rows.with_verdict(self._files(origin), origin)
        if isinstance(origin, SqlTransform):
            return rows.with_verdict(self._sql(origin))
        return rows.with_verdict(self._python(origin))

    def _checked(self, frame: DataFrame, rules: RowRules, what: str) -> DataFrame:
        for check in rules.checks:
            with _problems_at(self._pipeline, check.line, f"{what}.checks"):
                frame = rows.checked(frame, check)
        return frame

    def _watermarked(self, frame: DataFrame, rules: RowRules, what: str) -> DataFrame:
        if rules.watermark is None:
            return frame
        with _problems_at(self._pipeline, rules.watermark.line, f"{what}.watermark"):
            return frame.withWatermark(rules.watermark.column, rules.watermark.delay)

    def _topic(self, source: TopicSource, *, wants_letters: bool) -> DataFrame:
        options = {name: value for name, value in source.options.items() if name.lower() != topic_options.GROUP}
        if source.is_stream:
            # keeps where "latest" was at the first start, and shows the lag among the broker's groups
            options[topic_options.GROUP] = group_of(self._pipeline.name, self._flow.name, source)
        if wants_letters:
            options = {name: value for name, value in options.items() if name.lower() != "includeheaders"}
            options["includeHeaders"] = "true"
        if source.is_stream:
            return self._session.readStream.format(FORMAT).options(**options).load()
        return self._session.read.format(FORMAT).options(**options).load()

    def _table(self, source: TableSource) -> DataFrame:
        if source.format == "delta":
            return read_delta(self._session, source.path)
        if not source.is_stream:
            return self._session.read.options(**source.options).parquet(source.path)
        schema = self._session.read.options(**source.options).parquet(source.path).schema
        return self._session.readStream.schema(schema).options(**source.options).parquet(source.path)

    def _files(self, source: FileSource) -> DataFrame:
        reader = self._session.readStream if source.is_stream else self._session.read
        reader = reader.format(source.format).options(**rows.file_options(source))
        if source.fields:
            reader = reader.schema(rows.file_schema(source))
        return reader.load(source.path)

    def _sql(self, transform: SqlTransform) -> DataFrame:
        try:
            return self._session.sql(transform.sql)
        except PySparkException as error:
            text = one_line(error)
            found = _SQL_PLACE.search(str(error))
            line = transform.sql_line + (int(found[1]) - 1 if found is not None and transform.is_block else 0)
            problem = Problem(line, f"transforms.{transform.name}.sql: {_SQL_PLACE.sub('', text).rstrip(' ;')}")
            raise InvalidPipeline(self._pipeline.file, [problem]) from None

    def _python(self, transform: PythonTransform) -> DataFrame:
        folder = self._pipeline.file.absolute().parent
        function = load_function(transform.function, folder)
        beside = module_beside(transform.function, folder)
        if beside is not None:
            _ship(self._session, beside)
        try:
            made = function(*(self._frames[name] for name in transform.inputs), **transform.arguments)
        except Exception as error:  # noqa: BLE001 - a user's function may fail in any way, and has to be named
            kind = "" if isinstance(error, PySparkException) else f"{type(error).__name__}: "
            text = f"transforms.{transform.name}: {transform.function} failed: {kind}{one_line(error)}"
            raise InvalidPipeline(self._pipeline.file, [Problem(transform.line, text)]) from None
        if not isinstance(made, DataFrame):
            raise PipelineFailed(f"{transform.function} returned {type(made).__name__}, not a DataFrame")
        return made


def _is_source(origin: Source | Transform) -> bool:
    return isinstance(origin, TopicSource | TableSource | FileSource)


def _ship(session: SparkSession, module: Path) -> None:
    """A copy of the function's module for the workers, which do not look into the pipeline's folder."""
    context = session.sparkContext
    if module.is_file():
        context.addPyFile(str(module))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-") as place:
        archive = shutil.make_archive(str(Path(place) / module.name), "zip", module.parent, module.name)
        context.addPyFile(archive)


# ------------------------------------------------------------------------------------------------ sinks


def _to_sink(frame: DataFrame, flow: Flow, show: Show) -> DataStreamWriter:
    sink = flow.sink
    if isinstance(sink, TopicSink):
        frame = _records(frame, sink)
        if flow.mode is not Mode.UPDATE:
            return _to_topic(frame, sink.topic, sink.options, flow.delivery).outputMode(flow.mode.value)
        return frame.writeStream.outputMode("update").foreachBatch(TopicUpdater(sink, flow.delivery))
    writer = frame.writeStream.outputMode(flow.mode.value)
    if isinstance(sink, ConsoleSink):
        return writer.foreachBatch(_Shower(flow.name, sink.rows_max, show))
    return _to_table(writer, sink, flow.name)


def _to_table(writer: DataStreamWriter, sink: TableSink, flow: str) -> DataStreamWriter:
    if sink.format == "delta":
        return writer.foreachBatch(DeltaWriter(sink, flow))
    return writer.format("parquet").option("path", sink.path).partitionBy(*sink.partition_by)


def _records(frame: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as a topic takes them."""
    if sink.format == "raw":
        return frame
    # a reader of the topic finds every column, also one that is null
    value = sql.to_json(sql.struct("*"), {"ignoreNullFields": "false"}).alias("value")
    if sink.key is None:
        return frame.select(value)
    return frame.select(sql.expr(sink.key).cast("string").alias("key"), value)


class TopicUpdater:
    """What a flow to a topic in mode update does with each batch: Spark hands updates to no Python sink itself. A batch is
    known by its query and number, and one that was written is not written again."""

    def __init__(self, sink: TopicSink, delivery: Delivery) -> None:
        self._sink = sink
        self._delivery = delivery

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        options = {**self._sink.options, "topic": self._sink.topic, "delivery": self._delivery.value}
        if self._delivery is Delivery.EXACTLY_ONCE:
            options["writeId"] = f"{query_id(frame)}.{batch_id}"
        frame.write.format(FORMAT).options(**options).mode("append").save()


def _to_topic(frame: DataFrame, topic: str, options: Any, delivery: Delivery) -> DataStreamWriter:
    return frame.writeStream.format(FORMAT).options(**options).option("topic", topic).option("delivery", delivery.value)


def _to_dead_letters(frame: DataFrame, flow: DeadLetterFlow) -> DataStreamWriter:
    options = {**flow.options, "includeHeaders": "true"}
    return _to_topic(frame, flow.topic, options, flow.delivery).outputMode("append")


def _triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    if trigger.kind == "once":
        return writer.trigger(once=True)
    if trigger.kind == "available_now":
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{trigger.interval_ms} milliseconds")


class _Shower:
    """What a console flow does with each batch."""

    def __init__(self, flow: str, rows_max: int, show: Show) -> None:
        self._flow = flow
        self._rows_max = rows_max
        self._show = show

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        found = [row.asDict(recursive=True) for row in frame.limit(self._rows_max + 1).collect()]
        self._show(self._flow, batch_id, found[: self._rows_max], len(found) > self._rows_max)
