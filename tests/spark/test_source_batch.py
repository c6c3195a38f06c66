"""Topics as tables, as the driver plans them and a task reads them: bounds, columns, and what a user is told who asked for
something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from penstock import Broker
from penstock.spark.source.batch import BatchSource
from penstock.spark.source.errors import DataLost, SourceError
from penstock.spark.source.schema import HEADERS, full_schema
from penstock.spark.source.wire_reader import forget_connections
from tests.spark.made_topics import (
    TIME_MS,
    append,
    append_transaction,
    delete_before,
    options,
    recreate_topic,
    topic,
    topic_id,
)

WAYS = ["wire", "segments"]
FULL = full_schema(True)


@pytest.fixture
def broker(penstock_broker: Broker) -> Broker:
    return penstock_broker


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    forget_connections()


def load(broker: Broker, schema: StructType = FULL, **some: Any) -> pa.Table:
    """All rows, task by task."""
    source = BatchSource(options(broker, **some), schema)
    batches = [batch for task in source.partitions() for batch in source.read(task)]
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": [], "partition": [], "key": []})


def offsets(rows: pa.Table) -> list[tuple[int, int]]:
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def refusal(broker: Broker, schema: StructType = FULL, **some: Any) -> str:
    """The one line that a user is told."""
    with pytest.raises(SourceError) as caught:
        load(broker, schema, **some)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("bounds", "seen"),
    [
        ({}, range(20)),
        ({"startingOffsets": '{"%s":{"0":5}}'}, range(5, 20)),
        ({"startingOffsets": '{"%s":{"0":-2}}', "endingOffsets": '{"%s":{"0":7}}'}, range(7)),
        ({"startingTimestamp": TIME_MS + 4_500, "endingTimestamp": TIME_MS + 9_000}, range(5, 9)),
        ({"startingOffsetsByTimestamp": '{"%s":{"0":' + str(TIME_MS + 18_000) + "}}"}, range(18, 20)),
        ({"endingOffsetsByTimestamp": '{"%s":{"0":' + str(TIME_MS + 3_000) + "}}"}, range(3)),
        ({"endingTimestamp": TIME_MS + 99_000}, range(20)),
        ({"maxRecordsPerPartition": 3, "startingOffsets": '{"%s":{"0":1}}'}, range(1, 20)),
        ({"startingOffsets": '{"%s":{"0":20}}'}, range(0)),
    ],
)
def test_bounds_say_what_is_read(broker: Broker, bounds: dict[str, Any], seen: range) -> None:
    name = topic(broker, 1, 20)
    named = {key: value % name if isinstance(value, str) else value for key, value in bounds.items()}
    assert offsets(load(broker, subscribe=name, **named)) == [(0, number) for number in seen]


def test_topics_are_named_by_list_by_pattern_and_by_partition(broker: Broker) -> None:
    one, other = topic(broker, 2, 3), topic(broker, 1, 4)
    assert load(broker, subscribe=f"{one},{other}").num_rows == 10
    assert set(load(broker, subscribePattern=f"({one}|{other})")["topic"].to_pylist()) == {one, other}
    assert offsets(load(broker, assign=f'{{"{one}":[1]}}')) == [(1, 0), (1, 1), (1, 2)]
    assert load(broker, subscribePattern="no-such-.*").num_rows == 0


@pytest.mark.parametrize("way", WAYS)
def test_only_what_was_committed_is_read_unless_asked_otherwise(broker: Broker, way: str) -> None:
    name = topic(broker, 1, 5)
    append_transaction(broker, name, range(5, 8), commit=False)
    append(broker, name, 0, range(8, 10))
    append_transaction(broker, name, range(10, 12), commit=None)
    seen = load(broker, subscribe=name, read=way)["key"].to_pylist()
    assert seen == [b"k0", b"k1", b"k2", b"k3", b"k4", b"k8", b"k9"]
    if way == "wire":
        assert load(broker, subscribe=name, kafka_isolation_level="read_uncommitted").num_rows == 12


@pytest.mark.parametrize("way", WAYS)
def test_large_batches_and_small_fetches_give_the_same_rows(broker: Broker, way: str) -> None:
    name = topic(broker, 1, 0)
    append(broker, name, 0, range(7_000), batch_records=1_000)
    for some in ({}, {"kafka.max.partition.fetch.bytes": 700}, {"kafka.fetch.max.bytes": 1}):
        rows = load(broker, subscribe=name, read=way, startingOffsets=f'{{"{name}":{{"0":999}}}}', **some)
        assert rows["offset"].to_pylist() == list(range(999, 7_000))


# ---------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fields",
    [
        [StructField("value", BinaryType())],
        [StructField("offset", LongType(), nullable=False)],
        [StructField("timestamp", TimestampType()), StructField("key", BinaryType())],
        [StructField("headers", HEADERS)],
    ],
    ids=lambda fields: "-".join(field.name for field in fields),
)
def test_only_the_columns_of_the_schema_are_built(broker: Broker, fields: list[StructField], way: str) -> None:
    name = topic(broker, 1, 9)
    rows = load(broker, StructType(fields), subscribe=name, read=way)
    names = [field.name for field in fields]
    assert rows.column_names == names
    assert [rows.schema.field(field.name).nullable for field in fields] == [field.nullable for field in fields]
    assert rows.to_pylist() == load(broker, subscribe=name).select(names).to_pylist()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("value", StringType()), "value as string, but it is binary: declare it as that, and cast"),
        (StructField("amount", LongType()), "an unknown column amount; the columns of a topic are key, value"),
        (StructField("Value", BinaryType()), "did you mean value?"),
        (StructField("timestamp", LongType()), "timestamp as bigint, but it is timestamp"),
        (StructField("value", BinaryType(), nullable=False), "value as not null, but it may be null"),
    ],
)
def test_a_schema_that_does_not_fit_is_told(broker: Broker, field: StructField, said: str) -> None:
    assert said in refusal(broker, StructType([field]), subscribe="any")


def test_headers_in_the_schema_and_includeheaders_must_agree(broker: Broker) -> None:
    assert "includeHeaders=false excludes them" in refusal(broker, subscribe="any", includeHeaders="false")


# ---------------------------------------------------------------------------------------------------- refusals


def test_what_a_batch_cannot_do_is_told(broker: Broker) -> None:
    assert "is for streams" in refusal(broker, subscribe="any", startingOffsets="latest")
    assert "is for streams" in refusal(broker, subscribe="any", startingOffsets='{"any":{"0":-1}}')
    assert "a batch would read nothing" in refusal(broker, subscribe="any", endingOffsets="earliest")
    later = refusal(broker, subscribe="any", startingTimestamp=9, endingTimestamp=8)
    assert "startingTimestamp (9) is after endingTimestamp (8)" in later


def test_missing_topics_are_told(broker: Broker) -> None:
    name = topic(broker, 1, 1)
    assert "has no topic 'not-there'" in refusal(broker, subscribe=f"{name},not-there")


def test_offsets_out_of_range_are_told(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    delete_before(broker, name, 0, 10)
    early = {"subscribe": name, "startingOffsets": f'{{"{name}":{{"0":3}}}}'}
    with pytest.raises(
        DataLost, match=f"{name}-0: startingOffsets .3. is out of range: the log starts at 10 and ends at 20"
    ):
        load(broker, **early)
    assert offsets(load(broker, **early, failOnDataLoss="false")) == [(0, number) for number in range(10, 20)]
    late = {"subscribe": name, "endingOffsets": f'{{"{name}":{{"0":30}}}}'}
    assert "endingOffsets (30) is out of range" in refusal(broker, **late)
    assert load(broker, **late, failOnDataLoss="false").num_rows == 10
    back = {"startingOffsets": f'{{"{name}":{{"0":15}}}}', "endingOffsets": f'{{"{name}":{{"0":12}}}}'}
    assert "startingOffsets (15) is after endingOffsets (12)" in refusal(broker, subscribe=name, **back)


def test_records_that_go_between_plan_and_read_are_told_or_left_out(broker: Broker) -> None:
    name = topic(broker, 1, 40)
    for fails in (True, False):
        source = BatchSource(options(broker, subscribe=name, read="wire", failOnDataLoss=str(fails)), FULL)
        (task,) = source.partitions()
        delete_before(broker, name, 0, 15 if fails else 25)
        if fails:
            with pytest.raises(DataLost, match="offsets 0 to 14 were deleted, the log now starts at 15"):
                list(source.read(task))
        else:
            assert [offset for batch in source.read(task) for offset in batch["offset"].to_pylist()] == list(
                range(25, 40)
            )


def test_a_broker_that_is_down_is_told(broker: Broker) -> None:
    line = refusal(
        broker,
        subscribe="t",
        **{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "300"},
    )
    assert "no broker can be reached" in line
    assert "check that the broker is running and that kafka.bootstrap.servers=127.0.0.1:1 is correct" in line


def test_offsets_are_asked_for_again_as_often_as_told(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    refusal(
        broker,
        subscribe="t",
        **{
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.default.api.timeout.ms": "50",
            "fetchOffset.numRetries": "2",
        },
    )
    assert caplog.text.count("retrying") == 2


def test_a_consumer_that_stops_early_leaves_nothing_behind(broker: Broker) -> None:
    name = topic(broker, 1, 0)
    append(broker, name, 0, range(5_000), batch_records=500)
    source = BatchSource(options(broker, subscribe=name, read="wire", **{"kafka.max.partition.fetch.bytes": 1}), FULL)
    (task,) = source.partitions()
    reading = source.read(task)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert sum(batch.num_rows for batch in source.read(task)) == 5_000


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_created_again_since_the_table_was_planned_is_an_error(broker: Broker, way: str) -> None:
    name = topic(broker, 1, 20)
    old = topic_id(broker, name)
    source = BatchSource(options(broker, subscribe=name, read=way), FULL)
    (task,) = source.partitions()
    recreate_topic(broker, name, 30)
    with pytest.raises(DataLost, match=f"topic {name} was deleted and created again: its id was {old} and is now"):
        list(source.read(task))
    careless = BatchSource(options(broker, subscribe=name, read=way, failOnDataLoss="false"), FULL)
    assert list(careless.read(task)) == []
