"""The offsets of a stream, asked for as Spark asks, of a real broker: beginnings that no crash loses, limits, new and gone
partitions, losses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from hypothesis import given as given_steps
from hypothesis import settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows

from penstock import Broker
from penstock.client.kafka import GroupOffset, KafkaClient
from penstock.spark.source.errors import DataLost, SourceError
from penstock.spark.source.query_place import PROGRESS
from penstock.spark.source.range_reader import Task
from tests.spark.asked_streams import ALL, keys, numbers, stop_streams, stream, work
from tests.spark.made_topics import (
    TIME_MS,
    add_partitions,
    append,
    append_transaction,
    delete_before,
    delete_topic,
    topic,
)


@pytest.fixture(scope="module")
def broker(penstock_broker: Broker) -> Broker:
    return penstock_broker


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    stop_streams()


# ---------------------------------------------------------------------------------------------------- beginnings


@pytest.mark.parametrize(
    ("start", "offset"),
    [
        ({}, 20),
        ({"startingOffsets": "latest"}, 20),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingTimestamp": TIME_MS + 4_500}, 5),
    ],
)
def test_a_stream_begins_where_its_options_say(broker: Broker, start: dict[str, Any], offset: int) -> None:
    name = topic(broker, 2, 20)
    assert numbers(stream(broker, subscribe=name, **start).initialOffset()) == {name: {"0": offset, "1": offset}}


def test_each_partition_may_begin_elsewhere(broker: Broker) -> None:
    name = topic(broker, 3, 20)
    begun = stream(broker, subscribe=name, startingOffsets=f'{{"{name}":{{"0":7,"1":-1,"2":-2}}}}')
    assert numbers(begun.initialOffset()) == {name: {"0": 7, "1": 20, "2": 0}}
    times = f'{{"{name}":{{"0":{TIME_MS},"1":{TIME_MS + 1},"2":{TIME_MS + 19_000}}}}}'
    by_time = stream(broker, subscribe=name, startingOffsetsByTimestamp=times)
    assert numbers(by_time.initialOffset()) == {name: {"0": 0, "1": 1, "2": 19}}


def test_a_time_that_no_record_has_is_an_error_or_the_end(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    late = {"subscribe": name, "startingTimestamp": TIME_MS + 99_000}
    with pytest.raises(SourceError, match=f"{name}-0 has no record at or after startingTimestamp"):
        stream(broker, **late).initialOffset()
    at_end = stream(broker, **late, startingOffsetsByTimestampStrategy="latest")
    assert numbers(at_end.initialOffset()) == {name: {"0": 5}}


def test_a_partition_left_out_of_the_offsets_is_told(broker: Broker) -> None:
    name = topic(broker, 2, 5)
    with pytest.raises(SourceError, match=f"startingOffsets has no entry for {name}-1"):
        stream(broker, subscribe=name, startingOffsets=f'{{"{name}":{{"0":1}}}}').initialOffset()
    with pytest.raises(SourceError, match=f"startingOffsets contains {name}-7"):
        stream(broker, subscribe=name, startingOffsets=f'{{"{name}":{{"0":1,"1":1,"7":1}}}}').initialOffset()


def test_offsets_that_the_log_does_not_have_are_told(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    beyond = {"subscribe": name, "startingOffsets": f'{{"{name}":{{"0":9}}}}'}
    with pytest.raises(DataLost, match=r"startingOffsets \(9\) is out of range: the log starts at 0 and ends at 5"):
        stream(broker, **beyond).initialOffset()
    assert numbers(stream(broker, **beyond, failOnDataLoss="false").initialOffset()) == {name: {"0": 5}}


def test_a_missing_topic_and_a_missing_partition_are_told(broker: Broker) -> None:
    with pytest.raises(SourceError, match="has no topic 'not-there'"):
        stream(broker, subscribe="not-there").initialOffset()
    name = topic(broker, 2)
    with pytest.raises(
        SourceError, match=f"assign: partition {name}-2 does not exist; the topic has partitions 0 to 1"
    ):
        stream(broker, assign=f'{{"{name}":[0,2]}}').initialOffset()


def test_a_stream_at_the_end_sees_nothing_of_an_open_transaction(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    append_transaction(broker, name, range(3), commit=None)
    assert numbers(stream(broker, subscribe=name).initialOffset()) == {name: {"0": 5}}
    dirty = stream(broker, subscribe=name, kafka_isolation_level="read_uncommitted")
    assert numbers(dirty.initialOffset()) == {name: {"0": 8}}


# ---------------------------------------------------------------------------------------------------- crashes


def test_a_crash_in_the_first_batch_of_a_stream_with_a_group_loses_nothing(broker: Broker) -> None:
    name = topic(broker, 1, 95)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    first = stream(broker, **some)
    start = first.initialOffset()
    append(broker, name, 0, range(95, 100))
    end = first.latestOffset(start, ALL)
    assert (numbers(start), numbers(end)) == ({name: {"0": 95}}, {name: {"0": 100}})
    append(broker, name, 0, range(100, 120))
    # Spark logged the end of batch 0 and asks the next process for its start.
    again = stream(broker, **some)
    assert again.initialOffset() == start
    assert keys(again, again.initialOffset(), end) == [b"k%d" % number for number in range(95, 100)]


def test_a_crash_in_the_first_batch_of_a_stream_without_a_group_is_an_error_and_no_loss(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(broker, 1, 95)
    first = stream(broker, subscribe=name)
    with caplog.at_level(logging.WARNING):
        start = first.initialOffset()
    assert "set kafka.group.id" in caplog.text
    append(broker, name, 0, range(95, 100))
    end = first.latestOffset(start, ALL)
    # Nothing came since: the start asked for anew is the end of the batch, and the batch looks empty.
    again = stream(broker, subscribe=name)
    assert again.initialOffset() == end
    with pytest.raises(SourceError, match="stopped in its first batch"):
        again.partitions(again.initialOffset(), end)
    assert work(first, start, end) == [(0, 95, 100)]


def test_a_start_that_is_found_again_is_no_reason_to_stop(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    for start in ({"startingOffsets": "earliest"}, {"startingTimestamp": TIME_MS + 3_000}):
        first = stream(broker, subscribe=name, **start)
        begun = first.initialOffset()
        end = first.latestOffset(begun, ALL)
        again = stream(broker, subscribe=name, **start)
        assert work(again, again.initialOffset(), end) == work(first, begun, end)


def test_partitions_that_came_before_the_first_batch_are_found_again_after_a_crash(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    first = stream(broker, **some)
    start = first.initialOffset()
    add_partitions(broker, name, 2)
    append(broker, name, 1, range(4))
    end = first.latestOffset(start, ALL)
    append(broker, name, 1, range(4, 9))
    again = stream(broker, **some)
    assert work(again, again.initialOffset(), end) == [(1, 0, 4)]


def test_topics_that_came_before_the_first_batch_are_found_again_after_a_crash(broker: Broker) -> None:
    name = topic(broker)
    some = {"subscribePattern": f"{name}-more", "kafka_group_id": f"{name}-group"}
    first = stream(broker, **some)
    assert numbers(first.initialOffset()) == {}
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(f"{name}-more", 1)
    append(broker, f"{name}-more", 0, range(4))
    end = first.latestOffset({}, ALL)
    again = stream(broker, **some)
    assert work(again, again.initialOffset(), end) == [(0, 0, 4)]


def test_a_start_that_was_kept_beside_progress_is_an_old_one(broker: Broker) -> None:
    name = topic(broker, 2, 5)
    group = f"{name}-group"
    stream(broker, assign=f'{{"{name}":[0]}}', kafka_group_id=group).initialOffset()
    with KafkaClient(broker.bootstrap) as client:
        client.commit_offsets(group, {(name, 1): GroupOffset(3, PROGRESS)})
    append(broker, name, 0, range(5, 9))
    assert numbers(stream(broker, subscribe=name, kafka_group_id=group).initialOffset()) == {name: {"0": 9, "1": 5}}


def test_a_new_query_with_the_group_of_one_that_ran_begins_anew(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    first = stream(broker, **some)
    start = first.initialOffset()
    append(broker, name, 0, range(5, 8))
    end = first.latestOffset(start, ALL)
    first.partitions(start, end)
    first.commit(end)
    append(broker, name, 0, range(8, 12))
    assert numbers(stream(broker, **some).initialOffset()) == {name: {"0": 12}}


def test_another_starting_option_is_not_answered_with_what_was_kept(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    assert numbers(stream(broker, **some).initialOffset()) == {name: {"0": 5}}
    assert numbers(stream(broker, **some, startingOffsets="earliest").initialOffset()) == {name: {"0": 0}}


def test_a_group_with_members_is_refused_with_the_reason(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{name}-group"})
    try:
        consumer.subscribe([name])
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        with pytest.raises(SourceError, match=f"kafka.group.id={name}-group: the group has members"):
            stream(broker, subscribe=name, kafka_group_id=f"{name}-group").initialOffset()
    finally:
        consumer.close()


def test_a_batch_that_would_end_before_it_begins_is_an_error(broker: Broker) -> None:
    name = topic(broker, 1, 20)
    backwards = ({name: {"0": 15}}, {name: {"0": 10}})
    with pytest.raises(DataLost, match="starts at offset 15 but ends at 10"):
        stream(broker, subscribe=name).partitions(*backwards)
    assert stream(broker, subscribe=name, failOnDataLoss="false").partitions(*backwards) == []


# ---------------------------------------------------------------------------------------------------- micro-batches


def test_offsets_that_did_not_move_come_back_as_they_came(broker: Broker) -> None:
    name = topic(broker, 2, 5)
    source = stream(broker, subscribe=name)
    # A checkpoint of Spark's Kafka source may have another order.
    start = {name: {"1": 5, "0": 5}}
    assert source.latestOffset(start, ALL) is start


def test_a_limit_is_shared_by_backlog(broker: Broker) -> None:
    name = topic(broker, 2)
    append(broker, name, 0, range(90))
    append(broker, name, 1, range(10))
    source = stream(broker, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    start = source.initialOffset()
    assert numbers(source.latestOffset(start, limit)) == {name: {"0": 18, "1": 2}}
    assert numbers(source.latestOffset(start, ALL)) == {name: {"0": 90, "1": 10}}
    assert source.reportLatestOffset() == {name: {"0": 90, "1": 10}}


def test_too_little_waits_until_the_delay_is_over(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    some = {"subscribe": name, "startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    source = stream(broker, **some)
    limit = source.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    # Nothing ran yet: the first batch does not wait.
    start = source.latestOffset(source.initialOffset(), limit)
    assert numbers(start) == {name: {"0": 5}}
    append(broker, name, 0, range(5, 14))
    assert source.latestOffset(start, limit) is start
    append(broker, name, 0, range(14, 15))
    assert numbers(source.latestOffset(start, limit)) == {name: {"0": 15}}
    hasty = stream(broker, **some, maxTriggerDelay="0ms")
    start = hasty.latestOffset(hasty.initialOffset(), limit)
    append(broker, name, 0, range(15, 16))
    assert numbers(hasty.latestOffset(start, limit)) == {name: {"0": 16}}


def test_least_and_most_go_together(broker: Broker) -> None:
    name = topic(broker, 1, 30)
    source = stream(
        broker, subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger=10, maxOffsetsPerTrigger=12
    )
    at = source.initialOffset()
    ends = []
    for _ in range(4):
        at = source.latestOffset(at, source.getDefaultReadLimit())
        ends.append(at[name]["0"])
    # Six are left at last, which is too little.
    assert ends == [12, 24, 24, 24]


def test_available_now_ends_where_the_log_ended_when_it_began(broker: Broker) -> None:
    name = topic(broker, 1, 25)
    source = stream(
        broker, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=10, minOffsetsPerTrigger=10
    )
    source.prepareForTriggerAvailableNow()
    append(broker, name, 0, range(25, 40))
    add_partitions(broker, name, 2)
    at, ends = source.initialOffset(), []
    for _ in range(4):
        at = source.latestOffset(at, source.getDefaultReadLimit())
        ends.append(at[name]["0"])
    assert ends == [10, 20, 25, 25]


def test_available_now_from_the_end_on_has_nothing_to_read_and_ends(broker: Broker) -> None:
    name = topic(broker, 1, 25)
    source = stream(broker, subscribe=name)
    source.prepareForTriggerAvailableNow()
    append(broker, name, 0, range(25, 40))
    start = source.initialOffset()
    assert numbers(start) == {name: {"0": 40}}
    assert source.latestOffset(start, ALL) is start


def test_a_batch_is_divided_for_tasks(broker: Broker) -> None:
    name = topic(broker, 1, 40)
    start, end = {name: {"0": 0}}, {name: {"0": 40}}
    by_number = stream(broker, subscribe=name, minPartitions=4)
    assert work(by_number, start, end) == [(0, 0, 10), (0, 10, 20), (0, 20, 30), (0, 30, 40)]
    by_size = stream(broker, subscribe=name, maxRecordsPerPartition=15)
    assert [high - low for _, low, high in work(by_size, start, end)] == [13, 13, 14]
    assert keys(by_size, start, end) == [b"k%d" % number for number in range(40)]


# ---------------------------------------------------------------------------------------------------- topics that change


def test_new_partitions_are_read_from_their_beginning(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    source = stream(broker, subscribe=name)
    start = source.initialOffset()
    add_partitions(broker, name, 2)
    append(broker, name, 1, range(3))
    end = source.latestOffset(start, ALL)
    assert numbers(end) == {name: {"0": 5, "1": 3}}
    assert work(source, start, end) == [(1, 0, 3)]


def test_new_topics_of_a_pattern_are_read_from_their_beginning(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    source = stream(broker, subscribePattern=f"{name}(-more)?", startingOffsets="latest")
    start = source.initialOffset()
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(f"{name}-more", 1)
        client.create_topic(f"{name}-else", 1)
    append(broker, f"{name}-more", 0, range(3))
    end = source.latestOffset(start, ALL)
    assert numbers(end) == {name: {"0": 5}, f"{name}-more": {"0": 3}}
    assert [task.work.topic for task in source.partitions(start, end) if isinstance(task, Task)] == [f"{name}-more"]


def test_a_pattern_without_topics_waits_for_some(broker: Broker) -> None:
    source = stream(broker, subscribePattern="nobody-has-this-name")
    assert numbers(source.initialOffset()) == {}
    assert numbers(source.latestOffset({}, ALL)) == {}


def test_internal_topics_match_no_pattern(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    # A group that committed makes __consumer_offsets be there.
    with KafkaClient(broker.bootstrap) as client:
        client.commit_offsets(f"{name}-group", {(name, 0): 1})
    assert not any(found.startswith("__") for found in stream(broker, subscribePattern=".*").initialOffset())


def test_records_that_retention_took_are_a_loss_that_is_told(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    name = topic(broker, 1, 40)
    delete_before(broker, name, 0, 25)
    start, end = {name: {"0": 10}}, {name: {"0": 40}}
    with pytest.raises(
        DataLost, match="offsets 10 to 24 were deleted, the log now starts at 25; set failOnDataLoss=false"
    ):
        stream(broker, subscribe=name).partitions(start, end)
    with caplog.at_level(logging.WARNING):
        assert work(stream(broker, subscribe=name, failOnDataLoss="false"), start, end) == [(0, 25, 40)]
    assert "offsets 10 to 24 were deleted" in caplog.text


def test_a_topic_that_was_made_anew_is_a_loss_that_is_told(broker: Broker) -> None:
    name = topic(broker, 1, 40)
    at = {name: {"0": 40}}
    delete_topic(broker, name)
    with pytest.raises(DataLost, match=f"{name}-0 was read and no longer exists"):
        stream(broker, subscribe=name).latestOffset(at, ALL)
    careless = stream(broker, subscribe=name, failOnDataLoss="false")
    assert numbers(careless.latestOffset(at, ALL)) == {}
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(name, 1)
    append(broker, name, 0, range(7))
    with pytest.raises(
        DataLost, match="at offset 40, but the log ends at 7: it was truncated, or the topic was created again"
    ):
        stream(broker, subscribe=name).latestOffset(at, ALL)
    # A batch that was logged before the topic went cannot be had again.
    with pytest.raises(DataLost, match="ends at offset 40, but the log at 7"):
        stream(broker, subscribe=name).partitions({name: {"0": 0}}, at)


# ---------------------------------------------------------------------------------------------------- progress


def test_the_lag_of_the_group_is_that_of_the_query(broker: Broker) -> None:
    name = topic(broker, 1, 30)
    group = f"{name}-group"
    source = stream(broker, subscribe=name, startingOffsets="earliest", kafka_group_id=group, maxOffsetsPerTrigger=20)
    limit = source.getDefaultReadLimit()
    start = source.initialOffset()
    with KafkaClient(broker.bootstrap) as client:

        def seen() -> tuple[int, bool]:
            (kept,) = client.fetch_offsets(group).values()
            return kept.offset, kept.metadata == PROGRESS

        assert seen() == (0, False)
        end = source.latestOffset(start, limit)
        assert seen() == (0, False)
        source.partitions(start, end)
        # Spark asks for the next batch when this one is through, and says so only later, or never.
        end = source.latestOffset(end, limit)
        assert seen() == (20, True)
        source.commit(end)
        assert seen() == (30, True)


def test_a_prefix_makes_a_group_of_its_own_for_each_run(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    source = stream(broker, subscribe=name, startingOffsets="earliest", groupIdPrefix=f"{name}-run")
    source.commit(source.latestOffset(source.initialOffset(), ALL))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    groups = admin.list_consumer_groups().result(30)
    assert [group for group in groups.valid if group.group_id.startswith(f"{name}-run-")]


def test_an_ending_is_refused(broker: Broker) -> None:
    with pytest.raises(SourceError, match="endingTimestamp is for batches"):
        stream(broker, subscribe="t", endingTimestamp=5)


def test_a_new_query_after_one_that_found_nothing_begins_anew(broker: Broker) -> None:
    name = topic(broker, 1, 5)
    some = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    first = stream(broker, **some)
    start = first.initialOffset()
    # Spark runs the first batch of a query even if it is empty.
    assert first.latestOffset(start, ALL) is start
    assert first.partitions(start, start) == []
    assert first.latestOffset(start, ALL) is start
    append(broker, name, 0, range(5, 9))
    assert numbers(stream(broker, **some).initialOffset()) == {name: {"0": 9}}


# ---------------------------------------------------------------------------------------------------- any order of events


class Checkpointed:
    """What Spark does with a stream and its checkpoint: the end of a batch is logged, the batch is read, then committed;
    after a crash what was logged and not committed is read again."""

    def __init__(self, broker: Broker, some: dict[str, Any]) -> None:
        self._broker = broker
        self._some = some
        self.logged: list[dict[str, Any]] = []
        self.committed: list[list[tuple[int, int]]] = []
        self.restart()

    def restart(self) -> None:
        self._source = stream(self._broker, **self._some)

    def run(self, crash: str) -> None:
        """One trigger; the process may crash on its way."""
        source = self._source
        if len(self.logged) == len(self.committed):
            at = self.logged[-1] if self.logged else source.initialOffset()
            if crash == "asked":
                return self.restart()
            end = source.latestOffset(at, source.getDefaultReadLimit())
            if self.logged and json.dumps(end) == json.dumps(at):
                return None
            self.logged.append(json.loads(json.dumps(end)))
        if crash == "logged":
            return self.restart()
        batch = len(self.committed)
        start = self.logged[batch - 1] if batch else source.initialOffset()
        tasks = source.partitions(start, self.logged[batch])
        rows = [
            row
            for task in tasks
            for part in source.read(task)
            for row in zip(part["partition"].to_pylist(), part["offset"].to_pylist(), strict=True)
        ]
        if crash == "read":
            return self.restart()
        self.committed.append(rows)
        return self.restart() if crash == "committed" else None


@settings(max_examples=12)
@given_steps(
    st.lists(st.sampled_from(["append 0", "append 1", "run", "asked", "logged", "read", "committed"]), max_size=14),
    st.sampled_from([None, 7]),
    st.booleans(),
)
def test_whenever_a_stream_crashes_each_record_after_its_start_comes_once(
    broker: Broker, steps: list[str], most: int | None, begins_at_end: bool
) -> None:
    name = topic(broker, 2, 5)
    some: dict[str, Any] = {"subscribe": name, "kafka_group_id": f"{name}-group"}
    if most is not None:
        some["maxOffsetsPerTrigger"] = most
    if not begins_at_end:
        some["startingOffsets"] = "earliest"
    query = Checkpointed(broker, some)
    first = 5 if begins_at_end else 0
    query.run("asked")
    ends = [5, 5]
    for step in steps:
        if step.startswith("append"):
            partition = int(step[-1])
            append(broker, name, partition, range(ends[partition], ends[partition] + 6))
            ends[partition] += 6
        else:
            query.run(step)
    for _ in range(20):
        query.run("run")
    seen = [row for rows in query.committed for row in rows]
    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(first, ends[partition])]
