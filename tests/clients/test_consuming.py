"""What consumers rely on: any offset of a batch, offsets by time, long polls, bounds, many partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import aiokafka
import aiokafka.errors
import aiokafka.structs
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from penstock import Broker
from tests.clients.drivers import (
    CLIENTS,
    Client,
    Confluent,
    Kcat,
    Sent,
    confluent_consumer,
    confluent_producer,
    kafka,
)
from tests.clients.test_cross_client import installed
from tests.clients.test_producing import create, every_client, stored

LONG_POLL_MS = 40_000
WOKEN_S = 20.0
"""Half of the long poll: whoever answers later did not wake, however slow the machine."""


@every_client
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_read_may_start_at_any_record_of_a_batch(broker: Broker, topic: str, client: Client, codec: str) -> None:
    installed(client)
    Confluent().write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(100)], codec=codec)
    assert [batch.count for batch in stored(broker, topic)] == [100]
    for offset in (1, 57, 99):
        seen = client.read(broker.bootstrap, topic, 100 - offset, offset)
        assert [(s.offset, s.value) for s in seen] == [(n, b"%d" % n) for n in range(offset, 100)]


def test_a_batch_larger_than_every_limit_of_the_consumer_is_read_all_the_same(broker: Broker, topic: str) -> None:
    """KIP-74: at least one batch, whatever max bytes says."""
    values = [bytes([n]) * 100_000 for n in range(3)]
    Confluent().write(broker.bootstrap, topic, [Sent(value) for value in values], **{"batch.num.messages": 1})
    limits = {"fetch.message.max.bytes": 1_000, "fetch.max.bytes": 2_000_000}
    with confluent_consumer(broker.bootstrap, **limits) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert [message.value() for message in consumer.consume(3, 30)] == values
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, fetch_max_bytes=500, max_partition_fetch_bytes=500, group_id=None,
        consumer_timeout_ms=30_000,
    )  # fmt: skip
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek(kafka.TopicPartition(topic, 0), 0)
        assert [next(consumer).value for _ in values] == values
    finally:
        consumer.close()


# ---- offsets by time --------------------------------------------------------------------------------------------------

TIMES = [1_000, 2_000, 2_000, 5_000, 3_000, 9_000]
"""Timestamps of one batch, not in order: the first record at or after a time is meant, not the nearest."""
BY_TIME = [(0, 0), (1_000, 0), (1_001, 1), (2_000, 1), (2_001, 3), (5_000, 3), (5_001, 5), (9_000, 5), (9_001, None)]


def by_time_confluent(bootstrap: str, topic: str, timestamp: int) -> int | None:
    with confluent_consumer(bootstrap) as consumer:
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], 30)
        assert found.error is None
        return None if found.offset == confluent_kafka.OFFSET_END else found.offset


def by_time_aiokafka(bootstrap: str, topic: str, timestamp: int) -> int | None:
    async def ask() -> int | None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            partition = aiokafka.structs.TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return None if found is None else found.offset
        finally:
            await consumer.stop()

    return asyncio.run(ask())


def by_time_kafka_python(bootstrap: str, topic: str, timestamp: int) -> int | None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    try:
        partition = kafka.TopicPartition(topic, 0)
        found = consumer.offsets_for_times({partition: timestamp})[partition]
        return None if found is None else found.offset
    finally:
        consumer.close()


def by_time_kcat(bootstrap: str, topic: str, timestamp: int) -> int | None:
    installed(Kcat())
    done = Kcat().run("-Q", "-b", bootstrap, "-t", f"{topic}:0:{timestamp}")
    assert done.returncode == 0, done.stderr.decode()
    offset = int(done.stdout.decode().split("offset")[1])
    return None if offset == -1 else offset


@pytest.mark.parametrize("ask", [by_time_confluent, by_time_aiokafka, by_time_kafka_python, by_time_kcat])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_an_offset_by_time_is_the_first_record_at_or_after_it(broker: Broker, topic: str, ask: Any, codec: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"v", timestamp_ms=at) for at in TIMES], codec=codec)
    assert [batch.count for batch in stored(broker, topic)] == [len(TIMES)]
    assert {asked: ask(broker.bootstrap, topic, asked) for asked, _ in BY_TIME} == dict(BY_TIME)


def test_offsets_by_time_over_many_batches_and_segments_are_those_of_a_plain_scan(broker: Broker, topic: str) -> None:
    create(broker, topic, segment_bytes="20000", index_interval_bytes="500", retention_ms="-1")
    times = [1_000_000 + 10 * n + (n * 7919 % 37) for n in range(3_000)]
    settings = {"batch.num.messages": 25, "linger.ms": 5}
    Confluent().write(broker.bootstrap, topic, [Sent(b"x" * 20, timestamp_ms=at) for at in times], **settings)
    assert len(list((broker.data_dir / f"{topic}-0").glob("*.log"))) > 3
    asked = [*range(999_990, 1_030_100, 1_003), max(times), max(times) + 1, times[2_999]]
    with confluent_consumer(broker.bootstrap) as consumer:
        for timestamp in asked:
            [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], 30)
            want = next((at for at, time_ms in enumerate(times) if time_ms >= timestamp), confluent_kafka.OFFSET_END)
            assert (timestamp, found.offset) == (timestamp, want)


def test_first_and_last_offsets_are_told_by_every_client(broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"v")] * 7)
    with confluent_consumer(broker.bootstrap) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 30) == (0, 7)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        partition = kafka.TopicPartition(topic, 0)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 7}
    finally:
        consumer.close()


# ---- out of bounds ----------------------------------------------------------------------------------------------------


def test_an_offset_past_the_end_is_out_of_range_and_the_end_itself_is_not(broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"v")] * 3)
    with confluent_consumer(broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0, 4)])
        message = consumer.poll(30)
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET

    async def read_past_the_end() -> None:
        other = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none")
        await other.start()
        try:
            partition = aiokafka.structs.TopicPartition(topic, 0)
            other.assign([partition])
            other.seek(partition, 4)
            with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
                await asyncio.wait_for(other.getone(), 30)
        finally:
            await other.stop()

    asyncio.run(read_past_the_end())
    with confluent_consumer(broker.bootstrap, **{"enable.partition.eof": True}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 3)])
        message = consumer.poll(30)
        assert message.error().code() == KafkaError._PARTITION_EOF


# ---- long polls -------------------------------------------------------------------------------------------------------


class Follower(threading.Thread):
    """Reads two records: the first is there, the second comes while its fetch waits at the broker."""

    def __init__(self, read: Any) -> None:
        super().__init__(daemon=True)
        self._read = read
        self.has_first = threading.Event()
        self.values: list[bytes] = []

    def run(self) -> None:
        self._read(self)

    def take(self, value: bytes) -> None:
        self.values.append(value)
        self.has_first.set()


def follow_confluent(bootstrap: str, topic: str, follower: Follower) -> None:
    settings = {"fetch.wait.max.ms": LONG_POLL_MS, "socket.timeout.ms": LONG_POLL_MS + 10_000}
    with confluent_consumer(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(2):
            follower.take(consumer.poll(LONG_POLL_MS / 1000).value())


def follow_aiokafka(bootstrap: str, topic: str, follower: Follower) -> None:
    async def follow() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, fetch_max_wait_ms=LONG_POLL_MS, request_timeout_ms=LONG_POLL_MS + 10_000
        )
        await consumer.start()
        try:
            partition = aiokafka.structs.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            for _ in range(2):
                follower.take((await consumer.getone()).value)
        finally:
            await consumer.stop()

    asyncio.run(follow())


def follow_kafka_python(bootstrap: str, topic: str, follower: Follower) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=LONG_POLL_MS,
        request_timeout_ms=LONG_POLL_MS + 10_000, connections_max_idle_ms=LONG_POLL_MS * 10,
    )  # fmt: skip
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek(kafka.TopicPartition(topic, 0), 0)
        for _ in range(2):
            follower.take(next(consumer).value)
    finally:
        consumer.close()


@pytest.mark.parametrize("follow", [follow_confluent, follow_aiokafka, follow_kafka_python])
def test_a_waiting_fetch_is_answered_when_a_record_comes(broker: Broker, topic: str, follow: Any) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"first")])
    follower = Follower(lambda self: follow(broker.bootstrap, topic, self))
    follower.start()
    assert follower.has_first.wait(WOKEN_S)
    began = time.monotonic()
    Confluent().write(broker.bootstrap, topic, [Sent(b"second")])
    follower.join(LONG_POLL_MS / 1000)
    assert follower.values == [b"first", b"second"]
    assert time.monotonic() - began < WOKEN_S


# ---- many partitions --------------------------------------------------------------------------------------------------


def test_a_hundred_partitions_are_written_and_read_by_one_client(broker: Broker, topic: str) -> None:
    create(broker, topic, partitions=100)
    producer = confluent_producer(broker.bootstrap)
    for n in range(300):
        producer.produce(topic, b"%d" % n, partition=n % 100)
    assert producer.flush(30) == 0
    with confluent_consumer(broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(100)])
        seen: dict[int, list[int]] = {}
        for _ in range(300):
            message = consumer.poll(30)
            assert message is not None
            seen.setdefault(message.partition(), []).append(int(message.value()))
    assert seen == {partition: [partition, partition + 100, partition + 200] for partition in range(100)}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_reader_catches_up_over_many_segments(broker: Broker, topic: str, client: Client) -> None:
    installed(client)
    create(broker, topic, segment_bytes="50000")
    records = [Sent(b"%06d" % n * 20) for n in range(2_000)]
    Confluent().write(broker.bootstrap, topic, records, **{"batch.num.messages": 50})
    assert len(list((broker.data_dir / f"{topic}-0").glob("*.log"))) > 3
    assert [seen.value for seen in client.read(broker.bootstrap, topic, 2_000)] == [r.value for r in records]
