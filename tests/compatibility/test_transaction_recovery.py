"""kill -9 of the broker in every state of a transaction: it ends one way, in all partitions and for the offsets too.

A transaction is prepared only for a moment, so those crashes are made: the broker is killed after the end of the
transaction, and what it wrote since a moment in between is cut off its logs, as if it had never been written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.coordination import transaction_records
from penstock.coordination.transaction_states import Status
from penstock.records.record import read_records
from penstock.storage.segment_reader import list_segments, read_segment
from tests.clients.drivers import WAIT_S, confluent_consumer, kafka
from tests.clients.members import until

TOPIC, GROUP, NAME = "t", "g", "id"
PARTITIONS = 2
BEFORE, INSIDE, AFTER = b"before", b"inside", b"after"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """No checkpoints: recovery has to look at everything, and nothing but the logs knows of the transaction."""
    with Broker(tmp_path / "data", settings={"storage.checkpoint_interval_ms": 3_600_000}) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(WAIT_S)
        yield running
        assert "Traceback" not in running.log, running.log


def producer_of(broker: Broker) -> Any:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": NAME,
            "reconnect.backoff.max.ms": 200,
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def write(broker: Broker, producer: Any, value: bytes, offset: int) -> None:
    """Begin a transaction with a record for each partition, all of them acknowledged, and an offset of the group."""
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, value, partition=partition)
    assert producer.flush(WAIT_S) == 0
    with confluent_consumer(broker.bootstrap, **{"group.id": GROUP}) as consumer:
        metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], metadata, WAIT_S)


def committed(broker: Broker) -> tuple[list[list[bytes]], int]:
    """What read_committed shows of each partition once nothing is open, and the group's offset."""
    values = []
    with confluent_consumer(broker.bootstrap, **{"group.id": GROUP, "isolation.level": "read_uncommitted"}) as consumer:
        ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, at), WAIT_S)[1] for at in range(PARTITIONS)]
    with confluent_consumer(broker.bootstrap, **{"group.id": GROUP, "isolation.level": "read_committed"}) as consumer:
        for partition, end in enumerate(ends):
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            seen: list[bytes] = []

            def take(seen: list[bytes] = seen, end: int = end) -> bool:
                seen += [message.value() for message in consumer.consume(100, 0.1) if message.error() is None]
                return bool(consumer.position(consumer.assignment())[0].offset >= end)

            until(take, f"the last stable offset of partition {partition} is its end")
            values.append(seen)
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], WAIT_S)
    return values, found.offset


def status_of(broker: Broker) -> str:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        return str(admin.describe_transactions([NAME])[NAME].state.value)
    finally:
        admin.close()


def crash(broker: Broker) -> None:
    broker.kill()
    broker.restart()


def assert_it_goes_on(broker: Broker, values: list[bytes], offset: int) -> None:
    """All partitions have these values and no other, and the next transaction works."""
    assert committed(broker) == ([values] * PARTITIONS, offset)
    producer = producer_of(broker)
    write(broker, producer, AFTER, 9)
    producer.commit_transaction(WAIT_S)
    assert committed(broker) == ([[*values, AFTER]] * PARTITIONS, 9)


# ---- the states that last ---------------------------------------------------------------------------------------------


def test_a_producer_that_had_not_begun_goes_on(broker: Broker) -> None:
    producer = producer_of(broker)
    crash(broker)
    assert status_of(broker) == "Empty"
    write(broker, producer, INSIDE, 5)
    producer.commit_transaction(WAIT_S)
    assert_it_goes_on(broker, [INSIDE], 5)


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_an_open_transaction_can_be_ended_by_its_producer(broker: Broker, is_committed: bool) -> None:
    producer = producer_of(broker)
    write(broker, producer, BEFORE, 3)
    producer.commit_transaction(WAIT_S)
    write(broker, producer, INSIDE, 5)
    crash(broker)
    assert status_of(broker) == "Ongoing"
    (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
    assert_it_goes_on(broker, [BEFORE, INSIDE] if is_committed else [BEFORE], 5 if is_committed else 3)


def test_an_open_transaction_whose_producer_is_gone_is_aborted_by_the_next(broker: Broker) -> None:
    producer = producer_of(broker)
    write(broker, producer, BEFORE, 3)
    producer.commit_transaction(WAIT_S)
    write(broker, producer, INSIDE, 5)
    crash(broker)
    producer_of(broker)
    assert_it_goes_on(broker, [BEFORE], 3)


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_an_ended_transaction_stays_as_it_ended(broker: Broker, is_committed: bool) -> None:
    producer = producer_of(broker)
    write(broker, producer, INSIDE, 5)
    (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
    crash(broker)
    assert_it_goes_on(broker, [INSIDE] if is_committed else [], 5 if is_committed else confluent_kafka.OFFSET_INVALID)


# ---- the states in between --------------------------------------------------------------------------------------------


def cut_to_prepared(data_dir: Path, *, markers_kept: int) -> int:
    """Cut the end of the transaction off its coordinator's log, and the markers off all logs but some; how many were cut."""
    for folder in data_dir.glob("__transaction_state-*"):
        (path,) = list_segments(folder)
        for position, batch in read_segment(path):
            for record in read_records(batch):
                assert record.key is not None
                found = transaction_records.decode(record.key, record.value)
                if found is not None and found.value is not None and found.value.status >= Status.COMPLETE_COMMIT:
                    _truncate(path, position)
                    break
            else:
                continue
            break
    marked = []
    for folder in (*data_dir.glob(f"{TOPIC}-*"), *data_dir.glob("__consumer_offsets-*")):
        (path,) = list_segments(folder)
        marked += [(path, position) for position, batch in read_segment(path) if batch.is_control]
    for path, position in marked[markers_kept:]:
        _truncate(path, position)
    return len(marked) - markers_kept


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize(("is_committed", "markers_kept"), [(True, 0), (True, 2), (False, 1), (False, 3)])
def test_a_prepared_transaction_is_ended_as_it_was_decided(
    broker: Broker, is_committed: bool, markers_kept: int
) -> None:
    producer = producer_of(broker)
    write(broker, producer, INSIDE, 5)
    (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
    done = "CompleteCommit" if is_committed else "CompleteAbort"
    until(lambda: status_of(broker) == done, "all markers are written")
    broker.kill()
    assert cut_to_prepared(broker.data_dir, markers_kept=markers_kept) == PARTITIONS + 1 - markers_kept
    broker.restart()
    until(lambda: status_of(broker) == done, "the coordinator has ended what it had decided")
    assert_it_goes_on(broker, [INSIDE] if is_committed else [], 5 if is_committed else confluent_kafka.OFFSET_INVALID)
