"""The document's API-key frames: Produce, Fetch, ListOffsets, Metadata, errors, and streams, on a real socket."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from penstock.broker.engine import NewTopic
from penstock.dialects.flymq import reading
from penstock.dialects.flymq.batches import UNPACKED_OBJECTS_MAX
from penstock.dialects.flymq.placing import fnv1a
from penstock.model.errors import Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.records.builder import NewRecord
from penstock.records.record import Headers
from tests.dialects.flymq.broker import (
    Broker,
    Fields,
    Wire,
    api,
    api_fetch_payload,
    api_produce,
    arr,
    b,
    batch,
    consume,
    fetched,
    i32,
    i64,
    message,
    op,
    produce,
    s,
    u64,
)


def placed(payload: bytes) -> list[tuple[int, int]]:
    fields = Fields(payload)
    found = fields.array(lambda: (fields.number("i"), fields.number("q")))
    fields.end()
    return found


def make(wire: Wire, topic: str, partitions: int = 1) -> None:
    wire.good(op(0x03, s(topic) + i32(partitions)))


# ---- frames -------------------------------------------------------------------------------------------------------


def test_a_conversation_byte_for_byte(wire: Wire) -> None:
    wire.send(
        bytes.fromhex(
            "00000043 0000 0000 0004 74657374 ffffffff 0000000000000000 00000000 00 00000024"
            "00000020 00000001 6b 00000005 68656c6c6f 00000001 0001 61 0001 62 0000018bcfe56800"
        )
    )
    assert wire.exactly(26) == bytes.fromhex("00000016 0000 0000 0000 00000001 00000000 0000000000000000")
    wire.send(bytes.fromhex("00000022 0001 0000 0004 74657374 00000000 0000000000000000 00100000 00000000 00000000"))
    assert wire.exactly(75) == bytes.fromhex(
        "00000047 0001 0000 0000 0000000000000001 00000001 0000000000000000 00000000 00 00000024"
        "00000020 00000001 6b 00000005 68656c6c6f 00000001 0001 61 0001 62 0000018bcfe56800"
    )


@pytest.mark.parametrize("key", [4, 5, 7, 15, 100, -1, -(2**15), 2**15 - 1])
@pytest.mark.parametrize("version", [0, 1])
def test_an_unknown_key_is_error_35_and_the_connection_stays(wire: Wire, key: int, version: int) -> None:
    answer = wire.api(key, b"anything", version, 7)
    assert answer[:4] == (key, version, 7 if version else None, 35)
    assert answer.text == f"API key {key} is not known"
    assert wire.api(3, arr()).error == 0


@pytest.mark.parametrize("version", [2, -1, 2**15 - 1])
def test_an_unknown_version_is_error_35_and_the_connection_stays(wire: Wire, version: int) -> None:
    wire.send(api(3, arr(), version))
    answer = wire.api_answer()
    assert answer[:4] == (3, version, None, 35)
    assert answer.text == "that version of the request is not supported"
    assert wire.api(3, arr()).error == 0


@pytest.mark.parametrize("frame", [b"", b"\0", b"\0\3\0"])
def test_a_frame_without_room_for_key_and_version_is_error_42(wire: Wire, frame: bytes) -> None:
    wire.send(b(frame))
    assert wire.api_answer()[:4] == (-1, 0, None, 42)
    assert wire.api(3, arr()).error == 0


@pytest.mark.parametrize("size", range(4))
def test_version_1_without_room_for_a_stream_is_error_42(wire: Wire, size: int) -> None:
    wire.send(b(struct.pack(">hh", 3, 1) + b"\0" * size))
    assert wire.api_answer()[:4] == (3, 1, 0, 42)
    assert wire.api(3, arr()).error == 0


def test_every_request_that_is_cut_short_is_error_42(wire: Wire) -> None:
    make(wire, "t")
    payloads = {
        0: s("t") + i32(0) + batch(message(b"v", b"k", {"a": "b"})),
        1: api_fetch_payload("t", 0, 0),
        2: s("t") + i32(0) + i64(-1),
        3: arr(s("t")),
        8: s("g") + i32(-1) + s("") + arr(s("t") + i32(0) + i64(1) + s("m")),
        9: s("g") + arr(s("t") + i32(0)),
        10: s("g"),
        11: s("g") + s("") + i32(10_000) + i32(10_000) + s("range") + arr(s("t")),
        12: s("g") + i32(1) + s("m"),
        13: s("g") + s("m"),
        14: s("g") + i32(1) + s("m"),
    }
    for key, payload in payloads.items():
        for cut in range(len(payload)):
            answer = wire.api(key, payload[:cut])
            assert (answer.key, answer.error) == (key, 42), (key, cut, answer)
            assert answer.text == "buffer too small"
    assert wire.api(0, payloads[0] + b"trailing bytes are ignored").error == 0


def test_frames_split_at_every_byte_are_whole_again(wire: Wire) -> None:
    make(wire, "t")
    data = api_produce("t", 0, message(b"v")) + api(1, api_fetch_payload("t", 0, 0, 1), 1, 9)
    for cut in range(1, len(data)):
        wire.send(data[:cut])
        wire.send(data[cut:])
        assert wire.api_answer()[:4] == (0, 0, None, 0)
        assert wire.api_answer()[:4] == (1, 1, 9, 0)
    for byte in data:
        wire.send(bytes([byte]))
    assert [wire.api_answer().key for _ in range(2)] == [0, 1]


def test_the_largest_frame_is_taken_and_a_byte_more_closes(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=1_000_000) as broker, broker.connect() as wire:
        empty = len(api_produce("t", 0, message(b""))) - 4
        wire.send(api_produce("t", 0, message(b"\0" * (1_000_000 - empty))))
        assert placed(wire.api_answer().payload) == [(0, 0)]
        wire.send(api(3, arr()) + struct.pack(">I", 1_000_001))
        assert wire.api_answer().error == 0
        assert wire.is_closed_by_peer() == b""


def test_both_kinds_of_frames_share_a_connection(wire: Wire) -> None:
    wire.send(
        produce("t", b"first") + api_produce("t", 0, message(b"second")) + produce("t", b"third") + consume("t", 0, 1)
    )
    assert wire.answer().opcode == 1
    assert placed(wire.api_answer().payload) == [(0, 1)]
    assert wire.answer().opcode == 1
    assert wire.answer().payload == b(b"") + b(b"second")


def test_the_table_of_errors_is_total_and_has_no_two_faults_with_one_code() -> None:
    assert CODES.keys() == set(Fault)
    assert len(set(CODES.values())) == len(CODES)
    assert all(-(2**15) <= code < 2**15 for code in CODES.values())


# ---- Produce ------------------------------------------------------------------------------------------------------

PACKERS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (0, lambda data: data),
    (1, lz4.frame.compress),
    (2, lambda data: bytes(snappy.compress_raw(data))),
    (3, lambda data: zstandard.ZstdCompressor().compress(data)),
    (4, gzip.compress),
]


@pytest.mark.parametrize(("compression", "pack"), PACKERS)
@pytest.mark.parametrize("version", [0, 1])
def test_batches_of_every_compression_come_back(
    wire: Wire, compression: int, pack: Callable[[bytes], bytes], version: int
) -> None:
    messages = [message(b"value" * 20, b"k%d" % at, {"a": "1", "b": "é"}, 1_700_000_000_000 + at) for at in range(50)]
    payload = s("t") + i32(0) + batch(*messages, compression=compression, packed=pack(b"".join(messages)))
    answer = wire.api(0, payload, version, 3)
    assert answer.error == 0, answer
    assert placed(answer.payload) == [(0, at) for at in range(50)]
    high_watermark, found = fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))
    assert high_watermark == 50
    assert found == [(at, b"k%d" % at, b"value" * 20, {"a": "1", "b": "é"}, 1_700_000_000_000 + at) for at in range(50)]


def test_damaged_and_unknown_compression_are_errors(wire: Wire) -> None:
    for compression in (1, 2, 3, 4):
        answer = wire.api(0, s("t") + i32(0) + batch(compression=compression, packed=b"\x01damaged"))
        assert answer.error == 2
    answer = wire.api(0, s("t") + i32(0) + batch(compression=5, packed=b""))
    assert (answer.error, answer.text) == (76, "compression 5 is not known; 0 to 4 are")
    for compression, pack in PACKERS:
        answer = wire.api(0, s("t") + i32(0) + batch(compression=compression, packed=pack(b"")))
        assert (answer.error, answer.text) == (87, "a batch has at least one message"), compression


def test_what_a_batch_unpacks_to_is_bounded(tmp_path: Path) -> None:
    with Broker(tmp_path, frame_bytes_max=100_000) as broker, broker.connect() as wire:
        fits = message(b"\0" * (100_000 - 24))
        assert len(fits) == 100_000
        for compression, pack in PACKERS[1:]:
            whole = s("t") + i32(0) + batch(compression=compression, packed=pack(fits))
            assert wire.api(0, whole).error == 0
            bomb = s("t") + i32(0) + batch(compression=compression, packed=pack(message(b"\0" * 100_000)))
            assert wire.api(0, bomb).error == 2


@pytest.mark.parametrize("too_many", [0, 1])
def test_messages_and_headers_of_a_compressed_batch_are_limited(wire: Wire, too_many: int) -> None:
    with_headers = message(b"v", headers={f"h{at}": "" for at in range(999)})
    messages = with_headers + message(b"v") * (UNPACKED_OBJECTS_MAX - 1_000 + too_many)
    for compression, pack in PACKERS[1:]:
        answer = wire.api(0, s("t") + i32(0) + batch(compression=compression, packed=pack(messages)))
        assert answer.error == (87 if too_many else 0)


@pytest.mark.parametrize("count", [-1, -(2**31), 10_001, 2**31 - 1])
def test_a_wrong_number_of_headers_is_refused(wire: Wire, count: int) -> None:
    data = b(b(b"k") + b(b"v") + i32(count) + b"\0" * 50)
    answer = wire.api(0, s("t") + i32(0) + batch(data))
    assert answer.error == 87
    assert answer.text == f"{count} headers, 0 to 10000 are allowed"


def test_ten_thousand_headers_are_kept(wire: Wire) -> None:
    headers = {f"h{at}": "" for at in range(10_000)}
    assert wire.api(0, s("t") + i32(0) + batch(message(b"v", headers=headers))).error == 0
    _, [found] = fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))
    assert found.headers == headers


def test_a_fetch_has_at_most_ten_thousand_records_and_the_next_goes_on(wire: Wire) -> None:
    for _ in range(2):
        assert wire.api(0, s("t") + i32(0) + batch(*[message(b"")] * 5_001)).error == 0
    _, first = fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))
    assert [first[0].offset, first[-1].offset] == [0, 9_999]
    _, rest = fetched(wire.api_good(1, api_fetch_payload("t", 0, 10_000)))
    assert [found.offset for found in rest] == [10_000, 10_001]


def test_timestamps_are_kept_and_none_is_the_time_of_the_append(wire: Wire) -> None:
    before = time.time_ns() // 1_000_000
    stamps = [1, 0, -5, 1_700_000_000_000, 1_700_000_000_000, 5, before + 60_000]
    wire.send(b"".join(api_produce("t", 0, message(b"v", timestamp=stamp)) for stamp in stamps))
    wire.send(api(0, s("t") + i32(0) + batch(*(message(b"v", timestamp=stamp) for stamp in stamps))))
    for _ in range(len(stamps) + 1):
        assert wire.api_answer().error == 0
    _, found = fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))
    now = time.time_ns() // 1_000_000
    for row, stamp in zip(found, stamps * 2, strict=True):
        assert row.timestamp == stamp if stamp > 0 else before <= row.timestamp <= now


@pytest.mark.parametrize("headers", [{}, {"name": "value"}])
def test_a_timestamp_that_the_topic_does_not_take_refuses_its_own_produce_alone(
    wire: Wire, headers: dict[str, str]
) -> None:
    now = time.time_ns() // 1_000_000
    stamps = [now, now + 1, 2**62, now + 2, 2**62, now, now, 0]
    wire.send(b"".join(api_produce("t", 0, message(b"v", b"", headers, stamp)) for stamp in stamps))
    assert [wire.api_answer().error for _ in stamps] == [32 if stamp == 2**62 else 0 for stamp in stamps]
    _, found = fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))
    assert [row.timestamp for row in found[:-1]] == [now, now + 1, now + 2, now, now]
    assert len(found) == 6
    assert wire.api(0, s("t") + i32(0) + batch(message(b"v", b"", headers, 2**62))).error == 32


@pytest.mark.parametrize("compression", [0, 4])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("headers", [{}, {"name": "value"}])
def test_a_produce_that_is_refused_is_not_written_in_part(
    wire: Wire, compression: int, partitions: int, headers: dict[str, str]
) -> None:
    """One message of it is against the topic's rules; good requests before and behind it in one write are not refused."""
    make(wire, "t", partitions)
    now = time.time_ns() // 1_000_000
    late = [message(b"bad", b"%d" % at, headers, stamp) for at, stamp in enumerate([now, now + 3_700_000, now + 1, 0])]
    good = [message(b"good", b"%d" % at, headers, now + at) for at in range(4)]

    def frame(messages: list[bytes]) -> bytes:
        packed = gzip.compress(b"".join(messages)) if compression else None
        return api(0, s("t") + i32(-1) + batch(*messages, compression=compression, packed=packed))

    wire.send(frame(good) + frame(late) + frame(good) + frame(late))
    assert [wire.api_answer().error for _ in range(4)] == [0, 32, 0, 32]
    values = []
    for partition in range(partitions):
        _, found = fetched(wire.api_good(1, api_fetch_payload("t", partition, 0)))
        values += [row.value for row in found]
    assert values == [b"good"] * 8


def test_a_batch_with_a_message_without_a_key_is_not_written_in_part_to_a_compacted_topic(
    broker: Broker, wire: Wire
) -> None:
    topic = NewTopic("t", 3, configs={"cleanup.policy": "compact"})
    broker.call(lambda: broker.engine.create_topics([topic], validate_only=False))
    mixed = api_produce("t", -1, message(b"v", b"a"), message(b"v", timestamp=5), message(b"v", b"b", timestamp=9))
    good = api_produce("t", -1, message(b"v", b"a"), message(b"v", b"b"))
    wire.send(mixed + good + mixed)
    assert [wire.api_answer().error for _ in range(3)] == [87, 0, 87]
    found = [fetched(wire.api_good(1, api_fetch_payload("t", at, 0)))[1] for at in range(3)]
    assert sum(map(len, found)) == 2


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("stamps", [(0, 0, 0, 0), (0, 5, 0, 7)])
def test_a_produce_without_a_key_to_a_compacted_topic_refuses_no_other(
    broker: Broker, wire: Wire, partitions: int, stamps: tuple[int, ...]
) -> None:
    topic = NewTopic("t", partitions, configs={"cleanup.policy": "compact"})
    broker.call(lambda: broker.engine.create_topics([topic], validate_only=False))
    keys = [b"a", b"", b"b", b""]
    pairs = list(zip(keys, stamps, strict=True))
    wire.send(b"".join(produce("t", b"v", key) for key in keys))
    assert [wire.answer().opcode for _ in keys] == [0x01, 0xFF, 0x01, 0xFF]
    wire.send(b"".join(api_produce("t", -1, message(b"v", key, timestamp=stamp)) for key, stamp in pairs))
    assert [wire.api_answer().error for _ in keys] == [0, 87, 0, 87]
    wire.send(b"".join(produce("t", b"v") for _ in range(3)))
    assert [wire.answer().text for _ in range(3)] == ["a record of a compacted topic needs a key"] * 3
    found = [fetched(wire.api_good(1, api_fetch_payload("t", at, 0)))[1] for at in range(partitions)]
    assert sorted(row.key for rows in found for row in rows) == [b"a", b"a", b"b", b"b"]


def test_pipelined_produces_of_every_shape_are_answered_in_order(wire: Wire) -> None:
    """Bare runs, keys, headers, several messages, changing timestamps and topics, in one write."""
    frames, expected = [], []
    ends: dict[str, int] = {}
    stored: dict[str, list[tuple[bytes, bytes, dict[str, str], int]]] = {"a": [], "b": []}
    for at in range(400):
        topic = "ab"[at // 11 % 2]
        rows = []
        for more in range(1 if at % 10 else 3):
            headers = {"n": str(at)} if at % 17 == 3 else {}
            rows.append((b"k" * (at % 4 == 1), b"v%d-%d" % (at, more), headers, 1_000 + at // 20))
        frames.append(api_produce(topic, 0, *(message(v, k, h, t) for k, v, h, t in rows)))
        first = ends.get(topic, 0)
        expected.append([(0, first + more) for more in range(len(rows))])
        ends[topic] = first + len(rows)
        stored[topic] += rows
    wire.send(b"".join(frames))
    for row in expected:
        answer = wire.api_answer()
        assert answer.error == 0, answer
        assert placed(answer.payload) == row
    for topic, rows in stored.items():
        _, found = fetched(wire.api_good(1, api_fetch_payload(topic, 0, 0)))
        assert [message[1:] for message in found] == rows


def test_a_bad_frame_between_good_ones_is_answered_in_its_place(wire: Wire) -> None:
    good = api_produce("t", 0, message(b"v"))
    bad = api(0, s("t") + i32(0) + batch(b(b"too short")))
    wire.send(good * 3 + bad * 2 + good + bad + good * 2)
    errors = [wire.api_answer().error for _ in range(9)]
    assert errors == [0, 0, 0, 42, 42, 0, 42, 0, 0]
    assert fetched(wire.api_good(1, api_fetch_payload("t", 0, 0)))[0] == 6


def test_a_frame_that_differs_in_its_number_of_headers_only_is_not_taken_for_the_one_before(wire: Wire) -> None:
    good = api_produce("t", 0, message(b"v", timestamp=2))
    at = len(good) - 12
    assert good[at : at + 4] == i32(0)
    wire.send(good * 2 + good[:at] + i32(1) + good[at + 4 :] + good)
    assert [wire.api_answer().error for _ in range(4)] == [0, 0, 42, 0]


def test_a_batch_is_spread_by_key_and_by_turns(wire: Wire) -> None:
    make(wire, "t", 3)
    keys = [b"a", b"", b"c", b"", b"b", b"", b"a", b""]
    answer = wire.api_good(0, s("t") + i32(-1) + batch(*(message(b"%d" % at, key) for at, key in enumerate(keys))))
    turns = iter([0, 1, 2, 0])
    partitions = [fnv1a(key) % 3 if key else next(turns) for key in keys]
    ends = [0, 0, 0]
    expected = []
    for partition in partitions:
        expected.append((partition, ends[partition]))
        ends[partition] += 1
    assert placed(answer) == expected
    for at, (partition, offset) in enumerate(expected):
        _, found = fetched(wire.api_good(1, api_fetch_payload("t", partition, offset, 1)))
        assert found[0].value == b"%d" % at


def test_produce_says_what_does_not_exist(wire: Wire) -> None:
    make(wire, "t", 2)
    for frame in (api_produce("t", 2, message(b"v")), api_produce("t", 2, message(b"v", headers={"a": "b"}))):
        wire.send(frame)
        assert wire.api_answer().error == 3
    for partition in (-2, -7, -(2**31)):
        for topic in ("t", "new"):
            wire.send(api_produce(topic, partition, message(b"v")))
            wire.send(api_produce(topic, partition, message(b"v"), message(b"v")))
            assert [wire.api_answer().error for _ in range(2)] == [3, 3]
    assert wire.api(0, s("new") + i32(5) + batch(message(b"v"))).error == 3
    assert wire.api(0, s("a/b") + i32(-1) + batch(message(b"v"))).error == 17
    assert wire.api(0, s("__consumer_offsets") + i32(0) + batch(message(b"v"))).error == 17
    assert wire.api(0, s(b"\xff") + i32(0) + batch(message(b"v"))).error == 42
    assert wire.good(op(0x08)) == i32(1) + s("t")


def test_a_produce_makes_its_topic_and_what_is_behind_it_waits(wire: Wire) -> None:
    wire.send(
        b"".join(api_produce("t", -1, message(b"%d" % at)) for at in range(20))
        + api_produce("t", 0, message(b"h", headers={"a": "b"}))
        + api(2, s("t") + i32(0) + i64(-1))
    )
    assert [placed(wire.api_answer().payload)[0][1] for _ in range(21)] == list(range(21))
    assert wire.api_answer().payload == i64(21) + i64(-1)


def test_no_topic_is_made_where_the_listener_says_so(tmp_path: Path) -> None:
    with Broker(tmp_path, creates_topics=False) as broker, broker.connect() as wire:
        answer = wire.api(0, s("t") + i32(-1) + batch(message(b"v")))
        assert (answer.error, answer.text) == (3, "topic not found: t")


# ---- Fetch --------------------------------------------------------------------------------------------------------


def test_fetch_gives_at_least_one_record_and_no_more_than_fit(wire: Wire) -> None:
    wire.api_good(0, s("t") + i32(0) + batch(*(message(b"v" * 1_000) for _ in range(20))))
    for most, count in (
        (0, 1),
        (-1, 1),
        (1, 1),
        (1_000, 1),
        (17 + 2 * 1_024, 2),
        (17 + 3 * 1_024 - 1, 2),
        (1 << 20, 20),
    ):
        payload = wire.api_good(1, api_fetch_payload("t", 0, 0, most))
        assert len(fetched(payload)[1]) == count, most
    assert [row.offset for row in fetched(wire.api_good(1, api_fetch_payload("t", 0, 18)))[1]] == [18, 19]
    assert fetched(wire.api_good(1, api_fetch_payload("t", 0, 20))) == (20, [])


def test_fetch_says_what_is_wrong(broker: Broker, wire: Wire) -> None:
    assert wire.api(1, api_fetch_payload("t", 0, 0)).error == 3
    make(wire, "t")
    for partition in (1, -1):
        assert wire.api(1, api_fetch_payload("t", partition, 0)).error == 3
    for offset in (1, -1, -(2**63), 2**63 - 1):
        assert wire.api(1, api_fetch_payload("t", 0, offset)).error == 1
        assert wire.api(1, api_fetch_payload("t", 0, offset, 1, 1, 60_000)).error == 1  # at once
    broker.append("t", 0, NewRecord(1, b"", b"v"), NewRecord(1, b"", b"v"))
    broker.delete_records("t", 0, 1)
    assert wire.api(1, api_fetch_payload("t", 0, 0)).error == 1


def test_gaps_between_offsets_begin_a_new_batch(broker: Broker, wire: Wire) -> None:
    """The markers of a transaction take offsets that no reader sees."""
    for _ in range(2):
        name = Fields(wire.good(op(0x40))).s()
        wire.good(op(0x43, s(name) + s("t") + b(b"v")))
        wire.good(op(0x41, s(name)))
    wire.good(produce("t", b"w"))
    payload = wire.api_good(1, api_fetch_payload("t", 0, 0))
    high_watermark, found = fetched(payload)
    assert high_watermark == 5
    assert [(row.offset, row.value) for row in found] == [(0, b"v"), (2, b"v"), (4, b"w")]
    assert Fields(payload[8:]).number("I") == 3


def test_null_and_binary_fields_of_others_are_sent_as_they_are(broker: Broker, wire: Wire) -> None:
    make(wire, "t")
    broker.append("t", 0, NewRecord(9, None, None, (("n", None), ("e", b""))))
    broker.append("t", 0, NewRecord(9, b"k", b"v", (("bin", b"\xff\x00"),)))
    payload = wire.api_good(1, api_fetch_payload("t", 0, 0))
    assert s("bin") + s(b"\xff\x00") in payload
    assert s("n") + s("") + s("e") + s("") in payload


@pytest.mark.parametrize("limit", [2_000, 3_000_000])
@pytest.mark.parametrize(("version", "head"), [(0, 6), (1, 10)])
@pytest.mark.parametrize("headers", [(), (("h", b"text"),)])
def test_the_largest_record_that_fits_the_answer_of_a_fetch_comes_and_one_byte_more_is_error_10(
    tmp_path: Path, version: int, head: int, limit: int, headers: Headers
) -> None:
    with Broker(tmp_path, frame_bytes_max=limit) as broker, broker.connect() as wire:
        make(wire, "t")
        beside = head + 8 + 4 + 17 + 4 + 20 + sum(4 + len(name) + len(value or b"") for name, value in headers)
        value = b"x" * (limit - beside)
        broker.append("t", 0, NewRecord(9, b"", value, headers))
        broker.append("t", 0, NewRecord(9, b"", value + b"x", headers))
        broker.append("t", 0, NewRecord(9, b"", b"last", headers))
        for most in (1, limit, 2**31 - 1):
            answer = wire.api(1, api_fetch_payload("t", 0, 0, most), version)
            assert len(answer.payload) == limit - head
            assert [(row.offset, row.value) for row in fetched(answer.payload)[1]] == [(0, value)]
            answer = wire.api(1, api_fetch_payload("t", 0, 1, most), version)
            assert answer.error == 10
            assert answer.text == f"the record at offset 1 has {limit + 1} bytes, a frame holds {limit}"
        assert fetched(wire.api_good(1, api_fetch_payload("t", 0, 2)))[1][0].value == b"last"


@pytest.mark.parametrize("header", [("h", b"x" * 65_536), ("h" * 65_536, b"")])
def test_a_header_that_does_not_fit_hides_no_record_before_it(
    broker: Broker, wire: Wire, header: tuple[str, bytes]
) -> None:
    make(wire, "t")
    good = [NewRecord(9, b"", b"%d" % at, (("h", b"x" * 65_535),)) for at in range(3)]
    broker.append("t", 0, *good, NewRecord(9, b"", b"3", (header,)), NewRecord(9, b"", b"4"))
    for first in range(3):
        _, found = fetched(wire.api_good(1, api_fetch_payload("t", 0, first)))
        assert [row.offset for row in found] == list(range(first, 3))
    answer = wire.api(1, api_fetch_payload("t", 0, 3))
    assert (answer.error, answer.text) == (10, "the record at offset 3 has a header of more than 65535 bytes")
    assert [row.value for row in fetched(wire.api_good(1, api_fetch_payload("t", 0, 4)))[1]] == [b"4"]


@pytest.mark.parametrize("version", [0, 1])
def test_a_fetch_waits_for_data_and_no_longer_than_it_may(broker: Broker, wire: Wire, version: int) -> None:
    make(wire, "t")
    began = time.monotonic()
    assert fetched(wire.api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 50), version, 1).payload) == (0, [])
    assert time.monotonic() - began >= 0.045
    wire.send(api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 60_000), version, 1))
    partition = broker.call(lambda: broker.engine.partition("t", 0))
    broker.until(lambda: partition.data_waiters)
    broker.append("t", 0, NewRecord(1, b"", b"came"))
    assert [row.value for row in fetched(wire.api_answer().payload)[1]] == [b"came"]
    assert not broker.call(lambda: partition.data_waiters)


def test_a_fetch_waits_no_longer_than_the_broker_allows(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    make(wire, "t")
    monkeypatch.setattr(reading, "WAIT_MS_MAX", 50)
    assert fetched(wire.api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 2**31 - 1), 0, 1).payload) == (0, [])


def test_min_bytes_are_waited_for(broker: Broker, wire: Wire) -> None:
    make(wire, "t")
    wire.send(api(1, api_fetch_payload("t", 0, 0, 1 << 20, 2_000, 60_000)))
    partition = broker.call(lambda: broker.engine.partition("t", 0))
    broker.until(lambda: partition.data_waiters)
    broker.append("t", 0, NewRecord(1, b"", b"x" * 100))
    assert broker.call(lambda: len(partition.data_waiters)) == 1
    broker.append("t", 0, NewRecord(1, b"", b"x" * 2_000))
    assert len(fetched(wire.api_answer().payload)[1]) == 2


def test_a_waiting_fetch_is_forgotten_when_its_connection_goes(broker: Broker) -> None:
    with broker.connect() as wire:
        make(wire, "t")
        wire.send(api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 60_000)))
        partition = broker.call(lambda: broker.engine.partition("t", 0))
        broker.until(lambda: partition.data_waiters)
    broker.until(lambda: not partition.data_waiters)


# ---- streams ------------------------------------------------------------------------------------------------------


def test_a_waiting_fetch_holds_up_its_own_stream_and_no_other(broker: Broker, wire: Wire) -> None:
    make(wire, "t")
    make(wire, "other")
    wire.send(
        api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 60_000), 1, 7)
        + api(2, s("t") + i32(0) + i64(-2), 1, 7)
        + api_produce("other", 0, message(b"v"), version=1, stream=8)
        + api(3, arr(), 1, 0)
        + api(10, s("g"), 0)
        + op(0x08)
    )
    assert wire.api_answer()[:3] == (0, 1, 8)
    assert wire.api_answer()[:3] == (3, 1, 0)
    assert wire.api_answer()[:3] == (10, 0, None)
    assert wire.answer().opcode == 0x08
    wire.send(api_produce("t", 0, message(b"came"), version=1, stream=2**32 - 1))
    answers = [wire.api_answer() for _ in range(3)]
    assert {(answer.key, answer.stream) for answer in answers} == {(0, 2**32 - 1), (1, 7), (2, 7)}
    of_stream_7 = [answer for answer in answers if answer.stream == 7]
    assert [answer.key for answer in of_stream_7] == [1, 2]
    assert fetched(of_stream_7[0].payload)[1][0].value == b"came"


def test_version_0_keeps_the_order_of_requests(broker: Broker, wire: Wire) -> None:
    make(wire, "t")
    wire.send(api(1, api_fetch_payload("t", 0, 0, 1_000, 1, 60_000)) + api(3, arr()) + op(0x08))
    partition = broker.call(lambda: broker.engine.partition("t", 0))
    broker.until(lambda: partition.data_waiters)
    with broker.connect() as other:
        other.send(api_produce("t", 0, message(b"came")))
        assert other.api_answer().error == 0
    assert [wire.api_answer().key, wire.api_answer().key] == [1, 3]
    assert wire.answer().opcode == 0x08


def test_thousands_of_streams_share_a_connection_with_waiting_ones(broker: Broker, wire: Wire) -> None:
    """More requests than may be unanswered at once, while some wait for long."""
    make(wire, "t")
    make(wire, "quiet")
    for stream in range(100):
        wire.send(api(1, api_fetch_payload("quiet", 0, 0, 1_000, 1, 60_000), 1, stream))
    frames = [api(2, s("t") + i32(0) + i64(-1), 1, 1_000 + at % 1_500) for at in range(3_000)]
    wire.send(b"".join(frames))
    seen = [wire.api_answer().stream for _ in range(3_000)]
    assert sorted(seen) == sorted(1_000 + at % 1_500 for at in range(3_000))
    broker.append("quiet", 0, NewRecord(1, b"", b"v"))
    assert sorted(wire.api_answer().stream for _ in range(100)) == list(range(100))


def test_a_stream_that_makes_a_topic_keeps_its_order(wire: Wire) -> None:
    wire.send(
        api_produce("fresh", 0, message(b"v"), version=1, stream=1)
        + api_produce("fresh", 0, message(b"w"), version=1, stream=1)
        + api(3, arr(), 1, 2)
    )
    answers = sorted((wire.api_answer() for _ in range(3)), key=lambda answer: answer.stream)
    assert [answer.stream for answer in answers] == [1, 1, 2]
    assert [placed(answer.payload) for answer in answers[:2]] == [[(0, 0)], [(0, 1)]]


# ---- ListOffsets and Metadata -------------------------------------------------------------------------------------


def test_list_offsets_finds_both_ends_and_times(broker: Broker, wire: Wire) -> None:
    make(wire, "t")
    broker.append("t", 0, *(NewRecord(1_000 * at, b"", b"v") for at in range(1, 6)))
    broker.delete_records("t", 0, 1)

    def look(timestamp: int) -> tuple[int, int]:
        fields = Fields(wire.api_good(2, s("t") + i32(0) + i64(timestamp)))
        return fields.number("q"), fields.number("q")

    assert look(-2) == (1, -1)
    assert look(-1) == (5, -1)
    assert look(2_500) == (2, 3_000)
    assert look(3_000) == (2, 3_000)
    assert look(9_999) == (-1, -1)
    assert wire.api(2, s("t") + i32(0) + i64(-3)).error == 42
    assert wire.api(2, s("t") + i32(1) + i64(-1)).error == 3
    assert wire.api(2, s("x") + i32(0) + i64(-1)).error == 3


def test_metadata_describes_the_broker_and_the_topics(broker: Broker, wire: Wire) -> None:
    make(wire, "b", 2)
    make(wire, "a")
    wire.good(op(0x06, s("a") + s("g") + i32(0) + u64(1)))

    def described(*names: str) -> tuple[str, list[tuple[int, str, int]], dict[str, tuple[int, list[object]]]]:
        fields = Fields(wire.api_good(3, arr(*map(s, names))))
        cluster = fields.s()
        brokers = fields.array(lambda: (fields.number("i"), fields.s(), fields.number("i")))
        topics = {}

        def partition() -> object:
            ids = fields.number("i"), fields.number("i"), fields.number("i")
            return *ids, fields.array(lambda: fields.number("i")), fields.array(lambda: fields.number("i"))

        for _ in range(fields.number("I")):
            error, name = fields.number("h"), fields.s()
            topics[name] = error, fields.array(partition)
        fields.end()
        return cluster, brokers, topics

    epoch = broker.engine.leader_epoch
    rows = [(at, 0, epoch, [0], [0]) for at in range(2)]
    cluster, brokers, topics = described()
    assert cluster == broker.engine.identity.cluster_id
    assert brokers == [(0, "127.0.0.1", broker.port)]
    assert topics["__consumer_offsets"][0] == 0
    assert list(topics) == ["__consumer_offsets", "a", "b"]
    assert (topics["a"], topics["b"]) == ((0, rows[:1]), (0, rows))
    assert described("b", "nowhere", "a/b")[2] == {"b": (0, rows), "nowhere": (3, []), "a/b": (17, [])}
    assert described("__consumer_offsets")[2]["__consumer_offsets"][0] == 0


def test_large_values_come_whole_and_as_many_as_fit(wire: Wire) -> None:
    sizes = [5, 270_000, 262_144, 800_000, 3]
    for at, size in enumerate(sizes):
        value = (b"%d." % at * size)[:size]
        assert wire.api(0, s("t") + i32(0) + batch(message(value, b"key", timestamp=1_000 + at))).error == 0
    for version in (0, 1):
        offset, seen = 0, []
        while offset < len(sizes):
            answer = wire.api(1, api_fetch_payload("t", 0, offset, 600_000), version=version, stream=version * 7)
            _, found = fetched(answer.payload)
            assert 1 <= len(found) <= 2
            seen += found
            offset = found[-1].offset + 1
        assert [(row.key, len(row.value), row.timestamp) for row in seen] == [
            (b"key", size, 1_000 + at) for at, size in enumerate(sizes)
        ]
        assert all(row.value == (b"%d." % at * len(row.value))[: len(row.value)] for at, row in enumerate(seen))
