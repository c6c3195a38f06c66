"""The format `penstock` in Spark itself: tables, streams, what the checkpoint keeps and what it does not."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.errors import PySparkException, StreamingQueryException

import penstock.spark
from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.spark.source.schema import full_schema
from penstock.spark.source.stream import StreamSource
from tests.spark.made_topics import TIME_MS, add_partitions, append, given, recreate_topic, topic, topic_id
from tests.spark.made_topics import options as source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

DONE_S_MAX = 90


@pytest.fixture
def broker(penstock_broker: Broker) -> Broker:
    return penstock_broker


def load(spark: SparkSession, broker: Broker, schema: str | None = None, **options: Any) -> DataFrame:
    reading = spark.read.format("penstock").options(**given(broker, **options))
    return (reading if schema is None else reading.schema(schema)).load()


def told(error: BaseException) -> str:
    """The one line of the source in what Spark says."""
    lines = [line for line in str(error).splitlines() if "source.errors." in line]
    assert lines, str(error)
    return lines[0]


# ---------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("way", ["wire", "segments"])
def test_a_topic_is_a_table_with_the_columns_of_sparks_kafka_source(
    spark: SparkSession, broker: Broker, way: str
) -> None:
    name = topic(broker, 2, 25)
    frame = load(spark, broker, subscribe=name, includeHeaders="true", read=way)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [(part, number) for part in (0, 1) for number in range(25)]
    odd = rows[3]
    assert (bytes(odd.key), bytes(odd.value), odd.topic, odd.timestampType) == (b"k3", b"v3", name, 0)
    assert odd.timestamp == datetime.datetime.fromtimestamp(TIME_MS / 1_000 + 3)  # noqa: DTZ006 - Spark gives local time
    assert [(header.key, bytes(header.value)) for header in odd.headers] == [("n", b"3")]
    assert rows[2].headers is None


def test_the_format_is_known_without_a_word_and_may_be_registered_again(spark: SparkSession, broker: Broker) -> None:
    name = topic(broker, 1, 3)
    assert load(spark, broker, "offset long", subscribe=name).count() == 3
    penstock.spark.register(spark)
    assert load(spark, broker, "offset long", subscribe=name).count() == 3


def test_a_loaded_table_stays_as_it_was(spark: SparkSession, broker: Broker) -> None:
    name = topic(broker, 1, 10)
    frame = load(spark, broker, subscribe=name, minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    append(broker, name, 0, range(10, 15))
    assert frame.count() == 10


def test_mistakes_are_told_where_they_are_made(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, broker, subscrib="t")
    assert told(caught.value).endswith("SourceError: unknown option subscrib; did you mean subscribe?")
    with pytest.raises(PySparkException) as caught:
        load(spark, broker, "value string", subscribe="t").count()
    assert "but it is binary" in told(caught.value)
    with pytest.raises(PySparkException) as caught:
        load(spark, broker, subscribe="not-there").count()
    assert "has no topic 'not-there'" in told(caught.value)


# ---------------------------------------------------------------------------------------------------- streams


class Sink:
    """Takes the rows of each micro-batch; may fail on cue."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.fails = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        if self.fails:
            raise RuntimeError("on cue")
        self.batches[batch_id] = sorted(rows)

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def start(
    spark: SparkSession, broker: Broker, sink: Callable[[DataFrame, int], None], checkpoint: Path, **options: Any
) -> StreamingQuery:
    trigger: dict[str, Any] = (
        {"availableNow": True} if options.pop("available_now", False) else {"processingTime": "0 seconds"}
    )
    frame = spark.readStream.format("penstock").options(**given(broker, **options)).load()
    return frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + DONE_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        assert query.isActive, query.exception()
        query.awaitTermination(0.1)  # type: ignore[arg-type]


def test_a_run_of_what_is_available_takes_all_of_it_in_limited_batches_and_shows_its_lag(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = topic(broker, 2, 30)
    some = {"subscribe": name, "startingOffsets": "earliest", "kafka_group_id": f"{name}-group", "available_now": True}
    sink = Sink()
    query = start(spark, broker, sink, tmp_path, maxOffsetsPerTrigger=40, **some)
    assert query.awaitTermination(DONE_S_MAX)
    assert [len(rows) for rows in sink.batches.values()] == [40, 20]
    told_id = topic_id(broker, name)
    assert query.lastProgress.sources[0].endOffset == f'{{"{name}": {{"0": 30, "1": 30, "id": "{told_id}"}}}}'
    with KafkaClient(broker.bootstrap) as client:
        assert {kept.offset for kept in client.fetch_offsets(f"{name}-group").values()} == {30}
    # The checkpoint goes on from there, whatever startingOffsets says, and sees a partition that came.
    add_partitions(broker, name, 3)
    append(broker, name, 2, range(4))
    append(broker, name, 0, range(30, 33))
    query = start(spark, broker, sink, tmp_path, **some)
    assert query.awaitTermination(DONE_S_MAX)
    assert sink.batches[2] == [(0, 30), (0, 31), (0, 32), (2, 0), (2, 1), (2, 2), (2, 3)]
    assert len(sink.rows) == 67


def test_a_query_that_fails_in_its_first_batch_reads_the_same_records_again(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = topic(broker, 1, 95)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    # A driver that went when it had asked where to begin: what came since is the first batch.
    asked = StreamSource(source_options(broker, **some), full_schema(False))
    assert asked.initialOffset() == {name: {"0": 95, "id": topic_id(broker, name)}}
    asked.stop()
    append(broker, name, 0, range(95, 100))
    sink = Sink()
    sink.fails = True
    query = start(spark, broker, sink, tmp_path, **some)
    with pytest.raises(StreamingQueryException, match="on cue"):
        query.awaitTermination(DONE_S_MAX)
    assert (tmp_path / "offsets" / "0").exists()
    assert not (tmp_path / "commits" / "0").exists()
    append(broker, name, 0, range(100, 120))
    sink.fails = False
    query = start(spark, broker, sink, tmp_path, available_now=True, **some)
    assert query.awaitTermination(DONE_S_MAX)
    assert sink.batches[0] == [(0, number) for number in range(95, 100)]
    assert sink.rows == [(0, number) for number in range(95, 120)]


def test_a_query_without_a_group_that_fails_in_its_first_batch_says_so_instead_of_losing_records(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = topic(broker, 1, 95)
    sink = Sink()
    sink.fails = True
    query = start(spark, broker, sink, tmp_path, subscribe=name)
    with pytest.raises(StreamingQueryException, match="on cue"):
        query.awaitTermination(DONE_S_MAX)
    sink.fails = False
    query = start(spark, broker, sink, tmp_path, subscribe=name)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(DONE_S_MAX)
    assert "stopped in its first batch and its start offsets were not stored" in told(caught.value)
    assert sink.batches == {}


def test_a_stream_without_news_runs_no_batches(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    name = topic(broker, 11, 3)
    sink = Sink()
    query = start(spark, broker, sink, tmp_path, subscribe=name, startingOffsets="earliest")
    try:
        wait_for(lambda: len(sink.rows) == 33, query)
        # Many triggers later there is still the one batch: offsets that are equal are equal as text.
        for _ in range(5):
            query.processAllAvailable()
        wait_for(lambda: query.status["message"] == "Waiting for data to arrive", query)
        append(broker, name, 10, range(3, 4))
        wait_for(lambda: len(sink.rows) == 34, query)
    finally:
        query.stop()
    assert sorted(sink.batches) == [0, 1]


def test_a_stream_that_cannot_be_is_told_in_one_line(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    query = start(spark, broker, Sink(), tmp_path, subscribe=topic(broker), endingOffsets="latest")
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(DONE_S_MAX)
    assert "endingOffsets is for batches" in told(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


def test_topic_created_again_stops_the_query_or_is_read_from_its_start(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    name = topic(broker, 1, 100)
    some = {"subscribe": name, "startingOffsets": "earliest", "available_now": True}
    sink = Sink()
    assert start(spark, broker, sink, tmp_path, **some).awaitTermination(DONE_S_MAX)
    old = topic_id(broker, name)
    recreate_topic(broker, name, 150)
    query = start(spark, broker, sink, tmp_path, **some)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(DONE_S_MAX)
    new = topic_id(broker, name)
    assert f"topic {name} was deleted and created again: its id was {old} and is now {new}" in str(caught.value)
    assert len(sink.rows) == 100
    assert start(spark, broker, sink, tmp_path, failOnDataLoss="false", **some).awaitTermination(DONE_S_MAX)
    assert sink.batches[1] == [(0, number) for number in range(150)]
