"""Day1's two requests as bytes: every answer, every boundary, and topics that a produce makes."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import long_runs, record_reads
from penstock.broker.engine import Acks, NewTopic
from penstock.dialects.day1.service import Day1Service
from penstock.model.errors import BrokerError
from penstock.model.limits import READ_OBJECTS_MAX
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from tests.dialects.day1.conftest import day1
from tests.dialects.day1.frames import EOF, NOTHING, base, error, fetch, frame, items, name, one, produce, records
from tests.dialects.fluxgo.in_process import RawPeer, Serving

FRAME_BYTES_MAX = 8_388_608


def folders(broker: Serving) -> list[str]:
    """Of the data directory; its files are the broker's own, which replaces them whenever it likes."""
    return sorted(path.name for path in broker.engine.directory.path.iterdir() if path.is_dir())


def partitions(broker: Serving, topic: str) -> int:
    found = broker.call(lambda: broker.engine.topic(topic))
    return 0 if found is None else len(found.partitions)


def test_the_bytes_of_a_conversation(peer: RawPeer) -> None:
    asked = "00000020 01 0004 74657374 0000 0002 0002 6b31 00000002 7631 0000 00000005 68656c6c6f"
    assert peer.ask(bytes.fromhex(asked)) == bytes.fromhex("01 00 0000000000000000")
    asked = "00000015 02 0004 74657374 0000 0000000000000000 00000400"
    got = "02 00 0002 0000000000000000 0002 6b31 00000002 7631 0000000000000001 0000 00000005 68656c6c6f"
    assert peer.ask(bytes.fromhex(asked)) == bytes.fromhex(got)


def test_the_base_offset_is_that_of_the_first_record(peer: RawPeer, topic: str) -> None:
    assert peer.ask(produce(topic, 0, [(b"k", b"a"), (b"", b""), (b"k", b"c")])) == base(0)
    assert peer.ask(produce(topic, 0, [(b"k", b"d")])) == base(3)
    assert peer.ask(fetch(topic, 0, 1)) == items((1, b"", b""), (2, b"k", b"c"), (3, b"k", b"d"))


def test_a_produce_without_records_is_answered_with_the_next_offset(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(produce(topic, 1, [])) == base(0)
    assert partitions(broker, topic) == 2, "it makes the topic as any produce"
    peer.ask(produce(topic, 1, [(b"", b"a"), (b"", b"b")]))
    assert peer.ask(produce(topic, 1, [])) == base(2)
    assert peer.ask(fetch(topic, 1, 2)) == NOTHING


def test_the_largest_number_of_records_in_a_request(peer: RawPeer, topic: str) -> None:
    assert peer.ask(produce(topic, 0, [(b"", b"")] * 65_535)) == base(0)
    assert peer.ask(one(topic, 0, b"")) == base(65_535)


def test_bytes_behind_the_last_field_are_ignored(peer: RawPeer, topic: str) -> None:
    head = b"\x01" + name(topic) + struct.pack(">HH", 0, 1)
    assert peer.ask(frame(head + records([(b"k", b"v")]) + b"more")) == base(0)
    assert peer.ask(frame(head + records([(b"", b"w")]) + b"more")) == base(1)
    asked = b"\x02" + name(topic) + struct.pack(">HqI", 0, 0, 1000)
    assert peer.ask(frame(asked + b"more")) == items((0, b"k", b"v"), (1, b"", b"w"))


# ---- requests that are none --------------------------------------------------------------------------------------------


def test_an_empty_frame_is_an_error_and_the_connection_stays(peer: RawPeer, topic: str) -> None:
    assert peer.ask(frame(b"")) == EOF
    assert peer.ask(one(topic, 0, b"a")) == base(0)


@pytest.mark.parametrize("key", [0, 3, 127, 255])
def test_another_api_key_is_an_error_that_names_it(peer: RawPeer, topic: str, key: int) -> None:
    wrong = error(f"invalid request: invalid api key: {key}")
    assert peer.ask(frame(bytes([key]))) == wrong
    assert peer.ask(frame(bytes([key]) + name(topic) + bytes(20))) == wrong


def test_a_produce_that_ends_anywhere_too_early_writes_nothing(broker: Serving, peer: RawPeer, topic: str) -> None:
    whole = produce(topic, 0, [(b"key", b"value"), (b"", b"second")])[4:]
    single = one(topic, 0, b"value", b"key")[4:]
    bare = one(topic, 0, b"value")[4:]
    assert peer.ask(frame(single)) == base(0), "from here on the cut ones look like the last produce"
    for body in (whole, single, bare):
        for cut in range(1, len(body)):
            assert peer.ask(frame(body[:cut])) == EOF, (body, cut)
    assert peer.ask(one(topic, 0, b"")) == base(1)


def test_a_fetch_that_ends_anywhere_too_early_is_an_error(peer: RawPeer, topic: str) -> None:
    whole = fetch(topic, 0, 0)[4:]
    for cut in range(1, len(whole)):
        assert peer.ask(frame(whole[:cut])) == EOF
    assert peer.ask(frame(whole)) == NOTHING


@pytest.mark.parametrize("length", [2**16, 2**31, 2**32 - 1])
def test_a_value_length_past_the_frame_is_believed_by_nobody(peer: RawPeer, topic: str, length: int) -> None:
    head = b"\x01" + name(topic) + struct.pack(">HH", 0, 1)
    peer.ask(one(topic, 0, b"a"))
    assert peer.ask(frame(head + struct.pack(">HI", 0, length) + b"short")) == EOF
    assert peer.ask(frame(head + struct.pack(">H1sI", 1, b"k", length) + b"short")) == EOF


# ---- fetch -------------------------------------------------------------------------------------------------------------


def test_max_bytes_is_strict_even_for_the_first_record(peer: RawPeer, topic: str) -> None:
    """A record of k1/v1 counts 8 + 2 + 2 + 4 + 2 = 18 bytes."""
    peer.ask(produce(topic, 0, [(b"k1", b"v1"), (b"k2", b"v2"), (b"k3", b"v3")]))
    for max_bytes, count in [
        (0, 0),
        (13, 0),
        (14, 0),
        (17, 0),
        (18, 1),
        (35, 1),
        (36, 2),
        (53, 2),
        (54, 3),
        (2**32 - 1, 3),
    ]:
        wanted = [(at, b"k%d" % (at + 1), b"v%d" % (at + 1)) for at in range(count)]
        assert peer.ask(fetch(topic, 0, 0, max_bytes)) == items(*wanted), max_bytes


def test_a_fetch_starts_at_the_first_offset_that_is_there(broker: Serving, peer: RawPeer, topic: str) -> None:
    peer.ask(produce(topic, 0, [(b"", b"a"), (b"", b"b"), (b"", b"c")]))
    everything = items((0, b"", b"a"), (1, b"", b"b"), (2, b"", b"c"))
    for offset in (0, -1, -(2**63)):
        assert peer.ask(fetch(topic, 0, offset)) == everything
    broker.call(lambda: broker.engine.delete_records(topic, 0, 2))
    for offset in (-1, 0, 1, 2):
        assert peer.ask(fetch(topic, 0, offset)) == items((2, b"", b"c"))


def test_past_the_end_there_is_nothing(peer: RawPeer, topic: str) -> None:
    peer.ask(one(topic, 0, b"a"))
    for offset in (1, 2, 2**63 - 1):
        assert peer.ask(fetch(topic, 0, offset)) == NOTHING


def test_a_fetch_of_what_is_not_there_is_empty_and_makes_nothing(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(fetch(topic, 0, 0)) == NOTHING
    assert broker.call(lambda: broker.engine.topic(topic)) is None
    peer.ask(one(topic, 0, b"a"))
    assert peer.ask(fetch(topic, 1, 0)) == NOTHING
    assert partitions(broker, topic) == 1


def test_an_answer_has_at_most_65535_records(peer: RawPeer, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker itself gives fewer at once; this is what the count of an answer can say."""
    for _ in range(2):
        peer.ask(produce(topic, 0, [(b"", b"")] * 40_000))
    answer = peer.ask(fetch(topic, 0, 0, 2**32 - 1))
    assert READ_OBJECTS_MAX <= int.from_bytes(answer[2:4], "big") < READ_OBJECTS_MAX + record_reads.OBJECTS_AT_ONCE
    for module in (record_reads, long_runs):
        monkeypatch.setattr(module, "READ_OBJECTS_MAX", 1_000_000)
    answer = peer.ask(fetch(topic, 0, 0, 2**32 - 1))
    assert answer[:4] == b"\x02\x00\xff\xff"
    assert len(answer) == 4 + 65_535 * 14
    assert peer.ask(fetch(topic, 0, 65_535, 2**32 - 1))[2:4] == struct.pack(">H", 80_000 - 65_535)


def test_an_answer_stays_within_the_largest_frame(peer: RawPeer, topic: str) -> None:
    value = b"v" * (FRAME_BYTES_MAX // 2 - 2 - 14)
    peer.ask(one(topic, 0, value))
    peer.ask(one(topic, 0, value))
    assert len(peer.ask(fetch(topic, 0, 0, 2**32 - 1))) == FRAME_BYTES_MAX
    peer.ask(one(topic, 0, value + b"x"))
    answer = peer.ask(fetch(topic, 0, 1, 2**32 - 1))
    assert answer[2:4] == b"\x00\x01"


def test_a_record_that_no_answer_holds_is_an_error_that_names_it(broker: Serving, peer: RawPeer, topic: str) -> None:
    engine = broker.engine
    room = FRAME_BYTES_MAX - 4 - 14
    broker.call(lambda: engine.create_topics([NewTopic(topic, 1)], validate_only=False))
    written = [(b"", b"a"), (b"", b"v" * room), (b"", b"v" * (room + 1)), (b"k" * 65_535, b""), (b"k" * 65_536, b"")]
    for key, value in written:
        broker.call(partial(engine.append_run, topic, 0, [value], [key], Acks.ALL))
    assert peer.ask(fetch(topic, 0, 0, 2**32 - 1)) == items((0, b"", b"a"))
    assert peer.ask(fetch(topic, 0, 1, 2**32 - 1)) == items((1, b"", b"v" * room))
    unfit = (
        f"fetch error: the record at offset 2 has a key of 0 and a value of {room + 1} bytes, more than an answer holds"
    )
    assert peer.ask(fetch(topic, 0, 2, 2**32 - 1)) == error(unfit)
    assert peer.ask(fetch(topic, 0, 2, 1_000)) == error(unfit), "it would never come, however much is asked for"
    assert peer.ask(fetch(topic, 0, 3)) == items((3, b"k" * 65_535, b""))
    unfit = "fetch error: the record at offset 4 has a key of 65536 and a value of 0 bytes, more than an answer holds"
    assert peer.ask(fetch(topic, 0, 4)) == error(unfit)


# ---- topics that a produce makes ---------------------------------------------------------------------------------------


def test_a_produce_makes_and_grows_topics_to_the_partition_it_needs(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(one(topic, 2, b"a")) == base(0)
    assert partitions(broker, topic) == 3
    assert peer.ask(one(topic, 0, b"b")) == base(0)
    assert peer.ask(one(topic, 5, b"c")) == base(0)
    assert partitions(broker, topic) == 6
    assert peer.ask(fetch(topic, 5, 0)) == items((0, b"", b"c"))


def test_partitions_past_what_a_produce_makes_are_an_error(broker: Serving, peer: RawPeer, topic: str) -> None:
    assert peer.ask(one(topic, 1_024, b"a")) == error("partition 1024 is past the 1024 of a topic")
    assert peer.ask(one(topic, 65_535, b"a")) == error("partition 65535 is past the 1024 of a topic")
    assert partitions(broker, topic) == 0


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
    service = Day1Service(engine, DEFAULTS["day1"])  # type: ignore[arg-type]
    assert isinstance(service.make_partition("t", 1_023), Pending)
    assert [topic.partitions for topic in engine.made] == [1_024]
    assert isinstance(service.make_partition("t", 1_024), BrokerError)


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0b", "x" * 250, "ä", b"\xff\xfe"])
def test_a_topic_name_outside_the_grammar_is_an_error(broker: Serving, peer: RawPeer, bad: str | bytes) -> None:
    before = folders(broker)
    for asked in (one(bad, 0, b"a"), produce(bad, 0, []), fetch(bad, 0, 0)):
        assert peer.ask(asked)[3:].startswith(b"topic name ")
    assert folders(broker) == before


def test_a_topic_name_that_is_not_utf_8_is_shown_with_replacements(peer: RawPeer) -> None:
    assert "\\ufffd" in ascii(peer.ask(one(b"bad\xff", 0, b"a"))[3:].decode())


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_not_written(broker: Serving, peer: RawPeer, internal: str) -> None:
    refused = f"{internal} is an internal topic: clients can read it but not change it"
    for partition in (0, 1_000):
        assert peer.ask(one(internal, partition, b"a")) == error(refused)
    assert partitions(broker, internal) == 0


def test_a_listener_that_makes_no_topics_says_so(data_dir: Path) -> None:
    with Serving(data_dir, day1(creates_topics=False)) as broker, broker.connect() as peer:
        refused = error("there is no t-0, and this listener makes no topics")
        assert peer.ask(one("t", 0, b"a")) == refused
        assert peer.ask(produce("t", 0, [])) == refused
        broker.call(lambda: broker.engine.create_topics([NewTopic("t", 1)], validate_only=False))
        assert peer.ask(one("t", 0, b"a")) == base(0)
