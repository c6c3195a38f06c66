"""The Kafka client against Apache Kafka: what it asks of Penstock it may ask of the original."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.client.kafka import (
    EARLIEST,
    LATEST,
    AbortedTransaction,
    ConfigKind,
    GroupOffset,
    Isolation,
    KafkaClient,
    KafkaError,
    KafkaSettings,
    Producer,
)
from penstock.client.kafka_settings import addresses
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from tests.compatibility.apache_kafka import START_S_MAX, apache_kafka

COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaClient]:
    with apache_kafka(tmp_path_factory.mktemp("apache-kafka")) as address:
        settings = KafkaSettings(addresses(address), api_timeout_ms=int(START_S_MAX * 1_000))
        with KafkaClient(settings) as client:
            client.metadata()
            yield client


def batch(*values: bytes, producer: Producer, sequence: int = 0) -> bytearray:
    return build_batch(
        [NewRecord(1_000 + at, None, value) for at, value in enumerate(values)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


def values(records: memoryview) -> list[bytes | None]:
    return [record.value for one in whole_batches(records) if not one.is_control for record in read_records(one)]


def test_batches_go_both_ways(client: KafkaClient) -> None:
    client.create_topic("plain", 2, configs={"max.message.bytes": "5000"})
    first = build_batch([NewRecord(1_000, b"k", b"a"), NewRecord(1_001, None, b"b", (("h", b"x"),))])
    assert client.produce({("plain", 0): first, ("plain", 1): first})["plain", 1].base_offset == 0
    fetched = client.fetch({("plain", 0): 0})["plain", 0]
    assert fetched.records[16:] == first[16:]
    assert (fetched.high_watermark, fetched.log_start_offset) == (2, 0)
    assert client.list_offsets({("plain", 0): 1_001})["plain", 0].offset == 1
    assert client.describe_configs(ConfigKind.TOPIC, "plain")["max.message.bytes"].value == "5000"
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        client.produce({("plain", 0): build_batch([NewRecord(1, None, bytes(6_000))])})
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        client.fetch({("plain", 0): 99})
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        client.create_topic("plain")


@pytest.mark.parametrize("version", [1, 2])
def test_transactions_of_both_versions(client: KafkaClient, version: int) -> None:
    name = f"tx-{version}"
    client.create_topic(name, 1, exists_ok=True)
    place = (name, 0)
    producer = client.init_producer_id(name)
    sequence = 0
    aborted: set[AbortedTransaction] = set()
    for turn, commit in enumerate((True, False, True)):
        value = b"%d" % turn
        if version == 1:
            client.add_partitions_to_txn(name, producer, [place])
            client.add_offsets_to_txn(name, producer, name)
        written = client.produce(
            {place: batch(value, producer=producer, sequence=sequence)},
            transactional_id=name,
            transaction_version=version,
        )
        if not commit:
            aborted.add(AbortedTransaction(producer.producer_id, written[place].base_offset))
        client.txn_offset_commit(name, producer, name, {place: turn}, transaction_version=version)
        assert [one.state for one in client.list_transactions(name)] == ["Ongoing"]
        assert client.describe_producers([place])[place][0].open_since_offset == written[place].base_offset
        after = client.end_txn(name, producer, commit=commit, transaction_version=version)
        assert (after == producer) == (version == 1)
        sequence = sequence + 1 if after == producer else 0
        producer = after
    # Kafka answers EndTxn before its marker is in the partition.
    deadline = time.monotonic() + 30
    while client.list_offsets({place: LATEST}, COMMITTED)[place].offset != 6:
        assert time.monotonic() < deadline
    found: list[bytes | None] = []
    named: set[AbortedTransaction] = set()
    at = 0
    while at < 6:
        # An answer may end before the log does.
        fetched = client.fetch({place: at}, isolation=COMMITTED)[place]
        found += values(fetched.records)
        named |= set(fetched.aborted)
        *_, last = whole_batches(fetched.records)
        at = last.next_offset
    assert found == [b"0", b"1", b"2"]
    assert named == aborted
    assert client.fetch_offsets(name) == {place: GroupOffset(2)}
    while client.describe_transaction(name).state != "CompleteCommit":
        assert time.monotonic() < deadline


def test_a_repeated_commit_is_no_error_and_an_older_instance_is_fenced(client: KafkaClient) -> None:
    client.create_topic("fence", 1)
    old = client.init_producer_id("fence")
    client.add_partitions_to_txn("fence", old, [("fence", 0)])
    client.produce({("fence", 0): batch(b"a", producer=old)}, transactional_id="fence")
    for _ in range(2):
        assert client.end_txn("fence", old, commit=True) == old
    client.init_producer_id("fence")
    with pytest.raises(KafkaError) as refused:
        client.end_txn("fence", old, commit=True)
    assert refused.value.name in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


def test_groups_and_the_broker_itself(client: KafkaClient) -> None:
    client.create_topic("grouped", 1)
    client.commit_offsets("g", {("grouped", 0): GroupOffset(3, "note")})
    assert client.fetch_offsets("g", [("grouped", 0)])["grouped", 0].metadata == "note"
    (broker,) = client.broker_ids()
    assert client.describe_configs(ConfigKind.BROKER, str(broker))["transaction.max.timeout.ms"].value == "900000"
    assert client.list_offsets({("grouped", 0): EARLIEST})["grouped", 0].offset == 0
    assert client.feature("transaction.version") == 2
