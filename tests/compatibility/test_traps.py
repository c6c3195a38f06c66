"""Answers that real clients stumble over when they are only nearly right, asked for without a client in between.

docs/guarantees-kafka.md lists all of them, with those that other tests cover.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema

from penstock import Broker
from penstock.dialects.kafka.apis import ApiKey
from penstock.model import limits
from penstock.records.builder import NewRecord, build_batch
from tests.clients.conftest import new_topic, topic  # noqa: F401 - fixtures
from tests.clients.drivers import WAIT_S, confluent_consumer, kafka
from tests.clients.members import until
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import RawPeer

NOW_MS = time.time_ns() // 1_000_000 - 60_000
"""Recent, or retention would take it."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LONG_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running
        assert "Traceback" not in running.log, running.log


def frame(key: int, version: int, correlation_id: int = 1, /, **tree: Any) -> bytes:
    body = request_body(key, version, tree)
    flexible = b"\0" if load_request_schema(key, version).__flexible__ else b""
    header = struct.pack(">hhih", key, version, correlation_id, 3) + b"raw" + flexible
    return struct.pack(">i", len(header) + len(body)) + header + body


def ask(broker: Broker, key: int, version: int, /, **tree: Any) -> Any:
    with RawPeer(broker) as peer:
        return peer.ask(key, version, frame(key, version, **tree))


def metadata(broker: Broker, version: int = 13, /, **asked: Any) -> Any:
    return ask(
        broker,
        ApiKey.METADATA,
        version,
        topics=[{"topic_id": None, "name": None, **asked}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def create(broker: Broker, name: str, partitions: int = 1, **configs: str) -> uuid.UUID:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    named = {config.replace("_", "."): value for config, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, config=named)])[name].result(WAIT_S)
    found: uuid.UUID = metadata(broker, name=name).topics[0].topic_id
    return found


def batch(*values: bytes, key: bytes | None = b"k", timestamp_ms: int = NOW_MS) -> bytes:
    return bytes(build_batch([NewRecord(timestamp_ms + at, key, value) for at, value in enumerate(values)]))


def produce(broker: Broker, name: str, records: bytes, version: int = 9, **more: Any) -> Any:
    answer = ask(
        broker,
        ApiKey.PRODUCE,
        version,
        transactional_id=None,
        acks=-1,
        timeout=30_000,
        topic_data=[{"name": name, "partition_data": [{"index": 0, "records": records}], **more}],
    )
    assert answer.throttle_time.total_seconds() == 0
    return answer.responses[0].partition_responses[0]


def fetch_tree(*partitions: dict[str, Any], isolation: int = READ_UNCOMMITTED, **more: Any) -> dict[str, Any]:
    """A fetch; each partition says its topic (or id) and what differs from the usual."""
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": part.get("topic", ""),
                "topic_id": part.get("topic_id"),
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": -1,
                        "fetch_offset": 0,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                        **part,
                    }
                ],
            }
            for part in partitions
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
        **more,
    }


def fetch(broker: Broker, *partitions: dict[str, Any], version: int = 12, **more: Any) -> list[Any]:
    answer = ask(broker, ApiKey.FETCH, version, **fetch_tree(*partitions, **more))
    return [row.partitions[0] for row in answer.responses]


# ---- topic ids --------------------------------------------------------------------------------------------------------


def test_a_topic_is_written_and_read_by_its_id_and_by_its_name(broker: Broker, topic: str) -> None:  # noqa: F811
    topic_id = create(broker, topic)
    assert topic_id.int > 1, "never one of the reserved ids"
    records = batch(b"by name"), batch(b"by id")
    assert produce(broker, topic, records[0], 12).error_code == 0
    assert produce(broker, topic, records[1], 13, topic_id=topic_id).error_code == 0
    (named,) = fetch(broker, {"topic": topic}, version=12)
    (by_id,) = fetch(broker, {"topic_id": topic_id}, version=18)
    assert named.records == by_id.records
    assert len(named.records) == sum(map(len, records))
    unknown = uuid.uuid4()
    assert fetch(broker, {"topic_id": unknown}, version=18)[0].error_code == 100
    assert produce(broker, topic, records[0], 13, topic_id=unknown).error_code == 100
    assert metadata(broker, topic_id=topic_id).topics[0].name == topic


# ---- fetching ---------------------------------------------------------------------------------------------------------


def test_a_partition_that_has_reached_its_limit_is_not_waited_with(broker: Broker, topic: str) -> None:  # noqa: F811
    """The consumer can take no more of it, so that waiting for min_bytes would be in vain."""
    create(broker, topic)
    records = batch(b"x" * 100)
    for _ in range(5):
        assert produce(broker, topic, records).error_code == 0
    began = time.monotonic()
    wanted = {"topic": topic, "partition_max_bytes": 2 * len(records) + len(records) // 2}
    (found,) = fetch(broker, wanted, min_bytes=1 << 20, max_wait=LONG_MS)
    assert time.monotonic() - began < LONG_MS / 2_000
    assert len(found.records) >= 2 * len(records)


def test_the_limit_of_an_answer_counts_over_all_partitions_in_the_order_asked(
    broker: Broker,
    new_topic: Callable[[], str],  # noqa: F811
) -> None:
    names = [new_topic() for _ in range(3)]
    records = batch(b"x" * 1_000)
    for name in names:
        create(broker, name)
        for _ in range(3):
            assert produce(broker, name, records).error_code == 0
    for order in (names, names[::-1]):
        found = fetch(broker, *({"topic": name} for name in order), max_bytes=4 * len(records))
        assert [len(row.records) // len(records) for row in found] == [3, 1, 0]
        tight = fetch(broker, *({"topic": name} for name in order), max_bytes=1)
        assert [len(row.records) // len(records) for row in tight] == [1, 0, 0]


def test_a_fetch_fails_only_in_ways_that_clients_know(broker: Broker, topic: str) -> None:  # noqa: F811
    """Kafka's own client ends with an IllegalStateException for any other."""
    create(broker, topic)
    produce(broker, topic, batch(b"v"))
    known = {
        "OFFSET_OUT_OF_RANGE": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 3,
        "FENCED_LEADER_EPOCH": 74,
        "UNKNOWN_LEADER_EPOCH": 75,
    }
    for asked, code in (
        ({"fetch_offset": 2}, known["OFFSET_OUT_OF_RANGE"]),
        ({"fetch_offset": -5}, known["OFFSET_OUT_OF_RANGE"]),
        ({"partition": 9}, known["UNKNOWN_TOPIC_OR_PARTITION"]),
        ({"topic": "not-there"}, known["UNKNOWN_TOPIC_OR_PARTITION"]),
        ({"current_leader_epoch": 1_000}, known["UNKNOWN_LEADER_EPOCH"]),
    ):
        (found,) = fetch(broker, {"topic": topic, **asked})
        assert found.error_code == code, asked
        assert found.records == b"", "never null"


def test_aborted_transactions_are_told_in_order_to_readers_of_committed_data_alone(
    broker: Broker,
    topic: str,  # noqa: F811
) -> None:
    create(broker, topic)
    producers = []
    for number in range(3):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{number}", "log_level": 0}
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(WAIT_S) == 0
        producers.append(producer)
    # the last to begin is the first to end, and the one in the middle is committed
    producers[2].abort_transaction(WAIT_S)
    producers[1].commit_transaction(WAIT_S)
    producers[0].abort_transaction(WAIT_S)
    until(lambda: list_offset(broker, topic, -1, READ_COMMITTED).offset == 6, "all markers are written")
    (found,) = fetch(broker, {"topic": topic}, isolation=READ_COMMITTED)
    assert [row.first_offset for row in found.aborted_transactions] == [0, 2]
    assert len({row.producer_id for row in found.aborted_transactions}) == 2
    # who begins behind the last record has none of theirs to leave out
    (later,) = fetch(broker, {"topic": topic, "fetch_offset": 6}, isolation=READ_COMMITTED)
    assert not later.aborted_transactions
    (plain,) = fetch(broker, {"topic": topic}, isolation=READ_UNCOMMITTED)
    assert plain.aborted_transactions is None
    assert plain.records == found.records


# ---- producing --------------------------------------------------------------------------------------------------------


def test_a_produce_without_acknowledgement_has_no_answer_at_all(broker: Broker, topic: str) -> None:  # noqa: F811
    create(broker, topic)
    tree = {
        "transactional_id": None,
        "acks": 0,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"v")}]}],
    }
    with RawPeer(broker) as peer:
        for number in range(3):
            peer.send(frame(ApiKey.PRODUCE, 9, 10 + number, **tree))
        peer.send(frame(ApiKey.FETCH, 12, 99, **fetch_tree({"topic": topic, "fetch_offset": 2}, max_wait=LONG_MS)))
        answer = peer.read_frame()
    assert answer is not None
    assert struct.unpack_from(">i", answer, 4) == (99,), "the next answer is that of the next request"
    assert decode_answer(ApiKey.FETCH, 12, answer).responses[0].partitions[0].error_code == 0


def test_a_record_that_breaks_a_rule_is_pointed_out(broker: Broker, topic: str) -> None:  # noqa: F811
    create(broker, topic, cleanup_policy="compact")
    keys = [b"k", b"k", None, b"k"]
    records = bytes(build_batch([NewRecord(NOW_MS, key, b"v") for key in keys]))
    refused = produce(broker, topic, records)
    assert refused.error_code == 87
    assert [row.batch_index for row in refused.record_errors] == [2]


# ---- offsets ----------------------------------------------------------------------------------------------------------


def list_offset(broker: Broker, name: str, timestamp: int, isolation: int = READ_UNCOMMITTED) -> Any:
    answer = ask(
        broker,
        ApiKey.LIST_OFFSETS,
        11,
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            {
                "name": name,
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}],
            }
        ],
        timeout=1_000,
    )
    return answer.topics[0].partitions[0]


def test_every_special_place_of_a_log_is_found(broker: Broker, topic: str) -> None:  # noqa: F811
    create(broker, topic)
    # the newest record is not the last, and it is inside a batch
    records = [NewRecord(NOW_MS + at, b"k", b"v") for at in (10, 90, 20)]
    assert produce(broker, topic, bytes(build_batch(records))).error_code == 0
    assert produce(broker, topic, batch(b"w", timestamp_ms=NOW_MS + 30)).error_code == 0
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-id", "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0, timestamp=NOW_MS + 40)
    assert producer.flush(WAIT_S) == 0
    latest, earliest, newest, earliest_local, latest_tiered = -1, -2, -3, -4, -5
    for timestamp, isolation, offset in (
        (latest, READ_UNCOMMITTED, 5),
        (latest, READ_COMMITTED, 4),
        (earliest, READ_UNCOMMITTED, 0),
        (newest, READ_UNCOMMITTED, 1),
        (earliest_local, READ_UNCOMMITTED, 0),
        (latest_tiered, READ_UNCOMMITTED, -1),
        (NOW_MS + 11, READ_UNCOMMITTED, 1),
        (NOW_MS + 91, READ_UNCOMMITTED, -1),
    ):
        found = list_offset(broker, topic, timestamp, isolation)
        assert (found.error_code, found.offset) == (0, offset), timestamp
        assert (found.leader_epoch >= 0) == (offset >= 0), timestamp
    assert list_offset(broker, topic, NOW_MS + 91).timestamp == -1
    assert list_offset(broker, topic, newest).timestamp == NOW_MS + 90
    producer.abort_transaction(WAIT_S)


def test_the_leader_epoch_is_the_same_wherever_it_is_told_and_rises_with_a_crash(topic: str) -> None:  # noqa: F811
    with Broker() as broker:
        create(broker, topic)

        def epochs(offset: int) -> set[int]:
            assert produce(broker, topic, batch(b"v")).base_offset == offset
            (partition,) = metadata(broker, name=topic).topics[0].partitions
            (found,) = fetch(broker, {"topic": topic, "fetch_offset": offset})
            (in_batch,) = struct.unpack_from(">i", found.records, 12)
            answer = ask(
                broker,
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                4,
                replica_id=-1,
                topics=[
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": partition.leader_epoch}
                        ],
                    }
                ],
            )
            by_epoch = answer.topics[0].partitions[0]
            assert (by_epoch.error_code, by_epoch.end_offset) == (0, offset + 1)
            return {
                partition.leader_epoch,
                in_batch,
                list_offset(broker, topic, -1).leader_epoch,
                by_epoch.leader_epoch,
            }

        (first,) = epochs(0)
        assert first >= 0
        broker.kill()
        broker.restart()
        (second,) = epochs(1)
        assert second > first
        (fenced,) = fetch(broker, {"topic": topic, "current_leader_epoch": first})
        assert fenced.error_code == 74
        with confluent_consumer(broker.bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
            # it checks its position against the epochs before it reads on
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert [consumer.poll(WAIT_S).leader_epoch() for _ in range(2)] == [first, second]


# ---- administration ---------------------------------------------------------------------------------------------------


def test_every_item_of_a_request_has_its_answer_and_no_items_have_none(broker: Broker, topic: str) -> None:  # noqa: F811
    create(broker, topic)
    nothing = ask(broker, ApiKey.CREATE_PARTITIONS, 3, topics=[], timeout=1_000, validate_only=False)
    assert nothing.results == ()
    rows = [{"name": name, "count": 2, "assignments": None} for name in (topic, "not-there")]
    both = ask(broker, ApiKey.CREATE_PARTITIONS, 3, topics=rows, timeout=1_000, validate_only=False)
    assert {row.name: int(row.error_code) for row in both.results} == {topic: 0, "not-there": 3}
    assert ask(broker, ApiKey.DELETE_GROUPS, 2, groups_names=[]).results == ()
    gone = ask(broker, ApiKey.DELETE_GROUPS, 2, groups_names=["a", "b"])
    assert [(row.group_id, int(row.error_code)) for row in gone.results] == [("a", 69), ("b", 69)]
    offsets = ask(broker, ApiKey.DELETE_RECORDS, 2, topics=[], timeout=1_000)
    assert offsets.topics == ()
    described = ask(broker, ApiKey.DESCRIBE_GROUPS, 5, groups=["a", "b"], include_authorized_operations=False)
    assert [row.group_id for row in described.groups] == ["a", "b"]


def test_no_answer_asks_the_client_to_slow_down(broker: Broker, topic: str) -> None:  # noqa: F811
    create(broker, topic)
    answers = [
        metadata(broker, name=topic),
        ask(broker, ApiKey.FETCH, 12, **fetch_tree({"topic": topic})),
        ask(broker, ApiKey.API_VERSIONS, 4, client_software_name="raw", client_software_version="1"),
        ask(broker, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[topic]),
        ask(
            broker,
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=None,
            transaction_timeout=1_000,
            producer_id=-1,
            producer_epoch=-1,
        ),
        ask(broker, ApiKey.LIST_GROUPS, 4, states_filter=[]),
        ask(broker, ApiKey.HEARTBEAT, 4, group_id=topic, generation_id=0, member_id="m", group_instance_id=None),
    ]
    assert [answer.throttle_time.total_seconds() for answer in answers] == [0] * len(answers)


def test_clients_are_told_an_address_that_they_can_reach(topic: str) -> None:  # noqa: F811
    with Broker() as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        (node,) = metadata(broker, name=topic).brokers
        assert (node.host, node.port) == (host, int(port))
    with Broker(listen=("kafka=0.0.0.0:0",)) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        broker.addresses["kafka"] = f"127.0.0.1:{port}"
        (node,) = metadata(broker, name=topic).brokers
        assert (node.host, node.port) == (socket.gethostname(), int(port)), "an address that means all is none to call"


def test_a_connection_may_be_quiet_for_ten_minutes() -> None:
    """Clients keep one to the bootstrap address that they hardly use."""
    assert limits.IDLE_DEADLINE_MS >= 600_000


def test_kafka_python_takes_the_broker_for_one_of_the_newest(broker: Broker) -> None:
    """It guesses the version from what is announced, and leaves out what it takes the broker not to know."""
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        guessed = client.get_broker_version_data(0).broker_version
    finally:
        client.close()
    assert guessed >= (4, 1)
