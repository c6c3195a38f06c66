"""Fetch, versions 4 to 18: requests in, answers out, by hand because every consumed batch passes here.

Records are never touched: an answer is a list of chunks, small headers of ours between chunks of the log. A topic is its
name (`str`) up to version 12 and its id (16 `bytes`) from 13 on. What only replicas send (their id and epoch, their log
start offset, directory id and high watermark) is read over; hints about another leader are never written: there is one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.frame import SIZE_BYTES
from penstock.dialects.kafka.wire import (
    I32,
    MALFORMED,
    compact_string,
    read_count,
    read_string,
    skip_tags,
    string,
    uvarint,
)
from penstock.model import limits
from penstock.model.chunks import Chunk
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work

VERSION_OF_TOPIC_IDS = 13

TopicKey = str | bytes
"""A topic's name, or its id from `VERSION_OF_TOPIC_IDS` on."""

READ_COMMITTED = 1

_FIRST_FLEXIBLE = APIS[ApiKey.FETCH].first_flexible or 0
_VERSION_OF_SESSIONS = 7
_VERSION_OF_LEADER_EPOCHS = 9
_VERSION_OF_RACKS = 11
_VERSION_WITHOUT_REPLICA_ID = 15

PAUSE_PARTITIONS = 128
"""Partitions between two pauses: about 100 us."""


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    """What the client believes; -1: do not check (KIP-320)."""
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(slots=True)
class FetchRequest:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str


_HEAD = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqi")


_Head = tuple[int, int, int, int, int, int, int]
"""The fields before the topics, and the position after them."""


def decode(view: memoryview, start: int, version: int) -> FetchRequest:
    """The body of a request at `start` of `view`, which ends where the request does. Raises ProtocolError."""
    try:
        head = _decode_head(view, start, version)
        flexible = version >= _FIRST_FLEXIBLE
        topics: list[tuple[TopicKey, list[FetchPartition]]] = []
        topic_count, at = read_count(view, head[6], flexible, 3)
        elements = topic_count
        for _ in range(topic_count):
            topic, count, at = _topic_head(view, at, version, _PARTITION_4.size)
            elements += count
            if elements > limits.REQUEST_ELEMENTS_MAX:
                raise _too_many()
            partitions: list[FetchPartition] = []
            at = _decode_partitions(view, at, version, count, partitions)
            if flexible:
                at = skip_tags(view, at) if view[at] else at + 1
            topics.append((topic, partitions))
        forgotten: list[tuple[TopicKey, list[int]]] = []
        if version >= _VERSION_OF_SESSIONS:
            topic_count, at = read_count(view, at, flexible, 3)
            elements += topic_count
            for _ in range(topic_count):
                elements, at = _decode_forgotten(view, at, version, elements, forgotten)
        return _decode_tail(view, at, version, head, topics, forgotten)
    except MALFORMED as error:
        raise _malformed(version, error) from None


def decode_in_slices(view: memoryview, start: int, version: int) -> Work[FetchRequest]:
    """As `decode`, for a request with many partitions. Raises ProtocolError."""
    try:
        head = _decode_head(view, start, version)
        flexible = version >= _FIRST_FLEXIBLE
        topics: list[tuple[TopicKey, list[FetchPartition]]] = []
        topic_count, at = read_count(view, head[6], flexible, 3)
        elements = topic_count
        for _ in range(topic_count):
            topic, left, at = _topic_head(view, at, version, _PARTITION_4.size)
            elements += left
            if elements > limits.REQUEST_ELEMENTS_MAX:
                raise _too_many()
            partitions: list[FetchPartition] = []
            while left:
                some = min(left, PAUSE_PARTITIONS)
                at = _decode_partitions(view, at, version, some, partitions)
                left -= some
                yield None
            if flexible:
                at = skip_tags(view, at) if view[at] else at + 1
            topics.append((topic, partitions))
            yield None
        forgotten: list[tuple[TopicKey, list[int]]] = []
        if version >= _VERSION_OF_SESSIONS:
            topic_count, at = read_count(view, at, flexible, 3)
            elements += topic_count
            for _ in range(topic_count):
                elements, at = _decode_forgotten(view, at, version, elements, forgotten)
                yield None
        return _decode_tail(view, at, version, head, topics, forgotten)
    except MALFORMED as error:
        raise _malformed(version, error) from None


def _malformed(version: int, error: Exception) -> ProtocolError:
    return ProtocolError(f"a Fetch request of version {version} is truncated or malformed: {error}")


def _decode_head(view: memoryview, start: int, version: int) -> _Head:
    at = start if version >= _VERSION_WITHOUT_REPLICA_ID else start + 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD.unpack_from(view, at)
    at += 13
    session_id, session_epoch = 0, -1
    if version >= _VERSION_OF_SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(view, at)
        at += 8
    return max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, at


def _decode_tail(
    view: memoryview,
    at: int,
    version: int,
    head: _Head,
    topics: list[tuple[TopicKey, list[FetchPartition]]],
    forgotten: list[tuple[TopicKey, list[int]]],
) -> FetchRequest:
    """The fields after the topics."""
    flexible = version >= _FIRST_FLEXIBLE
    rack_id = ""
    if version >= _VERSION_OF_RACKS:
        text, at = read_string(view, at, flexible)
        if text is None:
            raise ProtocolError("the rack id of a Fetch request is null")
        rack_id = text
    if flexible:
        at = skip_tags(view, at) if view[at] else at + 1
    if at > len(view):
        raise ProtocolError("a Fetch request is cut off")
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, _ = head
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, topics, forgotten, rack_id
    )


def _decode_forgotten(
    view: memoryview, at: int, version: int, elements: int, found: list[tuple[TopicKey, list[int]]]
) -> tuple[int, int]:
    """One forgotten topic, the number of elements including it, and the position after it."""
    topic, count, at = _topic_head(view, at, version, 4)
    elements += count
    if elements > limits.REQUEST_ELEMENTS_MAX:
        raise _too_many()
    found.append((topic, list(struct.unpack_from(f">{count}i", view, at))))
    at += 4 * count
    if version >= _FIRST_FLEXIBLE:
        at = skip_tags(view, at) if view[at] else at + 1
    return elements, at


def _too_many() -> ProtocolError:
    return ProtocolError(f"a Fetch request has more than {limits.REQUEST_ELEMENTS_MAX} topics and partitions")


def _topic_head(view: memoryview, at: int, version: int, element_bytes_min: int) -> tuple[TopicKey, int, int]:
    """The topic and the number of its partitions."""
    flexible = version >= _FIRST_FLEXIBLE
    topic: TopicKey | None
    if version >= VERSION_OF_TOPIC_IDS:
        topic = view[at : at + 16].tobytes()
        at += 16
    else:
        topic, at = read_string(view, at, flexible)
        if topic is None:
            raise ProtocolError("a topic of a Fetch request has no name")
    return topic, *read_count(view, at, flexible, element_bytes_min)


def _decode_partitions(view: memoryview, at: int, version: int, count: int, found: list[FetchPartition]) -> int:
    flexible = version >= _FIRST_FLEXIBLE
    for _ in range(count):
        current_epoch = last_epoch = -1
        if flexible:
            partition, current_epoch, offset, last_epoch, _, limit = _PARTITION_12.unpack_from(view, at)
            at += 32
            at = skip_tags(view, at) if view[at] else at + 1
        elif version >= _VERSION_OF_LEADER_EPOCHS:
            partition, current_epoch, offset, _, limit = _PARTITION_9.unpack_from(view, at)
            at += 28
        elif version >= 5:
            partition, offset, _, limit = _PARTITION_5.unpack_from(view, at)
            at += 24
        else:
            partition, offset, limit = _PARTITION_4.unpack_from(view, at)
            at += 16
        found.append(tuple.__new__(FetchPartition, (partition, current_epoch, offset, last_epoch, limit)))
    return at


class PartitionAnswer(NamedTuple):
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction, by first offset; None unless read_committed."""
    records: Sequence[Chunk] = ()
    """Whole batches, in as many chunks as they lie in."""


_ANSWER_HEAD = struct.Struct(">iii")
_ANSWER_HEAD_FLEXIBLE = struct.Struct(">iiBihi")
_ANSWER_HEAD_SESSION = struct.Struct(">iiihi")
_ANSWER_PARTITION_4 = struct.Struct(">ihqq")
_ANSWER_PARTITION_5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_ABORTED_FLEXIBLE = struct.Struct(">qqB")
_NO_REPLICA = I32.pack(-1)
_NULL_ARRAY = I32.pack(-1)


def encode_answer(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[PartitionAnswer]]],
    throttle_time_ms: int = 0,
) -> list[Chunk]:
    """The whole frame of the answer, its size in front. Records are never null: librdkafka stops fetching when they
    are (KAFKA-18646)."""
    flexible = version >= _FIRST_FLEXIBLE
    first = out = bytearray(_answer_head(version).size)
    chunks: list[Chunk] = []
    total = 0
    out += uvarint(len(topics) + 1) if flexible else I32.pack(len(topics))
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            out += compact_string(topic) if flexible else string(topic)
        out += uvarint(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for answer in partitions:
            _encode_partition_head(out, version, flexible, answer)
            records = answer[6]
            length = 0
            for chunk in records:
                length += len(chunk)
            out += uvarint(length + 1) if flexible else I32.pack(length)
            if length:
                chunks.append(out)
                chunks += records
                total += len(out) + length
                out = bytearray()
            if flexible:
                out += b"\x00"
        if flexible:
            out += b"\x00"
    if flexible:
        out += b"\x00"
    if out:
        chunks.append(out)
        total += len(out)
    _put_head(first, version, total, correlation_id, throttle_time_ms, error, session_id)
    return chunks


def encode_in_slices(
    version: int, correlation_id: int, topics: Sequence[tuple[TopicKey, Sequence[PartitionAnswer]]]
) -> Work[list[Chunk]]:
    """As `encode_answer`, for an answer with many partitions. A separate loop, because that one is the hot path."""
    flexible = version >= _FIRST_FLEXIBLE
    first = out = bytearray(_answer_head(version).size)
    chunks: list[Chunk] = []
    out += uvarint(len(topics) + 1) if flexible else I32.pack(len(topics))
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            out += compact_string(topic) if flexible else string(topic)
        out += uvarint(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for start in range(0, len(partitions), PAUSE_PARTITIONS):
            some = partitions[start : start + PAUSE_PARTITIONS]
            out = _encode_partitions(chunks, out, version, flexible, some)
            yield None
        if not partitions:
            yield None
        if flexible:
            out += b"\x00"
    if flexible:
        out += b"\x00"
    if out:
        chunks.append(out)
    _put_head(first, version, sum(map(len, chunks)), correlation_id, 0, 0, 0)
    return chunks


def _encode_partitions(
    chunks: list[Chunk], out: bytearray, version: int, flexible: bool, partitions: Sequence[PartitionAnswer]
) -> bytearray:
    """Append to `out`, and start another piece where records follow. Returns the last piece."""
    for answer in partitions:
        _encode_partition_head(out, version, flexible, answer)
        records = answer[6]
        length = 0
        for chunk in records:
            length += len(chunk)
        out += uvarint(length + 1) if flexible else I32.pack(length)
        if length:
            chunks.append(out)
            chunks += records
            out = bytearray()
        if flexible:
            out += b"\x00"
    return out


def _put_head(
    first: bytearray, version: int, size: int, correlation_id: int, throttle_time_ms: int, error: int, session_id: int
) -> None:
    head = _answer_head(version)
    size -= SIZE_BYTES
    if version >= _FIRST_FLEXIBLE:
        head.pack_into(first, 0, size, correlation_id, 0, throttle_time_ms, error, session_id)
    elif version >= _VERSION_OF_SESSIONS:
        head.pack_into(first, 0, size, correlation_id, throttle_time_ms, error, session_id)
    else:
        head.pack_into(first, 0, size, correlation_id, throttle_time_ms)


def _answer_head(version: int) -> struct.Struct:
    if version >= _FIRST_FLEXIBLE:
        return _ANSWER_HEAD_FLEXIBLE
    return _ANSWER_HEAD_SESSION if version >= _VERSION_OF_SESSIONS else _ANSWER_HEAD


def _encode_partition_head(out: bytearray, version: int, flexible: bool, answer: PartitionAnswer) -> None:
    """A partition's answer up to the length of its records."""
    partition, error, high_watermark, last_stable_offset, log_start_offset, aborted, _ = answer
    if version >= 5:
        out += _ANSWER_PARTITION_5.pack(partition, error, high_watermark, last_stable_offset, log_start_offset)
    else:
        out += _ANSWER_PARTITION_4.pack(partition, error, high_watermark, last_stable_offset)
    if aborted is None:
        out += b"\x00" if flexible else _NULL_ARRAY
    elif flexible:
        out += uvarint(len(aborted) + 1)
        for producer_id, first_offset in aborted:
            out += _ABORTED_FLEXIBLE.pack(producer_id, first_offset, 0)
    else:
        out += I32.pack(len(aborted))
        for producer_id, first_offset in aborted:
            out += _ABORTED.pack(producer_id, first_offset)
    if version >= _VERSION_OF_RACKS:
        out += _NO_REPLICA
