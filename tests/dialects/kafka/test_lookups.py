"""Metadata of many topics, and lookups of many offsets, against a real broker without a socket between."""

from __future__ import annotations

import struct
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.engine import OffsetFound
from penstock.dialects.kafka import lookups
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.service import KafkaService
from penstock.dialects.kafka.session import KafkaSession
from penstock.model import limits
from penstock.model.errors import Fault, ProtocolError
from penstock.model.pending import Pending
from tests.dialects.in_process import Broker, InProcessPeer
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import request

METADATA, LIST_OFFSETS = ApiKey.METADATA, ApiKey.LIST_OFFSETS
UNKNOWN_TOPIC = 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, lambda engine: KafkaService(engine, "localhost", 9_092)) as broker:
        yield broker


@pytest.fixture
def peer(broker: Broker) -> InProcessPeer:
    return InProcessPeer(broker, KafkaSession(broker.service, "host"))


def ask(peer: InProcessPeer, key: int, version: int, tree: dict[str, Any]) -> Any:
    return decode_answer(key, version, peer.send(request(key, version, request_body(key, version, tree))))


def metadata(peer: InProcessPeer, names: list[str] | None) -> dict[str, tuple[int, int]]:
    """The error and the number of partitions of each topic."""
    tree = {
        "topics": None if names is None else [{"name": name} for name in names],
        "allow_auto_topic_creation": True,
    }
    topics = ask(peer, METADATA, 4, tree).topics
    found = {topic.name: (topic.error_code, len(topic.partitions)) for topic in topics}
    assert len(found) == len(topics), "each topic once"
    return found


def test_each_topic_is_described_once_however_often_it_is_named(peer: InProcessPeer, broker: Broker) -> None:
    broker.make_topic("there", 3)
    assert metadata(peer, ["there", "new", "there", "new", "new", "there"]) == {"there": (0, 3), "new": (0, 1)}


def test_topics_created_by_one_request_are_limited(peer: InProcessPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTO_CREATED_TOPICS_MAX", 10)
    names = [f"t{number:02}" for number in range(25)]
    for made in (10, 20, 25):
        found = metadata(peer, names)
        assert found == {name: (0, 1) if at < made else (UNKNOWN_TOPIC, 0) for at, name in enumerate(names)}


def test_all_topics_are_described_again_after_a_change(peer: InProcessPeer, broker: Broker) -> None:
    for number in range(5):
        broker.make_topic(f"t{number}", number + 1)
        assert metadata(peer, None) == {f"t{n}": (0, n + 1) for n in range(number + 1)}
    broker.wait(broker.engine.delete_topics(["t2"]))
    assert list(metadata(peer, None)) == ["t0", "t1", "t3", "t4"]
    broker.wait(broker.engine.add_partitions([("t3", 9)], validate_only=False))
    assert metadata(peer, None)["t3"] == (0, 9)


def test_a_topic_with_thousands_of_partitions_is_described(peer: InProcessPeer, broker: Broker) -> None:
    broker.make_topic("wide", 3_000)
    assert metadata(peer, ["wide"]) == metadata(peer, ["wide", "wide"]) == {"wide": (0, 3_000)}


def test_lookups_by_time_of_many_partitions_keep_their_order(
    peer: InProcessPeer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 4)
    broker.make_topic("t", 20)
    for partition in range(20):
        for _ in range(partition):
            broker.append("t", partition, b"x")
    rows = [{"partition_index": n, "timestamp": 0 if n % 2 else -1} for n in range(20)]
    tree = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": rows}]}
    answer = ask(peer, LIST_OFFSETS, 2, tree)
    found = [(row.partition_index, row.offset) for row in answer.topics[0].partitions]
    assert found == [(n, 0 if n % 2 else n) for n in range(20)]


def test_concurrent_lookups_of_one_request_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "LOOKUPS_MAX", 4)
    waiting: list[Pending[OffsetFound]] = []
    most = 0

    def list_offset(*_: object) -> Pending[OffsetFound]:
        nonlocal most
        waiting.append(Pending())
        most = max(most, len(waiting))
        return waiting[-1]

    rows = [types.SimpleNamespace(partition_index=n, timestamp=0) for n in range(20)]
    body = types.SimpleNamespace(topics=[types.SimpleNamespace(name="t", partitions=rows)])
    service: Any = types.SimpleNamespace(engine=types.SimpleNamespace(list_offset=list_offset))
    work = lookups.list_offsets(service, body, 2, None)  # type: ignore[arg-type]
    answer: dict[str, Any] = {}
    waits_for = next(work)
    try:
        while True:
            if waits_for is None:
                waits_for = work.send(None)
            else:
                assert waits_for is waiting.pop(0), "the one that was asked first"
                waits_for = work.send(OffsetFound(Fault.NONE, 7, 0, 0))
    except StopIteration as stop:
        answer = stop.value
    assert [row["offset"] for row in answer["topics"][0]["partitions"]] == [7] * 20
    assert most == 4


def test_large_request_is_decoded_in_place(peer: InProcessPeer, broker: Broker) -> None:
    """The peer wipes what it sent as soon as the request has its answer, and not before."""
    broker.make_topic("t", 1)
    rows = [{"partition_index": n, "timestamp": -2} for n in range(5_000)]
    tree = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": rows}]}
    answer = ask(peer, LIST_OFFSETS, 2, tree)
    assert [row.partition_index for row in answer.topics[0].partitions] == list(range(5_000))
    assert [row.error_code for row in answer.topics[0].partitions] == [0] + [UNKNOWN_TOPIC] * 4_999


def test_a_large_malformed_request_closes_the_connection(peer: InProcessPeer) -> None:
    body = struct.pack(">ii", -1, 20_000) + b"\x00\x01t\x00\x00\x00\x00" * 19_999 + b"\x00\x01t\x00\x00\x00\x01"
    with pytest.raises(ProtocolError, match="claims"):
        peer.send(request(LIST_OFFSETS, 1, body))
