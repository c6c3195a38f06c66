"""Transactions with real producers, and who reads what of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.structs import TopicPartition as AiokafkaPartition
from confluent_kafka import IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from penstock import Broker
from tests.clients.drivers import WAIT_S, confluent_consumer, confluent_producer, kafka
from tests.clients.members import until

PARTITIONS = 3
Transaction = tuple[Sequence[bytes], bool]
"""What is written, and whether it is committed."""


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def kafka_admin(broker: Broker) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def wide_topic(admin: AdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def transactional(bootstrap: str, name: str, **settings: Any) -> Any:
    producer = confluent_producer(bootstrap, **{"transactional.id": name, **settings})
    producer.init_transactions(WAIT_S)
    return producer


# ---- writers and readers ----------------------------------------------------------------------------------------------


def write_confluent(bootstrap: str, name: str, topic: str, transactions: Sequence[Transaction]) -> None:
    producer = transactional(bootstrap, name)
    for values, is_committed in transactions:
        producer.begin_transaction()
        for at, value in enumerate(values):
            producer.produce(topic, value, partition=at % PARTITIONS)
        assert producer.flush(WAIT_S) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)


def write_kafka_python(bootstrap: str, name: str, topic: str, transactions: Sequence[Transaction]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    try:
        producer.init_transactions()
        for values, is_committed in transactions:
            producer.begin_transaction()
            for at, value in enumerate(values):
                producer.send(topic, value=value, partition=at % PARTITIONS)
            producer.flush(timeout=WAIT_S)
            producer.commit_transaction() if is_committed else producer.abort_transaction()
    finally:
        producer.close(timeout=WAIT_S)


def write_aiokafka(bootstrap: str, name: str, topic: str, transactions: Sequence[Transaction]) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        await producer.start()
        try:
            for values, is_committed in transactions:
                await producer.begin_transaction()
                for at, value in enumerate(values):
                    await producer.send_and_wait(topic, value, partition=at % PARTITIONS)
                await (producer.commit_transaction() if is_committed else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write(), 2 * WAIT_S))


WRITERS = {"confluent-kafka": write_confluent, "kafka-python": write_kafka_python, "aiokafka": write_aiokafka}


def read_confluent(bootstrap: str, topic: str, count: int, level: str) -> list[bytes | None]:
    with confluent_consumer(
        bootstrap, **{"isolation.level": level, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
        values: list[bytes | None] = []
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{len(values)} came, then nothing"
            if message.error() is None:
                values.append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
        return values


def read_kafka_python(bootstrap: str, topic: str, count: int, level: str) -> list[bytes | None]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        isolation_level=level,
        auto_offset_reset="earliest",
    )
    try:
        partitions = [kafka.TopicPartition(topic, at) for at in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        values: list[bytes | None] = []

        def take() -> bool:
            for records in consumer.poll(timeout_ms=100).values():
                values.extend(record.value for record in records)
            return all(consumer.position(at) >= end for at, end in ends.items())

        until(take, f"kafka-python reads to {ends}")
        return values
    finally:
        consumer.close()


def read_aiokafka(bootstrap: str, topic: str, count: int, level: str) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        try:
            partitions = [AiokafkaPartition(topic, at) for at in range(PARTITIONS)]
            consumer.assign(partitions)
            values: list[bytes | None] = []
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    values += [record.value for record in records]
            return values
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


READERS: dict[str, Callable[[str, str, int, str], list[bytes | None]]] = {
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}


def sorted_values(values: Sequence[bytes | None]) -> list[bytes]:
    return sorted(value for value in values if value is not None)


@pytest.mark.parametrize("writer", WRITERS.values(), ids=list(WRITERS))
def test_committed_transactions_are_read_and_aborted_ones_are_not(
    broker: Broker, wide_topic: str, writer: Callable[..., None]
) -> None:
    committed = [b"first %d" % at for at in range(6)] + [b"third %d" % at for at in range(9)]
    aborted = [b"second %d" % at for at in range(7)]
    writer(
        broker.bootstrap,
        f"{wide_topic}-id",
        wide_topic,
        [(committed[:6], True), (aborted, False), (committed[6:], True)],
    )
    for name, read in READERS.items():
        seen = read(broker.bootstrap, wide_topic, len(committed), "read_committed")
        assert sorted_values(seen) == sorted(committed), name
        everything = read(broker.bootstrap, wide_topic, len(committed) + len(aborted), "read_uncommitted")
        assert sorted_values(everything) == sorted(committed + aborted), name


def test_an_open_transaction_holds_back_what_comes_after_it(
    broker: Broker, admin: AdminClient, wide_topic: str
) -> None:
    def latest(isolation: IsolationLevel) -> int:
        asked = {TopicPartition(wide_topic, 0): OffsetSpec.latest()}
        (found,) = admin.list_offsets(asked, isolation_level=isolation).values()
        return int(found.result(30).offset)

    producer = transactional(broker.bootstrap, f"{wide_topic}-id")
    producer.begin_transaction()
    producer.produce(wide_topic, b"undecided", partition=0)
    assert producer.flush(WAIT_S) == 0
    plain = confluent_producer(broker.bootstrap)
    plain.produce(wide_topic, b"plain", partition=0)
    assert plain.flush(WAIT_S) == 0
    assert (latest(IsolationLevel.READ_COMMITTED), latest(IsolationLevel.READ_UNCOMMITTED)) == (0, 2)
    assert read_confluent(broker.bootstrap, wide_topic, 0, "read_committed") == []
    producer.commit_transaction(WAIT_S)
    until(lambda: latest(IsolationLevel.READ_COMMITTED) == 3, "the marker is written")
    assert read_confluent(broker.bootstrap, wide_topic, 2, "read_committed") == [b"undecided", b"plain"]


# ---- one producer at a time -------------------------------------------------------------------------------------------


def test_a_new_producer_with_the_same_id_fences_the_old_one_and_aborts_its_transaction(
    broker: Broker, wide_topic: str
) -> None:
    old = transactional(broker.bootstrap, f"{wide_topic}-id")
    old.begin_transaction()
    old.produce(wide_topic, b"of the old one", partition=0)
    assert old.flush(WAIT_S) == 0
    new = transactional(broker.bootstrap, f"{wide_topic}-id")
    with pytest.raises(confluent_kafka.KafkaException) as error:
        old.commit_transaction(WAIT_S)
    assert error.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    new.begin_transaction()
    new.produce(wide_topic, b"of the new one", partition=0)
    new.commit_transaction(WAIT_S)
    until(
        lambda: read_confluent(broker.bootstrap, wide_topic, 1, "read_committed") == [b"of the new one"],
        "only the new one's record counts",
    )


def test_a_transaction_that_takes_too_long_is_aborted(broker: Broker, kafka_admin: Any, wide_topic: str) -> None:
    name = f"{wide_topic}-id"
    producer = transactional(broker.bootstrap, name, **{"transaction.timeout.ms": 5_000, "message.timeout.ms": 5_000})
    producer.begin_transaction()
    producer.produce(wide_topic, b"too slow", partition=0)
    assert producer.flush(WAIT_S) == 0

    def state() -> str:
        return str(kafka_admin.describe_transactions([name])[name].state.value)

    until(lambda: state() == "CompleteAbort", "the broker has ended it")
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)
    assert read_confluent(broker.bootstrap, wide_topic, 0, "read_committed") == []


@pytest.mark.parametrize("timeout_ms", [900_001, 2**31 - 1])
def test_a_timeout_longer_than_the_broker_allows_is_refused(broker: Broker, topic: str, timeout_ms: int) -> None:
    producer = confluent_producer(
        broker.bootstrap, **{"transactional.id": f"{topic}-id", "transaction.timeout.ms": timeout_ms}
    )
    with pytest.raises(confluent_kafka.KafkaException) as error:
        producer.init_transactions(WAIT_S)
    assert error.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


# ---- consume, transform, produce --------------------------------------------------------------------------------------


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_producer(bootstrap)
    for at in range(count):
        producer.produce(topic, b"%d" % at, partition=at % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def transform_confluent(bootstrap: str, source: str, target: str, group: str, count: int) -> None:
    """Every third transaction is aborted and done again."""
    producer = transactional(bootstrap, f"{group}-id")
    settings = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with confluent_consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([source])
        done = attempts = 0
        while done < count:
            messages = [m for m in consumer.consume(5, 1.0) if m.error() is None]
            if not messages:
                continue
            attempts += 1
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, b"out " + message.value(), partition=message.partition())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), WAIT_S)
            if attempts % 3:
                producer.commit_transaction(WAIT_S)
                done += len(messages)
            else:
                producer.abort_transaction(WAIT_S)
                for committed in consumer.committed(consumer.assignment(), WAIT_S):
                    start = max(committed.offset, 0)
                    consumer.seek(TopicPartition(committed.topic, committed.partition, start))


def transform_aiokafka(bootstrap: str, source: str, target: str, group: str, count: int) -> None:
    async def transform() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{group}-id")
        consumer = aiokafka.AIOKafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await producer.start()
        await consumer.start()
        try:
            done = 0
            while done < count:
                batches = await consumer.getmany(timeout_ms=500, max_records=5)
                if not batches:
                    continue
                async with producer.transaction():
                    for partition, records in batches.items():
                        for record in records:
                            await producer.send(target, b"out " + record.value, partition=partition.partition)
                    offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
                    await producer.send_offsets_to_transaction(offsets, group)
                done += sum(map(len, batches.values()))
        finally:
            await consumer.stop()
            await producer.stop()

    asyncio.run(asyncio.wait_for(transform(), 2 * WAIT_S))


def transform_kafka_python(bootstrap: str, source: str, target: str, group: str, count: int) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{group}-id")
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    try:
        producer.init_transactions()
        done = 0
        while done < count:
            batches = consumer.poll(timeout_ms=500, max_records=5)
            if not batches:
                continue
            producer.begin_transaction()
            for partition, records in batches.items():
                for record in records:
                    producer.send(target, value=b"out " + record.value, partition=partition.partition)
            offsets = {
                partition: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
                for partition, records in batches.items()
            }
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()
            done += sum(map(len, batches.values()))
    finally:
        consumer.close()
        producer.close(timeout=WAIT_S)


TRANSFORMS = {
    "confluent-kafka": transform_confluent,
    "aiokafka": transform_aiokafka,
    "kafka-python": transform_kafka_python,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=list(TRANSFORMS))
def test_offsets_and_output_of_a_transaction_are_committed_together(
    broker: Broker, admin: AdminClient, new_topic: Callable[[], str], transform: Callable[..., None]
) -> None:
    source, target = new_topic(), new_topic()
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, target)]).values():
        future.result(30)
    group = f"{source}-group"
    fill(broker.bootstrap, source, 30)
    transform(broker.bootstrap, source, target, group, 30)
    seen = read_kafka_python(broker.bootstrap, target, 30, "read_committed")
    assert sorted_values(seen) == sorted(b"out %d" % at for at in range(30))
    with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
        partitions = [TopicPartition(source, at) for at in range(PARTITIONS)]
        assert [part.offset for part in consumer.committed(partitions, WAIT_S)] == [10, 10, 10]


def test_offsets_of_an_aborted_transaction_do_not_count(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    producer = transactional(broker.bootstrap, f"{wide_topic}-id")
    with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
        consumer.commit(offsets=[TopicPartition(wide_topic, 0, 3)], asynchronous=False)
        for is_committed, offset, expected in ((False, 7, 3), (True, 9, 9)):
            producer.begin_transaction()
            producer.produce(wide_topic, b"x", partition=0)
            offsets = [TopicPartition(wide_topic, 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
            (producer.commit_transaction if is_committed else producer.abort_transaction)(WAIT_S)
            # librdkafka asks for stable offsets, and asks again while a marker is on its way
            assert [part.offset for part in consumer.committed(offsets, WAIT_S)] == [expected]


# ---- administration ---------------------------------------------------------------------------------------------------


def test_kafka_python_shows_transactions_and_their_producers(broker: Broker, kafka_admin: Any, wide_topic: str) -> None:
    name = f"{wide_topic}-id"
    producer = transactional(broker.bootstrap, name)
    producer.begin_transaction()
    for partition in (0, 2):
        producer.produce(wide_topic, b"x", partition=partition)
    assert producer.flush(WAIT_S) == 0
    described = kafka_admin.describe_transactions([name])[name]
    assert (described.state.value, described.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert described.topic_partitions == {kafka.TopicPartition(wide_topic, at) for at in (0, 2)}
    (listed,) = kafka_admin.list_transactions(transactional_id_pattern=f"{wide_topic}-.*").values()
    assert [(row.transactional_id, row.producer_id) for row in listed] == [(name, described.producer_id)]
    with_it, without = (kafka.TopicPartition(wide_topic, at) for at in (0, 1))
    producers = kafka_admin.describe_producers([with_it, without])
    (row,) = producers[with_it].active_producers
    assert (row.producer_id, row.current_transaction_start_offset) == (described.producer_id, 0)
    assert producers[without].active_producers == []
    producer.commit_transaction(WAIT_S)
    until(
        lambda: kafka_admin.describe_transactions([name])[name].state.value == "CompleteCommit",
        "the transaction is complete",
    )


def test_an_administrator_ends_a_transaction_that_hangs(broker: Broker, kafka_admin: Any, wide_topic: str) -> None:
    producer = transactional(broker.bootstrap, f"{wide_topic}-id")
    producer.begin_transaction()
    producer.produce(wide_topic, b"hangs", partition=0)
    assert producer.flush(WAIT_S) == 0
    plain = confluent_producer(broker.bootstrap)
    plain.produce(wide_topic, b"plain", partition=0)
    assert plain.flush(WAIT_S) == 0
    partition = kafka.TopicPartition(wide_topic, 0)
    (row,) = kafka_admin.describe_producers([partition])[partition].active_producers
    kafka_admin.abort_transaction(
        kafka.admin.AbortTransactionSpec(partition, row.producer_id, row.producer_epoch, coordinator_epoch=0)
    )
    assert read_confluent(broker.bootstrap, wide_topic, 1, "read_committed") == [b"plain"]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"coordinator_epoch": 2**31 - 1}, "TransactionCoordinatorFencedError"),
        ({"coordinator_epoch": 1_000}, "TransactionCoordinatorFencedError"),
        ({"producer_epoch": 2**15 - 1}, "InvalidProducerEpochError"),
        ({"producer_id": 2**63 - 1}, "UnknownProducerIdError"),
    ],
)
def test_forged_markers_end_no_transaction(
    broker: Broker, kafka_admin: Any, wide_topic: str, change: dict[str, int], refusal: str
) -> None:
    """A marker with an epoch that was never issued would fence the coordinator or the producer for good."""
    producer = transactional(broker.bootstrap, f"{wide_topic}-id")
    partition = kafka.TopicPartition(wide_topic, 0)
    values = []
    for number in range(2):
        producer.begin_transaction()
        values.append(b"%d" % number)
        producer.produce(wide_topic, values[-1], partition=0)
        assert producer.flush(WAIT_S) == 0
        (row,) = kafka_admin.describe_producers([partition])[partition].active_producers
        spec = {"producer_id": row.producer_id, "producer_epoch": row.producer_epoch, "coordinator_epoch": 0, **change}
        with pytest.raises(kafka.errors.KafkaError) as refused:
            kafka_admin.abort_transaction(kafka.admin.AbortTransactionSpec(partition, **spec))
        assert type(refused.value).__name__ == refusal
        producer.commit_transaction(WAIT_S)
    assert read_confluent(broker.bootstrap, wide_topic, 2, "read_committed") == values
