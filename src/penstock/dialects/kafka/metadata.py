"""Metadata answers, versions 0 to 13, by hand: with thousands of partitions kio's encoder takes a hundred milliseconds.

What a topic looks like changes seldom and is asked often, so the bytes of topics are kept. The caller owns the truth: it
gives a counter that rises with every change of any topic, and describes the topics again if the kept bytes are older. kio
decodes requests.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.wire import (
    I16,
    I32,
    compact_string,
    nullable_compact_string,
    nullable_string,
    string,
    uvarint,
)
from penstock.model import limits
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work, at_once

OPERATIONS_NOT_ASKED = -(1 << 31)
"""Authorized operations when the request did not ask for them."""

ENTRIES_MAX = 10_000
"""Kept entries over all versions in use; all are dropped beyond it."""

PAUSE_PARTITIONS = 64
"""Partitions described and encoded between two pauses: about 100 us."""

_HEAD = struct.Struct(">ii")
_COPY_BYTES_MAX = 64 * 1024
_FIRST_FLEXIBLE = APIS[ApiKey.METADATA].first_flexible or 0
_VERSION_OF_LEADER_EPOCHS = 7
_VERSION_OF_OPERATIONS = 8
_VERSION_OF_TOPIC_IDS = 10
_VERSION_WITHOUT_CLUSTER_OPERATIONS = 11
_VERSION_OF_ERROR = 13


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionDescription(NamedTuple):
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
    error: int = 0


class TopicDescription(NamedTuple):
    name: str | None
    """None for an id that is not known, from version 12 on."""
    topic_id: bytes
    partitions: Sequence[PartitionDescription] = ()
    is_internal: bool = False
    error: int = 0
    authorized_operations: int = OPERATIONS_NOT_ASKED


class Topics(NamedTuple):
    """The bytes of some topics, one after the other, in one version."""

    topic_count: int
    data: bytes


def encode_topics(version: int, topics: Sequence[TopicDescription]) -> Topics:
    return at_once(encode_topics_in_slices(version, topics))


def encode_topics_in_slices(version: int, topics: Iterable[TopicDescription | None]) -> Work[Topics]:
    """Encode topics as they are described. Each may have thousands of partitions; None is only a pause. Raises
    ProtocolError if the answer becomes too large."""
    out = bytearray()
    flexible = version >= _FIRST_FLEXIBLE
    count = 0
    for topic in topics:
        if topic is None:
            yield None
            continue
        _encode_topic_head(out, version, topic)
        for start in range(0, len(topic.partitions), PAUSE_PARTITIONS):
            for partition in topic.partitions[start : start + PAUSE_PARTITIONS]:
                _encode_partition(out, version, flexible, partition)
            yield None
        if version >= _VERSION_OF_OPERATIONS:
            out += I32.pack(topic.authorized_operations)
        if flexible:
            out += b"\x00"
        count += 1
        if len(out) > limits.ANSWER_BYTES_MAX:
            raise ProtocolError(f"the answer has more than {limits.ANSWER_BYTES_MAX} bytes; ask for less at once")
        yield None
    return Topics(count, bytes(out))


class TopicsKept:
    """Encoded topics, as long as the counter of the caller stands."""

    __slots__ = ("_counter", "_entries")

    def __init__(self) -> None:
        self._counter = -1
        self._entries: dict[tuple[int, Hashable], Topics] = {}

    def find(self, version: int, key: Hashable, counter: int) -> Topics | None:
        """The topics that `key` stands for: a name, or the caller's word for all of them."""
        if counter != self._counter:
            self._entries.clear()
            self._counter = counter
        return self._entries.get((version, key))

    def keep(self, version: int, key: Hashable, counter: int, topics: Topics) -> None:
        """Keep the topics described at this value of the counter, unless it has changed since."""
        if counter == self._counter:
            if len(self._entries) >= ENTRIES_MAX:
                self._entries.clear()
            self._entries[version, key] = topics


def encode_answer(
    version: int,
    correlation_id: int,
    brokers: Sequence[BrokerAddress],
    cluster_id: str | None,
    controller_id: int,
    topics: Sequence[Topics],
    *,
    cluster_operations: int = OPERATIONS_NOT_ASKED,
    error: int = 0,
    throttle_time_ms: int = 0,
) -> list[bytes]:
    """The complete frame of the answer, starting with its size; `topics` are in the order of the request. It is returned in
    pieces, so that the bytes of many topics are not copied."""
    flexible = version >= _FIRST_FLEXIBLE
    out = bytearray(_HEAD.size + flexible)
    if version >= 3:
        out += I32.pack(throttle_time_ms)
    out += uvarint(len(brokers) + 1) if flexible else I32.pack(len(brokers))
    for node_id, host, port, rack in brokers:
        out += I32.pack(node_id)
        out += compact_string(host) if flexible else string(host)
        out += I32.pack(port)
        if flexible:
            out += nullable_compact_string(rack)
            out += b"\x00"
        elif version >= 1:
            out += nullable_string(rack)
    if version >= 2:
        out += nullable_compact_string(cluster_id) if flexible else nullable_string(cluster_id)
    if version >= 1:
        out += I32.pack(controller_id)
    count = sum(entry.topic_count for entry in topics)
    out += uvarint(count + 1) if flexible else I32.pack(count)
    tail = bytearray()
    if _VERSION_OF_OPERATIONS <= version < _VERSION_WITHOUT_CLUSTER_OPERATIONS:
        tail += I32.pack(cluster_operations)
    if version >= _VERSION_OF_ERROR:
        tail += I16.pack(error)
    if flexible:
        tail += b"\x00"
    data_bytes = sum(len(entry.data) for entry in topics)
    _HEAD.pack_into(out, 0, len(out) - 4 + data_bytes + len(tail), correlation_id)
    if data_bytes <= _COPY_BYTES_MAX:
        return [b"".join((out, *(entry.data for entry in topics), tail))]
    return [bytes(out), *(entry.data for entry in topics), bytes(tail)]


def _encode_topic_head(out: bytearray, version: int, topic: TopicDescription) -> None:
    flexible = version >= _FIRST_FLEXIBLE
    out += I16.pack(topic.error)
    if flexible:
        # Only version 12 on may leave the name out, and older ones have no other way to ask.
        out += nullable_compact_string(topic.name) if version >= 12 else compact_string(topic.name or "")
    else:
        out += string(topic.name or "")
    if version >= _VERSION_OF_TOPIC_IDS:
        out += topic.topic_id
    if version >= 1:
        out.append(topic.is_internal)
    out += uvarint(len(topic.partitions) + 1) if flexible else I32.pack(len(topic.partitions))


_PARTITION = struct.Struct(">hii")
_PARTITION_7 = struct.Struct(">hiii")


def _encode_partition(out: bytearray, version: int, flexible: bool, description: PartitionDescription) -> None:
    partition, leader_id, leader_epoch, replicas, in_sync, offline, error = description
    if version >= _VERSION_OF_LEADER_EPOCHS:
        out += _PARTITION_7.pack(error, partition, leader_id, leader_epoch)
    else:
        out += _PARTITION.pack(error, partition, leader_id)
    for nodes in (replicas, in_sync, offline) if version >= 5 else (replicas, in_sync):
        count = len(nodes)
        if count == 1:
            out += (b"\x02" if flexible else b"\x00\x00\x00\x01") + I32.pack(nodes[0])
        else:
            out += uvarint(count + 1) if flexible else I32.pack(count)
            out += struct.pack(f">{count}i", *nodes)
    if flexible:
        out += b"\x00"
