"""The records of consumer groups (KIP-848) in `__consumer_offsets`: values, and their bytes in Kafka's formats.

    key 3   (group)           the group's epoch
    key 4   (group)           the topics that the group subscribes to, as they were when the epoch was last raised
    key 5   (group, member)   who the member is and what it subscribes to
    key 6   (group)           the epoch that the target assignment belongs to, and when it was made
    key 7   (group, member)   the member's target assignment
    key 8   (group, member)   the member's epoch and what it holds now
    key 16  (group, pattern)  the topics that a pattern stands for

Every value is flexible and of version 0. The meaning of epochs and assignments is in consumer_group.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from penstock.coordination.record_fields import FieldError, FieldReader, FieldWriter, uvarint

_TIMESTAMP_TAG = 0
_NO_TAGS = b"\x00"
_NO_RACKS_NO_TAGS = b"\x01\x00"
_I32 = struct.Struct(">i")

Assignment = dict[uuid.UUID, frozenset[int]]
"""Partitions by topic id; no topic with an empty set, so that equal assignments are equal."""


class SubscribedTopic(NamedTuple):
    topic_id: uuid.UUID
    partitions: int


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class GroupEpochRecord(NamedTuple):
    group: str
    value: int | None


class GroupTopicsRecord(NamedTuple):
    group: str
    value: dict[str, SubscribedTopic] | None


class MemberMetadata(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_names: tuple[str, ...]
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None


class MemberRecord(NamedTuple):
    group: str
    member_id: str
    value: MemberMetadata | None


class TargetEpoch(NamedTuple):
    epoch: int
    timestamp_ms: int


class TargetEpochRecord(NamedTuple):
    group: str
    value: TargetEpoch | None


class TargetMemberRecord(NamedTuple):
    group: str
    member_id: str
    value: Assignment | None


class CurrentAssignment(NamedTuple):
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Assignment
    revoking: Assignment
    """What the member has to give up before it may go on; it counts as held until the member has said so."""


class CurrentAssignmentRecord(NamedTuple):
    group: str
    member_id: str
    value: CurrentAssignment | None


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp_ms: int


class RegexRecord(NamedTuple):
    group: str
    regex: str
    value: ResolvedRegex | None


ConsumerGroupRecord = (
    GroupEpochRecord
    | GroupTopicsRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetMemberRecord
    | CurrentAssignmentRecord
    | RegexRecord
)

_KEYS: dict[type[ConsumerGroupRecord], int] = {
    GroupEpochRecord: 3,
    GroupTopicsRecord: 4,
    MemberRecord: 5,
    TargetEpochRecord: 6,
    TargetMemberRecord: 7,
    CurrentAssignmentRecord: 8,
    RegexRecord: 16,
}


def encode(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    key = FieldWriter(_KEYS[type(record)])
    key.string(record.group)
    if isinstance(record, RegexRecord):
        key.string(record.regex)
    elif isinstance(record, MemberRecord | TargetMemberRecord | CurrentAssignmentRecord):
        key.string(record.member_id)
    if record.value is None:
        return key.done(), None
    value = FieldWriter(0, flexible=True)
    tags: dict[int, bytes] = {}
    match record:
        case GroupEpochRecord(value=int(epoch)):
            value.i32(epoch)
        case GroupTopicsRecord(value=dict(topics)):
            _write_topics(value, topics)
        case MemberRecord(value=MemberMetadata() as metadata):
            _write_member(value, metadata)
        case TargetEpochRecord(value=TargetEpoch() as target):
            value.i32(target.epoch)
            tags[_TIMESTAMP_TAG] = target.timestamp_ms.to_bytes(8, "big", signed=True)
        case TargetMemberRecord(value=dict(assignment)):
            _write_assignment(value, assignment)
        case CurrentAssignmentRecord(value=CurrentAssignment() as current):
            value.i32(current.epoch)
            value.i32(current.previous_epoch)
            value.i8(current.state)
            _write_assignment(value, current.assigned)
            _write_assignment(value, current.revoking)
        case RegexRecord(value=ResolvedRegex() as resolved):
            _write_strings(value, sorted(resolved.topics))
            value.i64(resolved.version)
            value.i64(resolved.timestamp_ms)
    value.tags(tags)
    return key.done(), value.done()


def decode(kind: int, key: FieldReader, raw: bytes | memoryview | None) -> ConsumerGroupRecord | None:
    """The record whose key has this type; None when it is not one of a consumer group."""
    if kind not in _KEYS.values():
        return None
    group = key.string()
    value = None if raw is None else FieldReader(raw, flexible=True)
    if value is not None:
        version = value.i16()
        if version != 0:
            raise FieldError(f"the value of a consumer group record has version {version}, known is 0")
    match kind:
        case 3:
            return GroupEpochRecord(group, None if value is None else value.i32())
        case 4:
            return GroupTopicsRecord(group, None if value is None else _read_topics(value))
        case 5:
            return MemberRecord(group, key.string(), None if value is None else _read_member(value))
        case 6:
            return TargetEpochRecord(group, None if value is None else _read_target_epoch(value))
        case 7:
            return TargetMemberRecord(group, key.string(), None if value is None else _read_assignment(value))
        case 8:
            return CurrentAssignmentRecord(group, key.string(), None if value is None else _read_current(value))
        case _:
            return RegexRecord(group, key.string(), None if value is None else _read_regex(value))


def _write_strings(writer: FieldWriter, texts: list[str] | tuple[str, ...]) -> None:
    writer.count(len(texts))
    writer.buffer += b"".join([_string(text) for text in texts])


def _string(text: str) -> bytes:
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def _read_strings(reader: FieldReader) -> tuple[str, ...]:
    return tuple(reader.string() for _ in range(reader.count()))


def _write_topics(writer: FieldWriter, topics: Mapping[str, SubscribedTopic]) -> None:
    writer.count(len(topics))
    writer.buffer += b"".join(
        [
            # no racks, because there is one broker, and no tags
            topic.topic_id.bytes + _string(name) + _I32.pack(topic.partitions) + _NO_RACKS_NO_TAGS
            for name, topic in sorted(topics.items())
        ]
    )


def _read_topics(reader: FieldReader) -> dict[str, SubscribedTopic]:
    topics = {}
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        name = reader.string()
        topics[name] = SubscribedTopic(topic_id, reader.i32())
        for _ in range(reader.count()):
            reader.i32()
            _read_strings(reader)
            reader.tags()
        reader.tags()
    return topics


def _write_member(writer: FieldWriter, member: MemberMetadata) -> None:
    writer.nullable_string(member.instance_id)
    writer.nullable_string(member.rack_id)
    writer.string(member.client_id)
    writer.string(member.client_host)
    _write_strings(writer, member.subscribed_names)
    writer.nullable_string(member.subscribed_regex)
    writer.i32(member.rebalance_timeout_ms)
    writer.nullable_string(member.assignor)


def _read_member(reader: FieldReader) -> MemberMetadata:
    return MemberMetadata(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        subscribed_names=_read_strings(reader),
        subscribed_regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.i32(),
        assignor=reader.nullable_string(),
    )


def _number(topic_id: uuid.UUID) -> int:
    """Sort key of an id: its number, which is faster to compare than the id."""
    return topic_id.int


def _write_assignment(writer: FieldWriter, assignment: Assignment) -> None:
    writer.count(len(assignment))
    parts = []
    for topic_id in sorted(assignment, key=_number):
        partitions = sorted(assignment[topic_id])
        count = len(partitions)
        parts.append(topic_id.bytes + uvarint(count + 1) + struct.pack(f">{count}i", *partitions) + _NO_TAGS)
    writer.buffer += b"".join(parts)


def _read_assignment(reader: FieldReader) -> Assignment:
    assignment = {}
    for _ in range(reader.count()):
        topic_id = reader.uuid()
        partitions = frozenset(reader.i32() for _ in range(reader.count()))
        reader.tags()
        if partitions:
            assignment[topic_id] = partitions
    return assignment


def _read_target_epoch(reader: FieldReader) -> TargetEpoch:
    epoch = reader.i32()
    stamp = reader.tags().get(_TIMESTAMP_TAG, b"")
    return TargetEpoch(epoch, int.from_bytes(stamp, "big", signed=True))


def _read_current(reader: FieldReader) -> CurrentAssignment:
    epoch = reader.i32()
    previous_epoch = reader.i32()
    number = reader.i8()
    try:
        state = MemberState(number)
    except ValueError:
        raise FieldError(f"a member has the unknown state {number}") from None
    return CurrentAssignment(epoch, previous_epoch, state, _read_assignment(reader), _read_assignment(reader))


def _read_regex(reader: FieldReader) -> ResolvedRegex:
    return ResolvedRegex(frozenset(_read_strings(reader)), reader.i64(), reader.i64())
