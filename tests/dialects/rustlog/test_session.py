"""Frames, limits, pipelining and order: what holds for both forms."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.engine import RunAppended
from penstock.dialects.rustlog.requests import ProduceRun
from penstock.dialects.rustlog.service import RustLogService
from penstock.dialects.rustlog.session import COPIED_BYTES_MAX, RustLogSession
from penstock.model.errors import Fault
from penstock.model.listeners import DEFAULTS, ListenerSettings
from penstock.model.pending import Pending
from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import (
    FRAME_BYTES_MAX,
    Peer,
    commit,
    error,
    fetch,
    fetched,
    frame,
    offset_fetch,
    produce,
    produced,
    text,
)

COMMITTED = frame(b"\x03\x01")
PING = frame(b"\xff")
JSON_PRODUCE = frame(b'{"Produce":{"topic":"orders","partition":0,"records":[[1,2,3]]}}')


def offset_found(value: int) -> bytes:
    return frame(b"\x04\x01" + struct.pack(">Q", value))


# ---- frames and limits -------------------------------------------------------------------------------------------------


def test_an_empty_frame_is_code_1_and_closes_after_the_answers_before_it(peer: Peer) -> None:
    expected = PING + error(1, "Frame error: invalid protocol: zero-length frame")
    assert peer.send(PING + frame(b"") + PING) == expected
    assert peer.fatal is not None


def test_a_frame_above_the_limit_is_code_1_before_its_payload_is_there_and_closes(peer: Peer) -> None:
    for size in (FRAME_BYTES_MAX + 1, 2**32 - 1):
        peer.fatal = None
        expected = error(1, f"Frame error: frame too large: {size} bytes (max: 10485760)")
        assert peer.send(size.to_bytes(4, "big")) == expected
        assert peer.fatal is not None
        peer = Peer(peer._broker)


def test_a_frame_of_the_limit_is_waited_for(peer: Peer) -> None:
    fed = peer.session.feed(memoryview(FRAME_BYTES_MAX.to_bytes(4, "big") + b"\xff"))
    assert fed == (0, FRAME_BYTES_MAX + 4, [], None)


def test_a_json_peer_hears_of_a_bad_length_in_json(broker: Broker) -> None:
    size = FRAME_BYTES_MAX + 1
    too_long = frame(
        json.dumps(
            {"Error": {"message": f"max frame size exceeded: {size} bytes (max: 10485760)"}}, separators=(",", ":")
        ).encode()
    )
    assert Peer(broker).send(size.to_bytes(4, "big") + b"{") == too_long
    peer = Peer(broker)
    peer.send(JSON_PRODUCE)
    assert peer.send(size.to_bytes(4, "big")) == too_long
    peer = Peer(broker)
    peer.send(JSON_PRODUCE)
    assert b"failed to parse request: a frame without payload" in peer.send(frame(b""))
    assert peer.fatal is not None


def test_the_limit_is_the_listeners(broker: Broker) -> None:
    broker.service = RustLogService(broker.engine, replace(DEFAULTS["rustlog"], frame_bytes_max=100))
    fits = produce(b"x" * (100 - len(produce(b"")) + 4))
    assert Peer(broker).send(fits + fits) == produced(0) + produced(1)
    peer = Peer(broker)
    longer = produce(b"x" * (101 - len(produce(b"")) + 4))
    assert peer.send(fits + longer) == produced(2) + error(1, "Frame error: frame too large: 101 bytes (max: 100)")


CONVERSATION = (
    produce(b"a")
    + produce(b"b")
    + produce(b"c", partition=1)
    + JSON_PRODUCE
    + produce()
    + produce(b"d", b"e")
    + commit("g", 2)
    + offset_fetch("g")
    + fetch(1)
    + frame(b"\x55")
    + frame(b'{"bad"')
    + frame(b'{"Fetch":{"topic":"orders","partition":0,"offset":2,"max_bytes":100}}')
    + PING
)


def test_frames_split_at_every_byte_are_answered_the_same() -> None:
    sent = (
        produce(b"a")
        + produce(b"b")
        + JSON_PRODUCE
        + produce()
        + produce(b"d", b"e", partition=1)
        + frame(b"\x55")
        + frame(b'{"bad"')
        + JSON_PRODUCE
        + produce(b"f")
        + PING
    )
    expected = b""
    for at in range(len(sent) + 1):
        session = RustLogSession(RustLogService(_Counting(), DEFAULTS["rustlog"]))  # type: ignore[arg-type]
        answers, rest = _spoken(session, sent[:at])
        more, rest = _spoken(session, rest + sent[at:])
        expected = expected or answers + more
        assert answers + more == expected
        assert rest == b""
    assert expected.endswith(produced(4) + PING)


def _spoken(session: RustLogSession, data: bytes) -> tuple[bytes, bytes]:
    """Answers, and what is left of the data."""
    fed = session.feed(memoryview(bytearray(data)))
    chunks = [chunk for request in fed.requests for chunk in session.answer(request, session.perform(request))]
    return b"".join(chunks), data[fed.consumed :]  # type: ignore[arg-type]


def test_every_split_of_a_frame_is_kept_until_it_is_whole(peer: Peer) -> None:
    for sent in (produce(b"abc"), JSON_PRODUCE, fetch(0), frame(b"\x06")):
        whole = peer.send(sent)
        for at in range(1, len(sent)):
            assert peer.send(sent[:at]) == b""
            assert peer.half_frame == sent[:at]
            answer = peer.send(sent[at:])
            assert answer[:5] == whole[:5]


def test_one_byte_at_a_time_is_answered_the_same(tmp_path: Path) -> None:
    with _broker(tmp_path / "whole") as broker:
        expected = Peer(broker).send(CONVERSATION)
    with _broker(tmp_path / "bytes") as broker:
        peer = Peer(broker)
        assert b"".join(peer.send(CONVERSATION[at : at + 1]) for at in range(len(CONVERSATION))) == expected


def _broker(path: Path) -> Broker:
    broker = Broker(path, lambda engine: RustLogService(engine, DEFAULTS["rustlog"]))
    broker.make_topic("orders", 2)
    return broker


# ---- runs --------------------------------------------------------------------------------------------------------------


def test_produces_for_one_partition_become_one_run_and_one_batch(peer: Peer, broker: Broker) -> None:
    sent = b"".join(produce(b"%d" % at) for at in range(1_000))
    fed = peer.session.feed(memoryview(sent))
    [run] = fed.requests
    assert isinstance(run, ProduceRun)
    assert len(run.values) == 1_000
    assert fed.consumed == len(sent)
    [answer] = peer.frames(sent)
    assert answer == b"".join(produced(at) for at in range(1_000))
    partition = broker.engine.partition("orders", 0)
    assert partition is not None
    assert partition.log is not None
    [segment] = partition.log.segments
    assert segment.size < 20 * 1_000, "one batch header, not a thousand"


@given(
    st.lists(
        st.tuples(st.sampled_from(["orders", "other"]), st.integers(0, 1), st.lists(st.binary(max_size=9), max_size=3)),
        max_size=30,
    ),
    st.booleans(),
)
def test_any_mix_of_produces_is_answered_one_by_one_and_in_order(
    produces: list[tuple[str, int, list[bytes]]], large: bool
) -> None:
    """Against a session that answers with offsets counted by hand, over an engine that only counts."""
    ends: dict[tuple[str, int], int] = {}
    expected = []
    sent = b""
    for topic, partition, records in produces:
        if large and records:
            records[0] = b"x" * (COPIED_BYTES_MAX // 4)
        base = ends.get((topic, partition), 0)
        ends[topic, partition] = base + len(records)
        expected.append(produced(base if records else 0, len(records)))
        sent += produce(*records, topic=topic, partition=partition)
    engine = _Counting()
    session = RustLogSession(RustLogService(engine, DEFAULTS["rustlog"]))  # type: ignore[arg-type]
    answers, rest = _spoken(session, sent)
    assert rest == b""
    assert answers == b"".join(expected)
    assert engine.taken == [(topic, partition, record) for topic, partition, records in produces for record in records]


class _Counting:
    """Stands in for the engine where only offsets matter."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int, bytes]] = []
        self._ends: dict[tuple[str, int], int] = {}

    def append_run(self, topic: str, partition: int, values: list[bytes], keys: None, acks: int) -> object:
        base = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = base + len(values)
        self.taken += [(topic, partition, bytes(value)) for value in values]
        return RunAppended(Fault.NONE, base, len(values))

    def partition(self, topic: str, partition: int) -> object:
        return object()


def test_a_run_that_is_written_in_part_answers_each_request_for_itself(broker: Broker) -> None:
    session = RustLogSession(broker.service)
    fed = session.feed(
        memoryview(produce(b"a") + produce(b"b", b"c") + produce() + produce(b"d", b"e") + produce(b"f"))
    )
    [run] = fed.requests
    full = error(500, "Failed to write record: no room on the disk")
    result = RunAppended(Fault.STORAGE_ERROR, 10, 3, "no room on the disk")
    assert session.answer(run, result) == [produced(10) + produced(11, 2) + produced(0, 0) + full + full]
    result = RunAppended(Fault.STORAGE_ERROR, 10, 2, "no room on the disk")
    assert session.answer(run, result) == [produced(10) + full * 4]
    result = RunAppended(Fault.STORAGE_ERROR, text="no room on the disk")
    assert session.answer(run, result) == [full * 5]


def test_with_acks_all_an_answer_waits_for_the_flush_and_pipelined_requests_share_it(tmp_path: Path) -> None:
    settings = replace(DEFAULTS["rustlog"], acks=-1)
    with Broker(tmp_path, lambda engine: RustLogService(engine, settings), flush="acks") as broker:
        broker.make_topic("orders", 1)
        session = RustLogSession(broker.service)
        [run] = session.feed(memoryview(produce(b"a") + produce(b"b"))).requests
        result = session.perform(run)
        assert isinstance(result, Pending)
        assert not result.done
        assert session.answer(run, broker.wait(result)) == [produced(0) + produced(1)]
        partition = broker.engine.partition("orders", 0)
        assert partition is not None
        assert partition.high_watermark == 2


def test_what_was_just_produced_is_fetched_though_its_flush_is_under_way(tmp_path: Path) -> None:
    service = lambda engine: RustLogService(engine, DEFAULTS["rustlog"])  # noqa: E731
    with Broker(tmp_path, service, flush="acks") as broker:
        broker.make_topic("orders", 1)
        assert Peer(broker).send(produce(b"a") + fetch(0)) == produced(0) + fetched([b"a"], 1)


# ---- topics made by a produce ------------------------------------------------------------------------------------------


def _creating(broker: Broker, **settings: int) -> Peer:
    broker.service = RustLogService(broker.engine, ListenerSettings(creates_topics=True, **settings))
    return Peer(broker)


def test_by_default_a_produce_makes_no_topic(peer: Peer, broker: Broker) -> None:
    assert peer.send(produce(b"a", topic="new"))[4:7] == b"\xfe\x00\x0a"
    assert broker.engine.topic("new") is None


@pytest.mark.parametrize("size", [1, COPIED_BYTES_MAX])
def test_where_the_listener_makes_topics_later_requests_wait_for_them_in_order(broker: Broker, size: int) -> None:
    peer = _creating(broker, partitions=2)
    values = [bytes([65 + at]) * size for at in range(4)]
    sent = (
        produce(values[0], topic="new")
        + produce(values[1], topic="newer")
        + produce(values[2], topic="new")
        + fetch(0, 10_000_000, topic="new")
        + produce(values[3], topic="newer", partition=1)
        + produce(b"x", topic="new", partition=2)
        + PING
    )
    assert peer.send(sent) == (
        produced(0)
        + produced(0)
        + produced(1)
        + fetched([values[0], values[2]], 2)
        + produced(0)
        + error(10, "Topic or partition does not exist: topic=new, partition=2")
        + PING
    )
    assert broker.values("newer", 0) == [(None, values[1])]
    assert broker.values("newer", 1) == [(None, values[3])]


def test_partitions_are_made_as_they_are_needed_where_the_listener_says_so(broker: Broker) -> None:
    peer = _creating(broker, partitions=0, partitions_max=4)
    assert peer.send(produce(b"a", topic="grows", partition=1) + produce(b"b", topic="grows", partition=3)) == (
        produced(0) + produced(0)
    )
    info = broker.engine.topic("grows")
    assert info is not None
    assert len(info.partitions) == 4
    assert peer.send(produce(b"c", topic="grows", partition=4))[4:7] == b"\xfe\x00\x0a"
    assert peer.send(produce(b"c", topic="fresh", partition=4))[4:7] == b"\xfe\x00\x0a"
    assert broker.engine.topic("fresh") is None


def test_a_topic_that_cannot_be_made_is_the_error_of_its_produce_only(broker: Broker) -> None:
    peer = _creating(broker, partitions=1)
    answer = peer.send(produce(b"a", topic="../evil") + produce(b"b"))
    assert answer[4:7] == b"\xfe\x00\x0a"
    assert answer.endswith(produced(0))


def test_two_connections_that_make_the_same_topic_both_write_to_it(broker: Broker) -> None:
    first, second = _creating(broker), Peer(broker)
    results = []
    for session, value in ((first.session, b"a"), (second.session, b"b")):
        [run] = session.feed(memoryview(produce(value, topic="shared"))).requests
        results.append((session, run, session.perform(run)))
    answers = {bytes(session.answer(run, broker.wait(result))[0]) for session, run, result in results}  # type: ignore[arg-type]
    assert answers == {produced(0), produced(1)}


# ---- what was acknowledged and is not flushed yet ---------------------------------------------------------------------


def test_who_reads_on_behind_his_own_record_is_not_sent_back(durable_broker: Broker) -> None:
    peer = Peer(durable_broker)
    for offset in range(20):
        [answer] = peer.ask({"Produce": {"topic": "orders", "partition": 0, "records": [[1]]}})["Produce"]["offsets"]
        assert answer == offset
        at_end = {"Fetch": {"topic": "orders", "partition": 0, "offset": offset + 1, "max_bytes": 100}}
        assert peer.ask(at_end) == {"Fetch": {"records": [], "next_offset": offset + 1}}
        at_end["Fetch"]["offset"] = 1_000
        assert peer.ask(at_end) == {"Fetch": {"records": [], "next_offset": offset + 1}}
        assert peer.send(fetch(offset + 1)) == fetched([], offset + 1)


def test_a_description_has_what_was_acknowledged_before(durable_broker: Broker) -> None:
    peer = Peer(durable_broker)
    for round_ in range(10):
        answers = peer.send(
            produce(b"a", b"b")
            + frame(b"\x08" + text("orders") + struct.pack(">I", 0))
            + frame(b"\x07" + text("orders"))
        )
        end = 2 * round_ + 2
        described = frame(b"\x08" + text("orders") + struct.pack(">IQ", 0, end))
        assert produced(end - 2, 2) + described in answers
        assert answers.endswith(struct.pack(">IQIQ", 0, end, 1, 0))


def test_who_asks_right_after_a_start_waits_until_the_groups_are_loaded(peer: Peer, broker: Broker) -> None:
    assert peer.send(commit("g", 7)) == COMMITTED
    broker.load_groups_again(0.2)
    answers = peer.send(offset_fetch("g") + commit("g", 8) + offset_fetch("g") + fetch(0, group="g"))
    assert answers == offset_found(7) + COMMITTED + offset_found(8) + fetched([], 8)
    broker.load_groups_again(0.2)
    assert peer.ask({"OffsetFetch": {"topic": "orders", "partition": 0, "group_id": "g"}}) == {
        "OffsetFetch": {"offset": 8}
    }
