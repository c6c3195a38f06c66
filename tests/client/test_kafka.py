"""The Kafka client against a real broker, in every version of every request, through restarts and fencing."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from penstock import Broker
from penstock.client import kafka_connection
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
from penstock.client.kafka_apis import VERSIONS
from penstock.client.kafka_settings import addresses
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records

COMMITTED = Isolation.READ_COMMITTED
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


@pytest.fixture
def client(broker: Broker) -> Iterator[KafkaClient]:
    with KafkaClient(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: KafkaClient) -> str:
    name = f"topic-{next(_numbers)}"
    client.create_topic(name, 3)
    return name


def batch(*values: bytes, timestamp: int = 1_000, producer: Producer | None = None, sequence: int = 0) -> bytearray:
    records = [NewRecord(timestamp + at, None, value) for at, value in enumerate(values)]
    if producer is None:
        return build_batch(records)
    return build_batch(
        records,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


def values(records: memoryview) -> list[bytes | None]:
    return [record.value for one in whole_batches(records) if not one.is_control for record in read_records(one)]


def quick(broker: Broker, **changes: int) -> KafkaSettings:
    return KafkaSettings(addresses(broker.bootstrap), **{"api_timeout_ms": 300, "retry_backoff_ms": 10, **changes})


# ---------------------------------------------------------------------------------------------------- batches


def test_what_is_produced_is_fetched_byte_for_byte(client: KafkaClient, topic: str) -> None:
    first, second = batch(b"a", b"b"), batch(b"c")
    produced = client.produce({(topic, 0): first, (topic, 2): second})
    assert {place.partition: one.base_offset for place, one in produced.items()} == {0: 0, 2: 0}
    fetched = client.fetch({(topic, 0): 0, (topic, 2): 0})[topic, 0]
    # The broker writes offset and leader epoch; the CRC covers all that is behind them.
    assert fetched.records[16:] == first[16:]
    assert fetched.high_watermark == fetched.last_stable_offset == 2
    assert fetched.log_start_offset == 0
    assert fetched.aborted == ()


def test_an_offset_inside_a_batch_gives_the_whole_batch(client: KafkaClient, topic: str) -> None:
    client.produce({(topic, 0): batch(b"a", b"b", b"c")})
    assert values(client.fetch({(topic, 0): 2})[topic, 0].records) == [b"a", b"b", b"c"]


def test_a_batch_comes_however_small_the_bounds_are(client: KafkaClient, topic: str) -> None:
    client.produce({(topic, 0): batch(bytes(10_000))})
    fetched = client.fetch({(topic, 0): 0}, bytes_max=1, partition_bytes_max=1)
    assert values(fetched[topic, 0].records) == [bytes(10_000)]


def test_the_end_of_a_log_is_empty_after_the_wait(client: KafkaClient, topic: str) -> None:
    assert not client.fetch({(topic, 0): 0}, wait_ms_max=1)[topic, 0].records


def test_a_fetch_runs_while_other_requests_are_made(client: KafkaClient, topic: str) -> None:
    call = client.begin_fetch({(topic, 0): 0}, wait_ms_max=20_000)
    client.produce({(topic, 0): batch(b"late")})
    assert values(call.wait()[topic, 0].records) == [b"late"]


def test_several_produces_may_be_under_way(client: KafkaClient, topic: str) -> None:
    calls = [client.begin_produce({(topic, partition): batch(b"x")}) for partition in (0, 1, 2)]
    assert [call.wait()[topic, partition].base_offset for partition, call in enumerate(calls)] == [0, 0, 0]


def test_acks_0_says_nothing_of_the_offset(client: KafkaClient, topic: str) -> None:
    assert client.produce({(topic, 0): batch(b"x")}, acks=0)[topic, 0].base_offset == -1
    assert client.produce({(topic, 0): batch(b"y")}, acks=1)[topic, 0].base_offset == 1


def test_a_batch_with_a_sequence_is_written_once(client: KafkaClient, topic: str) -> None:
    producer = client.init_producer_id()
    built = batch(b"once", producer=producer)
    built[22] &= ~0x10  # idempotent, not transactional
    built[17:21] = crc32c(memoryview(built)[21:]).to_bytes(4, "big")
    assert [client.produce({(topic, 0): built})[topic, 0].base_offset for _ in range(3)] == [0, 0, 0]
    assert client.list_offsets({(topic, 0): LATEST})[topic, 0].offset == 1


def test_offsets_are_found_by_time(client: KafkaClient, topic: str) -> None:
    client.produce({(topic, 0): batch(b"a", b"b", b"c", timestamp=5_000)})
    wanted = {5_001: 1, 5_002: 2, 5_003: None, 0: 0, EARLIEST: 0, LATEST: 3}
    for timestamp, offset in wanted.items():
        assert client.list_offsets({(topic, 0): timestamp})[topic, 0].offset == offset, timestamp
    assert client.list_offsets({(topic, 0): 5_001})[topic, 0].timestamp_ms == 5_001


# ---------------------------------------------------------------------------------------------------- errors


def test_an_offset_out_of_range_is_an_error_that_says_where(client: KafkaClient, topic: str) -> None:
    with pytest.raises(KafkaError, match=f"OFFSET_OUT_OF_RANGE: {topic}-1: ") as refused:
        client.fetch({(topic, 1): 5})
    assert (refused.value.topic, refused.value.partition) == (topic, 1)
    assert not refused.value.retriable
    again = pickle.loads(pickle.dumps(refused.value))
    assert (str(again), again.name, again.partition) == (str(refused.value), "OFFSET_OUT_OF_RANGE", 1)


def test_a_topic_or_partition_that_is_not_there_is_an_error_soon(broker: Broker, topic: str) -> None:
    with KafkaClient(quick(broker)) as client:
        assert client.metadata(["nowhere"]).topics == {}
        for place in (("nowhere", 0), (topic, 99)):
            with pytest.raises(KafkaError, match="no such topic or partition") as refused:
                client.list_offsets({place: LATEST})
            assert (refused.value.topic, refused.value.partition) == place
        assert "nowhere" not in client.metadata().topics


def test_a_damaged_batch_is_refused(broker: Broker, client: KafkaClient, topic: str) -> None:
    damaged = batch(b"x")
    damaged[-2] ^= 1
    with KafkaClient(quick(broker)) as hasty, pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        hasty.produce({(topic, 0): damaged})
    assert client.list_offsets({(topic, 0): LATEST})[topic, 0].offset == 0


def test_topics_are_made_once_with_their_settings(broker: Broker, client: KafkaClient) -> None:
    client.create_topic("made", 5, configs={"cleanup.policy": "compact"})
    assert len(client.metadata(["made"]).topics["made"].partitions) == 5
    entry = client.describe_configs(ConfigKind.TOPIC, "made")["cleanup.policy"]
    assert entry.value == "compact"
    client.create_topic("made", 5, exists_ok=True)
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS: CreateTopics, made"):
        client.create_topic("made")
    with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        client.create_topic("no/name")
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        client.create_topic("other", configs={"no.such.setting": "1"})
    with KafkaClient(quick(broker)) as hasty, pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        hasty.describe_configs(ConfigKind.TOPIC, "other")


def test_a_broker_is_described(client: KafkaClient) -> None:
    (broker_id,) = client.broker_ids()
    assert "message.max.bytes" in client.describe_configs(ConfigKind.BROKER, str(broker_id))


# ---------------------------------------------------------------------------------------------------- groups


def test_a_group_keeps_offsets_and_notes(client: KafkaClient, topic: str) -> None:
    group = f"group-{topic}"
    assert client.fetch_offsets(group) == {}
    client.commit_offsets(group, {(topic, 0): 5, (topic, 1): GroupOffset(7, "note", 0)})
    assert client.fetch_offsets(group) == {(topic, 0): GroupOffset(5), (topic, 1): GroupOffset(7, "note", 0)}
    assert client.fetch_offsets(group, [(topic, 1), (topic, 2)]) == {(topic, 1): GroupOffset(7, "note", 0)}


def test_a_commit_that_is_refused_says_why(client: KafkaClient, topic: str) -> None:
    with pytest.raises(KafkaError, match=f"OFFSET_METADATA_TOO_LARGE: OffsetCommit of 'g', {topic}-0"):
        client.commit_offsets("g", {(topic, 0): GroupOffset(5, "x" * 5_000)})


# ---------------------------------------------------------------------------------------------------- transactions


def test_an_aborted_transaction_is_named_and_a_committed_one_is_read(client: KafkaClient, topic: str) -> None:
    name = f"tx-{topic}"
    producer = client.init_producer_id(name)
    client.add_partitions_to_txn(name, producer, [(topic, 0)])
    client.produce({(topic, 0): batch(b"no", producer=producer)}, transactional_id=name)
    assert client.list_offsets({(topic, 0): LATEST}, COMMITTED)[topic, 0].offset == 0
    assert client.list_offsets({(topic, 0): LATEST})[topic, 0].offset == 1
    assert client.describe_producers([(topic, 0)])[topic, 0][0].open_since_offset == 0
    assert client.describe_transaction(name).partitions == {(topic, 0)}
    assert [one.state for one in client.list_transactions(name)] == ["Ongoing"]
    assert client.end_txn(name, producer, commit=False) == producer
    assert client.end_txn(name, producer, commit=False) == producer

    client.add_partitions_to_txn(name, producer, [(topic, 0)])
    client.produce({(topic, 0): batch(b"yes", producer=producer, sequence=1)}, transactional_id=name)
    client.end_txn(name, producer, commit=True)
    fetched = client.fetch({(topic, 0): 0}, isolation=COMMITTED)[topic, 0]
    assert fetched.aborted == (AbortedTransaction(producer.producer_id, 0),)
    assert values(fetched.records) == [b"no", b"yes"]
    assert client.describe_producers([(topic, 0)])[topic, 0][0].open_since_offset is None
    assert client.list_transactions(name, states=["Ongoing"]) == []
    assert client.describe_transaction(name).state == "CompleteCommit"


def test_offsets_count_when_their_transaction_does(client: KafkaClient, topic: str) -> None:
    name, group = f"tx-{topic}", f"group-{topic}"
    producer = client.init_producer_id(name)
    for commit, offset in ((False, 3), (True, 4)):
        client.add_offsets_to_txn(name, producer, group)
        client.txn_offset_commit(name, producer, group, {(topic, 0): offset})
        client.end_txn(name, producer, commit=commit)
    assert client.fetch_offsets(group) == {(topic, 0): GroupOffset(4)}


def test_version_2_adds_partitions_by_itself_and_raises_the_epoch(client: KafkaClient, topic: str) -> None:
    assert client.feature("transaction.version") == 2
    assert client.feature("no.such.feature") == 0
    name, group = f"tx-{topic}", f"group-{topic}"
    producer = client.init_producer_id(name)
    for value in (b"a", b"b"):
        client.produce({(topic, 0): batch(value, producer=producer)}, transactional_id=name, transaction_version=2)
        client.txn_offset_commit(name, producer, group, {(topic, 0): 1}, transaction_version=2)
        following = client.end_txn(name, producer, commit=True, transaction_version=2)
        assert following == Producer(producer.producer_id, producer.producer_epoch + 1)
        producer = following
    assert values(client.fetch({(topic, 0): 0}, isolation=COMMITTED)[topic, 0].records) == [b"a", b"b"]
    assert client.fetch_offsets(group) == {(topic, 0): GroupOffset(1)}
    with pytest.raises(ValueError, match="unknown transaction version 3"):
        client.end_txn(name, producer, commit=True, transaction_version=3)


def test_an_older_instance_is_fenced(client: KafkaClient, topic: str) -> None:
    name = f"tx-{topic}"
    old = client.init_producer_id(name)
    client.add_partitions_to_txn(name, old, [(topic, 0)])
    new = client.init_producer_id(name)
    assert new.producer_id == old.producer_id
    assert new.producer_epoch > old.producer_epoch
    for stale in (
        lambda: client.end_txn(name, old, commit=True),
        lambda: client.add_partitions_to_txn(name, old, [(topic, 0)]),
        lambda: client.produce({(topic, 0): batch(b"x", producer=old)}, transactional_id=name),
    ):
        with pytest.raises(KafkaError) as refused:
            stale()
        assert refused.value.name in ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
        assert not refused.value.retriable


def test_what_the_coordinator_refuses_is_said(broker: Broker, client: KafkaClient, topic: str) -> None:
    with pytest.raises(KafkaError, match="INVALID_TRANSACTION_TIMEOUT"):
        client.init_producer_id(f"tx-{topic}", timeout_ms=2**31 - 1)
    with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        client.describe_transaction("never seen")
    producer = client.init_producer_id(f"tx-{topic}")
    with KafkaClient(quick(broker)) as hasty, pytest.raises(KafkaError, match="AddPartitionsToTxn, nowhere-0"):
        hasty.add_partitions_to_txn(f"tx-{topic}", producer, [(topic, 0), ("nowhere", 0)])


# ---------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("step", range(10))
def test_every_version_of_every_request_works(broker: Broker, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    older = {api: (low, min(low + step, high)) for api, (low, high) in VERSIONS.items()}
    monkeypatch.setattr(kafka_connection, "VERSIONS", older)
    with KafkaClient(broker.bootstrap) as client:
        name = f"versions-{step}"
        client.create_topic(name, 1, replication_factor=1)
        place = (name, 0)
        producer = client.init_producer_id(name)
        client.add_partitions_to_txn(name, producer, [place])
        client.add_offsets_to_txn(name, producer, name)
        client.txn_offset_commit(name, producer, name, {place: 9})
        client.produce({place: batch(b"a", producer=producer)}, transactional_id=name)
        client.end_txn(name, producer, commit=True)
        assert values(client.fetch({place: 0}, isolation=COMMITTED)[place].records) == [b"a"]
        assert client.list_offsets({place: LATEST})[place].offset == 2
        assert client.fetch_offsets(name)[place].offset == 9
        client.commit_offsets(name, {place: 1})
        assert client.fetch_offsets(name, [place])[place].offset == 1
        assert client.describe_configs(ConfigKind.TOPIC, name)
        assert client.list_transactions(name)
        assert client.describe_producers([place])[place]


def test_a_broker_that_lacks_a_request_is_an_error_that_names_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = {
        api: (low + 50, high + 50) if api.label == "ListOffsets" else (low, high)
        for api, (low, high) in VERSIONS.items()
    }
    monkeypatch.setattr(kafka_connection, "VERSIONS", newer)
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("old", 1, exists_ok=True)
        with pytest.raises(
            KafkaError, match=r"UNSUPPORTED_VERSION: .* ListOffsets versions 1 to 11, this client 52 to 61"
        ):
            client.list_offsets({("old", 0): LATEST})


# ---------------------------------------------------------------------------------------------------- restarts


def test_a_restarted_broker_is_found_again() -> None:
    with Broker(settings={"storage.flush": "os"}) as own, KafkaClient(own.bootstrap) as reader:
        reader.create_topic("t", 1)
        producer = reader.init_producer_id("tx")
        reader.produce({("t", 0): batch(b"a")})
        own.kill()
        thread = threading.Thread(target=own.restart)
        thread.start()
        assert values(reader.fetch({("t", 0): 0})["t", 0].records) == [b"a"]
        thread.join()
        own.restart()
        assert reader.produce({("t", 0): batch(b"b")})["t", 0].base_offset == 1
        assert reader.init_producer_id("tx").producer_epoch == producer.producer_epoch + 1


def test_a_call_that_waits_when_the_broker_dies_is_made_again() -> None:
    with Broker(settings={"storage.flush": "os"}) as own, KafkaClient(own.bootstrap) as reader:
        reader.create_topic("t", 1)
        waiting = reader.begin_fetch({("t", 0): 0}, wait_ms_max=60_000)
        own.kill()
        own.restart()
        with KafkaClient(own.bootstrap) as writer:
            writer.produce({("t", 0): batch(b"a")})
        assert values(waiting.wait()["t", 0].records) == [b"a"]


def test_brokers_that_are_down_are_one_error_that_names_each() -> None:
    settings = KafkaSettings(addresses("127.0.0.2:1,127.0.0.1:1"), api_timeout_ms=50, retry_backoff_ms=10)
    with KafkaClient(settings) as client, pytest.raises(KafkaError, match="BROKER_NOT_AVAILABLE") as refused:
        client.metadata()
    assert "127.0.0.2:1 (Connection refused)" in str(refused.value)
    assert "127.0.0.1:1 (" in str(refused.value)
    assert refused.value.retriable


def test_one_of_several_addresses_is_enough(broker: Broker) -> None:
    with KafkaClient(f"127.0.0.1:1,{broker.bootstrap}") as client:
        assert list(client.metadata().brokers.values()) == [addresses(broker.bootstrap)[0]]


def test_a_closed_client_connects_again_when_it_is_used(broker: Broker, topic: str) -> None:
    client = KafkaClient(broker.bootstrap)
    client.list_offsets({(topic, 0): LATEST})
    client.close()
    assert client.list_offsets({(topic, 0): LATEST})[topic, 0].offset == 0
    client.close()
