"""Fetches that wait: woken by the append that completes them, not sooner and not later."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from penstock import Broker
from penstock.records.builder import NewRecord, build_batch
from tests.clients.test_producing import create
from tests.dialects.kafka.oracle import decode_answer
from tests.raw_peer import API_VERSIONS, FETCH, PRODUCE, RawPeer, api_versions, fetch, produce

LONG_MS = 60_000
BATCH = bytes(build_batch([NewRecord(1_000, b"k", b"v" * 100)]))


def partition(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def append(broker: Broker, topic: str, at: int = 0) -> None:
    with RawPeer(broker) as peer:
        [row] = peer.ask(PRODUCE, 8, produce(topic, BATCH, partition=at)).responses
        assert row.partition_responses[0].error_code == 0


class WaitingFetch:
    """A fetch that the broker has taken: the answer to the request before it in the same packet says so."""

    def __init__(self, broker: Broker, topic: str, **options: Any) -> None:
        self._peer = RawPeer(broker)
        self._peer.send(api_versions() + fetch(topic, **{"max_wait_ms": LONG_MS, **options}))
        assert self._peer.read_frame() is not None
        self._began = time.monotonic()

    def answer(self) -> Any:
        frame = self._peer.read_frame()
        assert frame is not None
        assert time.monotonic() - self._began < LONG_MS / 2_000, "it was the time limit that ended the wait"
        self._peer.close()
        return partition(decode_answer(FETCH, 11, frame))


def test_an_append_wakes_the_fetches_of_its_partition(broker: Broker, topic: str) -> None:
    create(broker, topic)
    waiting = [WaitingFetch(broker, topic) for _ in range(10)]
    append(broker, topic)
    for fetching in waiting:
        found = fetching.answer()
        assert found.error_code == 0
        assert len(found.records) == len(BATCH)
        assert found.high_watermark == 1


def test_min_bytes_are_waited_for(broker: Broker, topic: str) -> None:
    create(broker, topic)
    waiting = WaitingFetch(broker, topic, min_bytes=3 * len(BATCH))
    for _ in range(3):
        append(broker, topic)
    assert len(waiting.answer().records) == 3 * len(BATCH)


def test_the_time_limit_ends_a_wait_with_what_there_is(broker: Broker, topic: str) -> None:
    create(broker, topic)
    append(broker, topic)
    with RawPeer(broker) as peer:
        began = time.monotonic()
        found = partition(peer.ask(FETCH, 11, fetch(topic, min_bytes=10**6, max_wait_ms=300)))
        assert time.monotonic() - began >= 0.29
        assert len(found.records) == len(BATCH)
        began = time.monotonic()
        found = partition(peer.ask(FETCH, 11, fetch(topic, 1, max_wait_ms=300)))
        assert time.monotonic() - began >= 0.29
        assert (found.error_code, found.records) == (0, b"")


@pytest.mark.parametrize(("topic_exists", "offset", "code"), [(False, 0, 3), (True, 99, 1)])
def test_an_error_is_not_waited_with(broker: Broker, topic: str, topic_exists: bool, offset: int, code: int) -> None:
    if topic_exists:
        create(broker, topic)
    with RawPeer(broker) as peer:
        began = time.monotonic()
        found = partition(peer.ask(FETCH, 11, fetch(topic, offset, max_wait_ms=LONG_MS)))
        assert found.error_code == code
        assert found.records == b""  # null would break librdkafka
        assert time.monotonic() - began < LONG_MS / 2_000


def test_a_wait_does_not_hold_up_other_requests_of_the_broker(broker: Broker, topic: str) -> None:
    create(broker, topic)
    waiting = WaitingFetch(broker, topic)
    with RawPeer(broker) as peer:
        assert peer.ask(API_VERSIONS, 0, api_versions()).error_code == 0
    append(broker, topic)
    assert waiting.answer().high_watermark == 1


def test_deleting_the_topic_ends_a_wait(broker: Broker, topic: str) -> None:
    create(broker, topic)
    waiting = WaitingFetch(broker, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    assert waiting.answer().error_code == 3


def test_a_fetch_below_the_log_start_is_out_of_range_and_an_empty_log_is_not(broker: Broker, topic: str) -> None:
    create(broker, topic)
    with RawPeer(broker) as peer:
        assert partition(peer.ask(FETCH, 11, fetch(topic, 0, max_wait_ms=0))).error_code == 0
        assert partition(peer.ask(FETCH, 11, fetch(topic, -1, max_wait_ms=0))).error_code == 1
