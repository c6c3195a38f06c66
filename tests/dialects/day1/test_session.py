"""A Day1 connection as a stream of bytes: limits, pipelining, half frames, order, restarts and what is gone."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.engine import Acks, NewTopic, RunAppended
from penstock.dialects.day1.service import Day1Service
from penstock.dialects.day1.session import COPY_BYTES_MAX, Day1Session, ProduceRun
from penstock.model.errors import Fault
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Hold, gather
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import MarkerKind
from tests.broker.failing_disk import CueDisk
from tests.dialects.day1.conftest import day1
from tests.dialects.day1.frames import EOF, NOTHING, base, error, fetch, frame, items, name, one, produce
from tests.dialects.fluxgo.in_process import (
    RawPeer,
    Serving,
    begin_transaction,
    end_transaction,
    frames_of,
    lines_of,
)

FRAME_BYTES_MAX = 8_388_608


# ---- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_large_closes_without_an_answer(
    peer: RawPeer, topic: str, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    peer.send(one(topic, 0, b"before") + struct.pack(">I", length) + b"\x01")
    assert peer.read() == base(0), "what came before is answered"
    assert peer.rest() == b""
    [line] = lines_of(caplog)
    assert f"a frame of {length} bytes; 8388608 are allowed" in line


def test_the_largest_frame_is_taken(peer: RawPeer, topic: str) -> None:
    overhead = len(one(topic, 0, b"")) - 4
    value = b"v" * (FRAME_BYTES_MAX - overhead)
    assert peer.ask(one(topic, 0, value)) == base(0)
    assert peer.ask(fetch(topic, 0, 0, 2**32 - 1)) == items((0, b"", value))


@pytest.mark.parametrize("short", ["s", "sh", "sho", "shor", "short"])
def test_what_is_taken_can_be_given_back_however_short_the_name(peer: RawPeer, short: str) -> None:
    most = min(FRAME_BYTES_MAX - 18, FRAME_BYTES_MAX - (len(one(short, 0, b"")) - 4))
    for size in range(most - 1, FRAME_BYTES_MAX - (len(one(short, 0, b"")) - 4) + 1):
        value = b"v" * size
        answer = peer.ask(one(short, 0, value))
        if size > most:
            text = f"append error: a record of {size} bytes; an answer holds {FRAME_BYTES_MAX - 18}"
            assert answer == error(text)
        else:
            offset = size - (most - 1)
            assert answer == base(offset)
            assert peer.ask(fetch(short, 0, offset, 2**32 - 1)) == items((offset, b"", value))


def test_a_peer_that_leaves_within_a_frame_is_no_trouble(
    broker: Serving, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with broker.connect() as peer:
        peer.send(one(topic, 0, b"whole") + one(topic, 0, b"half")[:-1])
        assert peer.read() == base(0)
        peer.end_sending()
        assert peer.rest() == b""
    with broker.connect() as peer:
        assert peer.ask(fetch(topic, 0, 0)) == items((0, b"", b"whole"))
    assert lines_of(caplog) == []


# ---- pipelining --------------------------------------------------------------------------------------------------------


def test_pipelined_requests_of_all_kinds_are_answered_in_order(peer: RawPeer, topic: str) -> None:
    asked, wanted = [], []
    for at in range(40):
        first = 5 * at
        asked += [one(topic, 0, b"a%d" % at), one(topic, 0, b"b", b"key"), produce(topic, 0, [])]
        wanted += [base(first), base(first + 1), base(first + 2)]
        asked += [produce(topic, 0, [(b"x", b"c"), (b"", b"d"), (b"y", b"")]), one(topic, 1, b"e")]
        wanted += [base(first + 2), base(at)]
        asked += [fetch(topic, 0, first, 49), frame(b""), frame(b"\x09"), fetch(topic, 1, at)]
        wanted += [items((first, b"", b"a%d" % at), (first + 1, b"key", b"b")), EOF]
        wanted += [error("invalid request: invalid api key: 9"), items((at, b"", b"e"))]
    peer.send(b"".join(asked))
    assert [peer.read() for _ in wanted] == wanted


def test_a_new_topic_keeps_the_order_of_what_is_sent_behind_it(peer: RawPeer, topic: str) -> None:
    asked, wanted = [], []
    for number in range(5):
        fresh = f"{topic}-{number}"
        asked += [
            fetch(fresh, 0, 0),
            one(fresh, 0, b"a"),
            one(fresh, 0, b"b"),
            produce(fresh, 2, []),
            one(fresh, 2, b"c"),
        ]
        wanted += [NOTHING, base(0), base(1), base(0), base(0)]
        asked += [fetch(fresh, 0, 1), fetch(fresh, 2, 0), one(fresh, 0, b"d"), fetch(fresh, 0, 2)]
        wanted += [items((1, b"", b"b")), items((0, b"", b"c")), base(2), items((2, b"", b"d"))]
    peer.send(b"".join(asked))
    assert [peer.read() for _ in wanted] == wanted


def test_records_waiting_for_their_topic_borrow_their_counted_buffer(broker: Serving, topic: str) -> None:
    large = b"x" * COPY_BYTES_MAX
    session = Day1Session(Day1Service(broker.engine, DEFAULTS["day1"]))
    buffer = bytearray(one(topic, 0, large, b"k") + one(topic, 1, large + b"y"))

    def perform() -> Any:
        results = [session.perform(request) for request in session.feed(memoryview(buffer)).requests]
        for result in results:
            assert isinstance(result, Hold)
            assert result.borrows, "so that the network counts the buffer, and uses it for nothing else"
            result.over = lambda: over.append(True)
        return gather(results)

    over: list[bool] = []
    assert [result.base_offset for result in broker.call(perform)] == [0, 0]
    assert over == [True, True]
    buffer[:] = bytes(len(buffer))
    for partition, pair in enumerate(((b"k", large), (b"", large + b"y"))):
        found = broker.call(partial(broker.engine.read_records, topic, partition, 0, 1, 1))
        assert found.records[0][2:4] == pair


def test_what_was_sent_before_the_peer_left_is_written(broker: Serving, topic: str) -> None:
    with broker.connect() as peer:
        peer.send(one(topic, 0, b"a") + one(topic, 1, b"b") + one(topic, 1, b"c"))
    find = partial(broker.engine.partition, topic, 1)
    broker.until(lambda: (found := find()) is not None and found.high_watermark == 2)


def test_many_thousand_pipelined_records_come_back_in_order(broker: Serving, peer: RawPeer, topic: str) -> None:
    pairs = [(b"k" * (at % 3), b"%d" % at * (at % 40)) for at in range(5_000)]
    peer.send(b"".join(one(topic, 0, value, key) for key, value in pairs))
    assert [peer.read() for _ in pairs] == [base(at) for at in range(len(pairs))]
    assert peer.ask(fetch(topic, 0, 0)) == items(*((at, *pair) for at, pair in enumerate(pairs)))


def test_half_frames_split_at_every_byte(peer: RawPeer, topic: str) -> None:
    peer.ask(one(topic, 0, b"first"))
    data = one(topic, 0, b"abc", b"k") + one(topic, 0, b"de") + produce(topic, 0, [(b"", b"f"), (b"k", b"")])
    data += fetch(topic, 0, 0, 19) + frame(b"")
    for cut in range(1, len(data)):
        first = 1 + 4 * (cut - 1)
        peer.send(data[:cut])
        peer.send(data[cut:])
        wanted = [base(first), base(first + 1), base(first + 2), items((0, b"", b"first")), EOF]
        assert [peer.read() for _ in wanted] == wanted, cut


def test_records_of_many_connections_to_one_partition_get_offsets_of_their_own(broker: Serving, topic: str) -> None:
    """mini-kafka opens a log twice when two connections use it at once."""
    peers = [broker.connect() for _ in range(8)]
    try:
        for _ in range(20):
            for peer in peers:
                peer.send(produce(topic, 0, [(b"", b"x")] * 3))
        bases = [struct.unpack(">q", peer.read()[2:])[0] for peer in peers for _ in range(20)]
    finally:
        for peer in peers:
            peer.__exit__()
    assert sorted(bases) == list(range(0, 480, 3))


# ---- what the session cuts ---------------------------------------------------------------------------------------------


def new_session() -> Day1Session:
    return Day1Session(Day1Service(None, DEFAULTS["day1"]))  # type: ignore[arg-type]


def test_consecutive_produces_to_one_partition_are_one_request() -> None:
    data = one("t", 0, b"a", b"k") + produce("t", 0, [(b"", b"b"), (b"", b"c")]) + one("t", 0, b"d") + one("t", 1, b"e")
    session = new_session()
    for _ in range(2):
        first, second = session.feed(memoryview(data)).requests
        assert (first.topic, first.partition, first.counts) == ("t", 0, [1, 2, 1])
        assert (first.keys, first.values) == ([b"k", b"", b"", b""], [b"a", b"b", b"c", b"d"])
        assert (second.partition, second.counts) == (1, [1])


def test_a_read_with_a_large_record_is_cut_as_any_other() -> None:
    large = b"x" * COPY_BYTES_MAX
    data = one("t", 0, b"a", b"k") + one("t", 0, large) + one("t", 0, b"") + fetch("t", 0, 0)
    session = new_session()
    for _ in range(2):
        run, read = session.feed(memoryview(data)).requests
        assert [bytes(value) for value in run.values] == [b"a", large, b""]
        assert run.counts == [1, 1, 1]
        assert read == ("t", 0, 0, 1 << 20)


def test_a_produce_counts_when_all_its_records_made_it() -> None:
    session = new_session()
    data = one("t", 0, b"a") + produce("t", 0, []) + produce("t", 0, [(b"", b"b")] * 3) + one("t", 0, b"c")
    [run] = session.feed(memoryview(data)).requests
    refused = error("append error: full")

    def answers(result: RunAppended) -> list[bytes]:
        [chunk] = session.answer(run, result)
        return frames_of(bytes(chunk))  # type: ignore[arg-type]

    fault = Fault.STORAGE_ERROR
    assert answers(RunAppended(Fault.NONE, 7, 5)) == [base(7), base(8), base(8), base(11)]
    assert answers(RunAppended(fault, 7, 4, "full")) == [base(7), base(8), base(8), refused]
    assert answers(RunAppended(fault, 7, 3, "full")) == [base(7), base(8), refused, refused]
    assert answers(RunAppended(fault, text="full")) == [refused] * 4


PAIRS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=20)), max_size=3)


@given(
    st.lists(
        st.one_of(
            st.builds(produce, st.sampled_from(["t", "tt", "u"]), st.integers(0, 2), PAIRS),
            st.builds(one, st.just("t"), st.just(0), st.binary(max_size=20), st.binary(max_size=3)),
            st.builds(fetch, st.sampled_from(["t", "u"]), st.integers(0, 2), st.integers(0, 5)),
            st.builds(frame, st.binary(max_size=30)),
            st.builds(lambda rest: frame(b"\x01\0\x01t\0\0\0\x01" + rest), st.binary(max_size=12)),
        ),
        max_size=12,
    ),
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
)
def test_however_a_stream_is_cut_into_reads_the_requests_are_the_same(frames: list[bytes], sizes: list[int]) -> None:
    """The fast way through runs and the plain way through single frames must agree."""

    def flat(requests: list[object]) -> list[object]:
        found: list[object] = []
        for request in requests:
            if isinstance(request, ProduceRun):
                at = 0
                for count in request.counts:
                    pairs = list(zip(request.keys[at : at + count], request.values[at : at + count], strict=True))
                    found.append((request.topic, request.partition, pairs))
                    at += count
                assert at == len(request.keys) == len(request.values)
            else:
                found.append(request)
        return found

    plain = [request for each in frames for request in flat(new_session().feed(memoryview(each)).requests)]
    stream = b"".join(frames)
    session = new_session()
    got: list[object] = []
    waiting = b""
    turn = 0
    while stream or waiting:
        size = sizes[turn % len(sizes)]
        turn += 1
        waiting, stream = waiting + stream[:size], stream[size:]
        fed = session.feed(memoryview(waiting))
        assert fed.fatal is None
        got += flat(fed.requests)
        waiting = waiting[fed.consumed :]
        if waiting:
            assert stream, "a frame is left over"
            assert fed.needed == 0 if len(waiting) < 4 else fed.needed == 4 + int.from_bytes(waiting[:4], "big")
    assert got == plain


@given(st.binary(max_size=300))
def test_any_bytes_are_requests_or_the_end(data: bytes) -> None:
    fed = new_session().feed(memoryview(data))
    assert 0 <= fed.consumed <= len(data)
    assert fed.fatal is None or int.from_bytes(data[fed.consumed : fed.consumed + 4], "big") > FRAME_BYTES_MAX


DOCUMENTED = ("invalid request: ", "append error: ", "fetch error: ", "topic name ", "partition ")


PARTITIONS = st.one_of(st.integers(0, 2), st.integers(1_024, 65_535))
"""Few enough that no example makes hundreds of folders."""


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda key, topic, partition, rest: frame(bytes([key]) + name(topic) + partition + rest),
                st.sampled_from([1, 2, 3, 255]),
                st.sampled_from(["fuzz", "fuzz2", "", "../x"]),
                st.builds(lambda number: struct.pack(">H", number), PARTITIONS),
                st.one_of(st.binary(max_size=40), st.builds(lambda rest: b"\x00\x02" + rest, st.binary(max_size=40))),
            ),
            st.builds(frame, st.binary(max_size=4)),
            st.binary(max_size=20),
        ),
        max_size=20,
    )
)
def test_whatever_is_sent_only_documented_answers_come_and_the_connection_ends(
    broker: Serving, frames: list[bytes]
) -> None:
    with broker.connect() as peer:
        peer.send(b"".join(frames))
        peer.end_sending()
        answers = frames_of(peer.rest())
    for answer in answers:
        assert answer[:2] in (b"\x01\x00", b"\x02\x00") or answer[3:].decode().startswith(DOCUMENTED)
    assert len(answers) <= len(b"".join(frames)) // 4
    assert broker.errors == []


# ---- restarts and what is gone -----------------------------------------------------------------------------------------


def test_a_restart_keeps_records_and_offsets(data_dir: Path) -> None:
    with Serving(data_dir, day1()) as broker, broker.connect() as peer:
        assert peer.ask(produce("t", 1, [(b"k", b"a"), (b"", b"b")])) == base(0)
    with Serving(data_dir, day1()) as broker, broker.connect() as peer:
        assert peer.ask(produce("t", 1, [])) == base(2)
        assert peer.ask(one("t", 1, b"c")) == base(2)
        assert peer.ask(fetch("t", 1, 0)) == items((0, b"k", b"a"), (1, b"", b"b"), (2, b"", b"c"))


def test_nothing_of_open_or_aborted_transactions_is_fetched(broker: Serving, peer: RawPeer, topic: str) -> None:
    peer.ask(one(topic, 0, b"before"))
    begin_transaction(broker, topic, b"aborted")
    assert peer.ask(one(topic, 0, b"behind")) == base(2)
    assert peer.ask(fetch(topic, 0, 0)) == items((0, b"", b"before"))
    assert peer.ask(fetch(topic, 0, 1)) == NOTHING
    end_transaction(broker, topic, MarkerKind.ABORT)
    assert peer.ask(fetch(topic, 0, 0)) == items((0, b"", b"before"), (2, b"", b"behind"))
    assert peer.ask(fetch(topic, 0, 3)) == NOTHING, "the marker"
    begin_transaction(broker, topic, b"committed", sequence=1)
    end_transaction(broker, topic, MarkerKind.COMMIT)
    assert peer.ask(fetch(topic, 0, 3)) == items((4, b"key", b"committed"))


def test_null_keys_and_values_read_as_empty(broker: Serving, peer: RawPeer, topic: str) -> None:
    engine = broker.engine
    broker.call(lambda: engine.create_topics([NewTopic(topic, 1)], validate_only=False))
    batch = build_batch([NewRecord(1, b"key", None), NewRecord(1, None, b"v"), NewRecord(1, None, None)])
    broker.call(lambda: engine.append(topic, 0, [memoryview(batch)], Acks.ALL))
    assert peer.ask(fetch(topic, 0, 0)) == items((0, b"key", b""), (1, b"", b"v"), (2, b"", b""))


# ---- durability and failures -------------------------------------------------------------------------------------------


def test_with_acks_all_the_answer_waits_for_the_flush_and_a_fetch_behind_it_too(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, day1(), disk=disk) as broker, broker.connect() as peer:
        peer.ask(one("t", 0, b"first"))
        disk.hold()
        peer.send(one("t", 0, b"second") + fetch("t", 0, 1))
        broker.until(lambda: disk.syncs_waiting)
        partition = broker.engine.partition("t", 0)
        assert partition is not None
        assert partition.high_watermark == 1
        disk.release()
        assert [peer.read(), peer.read()] == [base(1), items((1, b"", b"second"))]


def test_with_acks_leader_the_answer_does_not_wait(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, day1(acks=1), disk=disk) as broker, broker.connect() as peer:
        peer.ask(one("t", 0, b"first"))
        disk.hold()
        assert peer.ask(one("t", 0, b"second")) == base(1)
        disk.release()


def test_a_run_whose_flush_fails_is_an_append_error_for_each_produce(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, day1(), disk=disk) as broker, broker.connect() as peer:
        peer.ask(one("t", 0, b"first"))
        disk.sync_error = 5
        peer.send(one("t", 0, b"a") * 3)
        assert all(peer.read()[3:].startswith(b"append error: ") for _ in range(3))
        assert peer.ask(one("t", 0, b"b"))[3:].startswith(b"append error: "), "and it stays open"
        disk.sync_error = None


def test_keys_let_records_into_a_compacted_topic(broker: Serving, peer: RawPeer, topic: str) -> None:
    compacted = NewTopic(topic, 1, 1, {"cleanup.policy": "compact"})
    broker.call(lambda: broker.engine.create_topics([compacted], validate_only=False))
    assert peer.ask(one(topic, 0, b"v", b"k")) == base(0)
