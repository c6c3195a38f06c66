"""The source against Apache Kafka: over the wire, from Kafka's own segment files, and with a start that a group keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client.kafka import LATEST, Isolation, KafkaClient, KafkaSettings
from penstock.client.kafka_settings import addresses
from penstock.spark.source.batch import BatchSource
from penstock.spark.source.errors import DataLost
from penstock.spark.source.offsets import place
from penstock.spark.source.range_reader import Task
from penstock.spark.source.schema import full_schema
from penstock.spark.source.segments import folder_of, read_segments
from penstock.spark.source.stream import StreamSource
from penstock.spark.source.wire_reader import forget_connections
from tests.compatibility.apache_kafka import START_S_MAX, apache_kafka
from tests.spark.made_topics import append, append_transaction, options, recreate_topic, topic, topic_id


class Kafka(NamedTuple):
    bootstrap: str


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with apache_kafka(tmp_path_factory.mktemp("apache-kafka")) as address:
        with KafkaClient(KafkaSettings(addresses(address), api_timeout_ms=int(START_S_MAX * 1_000))) as client:
            client.metadata()
        yield Kafka(address)
    forget_connections()


def wait_until_stable(kafka: Kafka, name: str) -> int:
    """EndTxn does not wait for the markers."""
    deadline = time.monotonic() + 30
    with KafkaClient(kafka.bootstrap) as client:
        while True:
            ends = {client.list_offsets({(name, 0): LATEST}, one)[place(name, 0)].offset for one in Isolation}
            if len(ends) == 1:
                (end,) = ends
                assert end is not None
                return end
            assert time.monotonic() < deadline


@pytest.fixture(scope="module")
def mixed(kafka: Kafka) -> str:
    """A topic of several segments, with committed and aborted transactions."""
    name = topic(kafka, 1, 0, {"segment.bytes": "1048576"})
    append(kafka, name, 0, range(20_000), batch_records=2_000)
    append_transaction(kafka, name, range(20_000, 20_010), commit=False)
    append(kafka, name, 0, range(20_010, 50_000), batch_records=3_000)
    append_transaction(kafka, name, range(50_000, 50_010), commit=True)
    wait_until_stable(kafka, name)
    return name


def numbers(kafka: Kafka, **some: Any) -> list[int]:
    source = BatchSource(options(kafka, **some), full_schema(False))
    keys = [key for task in source.partitions() for batch in source.read(task) for key in batch["key"].to_pylist()]
    return [int(key[1:]) for key in keys]


COMMITTED = [*range(20_000), *range(20_010, 50_010)]


def test_committed_records_come_over_the_wire(kafka: Kafka, mixed: str) -> None:
    assert numbers(kafka, subscribe=mixed, read="wire") == COMMITTED


def test_kafkas_own_segments_are_found_and_read(kafka: Kafka, mixed: str) -> None:
    source = BatchSource(options(kafka, subscribe=mixed), full_schema(False))
    (task,) = source.partitions()
    assert isinstance(task, Task)
    folder = folder_of(task.work, task.data_dirs, task.topic_id)
    assert isinstance(folder, Path)
    assert len(list(folder.glob("*.log"))) > 1
    reading = read_segments(folder, task.work, ["key"])
    keys: list[bytes] = []
    while True:
        try:
            keys += next(reading)["key"].to_pylist()
        except StopIteration as end:
            assert end.value == task.work.end
            break
    assert [int(key[1:]) for key in keys] == COMMITTED


def test_a_topic_that_was_created_again_is_noticed(kafka: Kafka) -> None:
    name = topic(kafka, 1, 30)
    source, again = (
        StreamSource(options(kafka, subscribe=name, startingOffsets="earliest"), full_schema(False)) for _ in "ab"
    )
    try:
        start = source.initialOffset()
        end = source.latestOffset(start, ReadAllAvailable())
        (task,) = source.partitions(start, end)
        old = topic_id(kafka, name)
        recreate_topic(kafka, name, 50)
        text = f"topic {name} was deleted and created again: its id was {old} and is now {topic_id(kafka, name)}"
        with pytest.raises(DataLost, match=text):
            again.latestOffset(end, ReadAllAvailable())
        with pytest.raises(DataLost, match=text):
            list(source.read(task))
    finally:
        source.stop()
        again.stop()


def test_a_start_and_progress_are_kept_under_the_group(kafka: Kafka) -> None:
    name = topic(kafka, 1, 30)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    first, again, anew = (StreamSource(options(kafka, **some), full_schema(False)) for _ in range(3))
    try:
        start = first.initialOffset()
        append(kafka, name, 0, range(30, 40))
        end = first.latestOffset(start, ReadAllAvailable())
        assert again.initialOffset() == start == {name: {"0": 30, "id": topic_id(kafka, name)}}
        assert [task.work[2:] for task in again.partitions(start, end) if isinstance(task, Task)] == [(30, 40)]
        again.commit(end)
        with KafkaClient(kafka.bootstrap) as client:
            assert client.fetch_offsets(f"{name}-group")[place(name, 0)].offset == 40
        assert anew.initialOffset() == {name: {"0": 40, "id": topic_id(kafka, name)}}
    finally:
        for source in (first, again, anew):
            source.stop()
