"""Requests that look something up: Metadata, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.engine import NewTopic, OffsetFound, TopicInfo, TopicResult
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.metadata import (
    OPERATIONS_NOT_ASKED,
    PartitionDescription,
    TopicDescription,
    encode_answer,
    encode_topics,
)
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import is_internal, topic_name
from penstock.model.pending import Pending, gather, when

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

# Bits of Kafka's AclOperation: without an authorizer every operation is allowed.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))

_NO_ID = bytes(16)


# ---- Metadata ---------------------------------------------------------------------------------------------------------


def metadata(service: KafkaService, body: Any, version: int, correlation_id: int) -> bytes | Pending[bytes]:
    """All topics, or those asked for by name or id; missing ones are made when client and broker allow it."""
    engine = service.engine
    if body.topics is None or (version == 0 and not body.topics):
        return _metadata_answer(service, body, version, correlation_id, None, {})
    may_create = engine.settings.auto_create_topics and (version < 4 or body.allow_auto_topic_creation)
    # A consumer may ask for an internal topic before the broker has created it: it is unknown, not refused.
    missing = {
        topic.name: NewTopic(topic.name)
        for topic in body.topics
        if may_create and topic.name is not None and not is_internal(topic.name) and engine.topic(topic.name) is None
    }
    if not missing:
        return _metadata_answer(service, body, version, correlation_id, body.topics, {})
    return engine.create_topics(list(missing.values()), validate_only=False).map(
        lambda made: _metadata_answer(service, body, version, correlation_id, body.topics, {r.name: r for r in made})
    )


def _metadata_answer(
    service: KafkaService,
    body: Any,
    version: int,
    correlation_id: int,
    asked: Any,
    made: dict[str, TopicResult],
) -> bytes:
    engine = service.engine
    operations = (
        TOPIC_OPERATIONS if getattr(body, "include_topic_authorized_operations", False) else OPERATIONS_NOT_ASKED
    )
    if asked is None:
        key: object = ("all", operations)
        topics = service.topics_kept.get(
            version,
            key,
            engine.catalogue_version,
            lambda: [_describe(service, info, operations) for info in engine.topics()],
        )
    elif len(asked) == 1 and asked[0].name is not None and engine.topic(asked[0].name) is not None:
        name = asked[0].name
        topics = service.topics_kept.get(
            version,
            (name, operations),
            engine.catalogue_version,
            lambda: [_describe_asked(service, asked[0], operations, made)],
        )
    else:
        topics = encode_topics(version, [_describe_asked(service, topic, operations, made) for topic in asked])
    cluster_operations = OPERATIONS_NOT_ASKED
    if getattr(body, "include_cluster_authorized_operations", False):
        cluster_operations = CLUSTER_OPERATIONS
    return encode_answer(
        version,
        correlation_id,
        (service.address,),
        engine.identity.cluster_id,
        service.address.node_id,
        (topics,),
        cluster_operations=cluster_operations,
    )


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
    node = service.address.node_id
    partitions = [
        PartitionDescription(at, node, epoch, (node,), (node,))
        if online
        else PartitionDescription(at, -1, epoch, (node,), (), (node,), CODES[Fault.LEADER_NOT_AVAILABLE])
        for at, online, epoch in info.partitions
    ]
    return TopicDescription(info.name, info.topic_id.bytes, partitions, info.internal, 0, operations)


# ---- offsets ----------------------------------------------------------------------------------------------------------


def list_offsets(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    isolation = getattr(body, "isolation_level", 0)
    keys = []
    found: list[OffsetFound | Pending[OffsetFound]] = []
    for topic in body.topics:
        for partition in topic.partitions:
            keys.append((topic.name, partition.partition_index))
            found.append(
                service.engine.list_offset(
                    topic.name,
                    partition.partition_index,
                    partition.timestamp,
                    isolation,
                    getattr(partition, "current_leader_epoch", -1),
                )
            )
    return when(gather(found), lambda results: _list_offsets_answer(body, results))


def _list_offsets_answer(body: Any, results: list[OffsetFound]) -> dict[str, Any]:
    rest = iter(results)
    topics = []
    for topic in body.topics:
        partitions = []
        for partition in topic.partitions:
            fault, offset, timestamp, epoch = next(rest)
            partitions.append(
                {
                    "partition_index": partition.partition_index,
                    "error_code": fault,
                    "timestamp": timestamp,
                    "offset": offset,
                    "leader_epoch": epoch,
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def offset_for_leader_epoch(service: KafkaService, body: Any, version: int, caller: Caller) -> dict[str, Any]:
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
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}
