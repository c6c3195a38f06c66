"""What producers may send and what they are told: nulls, headers, sizes, acknowledgements, idempotence, topics on demand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka.errors import MessageSizeTooLargeError as AiokafkaTooLarge
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.records.batch import Batch
from penstock.storage.segment_reader import list_segments, read_segment
from tests.clients.drivers import (
    CLIENTS,
    Aiokafka,
    Client,
    Confluent,
    KafkaPython,
    Kcat,
    Seen,
    Sent,
    confluent_consumer,
    confluent_producer,
    kafka,
)
from tests.clients.test_cross_client import installed

BATCH_OVERHEAD_BYTES = 72
"""Of a batch with one record of about a megabyte, without key and headers."""
MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default of max.message.bytes."""

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
library_clients = pytest.mark.parametrize(
    "client", [Confluent(), Aiokafka(), KafkaPython()], ids=lambda client: client.name
)


def stored(broker: Broker, topic: str, partition: int = 0) -> list[Batch]:
    return [
        batch for path in list_segments(broker.data_dir / f"{topic}-{partition}") for _, batch in read_segment(path)
    ]


def create(broker: Broker, topic: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    new = NewTopic(topic, partitions, config={name.replace("_", "."): value for name, value in configs.items()})
    admin.create_topics([new])[topic].result(30)


# ---- what a record may be ---------------------------------------------------------------------------------------------


@library_clients
def test_null_and_empty_are_kept_apart(broker: Broker, topic: str, client: Client) -> None:
    records = [
        Sent(b"", None),
        Sent(None, b""),
        Sent(b"", b""),
        Sent(b"v", b"k", (("empty", b""), ("twice", b"1"), ("twice", b"2"))),
        Sent(b"v", b"k", tuple((f"header-{n}", b"%d" % n) for n in range(200))),
        Sent(bytes(range(256)), bytes(range(255, -1, -1))),
    ]
    if client.name == "confluent-kafka":  # the others do not send these
        records += [Sent(None, None), Sent(b"v", None, (("none", None),))]
    client.write(broker.bootstrap, topic, records)
    for reader in (Confluent(), Aiokafka(), KafkaPython()):
        seen = reader.read(broker.bootstrap, topic, len(records))
        assert [(s.value, s.key, s.headers) for s in seen] == [r[:3] for r in records], reader.name


@library_clients
def test_timestamps_are_the_producers(broker: Broker, topic: str, client: Client) -> None:
    times = [1, 1_000_000_000_000, 1_000_000_000_001, 999, 1_700_000_000_000]
    client.write(broker.bootstrap, topic, [Sent(b"v", timestamp_ms=at) for at in times])
    assert [seen.timestamp_ms for seen in Confluent().read(broker.bootstrap, topic, len(times))] == times


def test_log_append_time_is_the_brokers_clock(broker: Broker, topic: str) -> None:
    create(broker, topic, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    Confluent().write(broker.bootstrap, topic, [Sent(b"v%d" % n, timestamp_ms=1_000) for n in range(3)], codec="lz4")
    after = time.time_ns() // 1_000_000
    with confluent_consumer(broker.bootstrap, **{"check.crcs": True}) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        for message in consumer.consume(3, 30):
            kind, timestamp_ms = message.timestamp()
            assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
            assert before <= timestamp_ms <= after


# ---- what is refused --------------------------------------------------------------------------------------------------


@library_clients
def test_the_largest_batch_is_taken_and_one_byte_more_is_not(broker: Broker, topic: str, client: Client) -> None:
    room = {
        "confluent-kafka": {"message.max.bytes": 2_000_000},
        "aiokafka": {"max_request_size": 2_000_000},
        "kafka-python": {"max_request_size": 2_000_000},
    }[client.name]
    largest = MESSAGE_BYTES_MAX - BATCH_OVERHEAD_BYTES
    client.write(broker.bootstrap, topic, [Sent(b"x" * largest)], **room)
    assert [batch.size for batch in stored(broker, topic)] == [MESSAGE_BYTES_MAX]
    with pytest.raises(Exception) as refused:  # noqa: PT011 - each client has an exception of its own
        client.write(broker.bootstrap, topic, [Sent(b"x" * (largest + 1))], **room)
    match refused.value:
        case confluent_kafka.KafkaException():
            assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        case AiokafkaTooLarge() | kafka.errors.MessageSizeTooLargeError():
            pass
        case other:
            raise other
    assert len(stored(broker, topic)) == 1
    [seen] = Confluent().read(broker.bootstrap, topic, 1)
    assert seen.value == b"x" * largest


def test_a_topic_may_take_larger_batches(broker: Broker, topic: str) -> None:
    create(broker, topic, max_message_bytes="8000000")
    value = bytes(range(256)) * 25_000
    Confluent().write(broker.bootstrap, topic, [Sent(value)], **{"message.max.bytes": 8_000_000})
    for reader in (Confluent(), Aiokafka(), KafkaPython()):
        assert [seen.value for seen in reader.read(broker.bootstrap, topic, 1)] == [value]


def test_a_compacted_topic_refuses_records_without_a_key(broker: Broker, topic: str) -> None:
    create(broker, topic, cleanup_policy="compact")
    Confluent().write(broker.bootstrap, topic, [Sent(b"v", b"k"), Sent(None, b"k")])
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        Confluent().write(broker.bootstrap, topic, [Sent(b"v")])
    assert refused.value.args[0].code() == KafkaError.INVALID_RECORD


def test_a_timestamp_from_the_future_is_refused(broker: Broker, topic: str) -> None:
    tomorrow_ms = time.time_ns() // 1_000_000 + 86_400_000
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        Confluent().write(broker.bootstrap, topic, [Sent(b"v", timestamp_ms=tomorrow_ms)])
    assert refused.value.args[0].code() == KafkaError.INVALID_TIMESTAMP


# ---- acknowledgements -------------------------------------------------------------------------------------------------


@every_client
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_with_any_acks(broker: Broker, topic: str, client: Client, acks: int) -> None:
    installed(client)
    records = [Sent(b"%d" % n, b"k") for n in range(20)]
    offsets = client.write(broker.bootstrap, topic, records, acks=acks)
    assert offsets in ([], list(range(20)))
    assert [seen.value for seen in Aiokafka().read(broker.bootstrap, topic, 20)] == [r.value for r in records]


IDEMPOTENCE: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"enable.idempotence": True},
    "kcat": {"enable.idempotence": "true"},
    "aiokafka": {"enable_idempotence": True},
    "kafka-python": {"enable_idempotence": True},
}


@every_client
def test_idempotent_producers_number_their_batches(broker: Broker, topic: str, client: Client) -> None:
    installed(client)
    for _ in range(2):
        client.write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(50)], **IDEMPOTENCE[client.name])
    batches = stored(broker, topic)
    producers = {batch.producer_id for batch in batches}
    assert len(producers) == 2
    assert min(producers) >= 0
    for producer in producers:
        sequences = [(b.base_sequence, b.count) for b in batches if b.producer_id == producer]
        assert [first for first, _ in sequences] == [sum(c for _, c in sequences[:at]) for at in range(len(sequences))]
    assert sum(batch.count for batch in batches) == 100


def test_a_long_idempotent_run_with_five_requests_in_flight_is_whole_and_in_order(broker: Broker, topic: str) -> None:
    """Hundreds of batches, several in flight: each record once, and in the order of the sends."""
    settings = {"enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 10}
    offsets = Confluent().write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(5_000)], **settings)
    assert offsets == list(range(5_000))
    seen = Confluent().read(broker.bootstrap, topic, 5_000)
    assert [int(s.value or b"") for s in seen] == list(range(5_000))


# ---- topics on demand -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    """Makes no topic unasked."""
    with Broker(settings={"broker.auto_create_topics": False, "broker.num_partitions": 4}) as broker:
        yield broker


@every_client
def test_a_topic_is_made_when_somebody_writes_to_it(broker: Broker, topic: str, client: Client) -> None:
    installed(client)
    client.write(broker.bootstrap, topic, [Sent(b"first")])
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, 30).topics[topic]
    assert found.error is None
    assert list(found.partitions) == [0]


def test_no_topic_is_made_when_the_broker_may_not(strict_broker: Broker, topic: str) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        Confluent().write(strict_broker.bootstrap, topic, [Sent(b"v")], **{"topic.metadata.propagation.max.ms": 300})
    assert refused.value.args[0].code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert not (strict_broker.data_dir / f"{topic}-0").exists()


def test_a_topic_made_without_a_count_has_the_brokers_number_of_partitions(strict_broker: Broker, topic: str) -> None:
    create(strict_broker, topic, partitions=-1)
    found = AdminClient({"bootstrap.servers": strict_broker.bootstrap}).list_topics(topic, 30).topics[topic]
    assert list(found.partitions) == [0, 1, 2, 3]


def test_consumers_make_topics_only_when_they_ask_for_it(broker: Broker, new_topic: Callable[[], str]) -> None:
    for allowed in (False, True):
        name = new_topic()
        with confluent_consumer(broker.bootstrap, **{"allow.auto.create.topics": allowed}) as consumer:
            consumer.list_topics(name, 30)
            with contextlib.suppress(confluent_kafka.KafkaException):
                consumer.get_watermark_offsets(confluent_kafka.TopicPartition(name, 0), 2)
        assert (broker.data_dir / f"{name}-0").exists() is allowed


def test_one_producer_writes_to_many_topics_and_partitions_in_one_request(
    broker: Broker, new_topic: Callable[[], str]
) -> None:
    names = [new_topic() for _ in range(5)]
    for name in names:
        create(broker, name, partitions=8)
    producer = confluent_producer(broker.bootstrap, **{"linger.ms": 100, "enable.idempotence": True})
    for n in range(400):
        producer.produce(names[n % 5], b"%d" % n, partition=n // 5 % 8)
    assert producer.flush(30) == 0
    for name in names:
        assert sum(batch.count for at in range(8) for batch in stored(broker, name, at)) == 80


def test_seen_is_what_was_sent(broker: Broker, topic: str) -> None:
    """kcat's own reading of keys, values and null values, against what another client says."""
    installed(Kcat())
    Confluent().write(broker.bootstrap, topic, [Sent(b"a", b"k"), Sent(None, b"k"), Sent(b"c")])
    by_kcat = Kcat().read(broker.bootstrap, topic, 3)
    assert by_kcat == Confluent().read(broker.bootstrap, topic, 3)
    assert [type(seen) for seen in by_kcat] == [Seen] * 3
