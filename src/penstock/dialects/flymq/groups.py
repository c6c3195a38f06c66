"""Groups by API key: the document's state machine is the coordinator's classic group, and the broker assigns.

A member says its topics and a strategy; its subscription in the group is just that. When a generation begins, the
coordinator tells the leader's join who is in it. The broker makes the assignment of that at once and hands it in as the
leader's sync, so nobody waits for a leader that may have died, and every SyncGroup finds its share. What is stored as a
member's assignment is the payload of its SyncGroup answer.

Members of other protocols do not mix with these: their protocol type differs, and the second kind is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.coordination.assignors import Subscriber, assign_range, assign_round_robin
from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    FetchOffsets,
    FetchResult,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
    SyncGroup,
    SyncResult,
)
from penstock.coordination.group_records import CommittedOffset
from penstock.dialects.flymq.errors import check_group, checked
from penstock.dialects.flymq.offsets import ASKED_AT_ONCE
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I16, I32, I64, Reader, array, ints, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.model.limits import FLYMQ_MEMBER_TOPICS_MAX
from penstock.model.pending import Pending
from penstock.model.slices import Work, all_of

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

PROTOCOL_TYPE = "flymq"
CLIENT_ID = "flymq"
"""API-key frames have no client id; member ids begin with this."""
NO_LEADER_EPOCH = -1
NO_OFFSET = -1
ROWS_AT_ONCE = 200
"""Rows encoded between two pauses."""

Shares = dict[str, dict[str, frozenset[int]]]
STRATEGIES: Mapping[str, Callable[[Mapping[str, Subscriber[str]], Mapping[str, int]], Shares]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
}


def find_coordinator(service: FlyMQService, session: FlyMQSession, reader: Reader) -> bytes:
    check_group(reader.string())
    host, port = service.settings.advertised_host, service.settings.advertised_port
    return I32.pack(service.engine.identity.node_id) + string(host) + I32.pack(port)


# ---- membership ---------------------------------------------------------------------------------------------------


def join_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[Any]:
    group, member = check_group(reader.string()), reader.string()
    session_timeout_ms, rebalance_timeout_ms = reader.i32(), reader.i32()
    strategy = reader.string()
    topics = set((yield from reader.array_in_slices(reader.string, 2)))
    if len(topics) > FLYMQ_MEMBER_TOPICS_MAX:
        raise BrokerError(
            Fault.INVALID_REQUEST, f"{len(topics)} topics, a member has at most {FLYMQ_MEMBER_TOPICS_MAX}"
        )
    if strategy not in STRATEGIES:
        raise BrokerError(Fault.UNSUPPORTED_ASSIGNOR, f'strategy {strategy!r}: "range" and "roundrobin" are known')
    command = JoinGroup(
        group,
        member,
        None,
        CLIENT_ID,
        session.client_host,
        session_timeout_ms,
        rebalance_timeout_ms,
        PROTOCOL_TYPE,
        ((strategy, array([string(topic) for topic in sorted(topics)])),),
    )
    asked = service.engine.groups.ask(group, command)
    if isinstance(asked, Fault):
        raise BrokerError(asked)
    # Not abandoned with its connection: the others of the generation need the assignment all the same.
    answer: Pending[Any] = Pending()

    def joined(result: JoinResult | Fault) -> None:
        if isinstance(result, Fault):
            answer.complete(BrokerError(result))
        elif result.fault is not Fault.NONE:
            answer.complete(BrokerError(result.fault))
        else:
            if result.leader == result.member_id:
                _assign(service, group, result)
            answer.complete(I32.pack(result.generation) + string(result.member_id) + string(result.leader))

    asked.then(joined)
    return answer


def _assign(service: FlyMQService, group: str, result: JoinResult) -> None:
    """Hand in the leader's sync for it."""
    members = {member.member_id: Subscriber(_topics(member.metadata), {}) for member in result.members}
    if not members:
        return  # a leader that missed an answer: the generation has its assignment
    topics = {topic for member in members.values() for topic in member.topics}
    counts = {topic: count for topic in sorted(topics) if (count := service.placing.partitions(topic))}
    shares = STRATEGIES[result.protocol or "range"](members, counts)
    assignments = {member: _encoded(share) for member, share in shares.items()}
    service.engine.groups.ask(
        group,
        SyncGroup(group, result.member_id, None, result.generation, PROTOCOL_TYPE, result.protocol, assignments),
    )


def _topics(subscription: bytes) -> frozenset[str]:
    reader = Reader(subscription)
    return frozenset(reader.array(reader.string, 2))


def _encoded(share: Mapping[str, frozenset[int]]) -> bytes:
    return array([string(topic) + ints(sorted(share[topic])) for topic in sorted(share)])


def sync_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    group, generation, member = check_group(reader.string()), reader.i32(), reader.string()

    def synced(result: SyncResult | Fault) -> bytes:
        checked(result if isinstance(result, Fault) else result.fault)
        assert isinstance(result, SyncResult)
        return result.assignment or array([])

    command = SyncGroup(group, member, None, generation, PROTOCOL_TYPE, None, {})
    return follow(service.engine.groups.ask(group, command), synced)


def heartbeat(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    group, generation, member = check_group(reader.string()), reader.i32(), reader.string()

    def answered(result: HeartbeatResult | Fault) -> bytes:
        checked(result if isinstance(result, Fault) else result.fault)
        return b""

    return follow(service.engine.groups.ask(group, Heartbeat(group, member, None, generation)), answered)


def leave_group(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    group, member = check_group(reader.string()), reader.string()

    def left(result: LeaveResult | Fault) -> bytes:
        checked(result if isinstance(result, Fault) else result.fault)
        assert isinstance(result, LeaveResult)
        checked(result.members[0][1])
        return b""

    return follow(service.engine.groups.ask(group, LeaveGroup(group, (LeavingMember(member, None),))), left)


# ---- offsets ------------------------------------------------------------------------------------------------------

_COMMIT_BYTES_MIN = 2 + 4 + 8 + 2
_PLACE_BYTES_MIN = 2 + 4


def offset_commit(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    group, generation, member = check_group(reader.string()), reader.i32(), reader.string()

    def item() -> OffsetToCommit:
        topic, partition, offset = reader.string(), reader.i32(), reader.i64()
        return OffsetToCommit(topic, partition, offset, NO_LEADER_EPOCH, reader.string())

    offsets = yield from reader.array_in_slices(item, _COMMIT_BYTES_MIN)
    asked: list[Any] = []
    for start in range(0, len(offsets), ASKED_AT_ONCE):
        part = offsets[start : start + ASKED_AT_ONCE]
        allowed = tuple(offset for offset in part if _commit_fault(service, offset) is Fault.NONE)
        if not allowed:
            asked.append(CommitResult(Fault.NONE))
            continue
        command = CommitOffsets(group, member or NO_MEMBER, None, max(generation, NO_GENERATION), allowed)
        asked.append(service.engine.groups.commit(command, service.settings.acks))
        yield None
    results: list[CommitResult | Fault] = yield from all_of(asked)
    rows = []
    for number, offset in enumerate(offsets):
        topic, partition = offset.topic, offset.partition
        fault = _commit_fault(service, offset)
        if fault is Fault.NONE:
            result = results[number // ASKED_AT_ONCE]
            whole, some = (result, {}) if isinstance(result, Fault) else (result.fault, result.refused)
            fault = some.get((topic, partition), Fault.NONE) if whole is Fault.NONE else whole
        rows.append(string(topic) + I32.pack(partition) + I16.pack(CODES[fault]))
        if len(rows) % ROWS_AT_ONCE == 0:
            yield None
    return array(rows)


def _commit_fault(service: FlyMQService, offset: OffsetToCommit) -> Fault:
    if service.engine.partition(offset.topic, offset.partition) is None:
        return Fault.UNKNOWN_TOPIC_OR_PARTITION
    return Fault.OFFSET_OUT_OF_RANGE if offset.offset < 0 else Fault.NONE


_TIMES = struct.Struct(">qh")


def offset_fetch(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Work[bytes]:
    group = check_group(reader.string())
    places = yield from reader.array_in_slices(lambda: (reader.string(), reader.i32()), _PLACE_BYTES_MIN)
    rows: list[bytes] = []
    for start in range(0, len(places) or 1, ASKED_AT_ONCE):
        part = places[start : start + ASKED_AT_ONCE]
        wanted: dict[str, list[int]] = {}
        for topic, partition in part:
            wanted.setdefault(topic, []).append(partition)
        command = FetchOffsets(group, {topic: tuple(partitions) for topic, partitions in wanted.items()})
        asked = service.engine.groups.ask(group, command)
        result = (yield asked) if isinstance(asked, Pending) else asked
        checked(result if isinstance(result, Fault) else result.fault)
        assert isinstance(result, FetchResult)
        rows += [_offset_row(topic, partition, result.offsets[topic][partition].value) for topic, partition in part]
        yield None
    return array(rows)


def _offset_row(topic: str, partition: int, value: CommittedOffset | None) -> bytes:
    offset, metadata, at_ms = (NO_OFFSET, "", -1)
    if value is not None:
        offset, metadata, at_ms = value.offset, value.metadata or "", value.commit_timestamp_ms
    tail = _TIMES.pack(at_ms, CODES[Fault.NONE])
    return b"".join((string(topic), I32.pack(partition), I64.pack(offset), string(metadata), tail))
