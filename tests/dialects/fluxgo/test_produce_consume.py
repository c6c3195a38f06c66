"""Produce and consume as bytes: every answer, every boundary, and topics that a produce makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.engine import NewTopic
from penstock.dialects.fluxgo.service import FluxGoService
from penstock.model.errors import BrokerError, Fault
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from tests.dialects.fluxgo.conftest import fluxgo
from tests.dialects.fluxgo.frames import CONSUME, PRODUCE, consume, error, frame, name, offset, ok, produce, u64
from tests.dialects.fluxgo.in_process import RawPeer, Serving

NOT_FOUND = error(0x22, b"Topic or partition not found")
PAST_THE_END = error(0x23)


def test_the_bytes_of_a_conversation(peer: RawPeer) -> None:
    peer.send(bytes.fromhex("00000013 01 0006 6f7264657273 0000000000000000 6869".replace(" ", "")))
    assert peer.read() == bytes.fromhex("00 0000000000000000".replace(" ", ""))
    peer.send(bytes.fromhex("00000019 02 0006 6f7264657273 0000000000000000 0000000000000000".replace(" ", "")))
    assert peer.read() == b"\x00hi"


def test_records_get_consecutive_offsets_and_are_read_back_one_by_one(peer: RawPeer, topic: str) -> None:
    values = [b"first", b"", bytes(range(256)), b"x" * 20_000]
    for at, value in enumerate(values):
        assert peer.ask(produce(topic, 0, value)) == offset(at)
    for _ in range(2):  # reading deletes nothing
        for at, value in enumerate(values):
            assert peer.ask(consume(topic, 0, at)) == ok(value)


def test_bytes_behind_the_offset_of_a_consume_are_ignored(peer: RawPeer, topic: str) -> None:
    peer.ask(produce(topic, 0, b"a"))
    assert peer.ask(frame(CONSUME + name(topic) + u64(0) + u64(0) + b"more")) == ok(b"a")


def test_the_offset_behind_the_last_record_is_invalid_with_no_text(peer: RawPeer, topic: str) -> None:
    peer.ask(produce(topic, 0, b"a"))
    assert peer.ask(consume(topic, 0, 0)) == ok(b"a")
    assert peer.ask(consume(topic, 0, 1)) == PAST_THE_END
    assert peer.ask(consume(topic, 0, 2)) == PAST_THE_END
    assert peer.ask(consume(topic, 0, 2**63 - 1)) == PAST_THE_END
    assert peer.ask(consume(topic, 0, 2**63)) == PAST_THE_END
    assert peer.ask(consume(topic, 0, 2**64 - 1)) == PAST_THE_END


def test_a_consume_of_what_is_not_there_makes_nothing(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(consume(topic, 0, 0)) == NOT_FOUND
    assert broker.call(lambda: broker.engine.topic(topic)) is None
    peer.ask(produce(topic, 0, b"a"))
    assert peer.ask(consume(topic, 1, 0)) == NOT_FOUND
    assert peer.ask(consume(topic, 2**64 - 1, 0)) == NOT_FOUND
    assert partitions(broker, topic) == 1


# ---- payloads that are too short ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(9), b"\x00\x01" + bytes(7)])
def test_a_produce_of_less_than_ten_bytes_is_too_short(peer: RawPeer, payload: bytes) -> None:
    assert peer.ask(frame(PRODUCE + payload)) == error(0xFC, b"Invalid produce payload: too short")


def test_a_produce_whose_topic_does_not_fit_is_told_so(peer: RawPeer, topic: str) -> None:
    cut = error(0x11, b"Invalid produce payload: too short for topic")
    assert peer.ask(frame(PRODUCE + b"\x00\x01" + bytes(8))) == cut
    whole = PRODUCE + name(topic) + u64(0)
    assert peer.ask(frame(whole[:-1])) == cut
    assert peer.ask(frame(whole)) == offset(0), "an empty record"
    assert peer.ask(frame(PRODUCE + b"\xff\xff" + b"t" * 65_535 + bytes(7))) == cut


def test_a_consume_without_a_topic_length_is_too_short(peer: RawPeer) -> None:
    short = error(0xFC, b"Invalid consume payload: too short for topic length")
    assert peer.ask(frame(CONSUME)) == short
    assert peer.ask(frame(CONSUME + b"\x00")) == short


def test_a_consume_whose_fields_do_not_fit_is_told_so(peer: RawPeer, topic: str) -> None:
    cut = error(0x21, b"Invalid consume payload: too short for full header")
    assert peer.ask(frame(CONSUME + b"\x00\x00")) == cut
    whole = CONSUME + name(topic) + u64(0) + u64(0)
    assert peer.ask(frame(whole[:-1])) == cut
    assert peer.ask(frame(whole)) == NOT_FOUND


@pytest.mark.parametrize("command", [0x00, 0x03, 0x06, 0x7F, 0x80, 0xFF])
def test_an_unknown_command_has_an_answer_and_the_connection_stays(peer: RawPeer, topic: str, command: int) -> None:
    unknown = error(0xFE, b"Unknown command code")
    assert peer.ask(frame(bytes([command]))) == unknown
    assert peer.ask(frame(bytes([command]) + name(topic) + u64(0))) == unknown
    assert peer.ask(produce(topic, 0, b"a")) == offset(0)


# ---- topics that a produce makes ---------------------------------------------------------------------------------------


def folders(broker: Serving) -> list[str]:
    """Of the data directory; its files are the broker's own, which replaces them whenever it likes."""
    return sorted(path.name for path in broker.engine.directory.path.iterdir() if path.is_dir())


def partitions(broker: Serving, topic: str) -> int:
    found = broker.call(lambda: broker.engine.topic(topic))
    return 0 if found is None else len(found.partitions)


def test_a_produce_makes_as_many_partitions_as_it_needs(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(produce(topic, 2, b"a")) == offset(0)
    assert partitions(broker, topic) == 3
    assert peer.ask(produce(topic, 1, b"b")) == offset(0)
    assert partitions(broker, topic) == 3


def test_a_produce_lets_an_existing_topic_grow(broker: Serving, peer: RawPeer, topic: str) -> None:
    [made] = broker.call(lambda: broker.engine.create_topics([NewTopic(topic, 2)], validate_only=False))
    assert made.fault is Fault.NONE
    assert peer.ask(produce(topic, 1, b"a")) == offset(0)
    assert peer.ask(produce(topic, 4, b"b")) == offset(0)
    assert partitions(broker, topic) == 5
    assert peer.ask(consume(topic, 4, 0)) == ok(b"b")


def test_partitions_past_what_a_produce_makes_are_no_log(broker: Serving, peer: RawPeer, topic: str) -> None:
    past = b"Failed to access log: partition 1024 is past the 1024 of a topic"
    assert peer.ask(produce(topic, 1_024, b"a")) == error(0x13, past)
    assert partitions(broker, topic) == 0
    assert peer.ask(produce(topic, 0, b"a")) == offset(0)
    for partition in (1_024, 2**31, 2**63, 2**64 - 1):
        assert peer.ask(produce(topic, partition, b"a"))[:1] == b"\x13"
    assert partitions(broker, topic) == 1


class Asked:
    """An engine without topics that writes down what it is asked to make."""

    def __init__(self) -> None:
        self.made: list[NewTopic] = []

    def topic(self, name: str) -> None:
        return None

    def create_topics(self, topics: list[NewTopic], *, validate_only: bool) -> Pending[Any]:
        self.made += topics
        return Pending()


def test_the_last_partition_that_a_produce_makes_is_the_1024th() -> None:
    engine = Asked()
    service = FluxGoService(engine, DEFAULTS["fluxgo"])  # type: ignore[arg-type]
    assert isinstance(service.make_partition("t", 1_023), Pending)
    assert [topic.partitions for topic in engine.made] == [1_024]
    assert isinstance(service.make_partition("t", 1_024), BrokerError)


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "../x", "a/b", "/etc/passwd", "..\\x", "a b", "a\0b", "x" * 250, "ä", b"\xff\xfe", "t\n"],
)
def test_a_topic_name_outside_the_grammar_is_no_log(broker: Serving, peer: RawPeer, bad: str | bytes) -> None:
    before = folders(broker)
    refused = peer.ask(produce(bad, 0, b"a"))
    assert refused.startswith(b"\x13Failed to access log: topic name ")
    assert peer.ask(consume(bad, 0, 0)) == NOT_FOUND
    assert folders(broker) == before
    assert not (broker.engine.directory.path.parent / "x_0").exists()


def test_a_topic_name_of_249_characters_is_taken(peer: RawPeer) -> None:
    assert peer.ask(produce("n" * 249, 0, b"a")) == offset(0)


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_written(broker: Serving, peer: RawPeer, internal: str) -> None:
    before = partitions(broker, internal)
    for partition in (0, 1_000):
        refused = f"{internal} is an internal topic: clients can read it but not change it"
        assert peer.ask(produce(internal, partition, b"a")) == error(0x13, f"Failed to access log: {refused}".encode())
    assert partitions(broker, internal) == before


def test_a_listener_that_makes_no_topics_says_so(data_dir: Path) -> None:
    with Serving(data_dir, fluxgo(creates_topics=False)) as broker, broker.connect() as peer:
        refused = b"Failed to access log: there is no t-0, and this listener makes no topics"
        assert peer.ask(produce("t", 0, b"a")) == error(0x13, refused)
        broker.call(lambda: broker.engine.create_topics([NewTopic("t", 1)], validate_only=False))
        assert peer.ask(produce("t", 0, b"a")) == offset(0)
        assert peer.ask(produce("t", 1, b"a"))[:1] == b"\x13"


def test_a_listener_may_set_how_many_partitions_a_produce_makes(data_dir: Path) -> None:
    with Serving(data_dir, fluxgo(partitions=3, partitions_max=4)) as broker, broker.connect() as peer:
        assert peer.ask(produce("t", 0, b"a")) == offset(0)
        assert partitions(broker, "t") == 3
        assert peer.ask(produce("t", 3, b"a")) == offset(0)
        assert peer.ask(produce("t", 4, b"a"))[:1] == b"\x13"


def test_many_connections_make_one_topic_at_once(broker: Serving, topic: str) -> None:
    peers = [broker.connect() for _ in range(8)]
    try:
        for at, peer in enumerate(peers):
            peer.send(produce(topic, at, b"%d" % at))
        for peer in peers:
            assert peer.read() == offset(0)
        assert partitions(broker, topic) == 8
        for at in range(8):
            assert peers[0].ask(consume(topic, at, 0)) == ok(b"%d" % at)
    finally:
        for peer in peers:
            peer.__exit__()
