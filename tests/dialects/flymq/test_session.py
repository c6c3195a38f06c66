"""The session without sockets: any bytes in any pieces, borrowed buffers, lanes, and what is left when a peer goes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.coordination.group_commands import GroupSettings
from penstock.dialects.flymq.service import API_KEYS, OPCODES, FlyMQService
from penstock.dialects.flymq.session import FlyMQSession
from penstock.dialects.flymq.turns import Lane
from penstock.model.errors import BrokerError, Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.model.limits import SCRATCH_BYTES
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from tests.dialects.flymq.broker import (
    Metadata,
    api,
    api_fetch_payload,
    api_produce,
    arr,
    b,
    batch,
    consume,
    fetch,
    i32,
    i64,
    message,
    op,
    produce,
    produce_payload,
    s,
    s8,
    u64,
)
from tests.dialects.in_process import Broker, InProcessPeer

LIMIT = 3_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = replace(DEFAULTS["flymq"], frame_bytes_max=LIMIT)
    groups = GroupSettings(initial_rebalance_delay_ms=0)
    path = tmp_path_factory.mktemp("flymq-session")
    with Broker(path, lambda engine: FlyMQService(engine, settings), groups=groups) as started:
        started.engine.now_ms = lambda: 1_234  # type: ignore[method-assign, assignment]
        yield started


def peer_of(broker: Broker) -> InProcessPeer:
    return InProcessPeer(broker, FlyMQSession(broker.service))


def answers_in(data: bytes) -> list[tuple[Any, ...]]:
    """Every answer is a whole frame of one kind or the other."""
    found: list[tuple[Any, ...]] = []
    at = 0
    while at < len(data):
        if data[at] == 0xAF:
            _, version, opcode, flags, length = struct.unpack_from(">BBBBI", data, at)
            assert (version, flags) == (1, 1)
            at += 8
            found.append(("opcode", opcode, data[at : at + length]))
        else:
            (length,) = struct.unpack_from(">I", data, at)
            at += 4
            key, version = struct.unpack_from(">hh", data, at)
            found.append(("api", key, version, data[at + 4 : at + length]))
        at += length
    assert at == len(data)
    return found


# ---- any bytes, any pieces ----------------------------------------------------------------------------------------

small = st.integers(-2, 3)
names = st.sampled_from(["t", "u", "a/b", ""])
values = st.sampled_from([b"", b"v", b"x" * 40]) | st.binary(max_size=20)
frames = st.one_of(
    st.builds(produce, names, values, values, small),
    st.builds(lambda payload, cut: op(1, payload[:cut]), st.builds(produce_payload, names, values), st.integers(0, 30)),
    st.builds(consume, names, small, st.integers(0, 5)),
    st.builds(fetch, names, small, st.integers(0, 5), small, st.sampled_from([None, "", "v", "$.a", "(", "[a-"])),
    st.builds(lambda name, count: op(3, s(name) + i32(count)), names, small),
    st.builds(lambda name: op(9, s(name)), names),
    st.builds(lambda name: op(4, s(name)), names),
    st.builds(
        lambda n, p, m: op(5, s(n) + s("g") + i32(p) + s8(m)), names, small, st.sampled_from(["", "commit", "x"])
    ),
    st.builds(lambda n, p, o: op(6, s(n) + s("g") + i32(p) + u64(o)), names, small, st.integers(0, 2**64 - 1)),
    st.builds(
        lambda opcode, n, p: op(opcode, s(n) + s("g") + i32(p)), st.sampled_from([0x60, 0x63, 0x64, 0x65]), names, small
    ),
    st.builds(op, st.sampled_from([0x08, 0x53, 0x62, 0x70, 0x72, 0x10, 0xFF])),
    st.builds(
        op, st.integers(0, 255).filter(lambda opcode: opcode != 0x40), st.binary(max_size=20), st.integers(0, 255)
    ),
    st.builds(
        lambda n, p, m: api_produce(n, p, *m), names, small, st.lists(st.builds(message, values, values), max_size=3)
    ),
    st.builds(
        lambda n, v, h: api_produce(n, 0, message(v, b"", h), version=1, stream=5),
        names,
        values,
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    ),
    st.builds(lambda n, p, o, m: api(1, api_fetch_payload(n, p, o, m)), names, small, small, small),
    st.builds(lambda n, p, t: api(2, s(n) + i32(p) + i64(t)), names, small, small),
    st.builds(lambda n: api(3, arr(*map(s, n)), 1, 3), st.lists(names, max_size=3)),
    st.builds(
        lambda n, p, o: api(8, s("g") + i32(-1) + s("") + arr(s(n) + i32(p) + i64(o) + s("m"))), names, small, small
    ),
    st.builds(lambda n, p: api(9, s("g") + arr(s(n) + i32(p))), names, small),
    st.builds(api, st.integers(-5, 20), st.binary(max_size=20), st.integers(-1, 3), st.integers(0, 2**32 - 1)),
    st.builds(b, st.binary(max_size=6)),
)
noise = st.one_of(frames, frames, frames, st.binary(max_size=12))
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@fuzz
@given(st.lists(noise, max_size=12), st.data())
def test_whatever_is_sent_only_documented_answers_come(
    broker: Broker, pieces: list[bytes], data: st.DataObject
) -> None:
    peer = peer_of(broker)
    stream = b"".join(pieces)
    out = b""
    at = 0
    try:
        while at < len(stream) and peer.fatal is None:
            end = data.draw(st.integers(at + 1, len(stream)))
            out += peer.send(stream[at:end])
            at = end
    finally:
        peer.close()
    assert not list(broker.service.subscribed_pairs())
    assert len(peer.half_frame) <= len(stream)
    for kind, code, *rest in answers_in(out):
        if kind == "opcode":
            assert code in OPCODES or code in (0x01, 0xFF)
            continue
        version, payload = rest
        (error,) = struct.unpack_from(">h", payload, 4 if version == 1 else 0)
        assert error in CODES.values()
        if version not in (0, 1):
            assert error == 35
        elif code not in API_KEYS and code != 0:
            assert error in (35, 42)


@fuzz
@given(st.lists(frames, min_size=1, max_size=10), st.data())
def test_however_a_stream_is_cut_into_reads_the_answers_are_as_many(
    broker: Broker, whole: list[bytes], data: st.DataObject
) -> None:
    """One answer a request, of the same kind and key, in order for each kind of order."""
    stream = b"".join(whole)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=8)))
    # closed also when hypothesis breaks an example off: a subscription that stays would fail another test
    with closing(peer_of(broker)) as once, closing(peer_of(broker)) as again:
        together = answers_in(once.send(stream))
        assert once.fatal is None
        assert len(together) == len(whole)
        parts = zip([0, *cuts], [*cuts, len(stream)], strict=True)
        out = b"".join(again.send(stream[start:end]) for start, end in parts)
        assert len(answers_in(out)) == len(whole)
        assert not again.half_frame


@fuzz
@given(st.binary(max_size=64))
def test_any_bytes_are_requests_the_start_of_one_or_the_end(broker: Broker, data: bytes) -> None:
    session = FlyMQSession(broker.service)
    consumed, needed, requests, fatal = session.feed(memoryview(data))
    assert 0 <= consumed <= len(data)
    assert needed == 0 or len(data) - consumed < needed <= LIMIT + 8
    assert fatal is None or not needed
    assert len(requests) <= len(data)


def test_half_frames_of_every_request_split_at_every_byte(broker: Broker) -> None:
    stream = produce("split", b"v") + produce("split", b"w", b"k") + api_produce("split", 0, message(b"x")) + op(0x08)
    for cut in range(1, len(stream)):
        peer = peer_of(broker)
        answers = answers_in(peer.send(stream[:cut]) + peer.send(stream[cut:]))
        assert [answer[1] for answer in answers] == [1, 1, 0, 8]


# ---- borrowed buffers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["there", "made"])
@pytest.mark.parametrize("size", [10, SCRATCH_BYTES, SCRATCH_BYTES + 1, 2_000_000])
def test_a_request_keeps_nothing_of_the_buffer_it_came_in(broker: Broker, topic: str, size: int) -> None:
    """The buffer is wiped behind it, also when its topic has to be made first."""
    if topic == "there" and broker.engine.topic(topic) is None:
        broker.make_topic(topic)
    name = f"{topic}-{size}" if topic == "made" else topic
    value = bytes(range(1, 251)) * (size // 250 + 1)
    peer = peer_of(broker)
    frames = produce(name, value, b"key") + api_produce(name, 0, message(value, b"key", {"h": "1"}))
    first, second = answers_in(peer.send(frames))
    found = Metadata.of(first[2])
    assert (found.key_size, found.value_size) == (3, len(value))
    assert second[:3] == ("api", 0, 0)
    assert broker.values(name)[-2:] == [(b"key", value)] * 2


def test_a_large_produce_gives_its_buffer_back_when_it_is_performed(broker: Broker) -> None:
    session = FlyMQSession(broker.service)
    buffer = bytearray(produce("there-too", b"x" * SCRATCH_BYTES, b"key"))
    broker.make_topic("there-too")
    with memoryview(buffer) as view:
        [request] = session.feed(view).requests
        result = session.perform(request)
        del view
    assert (request.values, request.keys) == ([], None)
    buffer.clear()  # a BufferError while anybody borrows from it
    [answer] = session.answer(request, broker.wait(result))
    assert Metadata.of(bytes(answer[8:])).value_size == SCRATCH_BYTES


def test_runs_in_a_read_larger_than_the_scratch_buffer_are_performed_one_by_one(broker: Broker) -> None:
    peer = peer_of(broker)
    stream = produce("big", b"v") + produce("big", b"x" * SCRATCH_BYTES) + produce("big", b"w", b"k") * 3
    offsets = [Metadata.of(answer[2]).offset for answer in answers_in(peer.send(stream))]
    assert offsets == [0, 1, 2, 3, 4]


# ---- runs ---------------------------------------------------------------------------------------------------------


def test_consecutive_produces_for_a_topic_are_one_request(broker: Broker) -> None:
    session = FlyMQSession(broker.service)
    same = produce("t", b"v") * 100
    assert len(session.feed(memoryview(same)).requests) == 1
    mixed = b"".join(produce("t", b"v" * (at % 7), b"k" * (at % 3)) for at in range(100))
    assert len(session.feed(memoryview(mixed)).requests) == 1
    assert len(session.feed(memoryview(produce("t", b"v") + op(0x08) + produce("t", b"v"))).requests) == 3
    assert (
        len(session.feed(memoryview(produce("t", b"v", partition=0) + produce("t", b"v", partition=1))).requests) == 2
    )
    plain = api_produce("t", 0, message(b"v", timestamp=5)) * 100
    assert len(session.feed(memoryview(plain)).requests) == 1
    headed = api_produce("t", 0, message(b"v", headers={"a": "b"})) * 100
    assert len(session.feed(memoryview(headed)).requests) == 1
    streams = b"".join(api_produce("t", 0, message(b"v"), version=1, stream=at // 10) for at in range(100))
    assert len(session.feed(memoryview(streams)).requests) == 10
    packed = api(0, s("t") + i32(0) + batch(compression=4, packed=b"")) * 3
    assert len(session.feed(memoryview(packed)).requests) == 3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"", b"k", b"key"]), st.binary(max_size=6), st.sampled_from([-1, 0]), st.booleans()),
        max_size=30,
    )
)
def test_a_run_holds_what_its_frames_held(frames: list[tuple[bytes, bytes, int, bool]]) -> None:
    """Against the plain reading of each frame, in opcode and in API-key frames."""
    session = FlyMQSession(FlyMQService.__new__(FlyMQService))
    session._service.frame_bytes_max = LIMIT
    stream = b"".join(produce("t", v, k, p) for k, v, p, _ in frames)
    seen: list[tuple[bytes, bytes, int]] = []
    for run in session.feed(memoryview(stream)).requests:
        keys = run.keys or [None] * len(run.values)
        seen += [(bytes(key or b""), bytes(value), run.asked) for key, value in zip(keys, run.values, strict=True)]
    assert seen == [(k, v, p) for k, v, p, _ in frames]
    stream = b"".join(api_produce("t", p, message(v, k, timestamp=int(late))) for k, v, p, late in frames)
    stamped: list[tuple[bytes, bytes, int, bool]] = []
    for run in session.feed(memoryview(stream)).requests:
        keys = run.keys or [None] * len(run.values)
        for key, value, stamp in zip(keys, run.values, run.stamps, strict=True):
            stamped.append((bytes(key or b""), bytes(value), run.asked, bool(int.from_bytes(stamp, "big"))))
    assert stamped == frames


# ---- lanes --------------------------------------------------------------------------------------------------------


def test_a_lane_does_one_thing_at_a_time_in_order_and_goes_on_when_one_fails() -> None:
    lane = Lane()
    first: Pending[str] = Pending()
    second: Pending[str] = Pending()
    done: list[Any] = []

    def refuse() -> Any:
        done.append("refused")
        raise BrokerError(Fault.INVALID_TOPIC)

    answers = [lane.run(lambda: first), lane.run(refuse), lane.run(lambda: second), lane.run(lambda: "last")]
    assert lane.busy
    assert done == []
    answers[0].abandon()  # nobody waits for it any more: the others still get their turn
    first.complete("one")
    assert done == ["refused"]
    assert answers[1].result.fault is Fault.INVALID_TOPIC
    assert not answers[3].done
    second.complete("two")
    assert (answers[2].result, answers[3].result) == ("two", "last")
    assert not lane.busy
    assert lane.run(lambda: "now") == "now"
