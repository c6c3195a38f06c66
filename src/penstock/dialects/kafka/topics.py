"""Admin requests about topics, partitions and records."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.broker.engine import NewTopic, TopicResult
from penstock.dialects.kafka import configs
from penstock.model.errors import Fault
from penstock.model.pending import Pending, gather, when

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService


def create_topics(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    refused: dict[int, TopicResult] = {}
    wanted: list[NewTopic] = []
    for at, topic in enumerate(body.topics):
        partitions, factor = topic.num_partitions, topic.replication_factor
        if topic.assignments:
            fault = _assignment_fault(service, topic)
            if fault is not None:
                refused[at] = TopicResult(topic.name, Fault.INVALID_REPLICA_ASSIGNMENT, fault)
                continue
            partitions, factor = len(topic.assignments), 1
        nulls = [config.name for config in topic.configs if config.value is None]
        if nulls:
            refused[at] = TopicResult(topic.name, Fault.INVALID_CONFIG, f"{nulls[0]} has no value")
            continue
        wanted.append(NewTopic(topic.name, partitions, factor, {c.name: c.value for c in topic.configs}))
    validate_only = getattr(body, "validate_only", False)
    made = service.engine.create_topics(wanted, validate_only=validate_only)

    def answer(results: list[TopicResult]) -> dict[str, Any]:
        rest = iter(results)
        rows = [refused[at] if at in refused else next(rest) for at in range(len(body.topics))]
        return {"topics": [_created(service, row) for row in rows]}

    return made.map(answer)


def _assignment_fault(service: KafkaService, topic: Any) -> str | None:
    """A manual assignment fits one broker when it names partitions 0..n-1, each on this node alone."""
    node = service.address.node_id
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        return "partitions or replication factor and an assignment exclude each other"
    if sorted(entry.partition_index for entry in topic.assignments) != list(range(len(topic.assignments))):
        return "the assignment does not number the partitions from 0 on"
    if any(tuple(entry.broker_ids) != (node,) for entry in topic.assignments):
        return f"every partition must be on broker {node}: there is no other"
    return None


def _created(service: KafkaService, result: TopicResult) -> dict[str, Any]:
    if result.fault is not Fault.NONE:
        return {
            "name": result.name,
            "topic_id": None,
            "error_code": result.fault,
            "error_message": result.text or result.fault.value,
            "configs": None,
        }
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": Fault.NONE,
        "error_message": None,
        "num_partitions": result.partitions,
        "replication_factor": 1,
        "configs": [
            {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}
            for entry in configs.topic_entries(service, result.configs)
        ],
    }


def delete_topics(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    engine = service.engine
    asked: list[tuple[str | None, uuid.UUID | None]]
    if version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        asked = [(name, None) for name in body.topic_names]
    names = [
        name if name is not None else engine.topic_name_of(topic_id.bytes) if topic_id else None
        for name, topic_id in asked
    ]
    done = engine.delete_topics([name for name in dict.fromkeys(names) if name is not None])

    def answer(results: list[TopicResult]) -> dict[str, Any]:
        by_name = {result.name: result for result in results}
        rows: list[dict[str, Any]] = []
        for (_, asked_id), name in zip(asked, names, strict=True):
            if name is None:
                rows.append({"name": None, "topic_id": asked_id, "error_code": Fault.UNKNOWN_TOPIC_ID})
                continue
            result = by_name[name]
            rows.append(
                {
                    "name": name,
                    "topic_id": result.topic_id or asked_id,
                    "error_code": result.fault,
                    "error_message": None if result.fault is Fault.NONE else result.text or result.fault.value,
                }
            )
        return {"responses": rows}

    return done.map(answer)


def create_partitions(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    node = service.address.node_id
    refused = {
        topic.name: TopicResult(
            topic.name, Fault.INVALID_REPLICA_ASSIGNMENT, f"every new partition must be on broker {node} alone"
        )
        for topic in body.topics
        if topic.assignments is not None and any(tuple(entry.broker_ids) != (node,) for entry in topic.assignments)
    }
    for name, count in Counter(topic.name for topic in body.topics).items():
        if count > 1:
            refused[name] = TopicResult(name, Fault.INVALID_REQUEST, "the topic is named more than once")
    wanted = [(topic.name, topic.count) for topic in body.topics if topic.name not in refused]
    done = service.engine.add_partitions(wanted, validate_only=body.validate_only)

    def answer(results: list[TopicResult]) -> dict[str, Any]:
        by_name = {**refused, **{result.name: result for result in results}}
        return {"results": [_plain(by_name[topic.name]) for topic in body.topics]}

    return done.map(answer)


def _plain(result: TopicResult) -> dict[str, Any]:
    failed = result.fault is not Fault.NONE
    return {
        "name": result.name,
        "error_code": result.fault,
        "error_message": (result.text or result.fault.value) if failed else None,
    }


def delete_records(service: KafkaService, body: Any, version: int, caller: Caller) -> Any:
    parts: list[tuple[Fault, int] | Pending[tuple[Fault, int]]] = [
        service.engine.delete_records(topic.name, partition.partition_index, partition.offset)
        for topic in body.topics
        for partition in topic.partitions
    ]

    def answer(results: list[tuple[Fault, int]]) -> dict[str, Any]:
        rest = iter(results)
        topics = []
        for topic in body.topics:
            rows = []
            for partition in topic.partitions:
                fault, low_watermark = next(rest)
                rows.append(
                    {
                        "partition_index": partition.partition_index,
                        "low_watermark": low_watermark,
                        "error_code": fault,
                    }
                )
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    return when(gather(parts), answer)
