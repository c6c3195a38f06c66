"""Rows of DataFrames to topics: batch and streaming writes with a real Spark and a real broker."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.records.record import Record
from penstock.spark import register
from tests.spark.sink_cluster import places_of, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

RUN_S_MAX = 140

pytestmark = [
    pytest.mark.timeout(300),
    # py4j leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def client(broker: Broker) -> Iterator[KafkaClient]:
    with KafkaClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: KafkaClient) -> str:
    name = f"topic-{next(_numbers)}"
    client.create_topic(name, 3)
    return name


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def save(rows: DataFrame, broker: Broker, topic: str | None = None, **options: str) -> None:
    if topic is not None:
        options["topic"] = topic
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    rows.write.format("penstock").options(**given).mode("append").save()


def refusal(rows: DataFrame, broker: Broker, topic: str | None = None, mode: str = "append", **options: str) -> str:
    """What the user reads when a write is refused."""
    from pyspark.errors import PySparkException

    if topic is not None:
        options["topic"] = topic
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    with pytest.raises(PySparkException) as caught:
        rows.write.format("penstock").options(**given).mode(mode).save()
    return str(caught.value)


def partitions(client: KafkaClient, topic: str) -> list[list[Record]]:
    return [list(records(client, topic, places=[place])) for place in places_of(client, topic)]


# ---------------------------------------------------------------------------------------------------- batch


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_every_row_becomes_one_record(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str, delivery: str
) -> None:
    rows = spark.range(0, 20_000, 1, 4).selectExpr(
        "cast(id as string) as key",
        "cast(concat('value ', id) as binary) as value",
        "array(struct('trace' as key, cast(cast(id as string) as binary) as value)) as headers",
    )
    save(rows, broker, topic, delivery=delivery)
    seen = list(records(client, topic))
    assert Counter(record.value for record in seen) == Counter(b"value %d" % at for at in range(20_000))
    assert all(record.value == b"value " + (record.key or b"") for record in seen)
    assert all(record.headers == (("trace", record.key),) for record in seen)


def test_keys_go_where_kafkas_own_producers_put_them(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    keys = [f"customer {at}" for at in range(300)]
    save(spark.createDataFrame([(key, "spark") for key in keys], "key string, value string"), broker, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, key=key, value="other")
    assert producer.flush(30) == 0
    of_key: dict[bytes | None, set[int]] = {}
    for partition, held in enumerate(partitions(client, topic)):
        for record in held:
            of_key.setdefault(record.key, set()).add(partition)
    assert len(of_key) == 300
    assert all(len(found) == 1 for found in of_key.values())
    assert len({partition for found in of_key.values() for partition in found}) == 3


def test_topic_and_partition_columns_say_where_a_row_goes(
    spark: SparkSession, broker: Broker, client: KafkaClient
) -> None:
    names = [f"many-{next(_numbers)}" for _ in range(2)]
    for name in names:
        client.create_topic(name, 2)
    rows = [(names[at % 2], at // 2 % 2, f"{at}") for at in range(100)]
    save(spark.createDataFrame(rows, "topic string, partition int, value string"), broker)
    for at, name in enumerate(names):
        for number, held in enumerate(partitions(client, name)):
            expected = [b"%d" % row for row in range(100) if row % 2 == at and row // 2 % 2 == number]
            assert sorted(record.value or b"" for record in held) == sorted(expected)
    # the option wins over the column, as with Spark's Kafka sink
    target = f"many-{next(_numbers)}"
    client.create_topic(target, 2)
    save(spark.createDataFrame(rows, "topic string, partition int, value string"), broker, target)
    assert sum(1 for _ in records(client, target)) == 100


def test_rows_without_a_value_or_key_are_null_there_too(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    rows = spark.createDataFrame([("a", None), (None, "b"), ("", "")], "key string, value string")
    save(rows, broker, topic, **{"kafka.compression.type": "zstd"})
    assert {(record.key, record.value) for record in records(client, topic)} == {(b"a", None), (None, b"b"), (b"", b"")}


def test_a_write_with_an_id_is_done_once_however_often_it_is_run(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    rows = spark.range(0, 1_000, 1, 3).selectExpr("cast(id as string) as value")
    for tasks in (3, 3, 2):
        save(rows.coalesce(tasks), broker, topic, delivery="exactly_once", writeId=f"load-{topic}")
    assert Counter(record.value for record in records(client, topic)) == Counter(b"%d" % at for at in range(1_000))
    save(rows, broker, topic, delivery="exactly_once")
    save(rows, broker, topic, delivery="exactly_once")
    assert sum(1 for _ in records(client, topic)) == 3_000


def test_a_write_with_an_id_that_was_used_for_other_rows_is_refused(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    named = {"delivery": "exactly_once", "writeId": f"load-{topic}"}
    save(spark.createDataFrame([("a",), ("b",)], "value string"), broker, topic, **named)
    text = refusal(spark.createDataFrame([("c",)], "value string"), broker, topic, **named)
    assert f"writeId load-{topic} was already used for a write of 2 rows, and this write has 1 rows" in text
    assert sorted(record.value or b"" for record in records(client, topic)) == [b"a", b"b"]


def test_a_failed_write_leaves_nothing_to_be_seen(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    rows = spark.range(0, 1_000, 1, 2).selectExpr("if(id = 900, raise_error('no'), cast(id as string)) as value")
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        save(rows, broker, topic, delivery="exactly_once")
    assert list(records(client, topic)) == []
    # and nothing holds readers up
    save(spark.createDataFrame([("after",)], "value string"), broker, topic)
    assert [record.value for record in records(client, topic)] == [b"after"]


# ---------------------------------------------------------------------------------------------------- refusals


def test_what_does_not_fit_is_one_clear_line_before_any_row_is_written(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    good = spark.createDataFrame([("v",)], "value string")
    wrong = spark.createDataFrame([(1,)], "value int")
    assert "column value is missing: the columns are id" in refusal(spark.range(1), broker, topic)
    assert "column value is int, not binary or string: cast it" in refusal(wrong, broker, topic)
    assert "no topic: set the option topic, or add a column topic" in refusal(good, broker)
    assert "unknown option topik: did you mean topic?" in refusal(good, broker, topik=topic)
    assert "topic nowhere does not exist: create it with" in refusal(good, broker, "nowhere")
    assert "a topic can only be appended to" in refusal(good, broker, topic, mode="overwrite")
    assert "'twice' is not at_least_once or exactly_once" in refusal(good, broker, topic, delivery="twice")
    over = {"delivery": "exactly_once", "kafka.transaction.timeout.ms": "900001"}
    assert "the broker allows at most 900000 ms (transaction.max.timeout.ms)" in refusal(good, broker, topic, **over)
    assert list(records(client, topic)) == []


def test_a_broker_that_is_down_is_told_with_its_address(spark: SparkSession, broker: Broker, topic: str) -> None:
    nobody = {"kafka.bootstrap.servers": "127.0.0.1:9", "kafka.default.api.timeout.ms": "300"}
    text = refusal(spark.createDataFrame([("v",)], "value string"), broker, topic, **nobody)
    assert "check that the broker is running and that kafka.bootstrap.servers=127.0.0.1:9 is correct" in text


def test_a_row_for_a_partition_that_is_not_there_is_told(spark: SparkSession, broker: Broker, topic: str) -> None:
    rows = spark.createDataFrame([("v", 3)], "value string, partition int")
    assert f"partition 3 of a row does not exist: {topic} has partitions 0 to 2" in refusal(rows, broker, topic)


def test_a_row_larger_than_the_topic_takes_is_told(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str
) -> None:
    small = f"small-{topic}"
    client.create_topic(small, 1, configs={"max.message.bytes": "2000"})
    rows = spark.range(1).selectExpr("repeat('x', 3000) as value")
    assert "which exceeds the topic's max.message.bytes: increase it" in refusal(rows, broker, small)


# ---------------------------------------------------------------------------------------------------- streaming


def drop(folder: Path, name: str, lines: list[str]) -> None:
    """A file appears as a whole: the stream must not see half of it."""
    folder.mkdir(exist_ok=True)
    unfinished = folder / f"_{name}"
    unfinished.write_text("".join(f"{line}\n" for line in lines))
    unfinished.rename(folder / f"{name}.txt")


def run(rows: DataFrame, broker: Broker, topic: str, checkpoint: Path, mode: str = "append", **options: str) -> Any:
    """Everything that is there now; the finished query."""
    query: StreamingQuery = (
        rows.writeStream.format("penstock")
        .outputMode(mode)
        .options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, **options})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(RUN_S_MAX)
    return query


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_stream_writes_each_row_of_each_batch(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str, tmp_path: Path, delivery: str
) -> None:
    folder = tmp_path / "lines"
    for at in range(3):
        drop(folder, f"first-{at}", [f"{at}.{line}" for line in range(100)])
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder))
    run(lines, broker, topic, tmp_path / "checkpoint", delivery=delivery)
    assert sum(1 for _ in records(client, topic)) == 300
    drop(folder, "second", ["3.0"])
    run(lines, broker, topic, tmp_path / "checkpoint", delivery=delivery)
    expected = Counter(f"{at}.{line}".encode() for at in range(3) for line in range(100)) + Counter([b"3.0"])
    assert Counter(record.value for record in records(client, topic)) == expected


def test_an_aggregate_in_complete_mode_is_written_as_a_whole_each_time(
    spark: SparkSession, broker: Broker, client: KafkaClient, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    lines = spark.readStream.format("text").load(str(folder))
    counts = lines.groupBy("value").count().selectExpr("value as key", "cast(count as string) as value")
    for at in (1, 2):
        drop(folder, f"{at}", ["a", "a", "b"])
        run(counts, broker, topic, tmp_path / "checkpoint", mode="complete", delivery="exactly_once")
        last = {record.key: record.value for record in records(client, topic)}
        assert last == {b"a": b"%d" % (2 * at), b"b": b"%d" % at}
    assert sum(1 for _ in records(client, topic)) == 4


def test_a_stream_has_no_write_id(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    (tmp_path / "lines").mkdir()
    drop(tmp_path / "lines", "one", ["x"])
    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    with pytest.raises(StreamingQueryException, match="writeId is for batch writes"):
        run(lines, broker, topic, tmp_path / "checkpoint", delivery="exactly_once", writeId="x")
