"""CommitOffset and FetchOffset as bytes, and the groups that they share with Kafka's clients."""

from __future__ import annotations

import pytest

from penstock.coordination.group_commands import CommitOffsets, FetchOffsets, JoinGroup, OffsetToCommit
from penstock.model.errors import Fault
from tests.dialects.fluxgo.frames import COMMIT, FETCH, commit, error, fetch, frame, name, offset, ok, produce, u64
from tests.dialects.fluxgo.in_process import RawPeer, Serving

NOT_COMMITTED = error(0x34)
COMMIT_FAILED = error(0x32, b"Failed to commit offset")
FETCH_FAILED = error(0x33, b"Failed to fetch offset")


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


def test_a_committed_offset_is_fetched_and_the_last_one_counts(peer: RawPeer, topic: str, group: str) -> None:
    assert peer.ask(fetch(group, topic, 0)) == NOT_COMMITTED
    assert peer.ask(commit(group, topic, 0, 7)) == ok()
    assert peer.ask(fetch(group, topic, 0)) == offset(7)
    assert peer.ask(commit(group, topic, 0, 3)) == ok()
    assert peer.ask(fetch(group, topic, 0)) == offset(3)


def test_offsets_are_by_group_topic_and_partition(peer: RawPeer, topic: str, group: str) -> None:
    peer.ask(commit(group, topic, 0, 7))
    assert peer.ask(fetch(group, topic, 1)) == NOT_COMMITTED
    assert peer.ask(fetch(group, topic + "x", 0)) == NOT_COMMITTED
    assert peer.ask(fetch(group + "x", topic, 0)) == NOT_COMMITTED


def test_a_commit_asks_for_neither_topic_nor_partition(broker: Serving, peer: RawPeer, topic: str, group: str) -> None:
    assert peer.ask(commit(group, topic, 12, 99)) == ok()
    assert peer.ask(fetch(group, topic, 12)) == offset(99)
    assert broker.call(lambda: broker.engine.topic(topic)) is None


def test_offsets_and_partitions_up_to_what_the_log_can_count(peer: RawPeer, topic: str, group: str) -> None:
    assert peer.ask(commit(group, topic, 0, 2**63 - 1)) == ok()
    assert peer.ask(fetch(group, topic, 0)) == offset(2**63 - 1)
    assert peer.ask(commit(group, topic, 0, 2**63)) == COMMIT_FAILED
    assert peer.ask(commit(group, topic, 2**31 - 1, 1)) == ok()
    assert peer.ask(fetch(group, topic, 2**31 - 1)) == offset(1)
    assert peer.ask(commit(group, topic, 2**31, 1)) == COMMIT_FAILED
    assert peer.ask(fetch(group, topic, 2**31)) == NOT_COMMITTED
    assert peer.ask(fetch(group, topic, 2**64 - 1)) == NOT_COMMITTED


def test_bytes_behind_the_last_field_are_ignored(peer: RawPeer, topic: str, group: str) -> None:
    assert peer.ask(frame(COMMIT + name(group) + name(topic) + u64(0) + u64(5) + b"more")) == ok()
    assert peer.ask(frame(FETCH + name(group) + name(topic) + u64(0) + b"more")) == offset(5)


# ---- payloads that are too short ---------------------------------------------------------------------------------------


def test_a_commit_of_less_than_twenty_bytes_is_too_short(peer: RawPeer) -> None:
    short = error(0xFC, b"Invalid commit payload: too short for headers")
    assert peer.ask(frame(COMMIT)) == short
    assert peer.ask(frame(COMMIT + bytes(19))) == short
    assert peer.ask(frame(COMMIT + bytes(20))) == COMMIT_FAILED, "whole, with empty names"


def test_a_commit_whose_names_do_not_fit_is_told_which(peer: RawPeer) -> None:
    group_cut = error(0x30, b"Invalid commit payload: too short for group ID")
    topic_cut = error(0x31, b"Invalid commit payload: too short for topic")
    assert peer.ask(frame(COMMIT + b"\x00\x01" + bytes(18))) == group_cut
    assert peer.ask(frame(COMMIT + b"\x00\x01g" + bytes(17))) == group_cut
    assert peer.ask(frame(COMMIT + b"\x00\x01g\x00\x01" + bytes(16))) == topic_cut
    assert peer.ask(frame(COMMIT + b"\x00\x01g\x00\x01t" + bytes(15))) == topic_cut
    assert peer.ask(frame(COMMIT + b"\x00\x01g\x00\x01t" + bytes(16))) == ok()


def test_a_fetch_of_less_than_twelve_bytes_is_too_short(peer: RawPeer) -> None:
    short = error(0xFC, b"Invalid fetch payload: too short for headers")
    assert peer.ask(frame(FETCH)) == short
    assert peer.ask(frame(FETCH + bytes(11))) == short
    assert peer.ask(frame(FETCH + bytes(12))) == FETCH_FAILED, "whole, with empty names"


def test_a_fetch_whose_names_do_not_fit_is_told_which(peer: RawPeer, topic: str) -> None:
    group_cut = error(0x30, b"Invalid fetch payload: too short for group ID")
    topic_cut = error(0x31, b"Invalid fetch payload: too short for topic")
    assert peer.ask(frame(FETCH + b"\x00\x01" + bytes(10))) == group_cut
    assert peer.ask(frame(FETCH + b"\x00\x01g" + bytes(9))) == group_cut
    assert peer.ask(frame(FETCH + b"\x00\x01g\x00\x01" + bytes(8))) == topic_cut
    assert peer.ask(frame(FETCH + b"\x00\x01g\x00\x01u" + bytes(7))) == topic_cut
    assert peer.ask(frame(FETCH + b"\x00\x01g\x00\x01u" + bytes(8))) == NOT_COMMITTED


# ---- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["", "..", "../x", "a/b", "a\\b", "a..b", "x\0", "x\n", "\x7f", "\x85", b"\xff", "g" * 256, "ü" * 128]
)
def test_a_group_that_cannot_be_called_so_is_refused(peer: RawPeer, topic: str, bad: str | bytes) -> None:
    assert peer.ask(commit(bad, topic, 0, 1)) == COMMIT_FAILED
    assert peer.ask(fetch(bad, topic, 0)) == FETCH_FAILED


@pytest.mark.parametrize("good", ["g", "a group", "g" * 255, "ünïcode", "."])
def test_a_group_may_be_called_so(peer: RawPeer, topic: str, good: str) -> None:
    assert peer.ask(commit(good, topic, 0, 1)) == ok()
    assert peer.ask(fetch(good, topic, 0)) == offset(1)


@pytest.mark.parametrize("bad", ["", "..", "../x", "a/b", "a\\b", "x\0", "t" * 250, b"\xff"])
def test_a_topic_that_cannot_be_called_so_is_refused(peer: RawPeer, group: str, bad: str | bytes) -> None:
    assert peer.ask(commit(group, bad, 0, 1)) == COMMIT_FAILED
    assert peer.ask(fetch(group, bad, 0)) == FETCH_FAILED


# ---- one name is one group ---------------------------------------------------------------------------------------------


def test_an_offset_that_a_kafka_client_committed_is_fetched_and_the_other_way_round(
    broker: Serving, peer: RawPeer, topic: str, group: str
) -> None:
    groups = broker.engine.groups
    kafka = CommitOffsets(group, "", None, -1, (OffsetToCommit(topic, 1, 42, -1, "note"),))
    peer.ask(commit(group, topic, 0, 7))
    assert broker.call(lambda: groups.ask(group, kafka)).fault is Fault.NONE
    assert peer.ask(fetch(group, topic, 1)) == offset(42)
    found = broker.call(lambda: groups.ask(group, FetchOffsets(group, {topic: (0,)})))
    assert found.offsets[topic][0].value.offset == 7


def test_a_commit_into_a_group_with_members_is_refused(broker: Serving, peer: RawPeer, topic: str, group: str) -> None:
    peer.ask(commit(group, topic, 0, 1))
    join = JoinGroup(group, "", None, "c", "h", 30_000, 30_000, "consumer", (("range", b""),))
    ticket = broker.call(lambda: (broker.engine.groups.ask(group, join),))[0]
    assert peer.ask(commit(group, topic, 0, 2)) == COMMIT_FAILED
    assert peer.ask(fetch(group, topic, 0)) == offset(1)
    broker.call(ticket.abandon)


def test_a_commit_and_a_fetch_in_one_write_are_answered_in_order(peer: RawPeer, topic: str, group: str) -> None:
    asked = [fetch(group, topic, 0)]
    wanted = [NOT_COMMITTED]
    for at in range(20):
        asked += [commit(group, topic, 0, at), fetch(group, topic, 0), produce(topic, 0, b"x")]
        wanted += [ok(), offset(at), offset(at)]
    peer.send(b"".join(asked))
    assert [peer.read() for _ in wanted] == wanted
