"""The records of `__transaction_state`, in Kafka's formats: TransactionLogKey 0, TransactionLogValue 0 and 1.

    key        i16 0, transactional id
    value      i16 version, producer id i64, producer epoch i16, timeout i32, status i8, partitions by topic (null when
               empty), last update i64, start i64; from version 1 on flexible, with the tagged fields
               0 previous producer id, 1 next producer id, 2 client transaction version (KIP-890)

Both are read, version 1 is written. Kafka keeps the last epoch of a client in memory only, so that a repeated request
fails after a restart; here it is a tagged field of ours, which other readers skip.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.coordination.record_fields import FieldError, FieldReader, FieldWriter
from penstock.coordination.transaction_states import EPOCH_MAX, NO_EPOCH, NO_PRODUCER_ID, Status, TransactionState
from penstock.model.ids import TopicName, TopicPartition

KEY_VERSION = 0
VALUE_VERSION = 1

_PREVIOUS_PRODUCER_ID_TAG = 0
_NEXT_PRODUCER_ID_TAG = 1
_TRANSACTION_VERSION_TAG = 2
_LAST_PRODUCER_EPOCH_TAG = 7_001
"""Ours, far above the numbers that Kafka gives out."""

_I64 = struct.Struct(">q")
_I16 = struct.Struct(">h")


class TransactionRecord(NamedTuple):
    transactional_id: str
    value: TransactionState | None
    """None is a tombstone: the id has expired."""


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """The key and the value (None for a tombstone) to append."""
    key = FieldWriter(KEY_VERSION)
    key.string(record.transactional_id)
    return key.done(), None if record.value is None else _encode_value(record.value)


def decode(key: bytes | memoryview, value: bytes | memoryview | None) -> TransactionRecord | None:
    """The record, or None for a key of a kind that is not known; raises FieldError when it is damaged."""
    reader = FieldReader(key)
    if reader.i16() != KEY_VERSION:
        return None
    return TransactionRecord(reader.string(), None if value is None else _decode_value(value))


def _encode_value(state: TransactionState) -> bytes:
    writer = FieldWriter(VALUE_VERSION, flexible=True)
    writer.i64(state.producer_id)
    writer.i16(state.producer_epoch)
    writer.i32(state.timeout_ms)
    writer.i8(state.status)
    if state.status is Status.EMPTY:
        writer.uvarint(0)
    else:
        topics: dict[str, list[int]] = {}
        for topic, partition in state.partitions:
            topics.setdefault(topic, []).append(partition)
        writer.count(len(topics))
        for name in sorted(topics):
            writer.string(name)
            writer.i32s(sorted(topics[name]))
            writer.tags()
    writer.i64(state.last_update_ms)
    writer.i64(state.start_ms)
    tags = {}
    if state.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_PRODUCER_ID_TAG] = _I64.pack(state.previous_producer_id)
    if state.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_PRODUCER_ID_TAG] = _I64.pack(state.next_producer_id)
    if state.transaction_version != 0:
        tags[_TRANSACTION_VERSION_TAG] = _I16.pack(state.transaction_version)
    tags[_LAST_PRODUCER_EPOCH_TAG] = _I16.pack(state.last_producer_epoch)
    writer.tags(tags)
    return writer.done()


def _decode_value(value: bytes | memoryview) -> TransactionState:
    reader = FieldReader(value)
    version = reader.i16()
    if not 0 <= version <= VALUE_VERSION:
        raise FieldError(f"a transaction's state of version {version} is not known")
    reader.flexible = version >= 1
    producer_id = reader.i64()
    producer_epoch = reader.i16()
    timeout_ms = reader.i32()
    code = reader.i8()
    try:
        status = Status(code)
    except ValueError:
        raise FieldError(f"a transaction's status {code} is not known") from None
    partitions = []
    for _ in range(reader.uvarint() - 1 if reader.flexible else reader.i32()):
        topic = TopicName(reader.string())
        partitions += [TopicPartition(topic, reader.i32()) for _ in range(reader.count())]
        reader.tags()
    last_update_ms = reader.i64()
    start_ms = reader.i64()
    tags = reader.tags()
    transaction_version = _tagged(tags, _TRANSACTION_VERSION_TAG, _I16, 0)
    state = TransactionState(
        producer_id,
        producer_epoch,
        timeout_ms,
        status,
        frozenset(partitions),
        last_update_ms,
        start_ms,
        _tagged(tags, _PREVIOUS_PRODUCER_ID_TAG, _I64, NO_PRODUCER_ID),
        _tagged(tags, _NEXT_PRODUCER_ID_TAG, _I64, NO_PRODUCER_ID),
        _tagged(tags, _LAST_PRODUCER_EPOCH_TAG, _I16, NO_EPOCH),
        transaction_version,
    )
    if _LAST_PRODUCER_EPOCH_TAG in tags or transaction_version < 2 or status in (Status.EMPTY, Status.ONGOING):
        return state
    return state._replace(last_producer_epoch=_assumed_last_epoch(state))


def _assumed_last_epoch(state: TransactionState) -> int:
    """In a record of Kafka's own: it takes whoever shows the epoch before a raised one for the same client (KIP-890)."""
    if state.producer_epoch > 0:
        return state.producer_epoch - 1
    return NO_EPOCH if state.previous_producer_id == NO_PRODUCER_ID else EPOCH_MAX - 1


def _tagged(tags: dict[int, bytes], tag: int, layout: struct.Struct, default: int) -> int:
    raw = tags.get(tag)
    if raw is None:
        return default
    if len(raw) != layout.size:
        raise FieldError(f"tagged field {tag} of a transaction's state has {len(raw)} bytes")
    value: int = layout.unpack(raw)[0]
    return value
