"""A topic that is deleted and created again under a stream, at every moment of a micro-batch, with a real broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock import Broker
from penstock.client.kafka_apis import VERSIONS, Api
from penstock.spark.source.errors import DataLost
from penstock.spark.source.range_reader import Task
from tests.spark.asked_streams import ALL, keys, stop_streams, stream, work
from tests.spark.made_topics import append, recreate_topic, topic, topic_id


@pytest.fixture(scope="module")
def broker(penstock_broker: Broker) -> Broker:
    return penstock_broker


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    stop_streams()


AT_ONCE = {"partition_metadata_cache_ttl_ms": -1}
"""Ask the cluster each time."""


def recreated(name: str, old: str, new: str) -> str:
    return f"topic {name} was deleted and created again: its id was {old} and is now {new}"


@pytest.mark.parametrize("records", [0, 40, 100, 150])
def test_a_topic_created_again_is_an_error_that_names_both_ids(broker: Broker, records: int) -> None:
    name = topic(broker, 1, 100)
    source = stream(broker, subscribe=name, startingOffsets="earliest", **AT_ONCE)
    end = source.latestOffset(source.initialOffset(), ALL)
    old = topic_id(broker, name)
    recreate_topic(broker, name, records)
    for asked in (source, stream(broker, subscribe=name)):
        with pytest.raises(DataLost, match=recreated(name, old, topic_id(broker, name))):
            asked.latestOffset(end, ALL)


@pytest.mark.parametrize("records", [0, 40, 100, 150])
def test_topic_created_again_is_read_from_its_start_if_loss_is_allowed(
    broker: Broker, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(broker, 2, 100)
    some = {"subscribe": name, "startingOffsets": "earliest", "failOnDataLoss": "false", **AT_ONCE}
    source = stream(broker, **some)
    end = source.latestOffset(source.initialOffset(), ALL)
    old = topic_id(broker, name)
    recreate_topic(broker, name, records)
    with caplog.at_level(logging.WARNING):
        again = source.latestOffset(end, ALL)
    assert recreated(name, old, topic_id(broker, name)) in caplog.text
    # partition 1 went with the old topic
    assert again == {name: {"0": records, "id": topic_id(broker, name)}}
    for asked in (source, stream(broker, **some)):
        assert keys(asked, end, again) == [b"k%d" % number for number in range(records)]
    append(broker, name, 0, range(records, records + 5))
    assert work(source, again, source.latestOffset(again, ALL)) == ([(0, records, records + 5)])


def test_a_topic_created_again_before_its_batch_is_planned_is_an_error(broker: Broker) -> None:
    name = topic(broker, 1, 100)
    source = stream(broker, subscribe=name, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    old = topic_id(broker, name)
    recreate_topic(broker, name, 150)
    # the same process, and one that finds the batch in the checkpoint
    for asked in (source, stream(broker, subscribe=name, startingOffsets="earliest")):
        with pytest.raises(DataLost, match=recreated(name, old, topic_id(broker, name))):
            asked.partitions(start, end)
    careless = stream(broker, subscribe=name, failOnDataLoss="false")
    assert careless.partitions(start, end) == []
    assert work(careless, end, careless.latestOffset(end, ALL)) == [(0, 0, 150)]


def test_topic_created_again_is_detected_despite_cached_partitions(broker: Broker) -> None:
    name = topic(broker, 1, 100)
    some = {"subscribe": name, "startingOffsets": "earliest", "partition_metadata_cache_ttl_ms": 600_000}
    source, careless = stream(broker, **some), stream(broker, failOnDataLoss="false", **some)
    ends = {one: one.latestOffset(one.initialOffset(), ALL) for one in (source, careless)}
    old = topic_id(broker, name)
    recreate_topic(broker, name, 150)
    with pytest.raises(DataLost, match=recreated(name, old, topic_id(broker, name))):
        source.partitions(ends[source], source.latestOffset(ends[source], ALL))
    dropped = careless.latestOffset(ends[careless], ALL)
    assert careless.partitions(ends[careless], dropped) == []
    assert work(careless, dropped, careless.latestOffset(dropped, ALL)) == [(0, 0, 150)]


@pytest.mark.parametrize("way", ["wire", "segments", "auto"])
@pytest.mark.parametrize("records", [40, 150])
def test_a_topic_created_again_before_a_task_reads_it_is_an_error(broker: Broker, way: str, records: int) -> None:
    name = topic(broker, 1, 100)
    some = {"subscribe": name, "startingOffsets": "earliest", "read": way}
    source, careless = stream(broker, **some), stream(broker, failOnDataLoss="false", **some)
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    (task,) = source.partitions(start, end)
    old = topic_id(broker, name)
    recreate_topic(broker, name, records)
    with pytest.raises(DataLost, match=recreated(name, old, topic_id(broker, name))):
        list(source.read(task))
    # no row is given twice: the next batch begins with the first
    assert list(careless.read(task)) == []


def test_a_topic_created_again_before_a_run_of_what_is_available_is_an_error(broker: Broker) -> None:
    name = topic(broker, 1, 100)
    some = {"subscribe": name, "startingOffsets": "earliest"}
    first = stream(broker, **some)
    end = first.latestOffset(first.initialOffset(), ALL)
    old = topic_id(broker, name)
    recreate_topic(broker, name, 150)
    source, careless = stream(broker, **some), stream(broker, failOnDataLoss="false", **some)
    for one in (source, careless):
        one.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match=recreated(name, old, topic_id(broker, name))):
        source.latestOffset(end, ALL)
    again = careless.latestOffset(end, ALL)
    assert work(careless, end, again) == [(0, 0, 150)]
    assert careless.latestOffset(again, ALL) is again


def test_a_topic_of_several_that_was_created_again_leaves_the_others_alone(broker: Broker) -> None:
    names = [topic(broker, 1, 10) for _ in range(2)]
    source = stream(broker, subscribe=",".join(names), startingOffsets="earliest", failOnDataLoss="false", **AT_ONCE)
    end = source.latestOffset(source.initialOffset(), ALL)
    recreate_topic(broker, names[1], 7)
    append(broker, names[0], 0, range(10, 12))
    again = source.latestOffset(end, ALL)
    tasks = [task for task in source.partitions(end, again) if isinstance(task, Task)]
    assert [(task.work.topic, task.work.start, task.work.end) for task in tasks] == [
        (names[0], 10, 12),
        (names[1], 0, 7),
    ]


def test_offsets_without_topic_ids_get_them_with_the_next_batch(broker: Broker) -> None:
    """As in the checkpoint of an earlier version."""
    name = topic(broker, 1, 20)
    source = stream(broker, subscribe=name)
    start = {name: {"0": 20}}
    assert source.latestOffset(start, ALL) is start
    append(broker, name, 0, range(20, 25))
    end = source.latestOffset(start, ALL)
    assert end == {name: {"0": 25, "id": topic_id(broker, name)}}
    assert work(source, start, end) == [(0, 20, 25)]
    # a batch that the earlier version planned
    assert keys(stream(broker, subscribe=name), start, {name: {"0": 23}}) == [b"k20", b"k21", b"k22"]


def test_a_cluster_without_topic_ids_is_not_asked_for_them(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic(broker, 1, 20)
    some = {"subscribe": name, "startingOffsets": "earliest", "read": "wire"}
    known = stream(broker, **some).initialOffset()
    # Metadata has ids from version 10 on
    monkeypatch.setitem(VERSIONS, Api.METADATA, (4, 9))
    source = stream(broker, **some)
    start = source.initialOffset()
    assert start == {name: {"0": 0}}
    end = source.latestOffset(start, ALL)
    assert end == {name: {"0": 20}}
    assert len(keys(source, start, end)) == 20
    # an id that is known already stays, for when the cluster gives ids again
    assert source.latestOffset(known, ALL) == {name: {"0": 20, "id": known[name]["id"]}}


def test_starting_offsets_taken_from_a_checkpoint_are_accepted(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    source = stream(broker, subscribe=name, startingOffsets="earliest")
    end = source.latestOffset(source.initialOffset(), ALL)
    append(broker, name, 0, range(20, 25))
    again = stream(broker, subscribe=name, startingOffsets=json.dumps(end))
    assert again.initialOffset() == end
