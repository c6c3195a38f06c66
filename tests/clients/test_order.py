"""Requests of one connection take effect in their order, also when all of them are sent in one write."""

from __future__ import annotations

import itertools
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.dialects.kafka.apis import is_flexible
from penstock.records.builder import NewRecord, build_batch
from tests.clients.members import until
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import RawPeer

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH = 0, 1, 2, 3, 9
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
ADD_PARTITIONS, END_TXN, TXN_OFFSET_COMMIT, DESCRIBE_CONFIGS, CREATE_PARTITIONS, ALTER_CONFIGS = 24, 26, 28, 32, 37, 44
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

_NUMBERS = itertools.count()

Asked = tuple[int, int, dict[str, Any]]


class Peer(RawPeer):
    def all(self, *asked: Asked) -> list[Any]:
        """The answers to requests that leave in one write."""
        self.send(b"".join(self._frame(number, *one) for number, one in enumerate(asked)))
        answers = []
        for key, version, _ in asked:
            answer = self.read_frame()
            assert answer is not None, "the broker closed the connection"
            answers.append(decode_answer(key, version, answer))
        return answers

    @staticmethod
    def _frame(number: int, key: int, version: int, tree: dict[str, Any]) -> bytes:
        header = struct.pack(">hhih", key, version, number, 3) + b"raw" + (b"\0" if is_flexible(key, version) else b"")
        body = request_body(key, version, tree)
        return struct.pack(">i", len(header) + len(body)) + header + body


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    connected = Peer(broker)
    try:
        yield connected
    finally:
        connected.close()


def produce(topic: str, *, partition: int = 0, name: str | None = None, version: int = 8, **fields: Any) -> Asked:
    acks = fields.pop("acks", -1)
    value = fields.pop("value", b"v")
    batch = build_batch([NewRecord(fields.pop("timestamp", time.time_ns() // 1_000_000), b"k", value)], **fields)
    rows = [{"index": partition, "records": bytes(batch)}]
    tree = {
        "transactional_id": name,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": rows}],
    }
    return PRODUCE, version, tree


def create(topic: str, partitions: int = 1) -> Asked:
    row = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return CREATE_TOPICS, 4, {"topics": [row], "timeout": 30_000, "validate_only": False}


def list_offsets(topic: str, timestamp: int, isolation: int = 0) -> Asked:
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [row]}]
    return LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": isolation, "topics": topics}


def metadata(topic: str, *, makes: bool = False) -> Asked:
    return METADATA, 9, {
        "topics": [{"name": topic, "topic_id": None}],
        "allow_auto_topic_creation": makes,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }  # fmt: skip


def alter(topic: str, key: str, value: str) -> Asked:
    row = {"name": key, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [row]}
    return ALTER_CONFIGS, 0, {"resources": [resource], "validate_only": False}


def delete_records(topic: str, offset: int) -> Asked:
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    return DELETE_RECORDS, 1, {"topics": rows, "timeout": 30_000}


def produced(answer: Any) -> tuple[int, int]:
    [row] = answer.responses[0].partition_responses
    return int(row.error_code), row.base_offset


def found(answer: Any) -> int:
    [row] = answer.topics[0].partitions
    assert row.error_code == 0, row
    offset: int = row.offset
    return offset


@pytest.fixture
def topic(peer: Peer) -> str:
    name = f"order-{next(_NUMBERS)}"
    peer.all(create(name))
    return name


def test_a_produce_finds_the_topic_that_the_request_before_it_made(peer: Peer, topic: str) -> None:
    made, first = peer.all(create(f"{topic}-made"), produce(f"{topic}-made"))
    assert (int(made.topics[0].error_code), produced(first)) == (0, (0, 0))
    made, first = peer.all(metadata(f"{topic}-auto", makes=True), produce(f"{topic}-auto"))
    assert (int(made.topics[0].error_code), produced(first)) == (0, (0, 0))


def test_nothing_is_acknowledged_into_a_topic_that_is_being_deleted(peer: Peer, topic: str) -> None:
    deleted, refused = peer.all((DELETE_TOPICS, 3, {"topic_names": [topic], "timeout": 30_000}), produce(topic))
    assert (int(deleted.responses[0].error_code), produced(refused)[0]) == (0, 3)


def test_changes_hold_for_what_comes_behind_them(peer: Peer, topic: str) -> None:
    _, large = peer.all(alter(topic, "max.message.bytes", "100"), produce(topic, value=b"x" * 1_000))
    assert produced(large)[0] == 10
    described = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["max.message.bytes"]}
    asked: Asked = (DESCRIBE_CONFIGS, 1, {"resources": [described], "include_synonyms": False})
    _, configs = peer.all(alter(topic, "max.message.bytes", "200000"), asked)
    assert configs.results[0].configs[0].value == "200000"
    grown = {"topics": [{"name": topic, "count": 3, "assignments": None}], "timeout": 30_000, "validate_only": False}
    _, known = peer.all((CREATE_PARTITIONS, 1, grown), metadata(topic))
    assert len(known.topics[0].partitions) == 3
    peer.all(*[produce(topic) for _ in range(5)])
    _, start = peer.all(delete_records(topic, 3), list_offsets(topic, EARLIEST))
    assert found(start) == 3


@pytest.mark.parametrize("newer", [False, True], ids=["added", "adds itself"])
def test_a_transaction_ends_with_all_that_was_sent_before_its_end(peer: Peer, topic: str, newer: bool) -> None:
    """Many more than a client has in flight, and each on a partition where the coordinator is asked first."""
    count, name = 300, f"{topic}-id"
    peer.all(create(f"{topic}-many", count))
    while True:
        tree = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        [started] = peer.all((INIT_PRODUCER_ID, 4, tree))
        if started.error_code == 0:
            break
        time.sleep(0.05)
    who = started.producer_id, started.producer_epoch
    added = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": who[0],
        "v3_and_below_producer_epoch": who[1],
        "v3_and_below_topics": [{"name": f"{topic}-many", "partitions": list(range(count))}],
    }
    fields: dict[str, Any] = {
        "producer_id": who[0],
        "producer_epoch": who[1],
        "base_sequence": 0,
        "transactional": True,
    }
    produces = [
        produce(f"{topic}-many", partition=at, name=name, version=12 if newer else 8, **fields) for at in range(count)
    ]
    ended = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1], "committed": True}
    asked = [*produces, (END_TXN, 5 if newer else 3, ended)]
    answers = peer.all(*asked) if newer else peer.all((ADD_PARTITIONS, 3, added), *asked)[1:]
    assert {produced(answer) for answer in answers[:-1]} == {(0, 0)}
    assert answers[-1].error_code == 0


def test_a_record_that_was_acknowledged_is_found_by_its_time_and_can_be_deleted(peer: Peer, topic: str) -> None:
    """With acks=1 it is not flushed yet."""
    for at in range(20):
        now = 1_700_000_000_000 + at
        first, by_time, newest, end, _, start = peer.all(
            produce(topic, acks=1, timestamp=now),
            list_offsets(topic, now),
            list_offsets(topic, MAX_TIMESTAMP),
            list_offsets(topic, LATEST),
            delete_records(topic, at + 1),
            list_offsets(topic, EARLIEST),
        )
        assert produced(first) == (0, at)
        assert [found(by_time), found(newest), found(end), found(start)] == [at, at, at + 1, at + 1]


def test_a_topic_id_that_is_not_known_hides_no_other_topic(peer: Peer, topic: str) -> None:
    _, known = peer.all(produce(topic), (METADATA, 12, metadata(topic)[2]))
    rows = [{"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
             "log_start_offset": -1, "partition_max_bytes": 1 << 20}]  # fmt: skip
    ids = [uuid.UUID(int=1 << 100), known.topics[0].topic_id]
    [answer] = peer.all(
        (FETCH, 13, {
            "max_wait": 20_000, "min_bytes": 1 << 20, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
            "session_epoch": -1, "topics": [{"topic_id": one, "partitions": rows} for one in ids],
            "forgotten_topics_data": [], "rack_id": "", "cluster_id": None,
        })
    )  # fmt: skip
    unknown, whole = (row.partitions[0] for row in answer.responses)
    assert int(unknown.error_code) == 100
    assert (int(whole.error_code), whole.high_watermark, bool(whole.records)) == (0, 1, True)


def test_an_answer_that_can_hold_no_more_does_not_wait_for_more(peer: Peer, topic: str) -> None:
    peer.all(produce(topic, value=b"x" * 2_000))
    began = time.monotonic()
    rows = [{"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1,
             "partition_max_bytes": 1 << 20}]  # fmt: skip
    [answer] = peer.all(
        (FETCH, 11, {
            "replica_id": -1, "max_wait": 20_000, "min_bytes": 100_000, "max_bytes": 1_000, "isolation_level": 0,
            "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": rows}],
            "forgotten_topics_data": [], "rack_id": "",
        })
    )  # fmt: skip
    assert time.monotonic() - began < 10
    assert answer.responses[0].partitions[0].records


def test_a_long_name_in_a_refusal_is_cut(peer: Peer, topic: str) -> None:
    resource = {"resource_type": 2, "resource_name": topic, "configs": []}
    for name in ("n" * 32_760, "é" * 16_380):
        resource["configs"] = [{"name": name, "config_operation": 0, "value": "1"}]
        [answer] = peer.all((ALTER_CONFIGS, 0, {"resources": [resource], "validate_only": False}))
        assert int(answer.responses[0].error_code) == 40
        assert len(answer.responses[0].error_message.encode()) in (32_766, 32_767)


def test_who_waits_in_a_rebalance_is_answered_when_the_broker_stops() -> None:
    join = {
        "group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 600_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    with Broker(settings={"groups.initial_rebalance_delay_ms": 600_000}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        peer = Peer(broker)
        try:
            with KafkaClient(broker.bootstrap) as client:
                client.fetch_offsets("g")  # once it is answered, the group's coordinator is there
            peer.send(Peer._frame(1, 11, 2, join))

            def state() -> ConsumerGroupState:
                found: ConsumerGroupState = admin.describe_consumer_groups(["g"])["g"].result(30).state
                return found

            until(lambda: state() is ConsumerGroupState.PREPARING_REBALANCING, "the first member waits for others")
            # whose answer is not there when the grace of the stop is over gets none
            assert broker.stop() == 0
            answer = peer.read_frame()
            assert answer is not None
            assert int(decode_answer(11, 2, answer).error_code) == 16
        finally:
            peer.close()
