"""Clients of every dialect can read internal topics and cannot create, delete, grow, reconfigure, truncate or write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    OffsetToCommit,
)
from penstock.coordination.transaction_commands import DescribeTransaction, InitProducerId
from penstock.dialects.kafka.apis import ApiKey, is_flexible
from penstock.model.errors import Fault
from penstock.model.ids import INTERNAL_TOPICS
from penstock.records.builder import NewRecord, build_batch
from tests.dialects.day1 import frames as day1
from tests.dialects.fluxgo import frames as fluxgo
from tests.dialects.flymq import broker as flymq
from tests.dialects.fuzz_targets import target_of
from tests.dialects.in_process import Broker, InProcessPeer
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.dialects.rustlog import peer as rustlog

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
INTRUDER = b"written by a client"
INVALID_TOPIC = 17
UNKNOWN_TOPIC_OR_PARTITION = 3
COMMITTED = 42
GROUPS = [f"group-{at}" for at in range(20)]
TRANSACTION = "intruding"


def message(topic: str) -> str:
    return f"{topic} is an internal topic: clients can read it but not change it"


# ---- Kafka ------------------------------------------------------------------------------------------------------------


def kafka(key: ApiKey, version: int, tree: dict[str, Any]) -> bytes:
    header = struct.pack(">hhih", key, version, 7, -1) + (b"\x00" if is_flexible(key, version) else b"")
    body = header + request_body(key, version, tree)
    return struct.pack(">i", len(body)) + body


def create(_: Broker, topic: str, *, validate_only: bool = False) -> bytes:
    row = {
        "name": topic,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "cleanup.policy", "value": "delete"}],
    }
    return kafka(ApiKey.CREATE_TOPICS, 4, {"topics": [row], "timeout": 1_000, "validate_only": validate_only})


def validate(broker: Broker, topic: str) -> bytes:
    return create(broker, topic, validate_only=True)


def delete(_: Broker, topic: str) -> bytes:
    return kafka(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout": 1_000})


def delete_by_id(broker: Broker, topic: str) -> bytes:
    row = {"name": None, "topic_id": id_of(broker, topic)}
    return kafka(ApiKey.DELETE_TOPICS, 6, {"topics": [row], "timeout": 1_000})


def grow(_: Broker, topic: str) -> bytes:
    tree = {"topics": [{"name": topic, "count": 9, "assignments": None}], "timeout": 1_000, "validate_only": False}
    return kafka(ApiKey.CREATE_PARTITIONS, 1, tree)


def alter(_: Broker, topic: str) -> bytes:
    configs = [{"name": "retention.ms", "value": "1"}, {"name": "cleanup.policy", "value": "delete"}]
    row = {"resource_type": 2, "resource_name": topic, "configs": configs}
    return kafka(ApiKey.ALTER_CONFIGS, 1, {"resources": [row], "validate_only": False})


def alter_incrementally(_: Broker, topic: str) -> bytes:
    configs = [{"name": "cleanup.policy", "config_operation": 2, "value": "delete"}]
    row = {"resource_type": 2, "resource_name": topic, "configs": configs}
    return kafka(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, {"resources": [row], "validate_only": False})


def truncate(_: Broker, topic: str) -> bytes:
    row = {"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}
    return kafka(ApiKey.DELETE_RECORDS, 1, {"topics": [row], "timeout": 1_000})


def batch(**producer: Any) -> bytes:
    return bytes(build_batch([NewRecord(1_000, b"key", INTRUDER)], **producer))


def produce(_: Broker, topic: str) -> bytes:
    return kafka(ApiKey.PRODUCE, 8, produce_tree({"name": topic}, batch()))


def produce_to_many(_: Broker, topic: str) -> bytes:
    return kafka(ApiKey.PRODUCE, 8, produce_tree({"name": topic}, batch(), batch()))


def produce_by_id(broker: Broker, topic: str) -> bytes:
    return kafka(ApiKey.PRODUCE, 13, produce_tree({"topic_id": id_of(broker, topic)}, batch()))


def produce_in_transaction(broker: Broker, topic: str) -> bytes:
    made = broker.wait(broker.engine.transactions.ask(TRANSACTION, InitProducerId(TRANSACTION, 60_000)))
    producer = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch, "base_sequence": 0}
    tree = produce_tree({"name": topic}, batch(**producer, transactional=True))
    return kafka(ApiKey.PRODUCE, 12, tree | {"transactional_id": TRANSACTION})


def produce_tree(topic: dict[str, Any], *batches: bytes) -> dict[str, Any]:
    partitions = [{"index": at, "records": records} for at, records in enumerate(batches)]
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1_000,
        "topic_data": [{**topic, "partition_data": partitions}],
    }


def id_of(broker: Broker, topic: str) -> Any:
    found = broker.engine.topic(topic)
    assert found is not None
    return found.topic_id


# ---- the others -------------------------------------------------------------------------------------------------------


def flymq_transaction(broker: Broker, topic: str) -> bytes:
    target = target_of("flymq")
    peer = InProcessPeer(broker, target.make_session(target.make_service(broker.engine)))
    name = flymq.Fields(peer.send(flymq.op(0x40))[8:]).s()
    return flymq.op(0x43, flymq.s(name) + flymq.s(topic) + flymq.b(INTRUDER))


def rustlog_json(topic: str, partition: int) -> bytes:
    body = {"topic": topic, "partition": partition, "records": [list(INTRUDER)]}
    return rustlog.frame(json.dumps({"Produce": body}).encode())


class Attempt(NamedTuple):
    dialect: str
    name: str
    request: Callable[[Broker, str], bytes]
    codes: Callable[[bytes], list[int]] | None = None
    """The error codes of an answer; None where the dialect has only a text."""
    has_text: bool = True
    needs_topic: bool = False
    """Whether the attempt means nothing before the broker has created the topic."""


def codes_of(key: ApiKey, version: int, rows: Callable[[Any], list[Any]]) -> Callable[[bytes], list[int]]:
    return lambda frame: [int(row.error_code) for row in rows(decode_answer(key, version, frame))]


def produced(answer: Any) -> list[Any]:
    return [row for topic in answer.responses for row in topic.partition_responses]


ATTEMPTS = [
    Attempt("kafka", "create", create, codes_of(ApiKey.CREATE_TOPICS, 4, lambda a: a.topics)),
    Attempt("kafka", "validate", validate, codes_of(ApiKey.CREATE_TOPICS, 4, lambda a: a.topics)),
    Attempt("kafka", "delete", delete, codes_of(ApiKey.DELETE_TOPICS, 5, lambda a: a.responses)),
    Attempt(
        "kafka",
        "delete-by-id",
        delete_by_id,
        codes_of(ApiKey.DELETE_TOPICS, 6, lambda a: a.responses),
        needs_topic=True,
    ),
    Attempt("kafka", "grow", grow, codes_of(ApiKey.CREATE_PARTITIONS, 1, lambda a: a.results)),
    Attempt("kafka", "alter", alter, codes_of(ApiKey.ALTER_CONFIGS, 1, lambda a: a.responses), needs_topic=True),
    Attempt(
        "kafka",
        "alter-incrementally",
        alter_incrementally,
        codes_of(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, lambda a: a.responses),
        needs_topic=True,
    ),
    Attempt(
        "kafka",
        "truncate",
        truncate,
        codes_of(ApiKey.DELETE_RECORDS, 1, lambda a: [row for topic in a.topics for row in topic.partitions]),
        has_text=False,
    ),
    Attempt("kafka", "produce", produce, codes_of(ApiKey.PRODUCE, 8, produced)),
    Attempt("kafka", "produce-to-many", produce_to_many, codes_of(ApiKey.PRODUCE, 8, produced)),
    Attempt("kafka", "produce-by-id", produce_by_id, codes_of(ApiKey.PRODUCE, 13, produced), needs_topic=True),
    Attempt(
        "kafka",
        "produce-in-transaction",
        produce_in_transaction,
        codes_of(ApiKey.PRODUCE, 12, produced),
        needs_topic=True,
    ),
    Attempt("fluxgo", "produce", lambda _, topic: fluxgo.produce(topic, 0, INTRUDER)),
    Attempt("fluxgo", "grow", lambda _, topic: fluxgo.produce(topic, 3, INTRUDER)),
    Attempt("minikafka", "produce", lambda _, topic: b"TOPIC %s k %d\n%s" % (topic.encode(), len(INTRUDER), INTRUDER)),
    Attempt("rustlog", "create", lambda _, topic: rustlog.frame(b"\x05" + rustlog.text(topic) + struct.pack(">I", 1))),
    Attempt("rustlog", "produce", lambda _, topic: rustlog.produce(INTRUDER, topic=topic)),
    Attempt("rustlog", "grow", lambda _, topic: rustlog.produce(INTRUDER, topic=topic, partition=3)),
    Attempt("rustlog", "json-produce", lambda _, topic: rustlog_json(topic, 0)),
    Attempt("rustlog", "json-grow", lambda _, topic: rustlog_json(topic, 3)),
    Attempt("flymq", "create", lambda _, topic: flymq.op(0x03, flymq.s(topic) + flymq.i32(1))),
    Attempt("flymq", "delete", lambda _, topic: flymq.op(0x09, flymq.s(topic)), needs_topic=True),
    Attempt("flymq", "produce", lambda _, topic: flymq.produce(topic, INTRUDER)),
    Attempt("flymq", "produce-in-transaction", flymq_transaction, needs_topic=True),
    Attempt("flymq", "api-produce", lambda _, topic: flymq.api_produce(topic, 0, flymq.message(INTRUDER))),
    Attempt("day1", "produce", lambda _, topic: day1.one(topic, 0, INTRUDER)),
    Attempt("day1", "grow", lambda _, topic: day1.one(topic, 3, INTRUDER)),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", lambda _: None, internal_partitions=2) as running:
        yield running


def peer_of(broker: Broker, dialect: str) -> InProcessPeer:
    target = target_of(dialect)
    return InProcessPeer(broker, target.make_session(target.make_service(broker.engine)))


def commit_in_all_groups(broker: Broker) -> None:
    """Commit in every group and begin a transaction, so that both internal topics exist."""
    for group in GROUPS:
        place = OffsetToCommit("orders", 0, COMMITTED, -1, "")
        command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, (place,))
        assert broker.wait(broker.engine.groups.ask(group, command)).fault is Fault.NONE
    assert broker.wait(broker.engine.transactions.ask("own", InitProducerId("own", 60_000))).fault is Fault.NONE


def state(broker: Broker) -> dict[str, Any]:
    """What clients must not change about the internal topics."""
    found: dict[str, Any] = {}
    for info in broker.engine.topics():
        assert info.name in INTERNAL_TOPICS
        starts = []
        for at in info.partitions:
            partition = broker.engine.partition(info.name, at.partition)
            assert partition is not None
            assert partition.log is not None
            starts.append(partition.log.log_start_offset)
        found[info.name] = (info.topic_id, starts, dict(broker.engine.topic_configs(info.name) or {}))
    return found


def described(broker: Broker, transaction: str) -> Any:
    return broker.wait(broker.engine.transactions.ask(transaction, DescribeTransaction(transaction))).state


def assert_refused(attempt: Attempt, topic: str, answer: bytes) -> None:
    if attempt.codes is not None:
        assert set(attempt.codes(answer)) == {INVALID_TOPIC}
    if attempt.has_text:
        assert message(topic).encode() in answer


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: f"{attempt.dialect}-{attempt.name}")
def test_clients_cannot_change_internal_topics(broker: Broker, tmp_path: Path, attempt: Attempt, topic: str) -> None:
    commit_in_all_groups(broker)
    before = state(broker)
    assert_refused(attempt, topic, peer_of(broker, attempt.dialect).send(attempt.request(broker, topic)))
    assert state(broker) == before
    broker.restart()
    assert state(broker) == before
    assert [broker.committed(group, "orders") for group in GROUPS] == [COMMITTED] * len(GROUPS)
    broker.until(lambda: all(shard.machine for shard in broker.engine.transactions.shards.values()))
    assert described(broker, "own") is not None
    for file in (tmp_path / "data").glob("__*/*.log"):
        assert INTRUDER not in file.read_bytes()


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
@pytest.mark.parametrize(
    "attempt",
    [attempt for attempt in ATTEMPTS if not attempt.needs_topic],
    ids=lambda attempt: f"{attempt.dialect}-{attempt.name}",
)
def test_clients_cannot_create_internal_topics(broker: Broker, attempt: Attempt, topic: str) -> None:
    assert_refused(attempt, topic, peer_of(broker, attempt.dialect).send(attempt.request(broker, topic)))
    assert state(broker) == {}
    commit_in_all_groups(broker)
    assert {name: len(starts) for name, (_, starts, _) in state(broker).items()} == {OFFSETS: 2, STATE: 2}
    assert {configs["cleanup.policy"] for _, _, configs in state(broker).values()} == {"compact"}


def test_configs_of_internal_topics_are_described_as_read_only(broker: Broker) -> None:
    commit_in_all_groups(broker)
    broker.make_topic("orders")
    for topic in (OFFSETS, STATE, "orders"):
        row = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        tree = {"resources": [row], "include_synonyms": False}
        frame = peer_of(broker, "kafka").send(kafka(ApiKey.DESCRIBE_CONFIGS, 1, tree))
        [result] = decode_answer(ApiKey.DESCRIBE_CONFIGS, 1, frame).results
        assert {config.read_only for config in result.configs} == {topic in INTERNAL_TOPICS}


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
def test_metadata_does_not_create_internal_topics(broker: Broker, topic: str) -> None:
    """A consumer may ask before the first commit, so the error is the one after which clients ask again."""
    tree = {"topics": [{"name": topic}], "allow_auto_topic_creation": True}
    frame = peer_of(broker, "kafka").send(kafka(ApiKey.METADATA, 4, tree))
    [row] = decode_answer(ApiKey.METADATA, 4, frame).topics
    assert int(row.error_code) == UNKNOWN_TOPIC_OR_PARTITION
    assert state(broker) == {}


def test_refused_produce_does_not_add_internal_topic_to_transaction(broker: Broker) -> None:
    commit_in_all_groups(broker)
    peer_of(broker, "kafka").send(produce_in_transaction(broker, OFFSETS))
    assert described(broker, TRANSACTION).partitions == frozenset()


def test_every_dialect_reads_internal_topics(broker: Broker) -> None:
    commit_in_all_groups(broker)
    [value, *_] = [value for _, value in broker.values(OFFSETS, 0)]
    assert value
    for dialect, request in (
        ("fluxgo", fluxgo.consume(OFFSETS, 0, 0)),
        ("minikafka", f"{OFFSETS}:readers:0\n".encode()),
        ("rustlog", rustlog.fetch(topic=OFFSETS)),
        ("flymq", flymq.fetch(OFFSETS, 0, 0, 10)),
        ("flymq", flymq.api(1, flymq.api_fetch_payload(OFFSETS, 0, 0))),
        ("day1", day1.fetch(OFFSETS, 0, 0)),
    ):
        assert value in peer_of(broker, dialect).send(request), dialect
