"""Requests that look something up: Metadata, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from penstock.broker.engine import NewTopic, OffsetFound, PartitionInfo, TopicInfo, TopicResult
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.kio_writer import Encoded
from penstock.dialects.kafka.metadata import (
    OPERATIONS_NOT_ASKED,
    PartitionDescription,
    TopicDescription,
    Topics,
    encode_answer,
    encode_topics_in_slices,
)
from penstock.model import limits
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import is_internal, topic_name
from penstock.model.pending import Pending
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

# Bits of Kafka's AclOperation: without an authorizer every operation is allowed.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

_NO_ID = bytes(16)


# ---- Metadata ---------------------------------------------------------------------------------------------------------


def metadata(service: KafkaService, body: Any, version: int, correlation_id: int) -> Encoded | Work[Encoded]:
    """All topics, or those asked for by name or id; missing ones are made when client and broker allow it."""
    engine = service.engine
    operations = (
        TOPIC_OPERATIONS if getattr(body, "include_topic_authorized_operations", False) else OPERATIONS_NOT_ASKED
    )
    asked = body.topics
    if asked is None or (version == 0 and not asked):
        key: Hashable = ("all", operations)
        kept = service.topics_kept.find(version, key, engine.catalogue_version)
        if kept is None:
            infos = (info for name in engine.topic_names() if (info := engine.topic(name)) is not None)
            described = (_describe(service, info, operations) for info in infos)
            return _kept_metadata(service, body, version, correlation_id, key, described)
        return _metadata_answer(service, body, version, correlation_id, kept)
    if len(asked) == 1 and asked[0].name is not None:
        info = engine.topic(asked[0].name)
        if info is not None:
            key = (info.name, operations)
            kept = service.topics_kept.find(version, key, engine.catalogue_version)
            if kept is None:
                described = (_describe(service, info, operations) for info in (info,))
                return _kept_metadata(service, body, version, correlation_id, key, described)
            return _metadata_answer(service, body, version, correlation_id, kept)
    return _asked_metadata(service, body, version, correlation_id, operations)


def _kept_metadata(
    service: KafkaService,
    body: Any,
    version: int,
    correlation_id: int,
    key: Hashable,
    described: Iterable[TopicDescription],
) -> Work[Encoded]:
    """Describe topics, and keep the result for later requests."""
    counter = service.engine.catalogue_version
    topics = yield from encode_topics_in_slices(version, described)
    service.topics_kept.keep(version, key, counter, topics)
    return _metadata_answer(service, body, version, correlation_id, topics)


def _asked_metadata(
    service: KafkaService, body: Any, version: int, correlation_id: int, operations: int
) -> Work[Encoded]:
    engine = service.engine
    may_create = engine.settings.auto_create_topics and (version < 4 or body.allow_auto_topic_creation)
    made: dict[str, TopicResult] = {}
    if may_create:
        missing: dict[str, NewTopic] = {}
        for topic in body.topics:
            # A consumer may ask for an internal topic before the broker has created it: it is unknown, not refused.
            if topic.name is not None and not is_internal(topic.name) and engine.topic(topic.name) is None:
                missing[topic.name] = NewTopic(topic.name)
                if len(missing) >= limits.AUTO_CREATED_TOPICS_MAX:
                    break  # the others do not exist yet; the client asks again
            yield None
        if missing:
            results: list[TopicResult] = yield engine.create_topics(list(missing.values()), validate_only=False)
            made = {result.name: result for result in results}
    described = (
        None if topic is None else _describe_asked(service, topic, operations, made) for topic in _once(body.topics)
    )
    topics = yield from encode_topics_in_slices(version, described)
    return _metadata_answer(service, body, version, correlation_id, topics)


def _once(topics: Iterable[Any]) -> Iterator[Any]:
    """Each topic once, as in Kafka, even if it is named several times; None in place of a repeated name."""
    seen: set[Any] = set()
    for topic in topics:
        yield None if topic in seen else topic
        seen.add(topic)


def _metadata_answer(service: KafkaService, body: Any, version: int, correlation_id: int, topics: Topics) -> Encoded:
    cluster_operations = OPERATIONS_NOT_ASKED
    if getattr(body, "include_cluster_authorized_operations", False):
        cluster_operations = CLUSTER_OPERATIONS
    chunks = encode_answer(
        version,
        correlation_id,
        (service.address,),
        service.engine.identity.cluster_id,
        service.address.node_id,
        (topics,),
        cluster_operations=cluster_operations,
    )
    return Encoded([*chunks])


def _describe_asked(
    service: KafkaService, topic: Any, operations: int, made: dict[str, TopicResult]
) -> TopicDescription:
    engine = service.engine
    name = topic.name
    topic_id = getattr(topic, "topic_id", None)
    if name is None:
        name = engine.topic_name_of(topic_id.bytes) if topic_id is not None else None
        if name is None:
            # the asked id comes back, so that the client knows which it was
            return TopicDescription(None, topic_id.bytes if topic_id else _NO_ID, error=CODES[Fault.UNKNOWN_TOPIC_ID])
    info = engine.topic(name)
    if info is not None:
        return _describe(service, info, operations)
    fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
    try:
        topic_name(name)
    except BrokerError as error:
        fault = error.fault
    if name in made and made[name].fault not in (Fault.NONE, Fault.TOPIC_EXISTS):
        fault = made[name].fault
    return TopicDescription(name, _NO_ID, error=CODES[fault])


def _describe(service: KafkaService, info: TopicInfo, operations: int) -> TopicDescription:
    partitions = _PartitionDescriptions(info.partitions, service.address.node_id)
    return TopicDescription(info.name, info.topic_id.bytes, partitions, info.internal, 0, operations)


class _PartitionDescriptions(Sequence[PartitionDescription]):
    """Partitions that are described on access."""

    __slots__ = ("_infos", "_node")

    def __init__(self, infos: Sequence[PartitionInfo], node: int) -> None:
        self._infos = infos
        self._node = node

    def __len__(self) -> int:
        return len(self._infos)

    @overload
    def __getitem__(self, at: int) -> PartitionDescription: ...

    @overload
    def __getitem__(self, at: slice) -> list[PartitionDescription]: ...

    def __getitem__(self, at: int | slice) -> PartitionDescription | list[PartitionDescription]:
        if isinstance(at, slice):
            return [self._described(info) for info in self._infos[at]]
        return self._described(self._infos[at])

    def _described(self, info: PartitionInfo) -> PartitionDescription:
        at, online, epoch = info
        node = self._node
        if online:
            return PartitionDescription(at, node, epoch, (node,), (node,))
        return PartitionDescription(at, -1, epoch, (node,), (), (node,), CODES[Fault.LEADER_NOT_AVAILABLE])


# ---- offsets ----------------------------------------------------------------------------------------------------------

LOOKUPS_AT_ONCE = 16
"""Lookups between two pauses: about 50 us."""
LOOKUPS_MAX = 64
"""Lookups of one request that wait for a flush or read a batch at the same time."""


def list_offsets(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    list_offset = service.engine.list_offset
    isolation = getattr(body, "isolation_level", 0)
    topics = []
    waiting: deque[tuple[dict[str, Any], Pending[OffsetFound]]] = deque()
    for topic in body.topics:
        rows: list[dict[str, Any]] = []
        for asked in topic.partitions:
            index = asked.partition_index
            found = list_offset(
                topic.name, index, asked.timestamp, isolation, getattr(asked, "current_leader_epoch", -1)
            )
            row = {"partition_index": index}
            rows.append(row)
            if not isinstance(found, Pending):
                _fill(row, found)
            else:
                waiting.append((row, found))
                if len(waiting) >= LOOKUPS_MAX:
                    row, found = waiting.popleft()
                    _fill(row, (yield found))
            if len(rows) % LOOKUPS_AT_ONCE == 0:
                yield None
        topics.append({"name": topic.name, "partitions": rows})
        if len(topics) % LOOKUPS_AT_ONCE == 0:
            yield None
    for row, found in waiting:
        _fill(row, (yield found))
    return {"topics": topics}


def _fill(row: dict[str, Any], found: OffsetFound) -> None:
    fault, offset, timestamp, epoch = found
    row["error_code"] = fault
    row["timestamp"] = timestamp
    row["offset"] = offset
    row["leader_epoch"] = epoch


def offset_for_leader_epoch(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    topics = []
    for topic in body.topics:
        partitions = []
        for asked in topic.partitions:
            end = service.engine.epoch_end(topic.topic, asked.partition, asked.current_leader_epoch, asked.leader_epoch)
            partitions.append(
                {
                    "partition": asked.partition,
                    "error_code": end.fault,
                    "leader_epoch": end.leader_epoch,
                    "end_offset": end.end_offset,
                }
            )
            yield None
        topics.append({"topic": topic.topic, "partitions": partitions})
        yield None
    return {"topics": topics}
