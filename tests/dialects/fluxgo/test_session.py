"""A FluxGo connection as a stream of bytes: limits, pipelining, half frames, order, restarts and what is gone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, NewTopic
from penstock.coordination.group_commands import CommitResult
from penstock.dialects.fluxgo.service import FluxGoService
from penstock.dialects.fluxgo.session import COPY_BYTES_MAX, FluxGoSession, ProduceRun
from penstock.model.errors import Fault
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Hold, Pending, gather
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import MarkerKind
from tests.broker.failing_disk import CueDisk
from tests.dialects.fluxgo.conftest import fluxgo
from tests.dialects.fluxgo.frames import PRODUCE, commit, consume, error, fetch, frame, name, offset, ok, produce, u64
from tests.dialects.fluxgo.in_process import (
    RawPeer,
    Serving,
    begin_transaction,
    end_transaction,
    frames_of,
    lines_of,
)

FRAME_BYTES_MAX = 10_485_760


# ---- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_length_that_is_not_allowed_closes_without_an_answer(
    peer: RawPeer, topic: str, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    peer.send(produce(topic, 0, b"before") + struct.pack(">I", length) + b"\x01")
    assert peer.read() == offset(0), "what came before is answered"
    assert peer.rest() == b""
    [line] = lines_of(caplog)
    assert f"a frame of {length} bytes; 1 to 10485760 are allowed" in line


def test_the_largest_frame_is_taken_and_read_back(peer: RawPeer, topic: str) -> None:
    head = PRODUCE + name(topic) + u64(0)
    value = b"v" * (FRAME_BYTES_MAX - len(head))
    assert peer.ask(frame(head + value)) == offset(0)
    assert peer.ask(consume(topic, 0, 0)) == ok(value)


def test_a_record_larger_than_a_frame_is_a_read_error_that_names_it(broker: Serving, peer: RawPeer, topic: str) -> None:
    engine = broker.engine
    broker.call(lambda: engine.create_topics([NewTopic(topic, 1)], validate_only=False))
    for size in (FRAME_BYTES_MAX - 1, FRAME_BYTES_MAX):
        value = b"k" * size
        broker.call(partial(engine.append_run, topic, 0, [value], None, Acks.ALL))
    assert peer.ask(consume(topic, 0, 0)) == ok(b"k" * (FRAME_BYTES_MAX - 1)), "an answer of the largest frame"
    text = b"Failed to read message: the record at offset 1 has 10485760 bytes, more than a frame of 10485760 holds"
    assert peer.ask(consume(topic, 0, 1)) == error(0x24, text)
    assert peer.ask(consume(topic, 0, 2)) == error(0x23), "and the connection stays"


def test_a_peer_that_leaves_within_a_frame_is_no_trouble(
    broker: Serving, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with broker.connect() as peer:
        peer.send(produce(topic, 0, b"whole") + produce(topic, 0, b"half")[:-1])
        assert peer.read() == offset(0)
        peer.end_sending()
        assert peer.rest() == b""
    with broker.connect() as peer:
        assert peer.ask(consume(topic, 0, 1)) == error(0x23)
    assert lines_of(caplog) == []


# ---- pipelining --------------------------------------------------------------------------------------------------------


def test_pipelined_requests_of_all_kinds_are_answered_in_order(peer: RawPeer, topic: str) -> None:
    other = topic + "-other"
    asked, wanted = [], []
    for at in range(50):
        asked += [produce(topic, 0, b"a%d" % at), produce(topic, 0, b""), produce(other, 1, b"b%d" % at)]
        wanted += [offset(2 * at), offset(2 * at + 1), offset(at)]
        asked += [consume(topic, 0, 2 * at), frame(b"\x03"), consume(other, 1, at), consume(other, 0, 0)]
        wanted += [ok(b"a%d" % at), error(0xFE, b"Unknown command code"), ok(b"b%d" % at), error(0x23)]
        asked += [commit("g" + topic, topic, 0, at), fetch("g" + topic, topic, 0), frame(PRODUCE)]
        wanted += [ok(), offset(at), error(0xFC, b"Invalid produce payload: too short")]
    peer.send(b"".join(asked))
    assert [peer.read() for _ in wanted] == wanted


def test_a_new_topic_keeps_the_order_of_what_is_sent_behind_it(peer: RawPeer, topic: str) -> None:
    """Topics are made while later requests wait: the first produce of each is followed at once by others."""
    asked, wanted = [], []
    for number in range(5):
        fresh = f"{topic}-{number}"
        asked += [consume(fresh, 0, 0), produce(fresh, 0, b"a"), produce(fresh, 0, b"b"), produce(fresh, 2, b"c")]
        wanted += [error(0x22, b"Topic or partition not found"), offset(0), offset(1), offset(0)]
        asked += [consume(fresh, 0, 1), consume(fresh, 2, 0), produce(fresh, 0, b"d"), consume(fresh, 0, 2)]
        wanted += [ok(b"b"), ok(b"c"), offset(2), ok(b"d")]
    peer.send(b"".join(asked))
    assert [peer.read() for _ in wanted] == wanted


def test_records_waiting_for_their_topic_borrow_their_counted_buffer(broker: Serving, topic: str) -> None:
    large = b"x" * COPY_BYTES_MAX
    session = FluxGoSession(FluxGoService(broker.engine, DEFAULTS["fluxgo"]))
    buffer = bytearray(produce(topic, 0, large) + produce(topic, 1, large + b"y"))

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
    for partition, value in enumerate((large, large + b"y")):
        found = broker.call(partial(broker.engine.read_records, topic, partition, 0, 1, 1))
        assert found.records[0].value == value


class LoadingGroups:
    """Groups that say that they are loading until they are told to be done; then they take everything."""

    def __init__(self) -> None:
        self.shards = {0: None}
        self.is_loading = True
        self.loading: Pending[None] = Pending()
        self.asked: list[Any] = []

    @property
    def groups(self) -> LoadingGroups:
        return self

    def loaded(self) -> Pending[None]:
        return self.loading

    def spawn(self, work: Pending[None], failed: object) -> Pending[None]:
        return work

    def ask(self, group: str, command: Any) -> Any:
        if self.is_loading:
            return Fault.COORDINATOR_LOADING
        self.asked.append(command)
        answer: Pending[Any] = Pending()
        answer.complete(CommitResult(Fault.NONE))
        return answer

    def commit(self, command: Any, acks: int) -> Any:
        return self.ask(command.group, command)


def test_commits_while_the_coordinator_loads_wait_for_it_in_order() -> None:
    """A FluxGo client does not come again as a Kafka client does."""
    groups = LoadingGroups()
    session = session_over(groups)
    requests = session.feed(memoryview(b"".join(commit("g", "t", 0, at) for at in range(3)))).requests
    first = session.perform(requests[0])
    assert isinstance(first, Hold)
    assert not first.done
    groups.is_loading = False
    groups.loading.complete(None)
    results = [first, *map(session.perform, requests[1:])]
    assert [command.offsets[0].offset for command in groups.asked] == [0, 1, 2]
    for request, result in zip(requests, results, strict=True):
        assert session.answer(request, result.result) == [frame(ok())]


def test_a_coordinator_that_cannot_serve_is_a_failed_commit_and_a_failed_fetch() -> None:
    session = session_over(LoadingGroups())
    for asked, wanted in (
        (commit("g", "t", 0, 1), error(0x32, b"Failed to commit offset")),
        (fetch("g", "t", 0), error(0x33, b"Failed to fetch offset")),
    ):
        [request] = session.feed(memoryview(asked)).requests
        assert session.answer(request, Fault.COORDINATOR_NOT_AVAILABLE) == [frame(wanted)]


def test_what_was_sent_before_the_peer_left_is_written(broker: Serving, topic: str) -> None:
    with broker.connect() as peer:
        peer.send(produce(topic, 0, b"a") + produce(topic, 1, b"b") + produce(topic, 1, b"c"))
    find = partial(broker.engine.partition, topic, 1)
    broker.until(lambda: (found := find()) is not None and found.high_watermark == 2)


def test_many_thousand_pipelined_records_come_back_in_order(broker: Serving, peer: RawPeer, topic: str) -> None:
    values = [b"%d" % at * (at % 40) for at in range(5_000)]
    peer.send(b"".join(produce(topic, 0, value) for value in values))
    assert [peer.read() for _ in values] == [offset(at) for at in range(len(values))]
    found = broker.call(lambda: broker.engine.read_records(topic, 0, 0, 10_000, 1 << 30))
    assert [record.value for record in found.records] == values
    peer.send(b"".join(consume(topic, 0, at) for at in range(500)))
    assert [peer.read() for _ in range(500)] == [ok(value) for value in values[:500]]


def test_half_frames_split_at_every_byte(peer: RawPeer, topic: str) -> None:
    peer.ask(produce(topic, 0, b"first"))
    data = produce(topic, 0, b"abc") + consume(topic, 0, 1) + commit("g" + topic, topic, 0, 1)
    data += produce(topic, 0, b"") + fetch("g" + topic, topic, 0)
    for cut in range(1, len(data)):
        base = 1 + 2 * (cut - 1)
        peer.send(data[:cut])
        peer.send(data[cut:])
        wanted = [offset(base), ok(b"abc"), ok(), offset(base + 1), offset(1)]
        assert [peer.read() for _ in range(5)] == wanted, cut


# ---- what the session cuts ---------------------------------------------------------------------------------------------


def session_over(engine: object = None) -> FluxGoSession:
    return FluxGoSession(FluxGoService(engine, DEFAULTS["fluxgo"]))  # type: ignore[arg-type]


def test_consecutive_produces_to_one_partition_are_one_request() -> None:
    data = produce("t", 0, b"a") + produce("t", 0, b"b") + produce("t", 1, b"c") + produce("t", 0, b"d")
    session = session_over()
    for _ in range(2):  # the second time the first head is not known from this read
        fed = session.feed(memoryview(data))
        runs = [(run.topic, run.partition, list(run.values)) for run in fed.requests]
        assert runs == [("t", 0, [b"a", b"b"]), ("t", 1, [b"c"]), ("t", 0, [b"d"])]
        assert fed.consumed == len(data)


def test_a_read_with_a_large_record_is_cut_as_any_other() -> None:
    large = b"x" * COPY_BYTES_MAX
    data = produce("t", 0, b"a") + produce("t", 0, large) + produce("t", 0, b"") + consume("t", 0, 0)
    session = session_over()
    for _ in range(2):
        run, read = session.feed(memoryview(data)).requests
        assert [bytes(value) for value in run.values] == [b"a", large, b""]
        assert read == ("t", 0, 0)


def test_a_frame_that_ends_within_the_head_of_the_last_produce_is_not_taken_for_one() -> None:
    head = PRODUCE + name("t") + u64(0)
    session = session_over()
    session.feed(memoryview(frame(head + b"first")))
    cut, run = session.feed(memoryview(frame(head[:-1]) + frame(head + b"second"))).requests
    assert cut.code == 0x11
    assert run.values == [b"second"]


@given(
    st.lists(
        st.one_of(
            st.builds(produce, st.sampled_from(["t", "tt", "u"]), st.integers(0, 2), st.binary(max_size=30)),
            st.builds(consume, st.sampled_from(["t", "u"]), st.integers(0, 2), st.integers(0, 5)),
            st.builds(frame, st.binary(min_size=1, max_size=30)),
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
                found += [(request.topic, request.partition, bytes(value)) for value in request.values]
            else:
                found.append(request)
        return found

    one_by_one = session_over()
    plain = [request for each in frames for request in flat(one_by_one.feed(memoryview(each)).requests)]
    stream = b"".join(frames)
    session = session_over()
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
    fed = session_over().feed(memoryview(data))
    assert 0 <= fed.consumed <= len(data)
    assert fed.fatal is None or not 0 < int.from_bytes(data[fed.consumed : fed.consumed + 4], "big") <= FRAME_BYTES_MAX


DOCUMENTED = frozenset({0x00, 0x11, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x30, 0x31, 0x32, 0x33, 0x34, 0xFC, 0xFE})


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda command, body: frame(bytes([command]) + body),
                st.sampled_from([1, 2, 3, 4, 5, 0, 255]),
                st.one_of(
                    st.binary(max_size=60),
                    st.builds(
                        lambda a, b, numbers: name(a) + name(b) + numbers,
                        st.sampled_from(["fuzz", "", "../x", "\0"]),
                        st.sampled_from(["fuzz", "", "a/b"]),
                        st.binary(max_size=20),
                    ),
                    st.builds(
                        lambda a, p, rest: name(a) + u64(p) + rest,
                        st.sampled_from(["fuzz", "fuzz2"]),
                        st.integers(0, 3),
                        st.binary(max_size=20),
                    ),
                ),
            ),
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
    assert {each[0] for each in answers} <= DOCUMENTED
    assert len(answers) <= len(b"".join(frames)) // 5
    assert broker.errors == []


# ---- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_records_offsets_and_commits(data_dir: Path) -> None:
    """FluxGo gives offset 0 out again after a restart and loads its offsets directory as a log."""
    with Serving(data_dir, fluxgo()) as broker, broker.connect() as peer:
        for at, value in enumerate([b"a", b"b", b"c"]):
            assert peer.ask(produce("with_under_scores", 0, value)) == offset(at)
        assert peer.ask(commit("g", "with_under_scores", 0, 2)) == ok()
    with Serving(data_dir, fluxgo()) as broker, broker.connect() as peer:
        # Straight after the start: the coordinator may still be loading.
        peer.send(fetch("g", "with_under_scores", 0) + commit("g", "with_under_scores", 1, 5))
        peer.send(fetch("g", "with_under_scores", 1))
        assert [peer.read() for _ in range(3)] == [offset(2), ok(), offset(5)]
        assert peer.ask(produce("with_under_scores", 0, b"d")) == offset(3)
        for at, value in enumerate([b"a", b"b", b"c", b"d"]):
            assert peer.ask(consume("with_under_scores", 0, at)) == ok(value)


# ---- offsets that are gone ---------------------------------------------------------------------------------------------


def test_deleted_records_are_a_read_error_that_says_where_to_go_on(broker: Serving, peer: RawPeer, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        peer.ask(produce(topic, 0, value))
    broker.call(lambda: broker.engine.delete_records(topic, 0, 2))
    assert peer.ask(consume(topic, 0, 0)) == error(0x24, b"no record at offset 0; next is 2")
    assert peer.ask(consume(topic, 0, 1)) == error(0x24, b"no record at offset 1; next is 2")
    assert peer.ask(consume(topic, 0, 2)) == ok(b"c")
    broker.call(lambda: broker.engine.delete_records(topic, 0, 3))
    assert peer.ask(consume(topic, 0, 2)) == error(0x24, b"no record at offset 2; next is 3")
    assert peer.ask(consume(topic, 0, 3)) == error(0x23)


def append_batch(engine: EmbeddedEngine, topic: str, batch: bytearray) -> Callable[[], object]:
    return lambda: engine.append(topic, 0, [memoryview(batch)], Acks.ALL)


def test_nothing_of_open_or_aborted_transactions_is_read(broker: Serving, peer: RawPeer, topic: str) -> None:
    peer.ask(produce(topic, 0, b"before"))
    begin_transaction(broker, topic, b"aborted")
    assert peer.ask(produce(topic, 0, b"behind")) == offset(2)
    assert peer.ask(consume(topic, 0, 1)) == error(0x23), "open"
    assert peer.ask(consume(topic, 0, 2)) == error(0x23), "behind an open one"
    end_transaction(broker, topic, MarkerKind.ABORT)
    assert peer.ask(consume(topic, 0, 1)) == error(0x24, b"no record at offset 1; next is 2")
    assert peer.ask(consume(topic, 0, 2)) == ok(b"behind")
    assert peer.ask(consume(topic, 0, 3)) == error(0x24, b"no record at offset 3; next is 4"), "the marker"
    assert peer.ask(consume(topic, 0, 4)) == error(0x23)
    begin_transaction(broker, topic, b"committed", sequence=1)
    end_transaction(broker, topic, MarkerKind.COMMIT)
    assert peer.ask(consume(topic, 0, 4)) == ok(b"committed")


def test_a_null_value_reads_as_empty(broker: Serving, peer: RawPeer, topic: str) -> None:
    engine = broker.engine
    broker.call(lambda: engine.create_topics([NewTopic(topic, 1)], validate_only=False))
    broker.call(append_batch(engine, topic, build_batch([NewRecord(1, b"key", None), NewRecord(1, None, b"v")])))
    assert peer.ask(consume(topic, 0, 0)) == ok()
    assert peer.ask(consume(topic, 0, 1)) == ok(b"v")


# ---- durability and failures -------------------------------------------------------------------------------------------


def test_with_acks_all_the_answer_waits_for_the_flush_and_a_consume_behind_it_too(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, fluxgo(), disk=disk) as broker, broker.connect() as peer:
        peer.ask(produce("t", 0, b"first"))
        disk.hold()
        peer.send(produce("t", 0, b"second") + consume("t", 0, 1))
        broker.until(lambda: disk.syncs_waiting)
        partition = broker.engine.partition("t", 0)
        assert partition is not None
        assert partition.high_watermark == 1
        with broker.connect() as other:
            assert other.ask(consume("t", 0, 0)) == ok(b"first")  # the broker has had time to answer
        assert peer.is_silent()
        disk.release()
        assert [peer.read(), peer.read()] == [offset(1), ok(b"second")]


def test_with_acks_leader_the_answer_does_not_wait(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, fluxgo(acks=1), disk=disk) as broker, broker.connect() as peer:
        peer.ask(produce("t", 0, b"first"))
        disk.hold()
        assert peer.ask(produce("t", 0, b"second")) == offset(1)
        disk.release()


def test_a_run_whose_flush_fails_is_an_append_error_for_each_of_its_records(data_dir: Path) -> None:
    disk = CueDisk()
    with Serving(data_dir, fluxgo(), disk=disk) as broker, broker.connect() as peer:
        peer.ask(produce("t", 0, b"first"))
        disk.sync_error = 5
        peer.send(produce("t", 0, b"a") * 3)
        answers = [peer.read() for _ in range(3)]
        assert all(each.startswith(b"\x14Failed to append message: ") for each in answers)
        assert peer.ask(produce("t", 0, b"b")).startswith(b"\x14Failed to append message: "), "and it stays open"
        disk.sync_error = None


def test_a_record_without_a_key_cannot_go_to_a_compacted_topic(broker: Serving, peer: RawPeer, topic: str) -> None:
    compacted = NewTopic(topic, 1, 1, {"cleanup.policy": "compact"})
    broker.call(lambda: broker.engine.create_topics([compacted], validate_only=False))
    refused = b"Failed to append message: a record of a compacted topic needs a key"
    assert peer.ask(produce(topic, 0, b"a")) == error(0x14, refused)
