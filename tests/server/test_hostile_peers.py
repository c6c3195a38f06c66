"""Peers that lie, stammer or vanish: each costs its own connection and one line of the log, and nobody else anything."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.records.builder import NewRecord, build_batch
from tests.clients.drivers import Confluent, Sent
from tests.dialects.kafka.oracle import decode_answer
from tests.raw_peer import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    RawPeer,
    api_versions,
    fetch,
    metadata,
    produce,
    request,
)

FRAME_DEADLINE_MS = 2_500
LARGE_BYTES = 24_000_000
BATCH = bytes(build_batch([NewRecord(1_000, b"k", b"v")]))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"storage.flush": "os", "net.frame_deadline_ms": FRAME_DEADLINE_MS, "log.level": "debug"}
    with Broker(settings=settings) as broker:
        Confluent().write(broker.bootstrap, "healthy", [Sent(b"v")])
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running


@pytest.fixture(scope="module")
def healthy_peer(broker: Broker) -> Iterator[RawPeer]:
    with RawPeer(broker) as peer:
        yield peer


@pytest.fixture(autouse=True)
def others_are_served(broker: Broker, healthy_peer: RawPeer) -> Iterator[None]:
    """After each attack an old connection and a new one still write and read."""
    yield
    with RawPeer(broker) as new_peer:
        for peer in (healthy_peer, new_peer):
            [topic] = peer.ask(PRODUCE, 8, produce("healthy", BATCH)).responses
            assert topic.partition_responses[0].error_code == 0
            [topic] = peer.ask(FETCH, 11, fetch("healthy")).responses
            assert topic.partitions[0].error_code == 0
    assert "Traceback" not in broker.log, broker.log


def closed_with_one_line(broker: Broker, peer: RawPeer) -> str:
    """The broker closed the connection without an answer; the one line that it wrote about that."""
    assert peer.read(1) == b""
    lines = peer.wait_for_log_line()
    assert len(lines) == 1
    assert "Traceback" not in broker.log
    return lines[0]


# ---- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, 100 * 1024 * 1024 + 1])
@pytest.mark.parametrize("follows", [b"", b"x" * 100])
def test_a_frame_of_an_impossible_size_closes_its_connection(broker: Broker, size: int, follows: bytes) -> None:
    with RawPeer(broker) as peer:
        peer.send_if_open(struct.pack(">i", size) + follows)
        assert str(size) in closed_with_one_line(broker, peer)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"\xff" * 64,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 64,
        b'{"method": "produce"}\n' * 10,
    ],
    ids=["http", "tls", "ones", "ssh", "zeros", "json"],
)
def test_bytes_of_another_protocol_close_the_connection(broker: Broker, data: bytes) -> None:
    with RawPeer(broker) as peer:
        peer.send_if_open(data)
        line = closed_with_one_line(broker, peer)
        assert line.isprintable()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9])
def test_a_request_shorter_than_its_header_closes_the_connection(broker: Broker, size: int) -> None:
    with RawPeer(broker) as peer:
        peer.send(struct.pack(">i", size) + bytes(size))
        closed_with_one_line(broker, peer)


def test_a_frame_that_never_becomes_whole_is_given_up(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.send(struct.pack(">i", 1_000) + api_versions()[4:])
        assert "incomplete frame" in closed_with_one_line(broker, peer)


def test_a_peer_that_ends_in_the_middle_of_a_frame_is_let_go(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.send(api_versions() + struct.pack(">i", 1_000) + b"half")
        assert peer.read_frame() is not None
        peer.end_sending()
        assert peer.read(1) == b""
    assert len(peer.log_lines) <= 1


def test_a_declared_size_costs_no_memory_before_the_bytes_are_there(broker: Broker) -> None:
    before = resident_bytes(broker)
    peers = [RawPeer(broker) for _ in range(20)]
    try:
        for peer in peers:
            peer.send(api_versions() + struct.pack(">i", 99 * 1024 * 1024) + b"\x00\x03\x00\x09")
        for peer in peers:
            assert peer.read_frame() is not None
        assert resident_bytes(broker) - before < 64 << 20
    finally:
        for peer in peers:
            peer.close()


def resident_bytes(broker: Broker) -> int:
    [line] = [row for row in Path(f"/proc/{broker.pid}/status").read_text().splitlines() if row.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def test_requests_may_be_split_at_any_byte(broker: Broker) -> None:
    """The first part ends with a whole request, whose answer tells that the broker has taken the part."""
    frame = produce("healthy", BATCH, correlation_id=7)
    with RawPeer(broker) as peer:
        for split in range(1, len(frame)):
            peer.send(api_versions(correlation_id=5) + frame[:split])
            first = peer.read_frame()
            assert first is not None
            assert first[4:8] == struct.pack(">i", 5)
            peer.send(frame[split:])
            answer = peer.read_frame()
            assert answer is not None
            decoded = decode_answer(PRODUCE, 8, answer)
            assert decoded.responses[0].partition_responses[0].error_code == 0, split


def test_requests_come_through_byte_by_byte(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        for byte in api_versions(1) + metadata("healthy", correlation_id=2) + fetch("healthy", correlation_id=3):
            peer.send(bytes([byte]))
        for correlation_id in (1, 2, 3):
            answer = peer.read_frame()
            assert answer is not None
            assert struct.unpack_from(">i", answer, 4)[0] == correlation_id


def test_what_came_before_the_bad_frame_is_answered(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.send(api_versions(1) + metadata("healthy", correlation_id=2) + struct.pack(">i", -5))
        for correlation_id in (1, 2):
            answer = peer.read_frame()
            assert answer is not None
            assert struct.unpack_from(">i", answer, 4)[0] == correlation_id
        closed_with_one_line(broker, peer)


# ---- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "version"),
    [(999, 0), (-1, 0), (32_767, 32_767), (PRODUCE, 2), (PRODUCE, 14), (FETCH, 3), (FETCH, 99), (METADATA, 99), (4, 0)],
)
def test_an_api_or_version_that_was_not_announced_closes_the_connection(broker: Broker, key: int, version: int) -> None:
    with RawPeer(broker) as peer:
        peer.send(request(key, version, b"\x00" * 20))
        assert "not served" in closed_with_one_line(broker, peer)


@pytest.mark.parametrize("version", [5, 9, 32_767])
@pytest.mark.parametrize("body", [b"", b"\xff" * 40])
def test_api_versions_of_the_future_is_answered_in_version_0(broker: Broker, version: int, body: bytes) -> None:
    with RawPeer(broker) as peer:
        answer = peer.ask(API_VERSIONS, 0, request(API_VERSIONS, version, body, 77))
        assert answer.error_code == 35
        assert (API_VERSIONS, 0, 4) in [(k.api_key, k.min_version, k.max_version) for k in answer.api_keys]
        assert peer.ask(API_VERSIONS, 0, api_versions()).error_code == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff\x0f",  # an array of 4 billion topics
        b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
        b"\x02" + bytes(16) + b"\xff\xff\xff\x7f",
        b"\x05abc",
    ],
)
def test_a_body_that_lies_about_its_lengths_closes_the_connection(broker: Broker, body: bytes) -> None:
    before = resident_bytes(broker)
    with RawPeer(broker) as peer:
        peer.send(request(METADATA, 9, body))
        closed_with_one_line(broker, peer)
    assert resident_bytes(broker) - before < 32 << 20


def test_a_failed_produce_without_acknowledgement_closes_the_connection(broker: Broker) -> None:
    """It has no answer that could say so."""
    with RawPeer(broker) as peer:
        peer.send(produce("healthy", b"no batch", acks=0))
        assert "without acknowledgement" in closed_with_one_line(broker, peer)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"no batch", 2),
        (BATCH[:-1], 2),
        (BATCH[:30] + bytes([BATCH[30] ^ 1]) + BATCH[31:], 2),
        (b"", 87),
        (None, 87),
        (BATCH + BATCH, 87),
        (BATCH[:16] + b"\x01" + BATCH[17:], 43),
        (BATCH[:8] + struct.pack(">i", 2**31 - 1) + BATCH[12:], 2),
        (BATCH[:8] + struct.pack(">i", -1) + BATCH[12:], 2),
    ],
    ids=["text", "cut", "flipped bit", "empty", "null", "two", "magic 1", "long", "negative"],
)
def test_bad_batches_get_kafkas_error_and_the_connection_goes_on(
    broker: Broker, records: bytes | None, code: int
) -> None:
    with RawPeer(broker) as peer:
        [topic] = peer.ask(PRODUCE, 8, produce("healthy", records)).responses
        assert topic.partition_responses[0].error_code == code
        [topic] = peer.ask(PRODUCE, 8, produce("healthy", BATCH)).responses
        assert topic.partition_responses[0].error_code == 0


@pytest.mark.parametrize(("topic", "partition"), [("no-such-topic", 0), ("healthy", 1), ("healthy", -1), ("", 0)])
def test_what_is_not_there_is_an_error_and_not_a_close(broker: Broker, topic: str, partition: int) -> None:
    with RawPeer(broker) as peer:
        [answer] = peer.ask(PRODUCE, 8, produce(topic, BATCH, partition=partition)).responses
        assert answer.partition_responses[0].error_code == 3
        [answer] = peer.ask(FETCH, 11, fetch(topic, partition=partition)).responses
        assert answer.partitions[0].error_code == 3


def test_acks_of_two_are_refused(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        [topic] = peer.ask(PRODUCE, 8, produce("healthy", BATCH, acks=2)).responses
        assert topic.partition_responses[0].error_code == 21


def test_random_requests_get_an_answer_or_a_close(broker: Broker) -> None:
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    with RawPeer(broker) as peer:
        announced = peer.ask(API_VERSIONS, 0, api_versions()).api_keys
    for _ in range(300):
        api = dice.choice(announced)
        frame = request(api.api_key, dice.randint(api.min_version, api.max_version), dice.randbytes(dice.randrange(60)))
        with RawPeer(broker) as peer:
            peer.send(frame)
            peer.end_sending()
            peer.read_frame()
    assert "Traceback" not in broker.log, f"seed {seed}\n{broker.log}"


# ---- peers that vanish -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_topic(broker: Broker) -> str:
    values = [Sent(bytes([n]) * 1_000_000) for n in range(LARGE_BYTES // 1_000_000)]
    Confluent().write(broker.bootstrap, "large", values, **{"message.max.bytes": 1_100_000})
    return "large"


@pytest.mark.parametrize("taken", [0, 10, 100_000, 5 << 20])
def test_a_peer_that_vanishes_in_a_large_answer_harms_nobody(broker: Broker, large_topic: str, taken: int) -> None:
    with RawPeer(broker) as peer:
        peer.send(fetch(large_topic, max_bytes=LARGE_BYTES) + fetch(large_topic, max_bytes=LARGE_BYTES))
        assert len(peer.read(taken)) == taken
        peer.vanish()
        if taken:
            assert len(peer.wait_for_log_line()) == 1
    with RawPeer(broker) as other:
        [topic] = other.ask(FETCH, 11, fetch(large_topic, max_bytes=LARGE_BYTES)).responses
        assert len(topic.partitions[0].records) > LARGE_BYTES // 2


def test_a_peer_that_leaves_a_long_poll_harms_nobody(broker: Broker) -> None:
    for _ in range(20):
        with RawPeer(broker) as peer:
            peer.send(api_versions() + fetch("healthy", 10**6, max_wait_ms=60_000))
            assert peer.read_frame() is not None
            peer.vanish()


def test_an_answer_that_is_not_taken_holds_up_nobody_else(broker: Broker, large_topic: str) -> None:
    with RawPeer(broker) as slow:
        for _ in range(5):
            slow.send(fetch(large_topic, max_bytes=LARGE_BYTES))
        assert len(slow.read(1_000)) == 1_000
        with RawPeer(broker) as quick:
            assert quick.ask(METADATA, 9, metadata("healthy")).topics[0].error_code == 0
        total = 5 * (LARGE_BYTES - 2_000_000)
        assert len(slow.read(total)) == total
