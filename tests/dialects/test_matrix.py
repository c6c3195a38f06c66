"""One log under six dialects: what each writes, each reads, in every field that the reading dialect carries.

Also: no dialect sees anything of an open or an aborted transaction, nor the markers that end them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.cli.dialect_clients import CLIENTS, DialectClient, Groups, Pair
from penstock.client.kafka import LATEST, KafkaClient
from penstock.model.listeners import PORTS

OTHERS = sorted(CLIENTS)
ALL = ["kafka", *OTHERS]
KEYLESS = ("fluxgo", "rustlog")

RECORDS = [
    Pair(b"k1", b"first"),
    Pair(b"k2", b"\x00\xff binary \xc3\xa9"),
    Pair(b"k3", b"x" * 5_000),
    Pair(b"k1", b"last"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=tuple(f"{dialect}=127.0.0.1:0" for dialect in PORTS)) as running:
        yield running


@contextlib.contextmanager
def client_of(broker: Broker, dialect: str) -> Iterator[DialectClient]:
    host, _, port = broker.addresses[dialect].rpartition(":")
    with contextlib.closing(CLIENTS[dialect]([(host, int(port))], 20.0)) as client:
        yield client


def make_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)


def write(broker: Broker, dialect: str, topic: str) -> None:
    if dialect == "kafka":
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
        for key, value in RECORDS:
            producer.produce(topic, value, key, partition=0)
        assert producer.flush(20) == 0
        return
    with client_of(broker, dialect) as client:
        partition = 0 if client.takes_partitions else None
        keyed = client.carries_keys
        client.produce(topic, partition, [Pair(key if keyed else b"", value) for key, value in RECORDS])
    until_readable(broker, topic)


def until_readable(broker: Broker, topic: str) -> None:
    """Some dialects are answered before the flush, and every transaction before its marker is flushed, and nobody reads
    what a power cut could take. The end of a log is told when all is safe that was there before the question."""
    with KafkaClient(broker.bootstrap) as client:
        client.list_offsets({(topic, 0): LATEST})


def read(broker: Broker, dialect: str, topic: str) -> list[Pair]:
    if dialect == "kafka":
        return read_kafka(broker, topic)
    with client_of(broker, dialect) as client:
        group = f"readers-of-{topic}" if client.groups is Groups.MUST else None
        found = []
        for record in client.read(topic, None if group else [0], group, 0):
            found.append(Pair(record.key or b"", record.value))
            if group:
                client.commit()
        return found


def read_kafka(broker: Broker, topic: str) -> list[Pair]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "matrix",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "no answer in time"
        if message.error() is not None:
            break
        found.append(Pair(message.key() or b"", message.value() or b""))
    consumer.close()
    return found


def carries_keys(dialect: str) -> bool:
    return dialect not in KEYLESS


@pytest.mark.parametrize("writer", ALL)
def test_what_one_dialect_writes_every_dialect_reads(broker: Broker, writer: str) -> None:
    topic = f"written-by-{writer}"
    make_topic(broker, topic)
    write(broker, writer, topic)
    for reader in ALL:
        both_carry_keys = carries_keys(writer) and carries_keys(reader)
        wanted = [Pair(key if both_carry_keys else b"", value) for key, value in RECORDS]
        assert read(broker, reader, topic) == wanted, f"written by {writer}, read by {reader}"


def test_open_and_aborted_transactions_are_seen_by_none(broker: Broker) -> None:
    topic = "with-transactions"
    make_topic(broker, topic)
    write(broker, "kafka", topic)
    aborting = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "aborts"})
    aborting.init_transactions(20)
    aborting.begin_transaction()
    aborting.produce(topic, b"aborted", partition=0)
    aborting.flush(20)
    aborting.abort_transaction(20)
    committing = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "commits"})
    committing.init_transactions(20)
    committing.begin_transaction()
    committing.produce(topic, b"committed", b"k9", partition=0)
    committing.commit_transaction(20)
    leaving_open = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "stays-open"})
    leaving_open.init_transactions(20)
    leaving_open.begin_transaction()
    leaving_open.produce(topic, b"open", partition=0)
    leaving_open.flush(20)
    until_readable(broker, topic)
    for reader in ALL:
        values = [value for _, value in read(broker, reader, topic)]
        assert values == [*(value for _, value in RECORDS), b"committed"], f"read by {reader}"
    leaving_open.abort_transaction(20)
