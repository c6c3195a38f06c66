"""The records of `__consumer_offsets`, in Kafka's formats: what a key and a value say, and their bytes.

A record here is a value: the key's fields, and `value`, which is None for a tombstone. A key starts with its type as an
i16; a value with its version. What is written is what Kafka itself writes (so that its dump-log, and a Kafka that takes
over the topic, read it), what is read is everything Kafka ever wrote:

    key 0, 1   committed offset        values 0-4 read; 3 written, 1 with an expiry, 4 for metadata that is null
    key 2      classic group           values 0-4 read; 3 written
    key 3-8, 16  consumer group (KIP-848), in consumer_group_records
    others     share and streams groups: left alone

Kafka's value has no null metadata. Clients can tell null from empty, so null is written as empty with a tagged field of
ours, which other readers skip.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from penstock.coordination import consumer_group_records as consumer
from penstock.coordination.record_fields import FieldError, FieldReader, FieldWriter

NO_LEADER_EPOCH = -1
_NULL_METADATA_TAG = 7_000
"""Ours, far above the numbers that Kafka gives out."""

_NAMES: dict[bytes, tuple[str, str]] = {}
_NAMES_MAX = 10_000

_OFFSET_KEY = b"\0\1"
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_OFFSET_HEAD = struct.Struct(">hqih")
_OFFSET_TIME = struct.Struct(">q")
_PLAIN_OFFSET = struct.Struct(">hqihq")
"""A value of version 3 without metadata, which most have."""


class CommittedOffset(NamedTuple):
    offset: int
    commit_timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = ""
    expire_timestamp_ms: int | None = None
    """Only commits of old clients that asked for a retention of their own have one."""


class OffsetRecord(NamedTuple):
    group: str
    topic: str
    partition: int
    value: CommittedOffset | None


class StoredMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """A classic group as it was when it last became stable or empty."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...]


class ClassicGroupRecord(NamedTuple):
    group: str
    value: StoredGroup | None


GroupRecord = OffsetRecord | ClassicGroupRecord | consumer.ConsumerGroupRecord


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """The key and the value (None for a tombstone) to append."""
    if isinstance(record, OffsetRecord):
        return _encode_offset(record)
    if isinstance(record, ClassicGroupRecord):
        key = FieldWriter(2)
        key.string(record.group)
        return key.done(), None if record.value is None else _encode_group(record.value)
    return consumer.encode(record)


def decode(key: bytes | memoryview, value: bytes | memoryview | None) -> GroupRecord | None:
    """The record, or None for one that belongs to no group of ours; raises FieldError when it is damaged."""
    if key[:2] == _OFFSET_KEY:
        return _decode_offset(bytes(key), value)
    try:
        kind = _I16.unpack_from(key)[0]
    except struct.error:
        raise FieldError("the key of a group record has no type") from None
    if kind <= 1:
        if kind < 0:
            raise FieldError(f"the key of a group record has type {kind}")
        return _decode_offset(bytes(key), value)
    if kind == 2:
        group = FieldReader(key, 2).string()
        return ClassicGroupRecord(group, None if value is None else _decode_group(value))
    return consumer.decode(kind, FieldReader(key, 2), value)


def _encode_offset(record: OffsetRecord) -> tuple[bytes, bytes | None]:
    group = record.group.encode()
    topic = record.topic.encode()
    key = b"".join(
        (_OFFSET_KEY, _I16.pack(len(group)), group, _I16.pack(len(topic)), topic, _I32.pack(record.partition))
    )
    value = record.value
    if value is None:
        return key, None
    if value.expire_timestamp_ms is not None:
        old = FieldWriter(1)
        old.i64(value.offset)
        old.string(value.metadata or "")
        old.i64(value.commit_timestamp_ms)
        old.i64(value.expire_timestamp_ms)
        return key, old.done()
    if value.metadata is None:
        new = FieldWriter(4, flexible=True)
        new.i64(value.offset)
        new.i32(value.leader_epoch)
        new.string("")
        new.i64(value.commit_timestamp_ms)
        new.tags({_NULL_METADATA_TAG: b""})
        return key, new.done()
    metadata = value.metadata.encode()
    head = _OFFSET_HEAD.pack(3, value.offset, value.leader_epoch, len(metadata))
    return key, b"".join((head, metadata, _OFFSET_TIME.pack(value.commit_timestamp_ms)))


def _decode_offset(key: bytes, value: bytes | memoryview | None) -> OffsetRecord:
    # By far the most frequent record: a million of them are loaded at start. They share few names, which are kept once.
    names = _NAMES.get(key[:-4]) or _decode_names(key)
    (partition,) = _I32.unpack_from(key, len(key) - 4)
    committed = None
    if value is not None:
        if len(value) == _PLAIN_OFFSET.size:
            version, offset, leader_epoch, metadata_bytes, timestamp_ms = _PLAIN_OFFSET.unpack(value)
            if version == 3 and metadata_bytes == 0:
                committed = CommittedOffset(offset, timestamp_ms, leader_epoch)
        if committed is None:
            committed = _decode_offset_value(bytes(value))
    return OffsetRecord(*names, partition, committed)


def _decode_names(key: bytes) -> tuple[str, str]:
    reader = FieldReader(key, 2)
    names = reader.string(), reader.string()
    reader.i32()
    reader.end()
    if len(_NAMES) >= _NAMES_MAX:
        _NAMES.clear()
    _NAMES[key[:-4]] = names
    return names


def _decode_offset_value(value: bytes) -> CommittedOffset:
    if value[:2] == b"\0\3":
        try:
            _, offset, leader_epoch, size = _OFFSET_HEAD.unpack_from(value)
            end = _OFFSET_HEAD.size + size
            timestamp_ms = _OFFSET_TIME.unpack_from(value, end)[0]
            metadata = value[_OFFSET_HEAD.size : end].decode()
        except (struct.error, UnicodeDecodeError):
            raise FieldError("the value of an offset record is damaged") from None
        return CommittedOffset(offset, timestamp_ms, leader_epoch, metadata)
    reader = FieldReader(value)
    version = _version(reader, 4)
    reader.flexible = version >= 4
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else NO_LEADER_EPOCH
    text: str | None = reader.string()
    timestamp_ms = reader.i64()
    expire_timestamp_ms = reader.i64() if version == 1 else -1
    if _NULL_METADATA_TAG in reader.tags():
        text = None
    return CommittedOffset(
        offset, timestamp_ms, leader_epoch, text, expire_timestamp_ms if expire_timestamp_ms >= 0 else None
    )


def _encode_group(group: StoredGroup) -> bytes:
    writer = FieldWriter(3)
    writer.string(group.protocol_type)
    writer.i32(group.generation)
    writer.nullable_string(group.protocol)
    writer.nullable_string(group.leader)
    writer.i64(group.state_timestamp_ms)
    writer.count(len(group.members))
    for member in group.members:
        writer.string(member.member_id)
        writer.nullable_string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.i32(member.rebalance_timeout_ms)
        writer.i32(member.session_timeout_ms)
        writer.bytes_(member.subscription)
        writer.bytes_(member.assignment)
    return writer.done()


def _decode_group(value: bytes | memoryview) -> StoredGroup:
    reader = FieldReader(value)
    version = _version(reader, 4)
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation = reader.i32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    timestamp_ms = reader.i64() if version >= 2 else -1
    members = tuple(_decode_member(reader, version) for _ in range(reader.count()))
    reader.tags()
    return StoredGroup(protocol_type, generation, protocol, leader, timestamp_ms, members)


def _decode_member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.i32() if version >= 1 else -1
    session_timeout_ms = reader.i32()
    if version < 1:
        rebalance_timeout_ms = session_timeout_ms
    subscription = reader.bytes_()
    assignment = reader.bytes_()
    reader.tags()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _version(reader: FieldReader, newest: int) -> int:
    version = reader.i16()
    if not 0 <= version <= newest:
        raise FieldError(f"the value of a group record has version {version}, known are 0 to {newest}")
    return version


Replay = Callable[[GroupRecord, int | None], None]
"""Takes a record, and the id of the producer in whose transaction it was written."""
