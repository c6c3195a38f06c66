"""Kafka's frames of consumer groups, for the load: membership in old, plain versions, commits in a newer one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench import wire
from bench.wire import Reader, WireError

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 9, 11, 12, 14
LOADING = 14
"""COORDINATOR_LOAD_IN_PROGRESS."""
NO_GENERATION = -1
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000


class Member(NamedTuple):
    group: str
    generation: int
    member_id: str


def _bytes(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


def offset_commit(
    correlation_id: int,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    generation: int = NO_GENERATION,
    member_id: str = "",
) -> bytes:
    """OffsetCommit v8: partition to offset, without metadata."""
    parts = b"".join(struct.pack(">iqi", index, offset, -1) + b"\x01\x00" for index, offset in offsets.items())
    topics = b"\x02" + wire.compact(topic.encode()) + wire.uvarint(len(offsets) + 1) + parts + b"\x00"
    who = wire.compact(group.encode()) + struct.pack(">i", generation) + wire.compact(member_id.encode()) + b"\x00"
    return wire.frame(OFFSET_COMMIT, 8, correlation_id, who + topics + b"\x00", flexible=True)


def check_commit(frame: memoryview, correlation_id: int) -> None:
    """Raises unless every partition of an OffsetCommit v8 answer says error 0."""
    reader = wire.open_answer(frame, correlation_id, flexible=True)
    reader.one(">i")
    partitions = 0
    for _ in range(reader.uvarint() - 1):
        reader.skip(reader.uvarint() - 1)
        for _ in range(reader.uvarint() - 1):
            index, error = reader.take(">ih")
            if error:
                raise WireError(f"commit of partition {index}: error {error}")
            reader.tags()
            partitions += 1
        reader.tags()
    if partitions == 0:
        raise WireError("a commit answer without a partition")


def offset_fetch(correlation_id: int, group: str, topic: str, partition: int) -> bytes:
    """OffsetFetch v7 of one partition."""
    topics = b"\x02" + wire.compact(topic.encode()) + b"\x02" + struct.pack(">i", partition) + b"\x00"
    body = wire.compact(group.encode()) + topics + b"\x00\x00"
    return wire.frame(OFFSET_FETCH, 7, correlation_id, body, flexible=True)


def fetched_offset(frame: memoryview, correlation_id: int) -> tuple[int, int]:
    """The error of an OffsetFetch v7 answer, and the offset of its one partition (-1: none)."""
    reader = wire.open_answer(frame, correlation_id, flexible=True)
    reader.one(">i")
    offset = -1
    for _ in range(reader.uvarint() - 1):
        reader.skip(reader.uvarint() - 1)
        for _ in range(reader.uvarint() - 1):
            _index, offset, _epoch = reader.take(">iqi")
            reader.skip(max(reader.uvarint() - 1, 0))
            reader.one(">h")
            reader.tags()
        reader.tags()
    return reader.one(">h"), offset


def join_group(correlation_id: int, group: str) -> bytes:
    """JoinGroup v2 of a new consumer; what it subscribes to is nobody's business but the leader's."""
    body = wire.string(group) + struct.pack(">ii", SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS) + wire.string("")
    body += wire.string("consumer") + struct.pack(">i", 1) + wire.string("range") + _bytes(b"")
    return wire.frame(JOIN_GROUP, 2, correlation_id, body, flexible=False)


def joined(frame: memoryview, correlation_id: int, group: str) -> tuple[Member, list[str]]:
    """Who one is, and, for the leader, all members."""
    reader = wire.open_answer(frame, correlation_id, flexible=False)
    _throttle, error, generation = reader.take(">ihi")
    if error:
        raise WireError(f"join of {group}: error {error}")
    _text(reader)
    _text(reader)
    member_id = _text(reader)
    members = []
    for _ in range(reader.one(">i")):
        members.append(_text(reader))
        reader.skip(reader.one(">i"))
    return Member(group, generation, member_id), members


def sync_group(correlation_id: int, member: Member, members: Sequence[str]) -> bytes:
    """SyncGroup v1; the leader names the members."""
    body = wire.string(member.group) + struct.pack(">i", member.generation) + wire.string(member.member_id)
    body += struct.pack(">i", len(members)) + b"".join(wire.string(one) + _bytes(b"its own") for one in members)
    return wire.frame(SYNC_GROUP, 1, correlation_id, body, flexible=False)


def heartbeat(correlation_id: int, member: Member) -> bytes:
    """Heartbeat v1."""
    body = wire.string(member.group) + struct.pack(">i", member.generation) + wire.string(member.member_id)
    return wire.frame(HEARTBEAT, 1, correlation_id, body, flexible=False)


def check_plain(frame: memoryview, correlation_id: int) -> None:
    """Raises unless the answer to SyncGroup v1 or Heartbeat v1 says error 0."""
    reader = wire.open_answer(frame, correlation_id, flexible=False)
    _throttle, error = reader.take(">ih")
    if error:
        raise WireError(f"a member was answered error {error}")


def _text(reader: Reader) -> str:
    size = reader.one(">h")
    start = reader.at
    reader.skip(size)
    return bytes(reader.frame[start : start + size]).decode()
