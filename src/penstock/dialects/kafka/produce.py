"""Produce, versions 3 to 13: requests in, answers out, by hand because every produced batch passes here.

Records stay views of the receive buffer. A topic is its name (`str`) up to version 12 and its id (16 `bytes`) from 13 on.

The requests that one producer sends to one partition are the same bytes from the client id to the partition index.
`ProducePrefix` keeps those bytes of the last request and cuts all the following requests that have them, without
parsing them again; `AnswerTemplate` does the same for the answers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.frame import SIZE_BYTES, RequestHeader
from penstock.dialects.kafka.wire import (
    I32,
    MALFORMED,
    compact_string,
    nullable_compact_string,
    nullable_string,
    read_count,
    read_string,
    read_uvarint,
    skip_tags,
    string,
    uvarint,
)
from penstock.model import limits
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work, at_once

VERSION_OF_TOPIC_IDS = 13

TopicKey = str | bytes
"""A topic's name, or its id from `VERSION_OF_TOPIC_IDS` on."""

RUN_ITEMS_MAX = 512
"""Produce requests in a run, which is appended in one write: a few milliseconds."""
PAUSE_PARTITIONS = 128
"""Partitions between two pauses: about 100 us."""

_ACKS_TIMEOUT = struct.Struct(">hi")
_FIRST_FLEXIBLE = APIS[ApiKey.PRODUCE].first_flexible or 0


@dataclass(slots=True)
class ProduceRequest:
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]
    records_at: int
    """Where the length of the last partition's records stands in the view."""


def decode(view: memoryview, start: int, version: int) -> ProduceRequest:
    """The body of a request at `start` of `view`, which ends where the request does. Raises ProtocolError."""
    return at_once(decode_in_slices(view, start, version))


def decode_in_slices(view: memoryview, start: int, version: int) -> Work[ProduceRequest]:
    """As `decode`, with a pause before the second partition and after every few. Raises ProtocolError."""
    try:
        return (yield from _decode(view, start, version))
    except MALFORMED as error:
        raise ProtocolError(f"a Produce request of version {version} is cut off or malformed: {error}") from None


def _decode(view: memoryview, start: int, version: int) -> Work[ProduceRequest]:
    flexible = version >= _FIRST_FLEXIBLE
    by_id = version >= VERSION_OF_TOPIC_IDS
    end = len(view)
    if flexible and view[start] == 0:
        transactional_id, at = None, start + 1
    else:
        transactional_id, at = read_string(view, start, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, at)
    topic_count, at = read_count(view, at + 6, flexible, 3)
    elements = 0
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    records_at = 0
    for _ in range(topic_count):
        topic: TopicKey | None
        if by_id:
            topic = view[at : at + 16].tobytes()
            at += 16
        else:
            topic, at = read_string(view, at, flexible)
            if topic is None:
                raise ProtocolError("a topic of a Produce request has no name")
        left, at = read_count(view, at, flexible, 6)
        elements += 1 + left
        if elements > limits.REQUEST_ELEMENTS_MAX:
            raise ProtocolError(f"a Produce request has more than {limits.REQUEST_ELEMENTS_MAX} topics and partitions")
        if elements > 2:
            yield None  # a caller that wants only requests for one partition stops here
        partitions: list[tuple[int, memoryview | None]] = []
        while left:
            some = min(left, PAUSE_PARTITIONS)
            records_at, at = _decode_partitions(view, at, flexible, some, partitions)
            left -= some
            if some == PAUSE_PARTITIONS:
                yield None
        if flexible:
            at = skip_tags(view, at) if view[at] else at + 1
        topics.append((topic, partitions))
        if elements > PAUSE_PARTITIONS:
            yield None
    if flexible:
        at = skip_tags(view, at) if view[at] else at + 1
    if at > end:
        raise ProtocolError("a Produce request is cut off")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, records_at)


def _decode_partitions(
    view: memoryview, at: int, flexible: bool, count: int, found: list[tuple[int, memoryview | None]]
) -> tuple[int, int]:
    """Position of the length of the last partition's records, and the position after the partition."""
    end = len(view)
    records_at = at
    for _ in range(count):
        partition = I32.unpack_from(view, at)[0]
        records_at = at + 4
        if flexible:
            low = view[records_at]
            middle = view[records_at + 1]
            if low >= 0x80 > middle:
                length = (low & 0x7F | middle << 7) - 1
                at = records_at + 2
            else:
                length, at = read_uvarint(view, records_at)
                length -= 1
        else:
            length = I32.unpack_from(view, records_at)[0]
            at = records_at + 4
        if length >= 0:
            stop = at + length
            if stop > end:
                raise ProtocolError(f"records of {length} bytes in a Produce request that has {end - at}")
            found.append((partition, view[at:stop]))
            at = stop
        elif length == -1:
            found.append((partition, None))
        else:
            raise ProtocolError(f"records of {length} bytes")
        if flexible:
            at = skip_tags(view, at) if view[at] else at + 1
    return records_at, at


class ProducePrefix:
    """What the requests of one producer to one partition have in common, and how to cut more of them from a buffer."""

    __slots__ = (
        "_body",
        "_flexible",
        "_head",
        "_key_and_version",
        "acks",
        "client_id",
        "partition",
        "timeout_ms",
        "topic",
        "transactional_id",
        "version",
    )

    def __init__(self, header: RequestHeader, request: ProduceRequest, body: bytes) -> None:
        """`body` is the request from its client id to the length of its records, both its ends outside."""
        ((self.topic, ((self.partition, _),)),) = request.topics
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.transactional_id = request.transactional_id
        self.client_id = header.client_id
        self.version = header.version
        self._flexible = header.version >= _FIRST_FLEXIBLE
        self._key_and_version = ApiKey.PRODUCE << 16 | header.version
        self._body = body
        # A length of up to three varint bytes: records of 2 MB; larger ones are worth a parse.
        self._head = struct.Struct(f">iIi{len(body)}s" + ("BBB" if self._flexible else "i"))

    @classmethod
    def of(cls, view: memoryview, start: int, header: RequestHeader, request: ProduceRequest) -> ProducePrefix | None:
        """The prefix of a request that was read from `view`, its header at `start`; None if it is not for one
        partition."""
        if len(request.topics) != 1 or len(request.topics[0][1]) != 1:
            return None
        return cls(header, request, bytes(view[start + 8 : request.records_at]))

    def cut(
        self, view: memoryview, start: int, count_max: int = RUN_ITEMS_MAX
    ) -> tuple[list[tuple[int, memoryview]], int]:
        """The requests from `start` on, where a frame begins with its size, that are whole and have this prefix: their
        correlation ids and records, and where the first other frame begins. At most `count_max` requests."""
        found: list[tuple[int, memoryview]] = []
        end = len(view)
        unpack_from = self._head.unpack_from
        head_bytes = self._head.size
        key_and_version = self._key_and_version
        body = self._body
        if not self._flexible:
            while start + head_bytes <= end:
                size, key, correlation_id, seen, length = unpack_from(view, start)
                at = start + head_bytes
                stop = start + SIZE_BYTES + size
                if seen != body or key != key_and_version or length < 0 or at + length != stop or stop > end:
                    break
                found.append((correlation_id, view[at:stop]))
                start = stop
                if len(found) == count_max:
                    break
            return found, start
        while start + head_bytes <= end:
            size, key, correlation_id, seen, low, middle, high = unpack_from(view, start)
            if low < 0x80:
                at = start + head_bytes - 2
                length = low - 1
            elif middle < 0x80:
                at = start + head_bytes - 1
                length = (low & 0x7F | middle << 7) - 1
            elif high < 0x80:
                at = start + head_bytes
                length = (low & 0x7F | (middle & 0x7F) << 7 | high << 14) - 1
            else:
                break
            tags_at = at + length
            stop = start + SIZE_BYTES + size
            if (
                seen != body
                or key != key_and_version
                or length < 0
                or tags_at + 3 != stop
                or stop > end
                or view[tags_at] | view[tags_at + 1] | view[tags_at + 2]
            ):
                break
            found.append((correlation_id, view[at:tags_at]))
            start = stop
            if len(found) == count_max:
                break
        return found, start


class PartitionAnswer(NamedTuple):
    partition: int
    error: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """Records that caused the batch to be refused: index in the batch and what is wrong (KIP-467)."""
    error_message: str | None = None


class AnswerTemplate:
    """Answers in one version for one partition, when all went well."""

    __slots__ = ("_head", "_tail", "_version", "_whole")

    def __init__(self, version: int, topic: TopicKey, partition: int) -> None:
        self._version = version
        # The answer from its size on, with offsets that are found again in the bytes whatever the topic is called:
        # they are the last i64s before a tail whose length depends on the version alone.
        flexible = version >= _FIRST_FLEXIBLE
        sample = bytes(at_once(encode_in_slices(version, 0, ((topic, (PartitionAnswer(partition, 0, 0),)),))))
        numbers = "q" + "q" * (version >= 2) + "q" * (version >= 5)
        if flexible:
            tail = 2 + 2 + 4 + 1  # record errors and message; tags of partition and topic; throttle time; tags
        else:
            tail = (6 if version >= 8 else 0) + (4 if version >= 1 else 0)
        head = sample[8 : len(sample) - tail - 8 * len(numbers)]
        self._head = head
        self._tail = sample[len(sample) - tail :]
        self._whole = struct.Struct(f">ii{len(head)}s{numbers}{tail}s")

    def encode(
        self, correlation_id: int, base_offset: int, log_append_time_ms: int = -1, log_start_offset: int = -1
    ) -> bytes:
        whole = self._whole
        version = self._version
        size = whole.size - SIZE_BYTES
        if version >= 5:
            return whole.pack(
                size, correlation_id, self._head, base_offset, log_append_time_ms, log_start_offset, self._tail
            )
        if version >= 2:
            return whole.pack(size, correlation_id, self._head, base_offset, log_append_time_ms, self._tail)
        return whole.pack(size, correlation_id, self._head, base_offset, self._tail)


_TEMPLATES_MAX = 1_024
_templates: dict[tuple[int, TopicKey, int], AnswerTemplate] = {}


def answer_template(version: int, topic: TopicKey, partition: int) -> AnswerTemplate:
    """The template, kept for the next request of that partition."""
    key = (version, topic, partition)
    template = _templates.get(key)
    if template is None:
        if len(_templates) >= _TEMPLATES_MAX:
            _templates.clear()
        template = _templates[key] = AnswerTemplate(version, topic, partition)
    return template


def encode_answer(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[PartitionAnswer]]],
    throttle_time_ms: int = 0,
) -> bytes:
    """The whole frame of the answer, its size in front."""
    if len(topics) == 1 and len(topics[0][1]) == 1:
        topic, ((partition, error, offset, append_time, log_start, record_errors, message),) = topics[0]
        if error == 0 and message is None and throttle_time_ms == 0 and not record_errors:
            return answer_template(version, topic, partition).encode(correlation_id, offset, append_time, log_start)
    return bytes(at_once(encode_in_slices(version, correlation_id, topics, throttle_time_ms)))


_ANSWER_HEAD = struct.Struct(">ii")
_PARTITION = struct.Struct(">ihq")
_PARTITION_2 = struct.Struct(">ihqq")
_PARTITION_5 = struct.Struct(">ihqqq")


def encode_in_slices(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[PartitionAnswer]]],
    throttle_time_ms: int = 0,
) -> Work[bytearray]:
    flexible = version >= _FIRST_FLEXIBLE
    out = bytearray(_ANSWER_HEAD.size + flexible)
    out += uvarint(len(topics) + 1) if flexible else I32.pack(len(topics))
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            out += compact_string(topic) if flexible else string(topic)
        out += uvarint(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for number, partition in enumerate(partitions, 1):
            _encode_partition(out, version, flexible, partition)
            if number % PAUSE_PARTITIONS == 0:
                yield None
        if flexible:
            out += b"\x00"
        yield None
    if version >= 1:
        out += I32.pack(throttle_time_ms)
    if flexible:
        out += b"\x00"
    _ANSWER_HEAD.pack_into(out, 0, len(out) - SIZE_BYTES, correlation_id)
    return out


def _encode_partition(out: bytearray, version: int, flexible: bool, answer: PartitionAnswer) -> None:
    partition, error, base_offset, log_append_time_ms, log_start_offset, record_errors, error_message = answer
    if version >= 5:
        out += _PARTITION_5.pack(partition, error, base_offset, log_append_time_ms, log_start_offset)
    elif version >= 2:
        out += _PARTITION_2.pack(partition, error, base_offset, log_append_time_ms)
    else:
        out += _PARTITION.pack(partition, error, base_offset)
    if version >= 8:
        out += uvarint(len(record_errors) + 1) if flexible else I32.pack(len(record_errors))
        for index, message in record_errors:
            out += I32.pack(index)
            out += nullable_compact_string(message) + b"\x00" if flexible else nullable_string(message)
        out += nullable_compact_string(error_message) if flexible else nullable_string(error_message)
    if flexible:
        out += b"\x00"
