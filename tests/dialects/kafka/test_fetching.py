"""Fetch against a real broker without a socket between: how large an answer becomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.kafka import fetching
from penstock.dialects.kafka.service import KafkaService
from penstock.dialects.kafka.session import KafkaSession
from tests.dialects.in_process import Broker, InProcessPeer
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import FETCH, request

VERSION = 11
BATCH_BYTES = 1_070
"""Of one record with a value of 1,000 bytes."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, lambda engine: KafkaService(engine, "localhost", 9_092)) as broker:
        broker.make_topic("t", 3)
        for _ in range(10):
            for partition in range(3):
                broker.append("t", partition, b"x" * 1_000)
        yield broker


def fetched(broker: Broker, partitions: list[int]) -> list[int]:
    """The number of bytes that a client gets of each partition, when it asks for a gigabyte of each."""
    place = {"current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 30}
    tree = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 30,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [{"partition": number, **place} for number in partitions]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    peer = InProcessPeer(broker, KafkaSession(broker.service, "host"))
    answer = decode_answer(FETCH, VERSION, peer.send(request(FETCH, VERSION, request_body(FETCH, VERSION, tree))))
    return [len(row.records or b"") for topic in answer.responses for row in topic.partitions]


@pytest.mark.parametrize("in_slices", [False, True])
def test_bytes_of_records_in_one_answer_are_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, in_slices: bool
) -> None:
    if in_slices:
        monkeypatch.setattr(fetching, "AT_ONCE_BYTES_MAX", 0)
    everything = 10 * BATCH_BYTES
    assert fetched(broker, [0, 1, 2]) == [everything] * 3
    monkeypatch.setattr(fetching, "FETCH_BYTES_MAX", 3 * everything)
    assert fetched(broker, [0, 1, 2]) == [everything] * 3, "exactly as large as allowed"
    monkeypatch.setattr(fetching, "FETCH_BYTES_MAX", 2 * everything - 1)
    assert fetched(broker, [0, 1, 2]) == [everything, everything - 1, 0]
    monkeypatch.setattr(fetching, "FETCH_BYTES_MAX", 1)
    assert fetched(broker, [0, 1, 2]) == [BATCH_BYTES, 0, 0], "one batch, however large"
