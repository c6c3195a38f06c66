"""PRODUCE, CONSUME, FETCH and SUBSCRIBE by opcode, byte for byte, on a real socket."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from penstock.dialects.flymq import session as flymq_session
from penstock.model.limits import FLYMQ_PATH_NAMES_MAX
from penstock.records.builder import NewRecord
from tests.dialects.flymq.broker import (
    Broker,
    Fields,
    Metadata,
    Wire,
    b,
    coded,
    consume,
    fetch,
    i32,
    op,
    produce,
    produce_payload,
    s,
    s8,
    u64,
)


def values_of(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    rows, _ = fetched(wire.good(fetch(topic, partition, 0, 1000)))
    return [value for _, _, value in rows]


def fetched(payload: bytes) -> tuple[list[tuple[int, bytes, bytes]], int]:
    fields = Fields(payload)
    count, next_offset = fields.number("I"), fields.number("Q")
    rows = [(fields.number("Q"), fields.b(), fields.b()) for _ in range(count)]
    fields.end()
    return rows, next_offset


def make(wire: Wire, topic: str, partitions: int) -> None:
    assert wire.good(op(0x03, s(topic) + i32(partitions))) == b"\x01"


# ---- PRODUCE ------------------------------------------------------------------------------------------------------


def test_the_document_of_produce_has_a_payload_of_23_bytes_for_hello_to_test(wire: Wire) -> None:
    frame = bytes.fromhex("af 01 01 01 00 00 00 17 00 04 74657374 00000000 00000005 68656c6c6f ffffffff")
    assert frame == produce("test", b"hello")
    before = time.time_ns() // 1_000_000
    answer = wire.ask(frame)
    assert (answer.opcode, answer.flags) == (0x01, 1)
    found = Metadata.of(answer.payload)
    assert found._replace(unix_ms=0) == ("test", 0, 0, 0, -1, 5)
    assert before <= found.unix_ms <= time.time_ns() // 1_000_000


def test_the_conversation_of_the_documentation(wire: Wire) -> None:
    wire.send(bytes.fromhex("af010101 00000017 0004 74657374 00000000 00000005 68656c6c6f ffffffff"))
    answer = wire.exactly(8 + 0x22)
    assert answer[:26] == bytes.fromhex("af010101 00000022 0004 74657374 00000000 0000000000000000")
    assert answer[34:] == bytes.fromhex("ffffffff 00000005")
    wire.send(bytes.fromhex("af010201 00000012 0004 74657374 00000000 0000000000000000"))
    assert wire.exactly(8 + 0x0D) == bytes.fromhex("af010201 0000000d 00000000 00000005 68656c6c6f")
    wire.send(bytes.fromhex("af010201 00000012 0004 74657374 00000000 0000000000000001"))
    assert wire.exactly(8 + 9) == bytes.fromhex("af01ff01 00000009 00000001 0003 454f46")
    wire.send(bytes.fromhex("00000022 0001 0000 0004 74657374 00000000 0000000000000000 00100000 00000000 00000000"))
    fetch_answer = wire.exactly(4 + 0x40)
    assert fetch_answer[:-8] == bytes.fromhex(
        "00000040 0001 0000 0000 0000000000000001 00000001 0000000000000000 00000000 00 0000001d"
        "00000019 00000000 00000005 68656c6c6f 00000000"
    )
    assert fetch_answer[-8:] == answer[26:34]


def test_a_produce_makes_its_topic_with_one_partition(broker: Broker, wire: Wire) -> None:
    wire.good(produce("new.topic", b"a"))
    assert len(broker.call(lambda: broker.engine.topic("new.topic")).partitions) == 1


def test_no_topic_is_made_where_the_listener_says_so(tmp_path: Path) -> None:
    with Broker(tmp_path, creates_topics=False) as broker, broker.connect() as wire:
        assert wire.ask(produce("t", b"a")).text == "topic not found: t"
        assert wire.good(op(0x08)) == u64(0)[:4]


def test_key_and_value_come_back_and_their_sizes_are_told(wire: Wire) -> None:
    found = Metadata.of(wire.good(produce("t", b"value", b"key")))
    assert (found.key_size, found.value_size) == (3, 5)
    assert wire.good(consume("t", 0, 0)) == b(b"key") + b(b"value")


def test_an_empty_key_is_none_and_an_empty_value_is_a_value(broker: Broker, wire: Wire) -> None:
    found = Metadata.of(wire.good(produce("t", b"")))
    assert (found.key_size, found.value_size) == (-1, 0)
    assert wire.good(consume("t", 0, 0)) == b(b"") + b(b"")
    [record] = broker.call(lambda: broker.engine.read_records("t", 0, 0, 1, 1)).records
    assert (record.key, record.value) == (None, b"")


@pytest.mark.parametrize(("key", "partition"), [(b"a", 1), (b"b", 1), (b"c", 2), (b"user-123", 2)])
def test_a_key_goes_to_its_fnv1a_partition(wire: Wire, key: bytes, partition: int) -> None:
    make(wire, "t", 3)
    for _ in range(2):
        assert Metadata.of(wire.good(produce("t", b"v", key))).partition == partition


def test_without_a_key_partitions_take_turns_from_0_on(wire: Wire) -> None:
    make(wire, "t", 3)
    wire.send(b"".join(produce("t", b"%d" % at) for at in range(7)))
    answers = [Metadata.of(wire.answer().payload) for _ in range(7)]
    assert [(found.partition, found.offset) for found in answers] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)
    ]  # fmt: skip
    assert values_of(wire, "t", 0) == [b"0", b"3", b"6"]


def test_the_partition_field_holds_when_there_is_such_a_partition(wire: Wire) -> None:
    make(wire, "t", 3)
    assert Metadata.of(wire.good(produce("t", b"v", b"a", 2))).partition == 2
    assert Metadata.of(wire.good(produce("t", b"v", b"a", 0))).partition == 0
    for beyond in (3, -1, -2, 2**31 - 1):
        assert Metadata.of(wire.good(produce("t", b"v", b"a", beyond))).partition == 1


def test_pipelined_produces_are_answered_one_by_one_in_order(wire: Wire) -> None:
    """Different sizes, keys and topics in one write: runs of every shape."""
    frames, expected = [], []
    ends: dict[str, int] = {}
    for at in range(500):
        topic = "ab"[at // 7 % 2]
        key = b"k" * (at % 3)
        value = b"v" * (at % 5 if at % 50 < 25 else 8)
        frames.append(produce(topic, value, key))
        expected.append((topic, 0, ends.get(topic, 0), 0, len(key) or -1, len(value)))
        ends[topic] = ends.get(topic, 0) + 1
    wire.send(b"".join(frames))
    for row in expected:
        answer = wire.answer()
        assert answer.opcode == 0x01, answer
        assert Metadata.of(answer.payload)._replace(unix_ms=0) == row


def test_frames_split_at_every_byte_are_whole_again(wire: Wire) -> None:
    data = produce("t", b"one") + produce("t", b"two", b"k") + consume("t", 0, 1)
    for cut in range(1, len(data)):
        wire.send(data[:cut])
        wire.send(data[cut:])
        first, second = Metadata.of(wire.answer().payload), Metadata.of(wire.answer().payload)
        assert second.offset == first.offset + 1
        assert wire.answer().payload == b(b"k") + b(b"two")
    for byte in data:
        wire.send(bytes([byte]))
    assert [wire.answer().opcode for _ in range(3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("flags", "packed"),
    [
        (0x00, lambda data: data),
        (0x03, gzip.compress),
        (0x02, gzip.compress),
        (0x05, lz4.frame.compress),
        (0x07, lambda data: zstandard.ZstdCompressor().compress(data)),
        (0x09, lambda data: bytes(snappy.compress_raw(data))),
        (0x0B, lambda data: data),
        (0x0D, lambda data: data),
        (0x0F, lambda data: data),
    ],
)
def test_compressed_payloads_are_read_and_unknown_flags_mean_plain(wire: Wire, flags: int, packed: object) -> None:
    payload = produce_payload("t", b"squeezed" * 100, b"k")
    assert callable(packed)
    answer = wire.ask(op(0x01, packed(payload), flags))
    assert (answer.opcode, answer.flags) == (0x01, 1)
    assert Metadata.of(answer.payload)._replace(unix_ms=0) == ("t", 0, 0, 0, 1, 800)
    assert wire.good(op(0x02, gzip.compress(s("t") + i32(0) + u64(0)), 3)) == b(b"k") + b(b"squeezed" * 100)


def test_damaged_compression_is_a_coded_error_and_the_connection_stays(wire: Wire) -> None:
    assert wire.ask(op(0x01, b"plain", 0x03)).text == "gzip: invalid header"
    assert wire.ask(op(0x01, gzip.compress(b"x" * 100)[:-5], 0x03)).text.startswith("gzip: ")
    for flags in (0x05, 0x07, 0x09):
        assert wire.ask(op(0x01, b"\x01plain", flags)).opcode == 0xFF
    assert wire.good(op(0x08)) == u64(0)[:4]


def test_what_a_payload_unpacks_to_is_bounded(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=100_000) as broker, broker.connect() as wire:
        fits = produce_payload("t", b"\0" * (100_000 - 15))
        assert len(fits) == 100_000
        assert wire.ask(op(0x01, gzip.compress(fits), 3)).opcode == 0x01
        assert "larger than 100000 bytes" in wire.ask(op(0x01, gzip.compress(fits + b"\0"), 3)).text


@pytest.mark.parametrize("cut", range(len(produce_payload("t", b"value", b"key"))))
def test_a_produce_that_is_cut_short_is_a_coded_error(wire: Wire, cut: int) -> None:
    assert wire.ask(op(0x01, produce_payload("t", b"value", b"key")[:cut])) == (0xFF, 1, i32(1) + s("buffer too small"))
    assert wire.ask(op(0x08)).opcode == 0x08


def test_lengths_that_reach_beyond_the_frame_are_refused(wire: Wire) -> None:
    wire.send(
        op(0x01, s("t") + b"\xff\xff\xff\xff" + b(b"v") + i32(-1))
        + op(0x01, s("t") + b(b"") + b"\x7f\xff\xff\xff" + b"v" + i32(-1))
        + produce("t", b"good")
    )
    assert [wire.answer().opcode for _ in range(3)] == [0xFF, 0xFF, 0x01]


def test_a_topic_that_is_not_utf8_is_a_coded_error(wire: Wire) -> None:
    assert wire.ask(op(0x01, s(b"\xff\xfe") + b(b"") + b(b"v") + i32(-1))).text == "invalid binary format"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd", "a b", "a\0b", "é", "x" * 250])
def test_names_outside_the_grammar_are_refused_by_every_request_that_makes_something(wire: Wire, name: str) -> None:
    for frame in (
        produce(name, b"v"),
        op(0x03, s(name) + i32(1)),
        op(0x06, s(name) + s("g") + i32(0) + u64(1)),
    ):
        assert "is not 1 to 249 characters" in wire.ask(frame).text
    assert wire.good(op(0x08)) == u64(0)[:4]


def test_the_longest_name_is_accepted(wire: Wire) -> None:
    assert Metadata.of(wire.good(produce("x" * 249, b"v"))).offset == 0


def test_internal_topics_are_read_and_not_written(wire: Wire) -> None:
    reason = "is an internal topic: clients can read it but not change it"
    refused = f"__consumer_offsets {reason}"
    assert wire.ask(produce("__consumer_offsets", b"v")).text == refused
    wire.good(op(0x06, s("t") + s("g") + i32(0) + u64(1)))  # makes it
    assert wire.ask(produce("__consumer_offsets", b"v")).text == refused
    assert wire.ask(op(0x09, s("__consumer_offsets"))).text == refused
    assert wire.ask(op(0x03, s("__transaction_state") + i32(1))).text == f"__transaction_state {reason}"
    assert wire.ask(fetch("__consumer_offsets", 0, 0, 1)).opcode == 0x07


def test_a_produce_behind_one_that_makes_its_topic_stays_behind_it(wire: Wire) -> None:
    wire.send(b"".join(produce(f"t{at % 3}", b"%d" % at) for at in range(30)) + consume("t2", 0, 9) + op(0x08))
    offsets = [Metadata.of(wire.answer().payload).offset for _ in range(30)]
    assert offsets == [at // 3 for at in range(30)]
    assert wire.answer().payload == b(b"") + b(b"29")
    assert wire.answer().opcode == 0x08
    assert values_of(wire, "t1") == [b"%d" % at for at in range(1, 30, 3)]


def test_more_than_87381_records_fit_a_partition(wire: Wire) -> None:
    """The original's index ends there."""
    count = 87_400
    frame = produce("t", b"x")
    wire.send(frame)
    size = len(wire.exactly(8 + len(s("t")) + 28))
    for _ in range(count // 8_740):
        wire.send(frame * 8_740)
        wire.exactly(size * 8_740)
    assert Metadata.of(wire.good(frame)).offset == count + 1
    assert wire.good(consume("t", 0, 87_381)) == b(b"") + b(b"x")


def test_a_large_record_comes_back_whole_from_both_consumes(wire: Wire) -> None:
    """The original sends the wrong slice of values from 64 KiB on."""
    for at, size in enumerate((65_535, 65_536, 65_537, 3_000_000)):
        value = bytes(range(256)) * (size // 256 + 1)
        wire.send(produce("t", value[:size], b"key"))
        assert Metadata.of(wire.answer().payload)._replace(unix_ms=0) == ("t", 0, at, 0, 3, size)
        for opcode in (0x02, 0x0A):
            assert wire.good(consume("t", 0, at, opcode)) == b(b"key") + b(value[:size])


def test_the_largest_frame_is_taken_and_a_byte_more_closes(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=1_000_000) as broker, broker.connect() as wire:
        payload = produce_payload("t", b"\0" * (1_000_000 - 15))
        assert len(payload) == 1_000_000
        assert Metadata.of(wire.good(op(0x01, payload))).offset == 0
        wire.send(produce("t", b"last") + op(0x01, payload + b"\0")[:20])
        assert wire.answer().opcode == 0x01
        assert wire.is_closed_by_peer() == b""


@pytest.mark.parametrize("head", [b"\xaf\x02", b"\xaf\x00", b"\xaf\xff", b"\xfe\xff\xff\xff", b"GET "])
def test_wrong_magic_or_version_closes_without_an_answer(broker: Broker, head: bytes) -> None:
    with broker.connect() as wire:
        wire.send(op(0x08) + head)
        assert wire.answer().opcode == 0x08
        assert wire.is_closed_by_peer() == b""


# ---- CONSUME ------------------------------------------------------------------------------------------------------


def test_consume_says_why_there_is_no_record(wire: Wire) -> None:
    assert wire.ask(consume("t", 0, 0)) == (0xFF, 1, i32(1) + s("topic not found"))
    wire.good(produce("t", b"v"))
    assert wire.ask(consume("t", 0, 1)).text == "EOF"
    assert wire.ask(consume("t", 0, 2**64 - 1)).text == "EOF"
    for partition in (1, -1, -(2**31)):
        assert wire.ask(consume("t", partition, 0)).text == f"partition {partition} out of range"
    assert wire.ask(op(0x02, s("t") + i32(0))).text == "buffer too small"


def test_consume_at_an_offset_that_is_gone_says_where_to_go_on(broker: Broker, wire: Wire) -> None:
    wire.send(b"".join(produce("t", b"%d" % at) for at in range(10)))
    for _ in range(10):
        wire.answer()
    broker.delete_records("t", 0, 4)
    assert wire.ask(consume("t", 0, 1)) == (0xFF, 1, i32(1) + s("no record at offset 1; next is 4"))
    assert wire.good(consume("t", 0, 4)) == b(b"") + b(b"4")


def test_a_null_key_and_a_null_value_read_as_empty(broker: Broker, wire: Wire) -> None:
    make(wire, "t", 1)
    broker.append("t", 0, NewRecord(1, None, None), NewRecord(1, b"k", None))
    assert wire.good(consume("t", 0, 0)) == b(b"") + b(b"")
    assert fetched(wire.good(fetch("t", 0, 0, 5))) == ([(0, b"", b""), (1, b"k", b"")], 2)


def test_a_record_larger_than_a_frame_is_an_error_that_names_it(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=1_000) as broker, broker.connect() as wire:
        make(wire, "t", 1)
        broker.append("t", 0, NewRecord(1, b"", b"x" * 992), NewRecord(1, b"", b"x" * 993))
        assert len(wire.good(consume("t", 0, 0))) == 1_000
        text = "the record at offset 1 has 1001 bytes, a frame holds 1000"
        assert wire.ask(consume("t", 0, 1)).text == text


@pytest.mark.parametrize("most", [1, 10, 1_000])
@pytest.mark.parametrize("key", [b"", b"key"])
def test_the_largest_record_that_fits_the_answer_of_a_fetch_comes_and_one_byte_more_is_an_error(
    tmp_path: Path, key: bytes, most: int
) -> None:
    with Broker(tmp_path, frame_bytes_max=100_000) as broker, broker.connect() as wire:
        make(wire, "t", 1)
        largest = b"x" * (100_000 - 28 - len(key))
        broker.append("t", 0, NewRecord(1, key, largest), NewRecord(1, key, largest + b"x"), NewRecord(1, b"", b"last"))
        payload = wire.good(fetch("t", 0, 0, most))
        assert len(payload) == 100_000
        assert fetched(payload) == ([(0, key, largest)], 1)
        assert wire.ask(fetch("t", 0, 1, most)).text == "the record at offset 1 has 100001 bytes, a frame holds 100000"
        assert fetched(wire.good(fetch("t", 0, 2, most))) == ([(2, b"", b"last")], 3)


# ---- FETCH --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [0x07, 0x0B])
def test_fetch_gives_records_with_offsets_and_where_to_go_on(wire: Wire, opcode: int) -> None:
    wire.send(b"".join(produce("t", b"v%d" % at, b"k") for at in range(25)))
    for _ in range(25):
        wire.answer()
    rows = [(at, b"k", b"v%d" % at) for at in range(25)]
    assert fetched(wire.good(fetch("t", 0, 3, 4, opcode=opcode))) == (rows[3:7], 7)
    for ten in (0, -1, -(2**31)):
        assert fetched(wire.good(fetch("t", 0, 0, ten, opcode=opcode))) == (rows[:10], 10)
    assert fetched(wire.good(fetch("t", 0, 20, 100, opcode=opcode))) == (rows[20:], 25)
    assert fetched(wire.good(fetch("t", 0, 25, 100, opcode=opcode))) == ([], 25)
    for beyond in (99, 2**63, 2**64 - 1):
        assert fetched(wire.good(fetch("t", 0, beyond, 100, opcode=opcode))) == ([], beyond)


def test_fetch_gives_at_most_1000_records(wire: Wire) -> None:
    wire.send(produce("t", b"v") * 1_001)
    for _ in range(1_001):
        wire.answer()
    rows, next_offset = fetched(wire.good(fetch("t", 0, 0, 5_000)))
    assert (len(rows), next_offset) == (1_000, 1_000)


def test_fetch_says_what_does_not_exist(wire: Wire) -> None:
    assert wire.ask(fetch("t", 0, 0, 1)).text == "topic not found: t"
    make(wire, "t", 2)
    for partition in (2, -1):  # -1 takes the original down
        assert wire.ask(fetch("t", partition, 0, 1)).text == f"partition {partition} not found"
    assert wire.ask(op(0x07, s("t") + i32(0) + u64(0))).text == "buffer too small"


def test_fetch_skips_offsets_that_are_gone(broker: Broker, wire: Wire) -> None:
    wire.send(b"".join(produce("t", b"%d" % at) for at in range(6)))
    for _ in range(6):
        wire.answer()
    broker.delete_records("t", 0, 4)
    assert fetched(wire.good(fetch("t", 0, 0, 1))) == ([(4, b"", b"4")], 5)


def test_an_answer_never_exceeds_the_frame(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=60_000) as broker, broker.connect() as wire:
        for _ in range(3):
            wire.good(produce("t", b"x" * 25_000))
        rows, next_offset = fetched(wire.good(fetch("t", 0, 0, 1_000)))
        assert (len(rows), next_offset) == (1, 1)
        payload = wire.good(fetch("t", 0, 0, 3))
        assert len(payload) <= 60_000
        assert fetched(payload)[1] == 2


# ---- filters ------------------------------------------------------------------------------------------------------

RECORDS = [
    (b"order-1", b'{"a": {"b": 1}, "name": "Anna"}'),
    (b"order-2", b'{"a": 5}'),
    (b"", b"plain TEXT"),
    (b"key", b'["a", "b"]'),
    (b"bytes", b"\xff\xfe\x00"),
    ("Straße".encode(), "GRÜSSE".encode()),
]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        ("$.a", [0, 1]),
        ("$.a.b", [0]),
        ("$.a.b.c", []),
        ("$.name", [0]),
        ("$.missing", []),
        ("text", [2]),
        ("ORDER", [0, 1]),
        ("grüsse", [5]),
        ("ORDER-[0-9]", []),
        ("order-[2-9]", [1]),
        ("^plain", [2]),
        ("^$", [2]),
        (".*", [0, 1, 2, 3, 4, 5]),
        ("(unclosed", []),
        ("\\xff|TEXT$", [2]),
        ("(?i)GRÜSS|anna", [0, 5]),
        ("\\QTEXT", [2]),
        ("a{1001}", []),
        ("", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_filters(wire: Wire, wanted: str, offsets: list[int]) -> None:
    for key, value in RECORDS:
        wire.good(produce("t", value, key))
    rows, next_offset = fetched(wire.good(fetch("t", 0, 0, 100, wanted)))
    assert [offset for offset, _, _ in rows] == offsets
    assert next_offset == len(RECORDS)


def test_a_filtered_fetch_goes_on_where_it_stopped_looking(wire: Wire) -> None:
    wire.send(b"".join(produce("t", b"even" if at % 2 == 0 else b"odd") for at in range(2_500)))
    for _ in range(2_500):
        wire.answer()
    rows, next_offset = fetched(wire.good(fetch("t", 0, 0, 3, "even")))
    assert ([offset for offset, _, _ in rows], next_offset) == ([0, 2, 4], 6)
    rows, next_offset = fetched(wire.good(fetch("t", 0, 1, 100, "nowhere")))
    assert (rows, next_offset) == ([], 1_001)


def test_a_record_whose_fields_are_both_empty_fits_what_fits_nothing_at_all(wire: Wire) -> None:
    wire.good(produce("t", b""))
    for wanted in ("^$", ".*", "$", "x?"):
        assert fetched(wire.good(fetch("t", 0, 0, 10, wanted))) == ([(0, b"", b"")], 1)
    assert fetched(wire.good(fetch("t", 0, 0, 10, "."))) == ([], 1)


def test_a_json_path_needs_no_more_than_its_names(wire: Wire) -> None:
    for value in (
        b'{"a": null}',
        b'{"x": [1, {"a": 1}], "a": 0}',
        b'{"a": 1',
        b'{"a": 1} 2',
        b"",
        b'"a"',
        b'[{"a": 1}]',
    ):
        wire.good(produce("t", value))
    assert [offset for offset, _, _ in fetched(wire.good(fetch("t", 0, 0, 10, "$.a")))[0]] == [0, 1]
    assert wire.ask(fetch("t", 0, 0, 10, '$.a"b')).text == 'a path has no quotes and no backslashes: a"b'


A_AND_B = bytes(random.Random(1).choices(b"ab", k=1 << 20))
"""Every place in it is new to an automaton."""
LIMIT_S = 0.5
"""Of this process's work, which is five times what is promised; how long a busy machine lets it wait is not counted."""


@pytest.mark.parametrize(
    ("wanted", "records"),
    [
        ("(a+)+c$", 4),
        ("(a|a)*ca", 4),
        ("(.*)*(.*)*x", 4),
        ("a[ab]{11}c", 4),
        ("[ab]*a[ab]{200}c", 0),
        ("(?:a?){300}(?:[ab]{1,300})c", 0),
        ("(?s)a.{90}c", 0),
        ("$.a", 4),
        ("no such text", 4),
        ("kein süßer text", 4),
    ],
)
def test_no_filter_makes_the_broker_slow(wire: Wire, wanted: str, records: int) -> None:
    """Records of 1 MiB: as many as one request looks at, or none of them."""
    for _ in range(4):
        wire.good(produce("t", A_AND_B))
    began = time.process_time()
    answer = wire.ask(fetch("t", 0, 0, 100, wanted))
    assert time.process_time() - began < LIMIT_S
    if records:
        assert fetched(answer.payload) == ([], records)
    else:
        assert answer.text.startswith("the record at offset 0 has 1048576 bytes, this filter is tried on at most ")
        assert answer.text.endswith("; next is 1")


@pytest.mark.parametrize(
    "wanted", ["no such text", "$.a", "$.b.c", "a[ab]{11}c", "kein süßer text", "[ab]*a[ab]{200}c"]
)
def test_the_largest_record_makes_the_broker_no_slower(wire: Wire, wanted: str) -> None:
    wire.good(produce("t", b'{"b":[' + b"{}," * 11_000_000 + b"{}]}"))
    began = time.process_time()
    wire.ask(fetch("t", 0, 0, 10, wanted))
    assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize(
    ("wanted", "bytes_max"), [("a[ab]{11}c", 4_194_304), ("süß", 4_194_304), ("a[ab]{193}c", 4_000_000 // 199)]
)
def test_a_record_that_is_too_large_for_a_filter_hides_none_before_it(wire: Wire, wanted: str, bytes_max: int) -> None:
    """The largest that is tried, and one byte more: the records before it, then an error, and what is behind it."""
    for value in (b"a" * 199 + b"c", "SÜẞ".encode(), b"x" * bytes_max, b"x" * (bytes_max + 1), b"last"):
        wire.good(produce("t", value))
    at = 0
    while at < 3:
        _, at = fetched(wire.good(fetch("t", 0, at, 10, wanted)))
    assert at == 3
    text = f"the record at offset 3 has {bytes_max + 1} bytes, this filter is tried on at most {bytes_max}; next is 4"
    assert wire.ask(fetch("t", 0, 3, 10, wanted)).text == text
    assert fetched(wire.good(fetch("t", 0, 4, 10, wanted))) == ([], 5)


def test_text_is_found_in_a_record_that_is_too_large_for_it_as_an_expression(wire: Wire) -> None:
    wire.good(produce("t", b"x" * 60_000 + b"A[AB]{193}C"))
    assert fetched(wire.good(fetch("t", 0, 0, 10, "a[ab]{193}c")))[1] == 1


def test_an_expression_has_at_most_2000_instructions(wire: Wire) -> None:
    wire.good(produce("t", b"x" * 994))
    for fits in ("(?:x?){994}y", "x{994}", "\\pL+x"):
        assert wire.ask(fetch("t", 0, 0, 1, fits)).opcode == 0x07
    for beyond in ("(?:x?){999}y", "\\pL{30}", "\\pL{100}"):
        assert wire.ask(fetch("t", 0, 0, 1, beyond)).text == "a filter's expression has at most 2000 instructions"


def test_deeply_nested_json_is_no_match_and_no_crash(wire: Wire) -> None:
    wire.good(produce("t", b'{"a":' * 50_000))
    wire.good(produce("t", b"[" * 50_000))
    assert fetched(wire.good(fetch("t", 0, 0, 10, "$.a")))[0] == []


def test_a_filter_has_at_most_1024_bytes(wire: Wire) -> None:
    wire.good(produce("t", b"v"))
    assert wire.ask(fetch("t", 0, 0, 1, "x" * 1_024)).opcode == 0x07
    assert wire.ask(fetch("t", 0, 0, 1, "x" * 1_025)).text == "a filter has at most 1024 bytes"


def test_a_path_has_at_most_32_names(wire: Wire) -> None:
    names = FLYMQ_PATH_NAMES_MAX
    wire.good(produce("t", b'{"a":' * names + b"1" + b"}" * names))
    found, _ = fetched(wire.good(fetch("t", 0, 0, 1, "$" + ".a" * names)))
    assert len(found) == 1
    assert wire.ask(fetch("t", 0, 0, 1, "$" + ".a" * (names + 1))).text == f"a path has at most {names} names"


# ---- SUBSCRIBE ----------------------------------------------------------------------------------------------------


def subscribe(topic: str, group: str, partition: int, mode: str) -> bytes:
    return op(0x05, s(topic) + s(group) + i32(partition) + s8(mode))


def test_subscribe_says_where_to_begin(broker: Broker, wire: Wire) -> None:
    make(wire, "t", 2)
    for mode in ("earliest", "latest", "", "commit"):
        assert wire.good(subscribe("t", "g", 1, mode)) == u64(0)  # an empty partition has no record to miss
    for at in range(5):
        wire.good(produce("t", b"%d" % at, partition=0))
    assert wire.good(subscribe("t", "g", 0, "latest")) == u64(5)
    assert wire.good(subscribe("t", "g", 0, "")) == u64(5)
    assert wire.good(subscribe("t", "g", 0, "earliest")) == u64(0)
    assert wire.good(subscribe("t", "g", 0, "commit")) == u64(0)
    wire.good(op(0x06, s("t") + s("g") + i32(0) + u64(3)))
    assert wire.good(subscribe("t", "g", 0, "commit")) == u64(3)
    broker.delete_records("t", 0, 2)
    assert wire.good(subscribe("t", "g", 0, "earliest")) == u64(2)
    assert wire.good(subscribe("t", "other", 0, "commit")) == u64(2)


def test_a_connection_has_at_most_the_allowed_subscriptions(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flymq_session.SUBSCRIPTIONS_MAX == 10_000
    monkeypatch.setattr(flymq_session, "SUBSCRIPTIONS_MAX", 2)
    make(wire, "t", 1)
    for group in ("a", "b", "a"):
        assert wire.good(subscribe("t", group, 0, "")) == u64(0)
    assert wire.ask(subscribe("t", "c", 0, "")).text == "a connection has at most 2 subscriptions"


def test_a_filtered_fetch_looks_at_4_mib_and_says_where_it_stopped(wire: Wire) -> None:
    value = b"x" * (1 << 20)
    for _ in range(5):
        wire.good(produce("t", value))
    rows, next_offset = fetched(wire.good(fetch("t", 0, 0, 10, "nowhere")))
    assert (rows, next_offset) == ([], 4)
    rows, next_offset = fetched(wire.good(fetch("t", 0, next_offset, 10, "nowhere")))
    assert (rows, next_offset) == ([], 5)


def test_subscribe_says_what_is_wrong(wire: Wire) -> None:
    assert wire.ask(subscribe("t", "g", 0, "latest")).text == "topic not found: t"
    make(wire, "t", 1)
    for partition in (1, -1):
        assert wire.ask(subscribe("t", "g", partition, "latest")).text == f"partition {partition} not found"
    assert wire.ask(subscribe("t", "g", 0, "sideways")).text == "unknown subscribe mode: sideways"
    assert wire.ask(subscribe("t", "", 0, "latest")).text == "a group name has 1 to 255 bytes"
    assert wire.ask(subscribe("t", "a\nb", 0, "latest")).text == "a group name has no control characters"
    assert wire.ask(op(0x05, s("t") + s("g") + i32(0))).text == "buffer too small"


# ---- everything else ----------------------------------------------------------------------------------------------

SERVED = {*range(0x01, 0x0C), *range(0x40, 0x44), 0x53, *range(0x60, 0x66), 0x70, 0x72}


def test_every_other_opcode_is_a_coded_error_and_the_connection_stays(wire: Wire) -> None:
    others = [opcode for opcode in range(256) if opcode not in SERVED]
    wire.send(b"".join(op(opcode, b"anything") for opcode in others))
    for opcode in others:
        assert wire.answer() == (0xFF, 1, i32(1) + s(f"unknown opcode: {opcode}"))
    wire.send(op(0x09, s("nothing")))
    assert wire.exactly(9) == op(0x09, b"\x01")


def test_auth_without_security_is_a_coded_error(wire: Wire) -> None:
    """It takes the original down."""
    wire.send(op(0x70, s("admin") + s("secret")))
    assert wire.exactly(len(coded("security is not switched on"))) == coded("security is not switched on")
    assert wire.ask(op(0x70)).opcode == 0xFF


@pytest.mark.parametrize("payload", [b"", b"anything"])
def test_whoami_without_security_answers_that_nobody_logged_in(wire: Wire, payload: bytes) -> None:
    nobody = b"\x00" + s("") + i32(0) + s("")
    wire.send(op(0x72, payload) * 2)
    assert [wire.answer(), wire.answer()] == [(0x72, 1, nobody)] * 2


def test_flags_without_the_binary_bit_are_accepted(wire: Wire) -> None:
    assert Metadata.of(wire.ask(op(0x01, produce_payload("t", b"v"), 0)).payload).offset == 0
    assert wire.ask(op(0x08, b"", 0)) == (0x08, 1, i32(1) + s("t"))


def test_trailing_bytes_are_ignored(wire: Wire) -> None:
    wire.send(op(0x01, produce_payload("t", b"v") + b"more") * 3 + op(0x02, s("t") + i32(0) + u64(1) + b"more"))
    assert [Metadata.of(wire.answer().payload).offset for _ in range(3)] == [0, 1, 2]
    assert wire.answer().payload == b(b"") + b(b"v")
