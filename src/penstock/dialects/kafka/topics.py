"""Admin requests about topics, partitions and records."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.broker.engine import NewTopic, TopicResult
from penstock.dialects.kafka import configs
from penstock.model.errors import Fault
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService


def create_topics(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    refused: dict[int, TopicResult] = {}
    wanted: list[NewTopic] = []
    for at, topic in enumerate(body.topics):
        yield None
        partitions, factor = topic.num_partitions, topic.replication_factor
        if topic.assignments:
            fault = yield from _assignment_fault(service, topic)
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
    made: list[TopicResult] = yield service.engine.create_topics(wanted, validate_only=validate_only)
    rest = iter(made)
    shown: dict[frozenset[tuple[str, str]], list[dict[str, Any]]] = {}
    rows = []
    for at in range(len(body.topics)):
        rows.append(_created(service, refused[at] if at in refused else next(rest), shown))
        yield None
    return {"topics": rows}


def _assignment_fault(service: KafkaService, topic: Any) -> Work[str | None]:
    """A manual assignment fits one broker when it names partitions 0..n-1, each on this node alone."""
    node = service.address.node_id
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        return "partitions or replication factor and an assignment exclude each other"
    named = {entry.partition_index for entry in topic.assignments}
    count = len(topic.assignments)
    if len(named) != count or min(named) != 0 or max(named) != count - 1:
        return "the assignment does not number the partitions from 0 on"
    if not (yield from _are_on(node, topic.assignments)):
        return f"every partition must be on broker {node}: there is no other"
    return None


def _are_on(node: int, assignments: Any) -> Work[bool]:
    """Whether every partition is assigned to this node alone."""
    for entry in assignments:
        if tuple(entry.broker_ids) != (node,):
            return False
        yield None
    return True


def _created(
    service: KafkaService, result: TopicResult, shown: dict[frozenset[tuple[str, str]], list[dict[str, Any]]]
) -> dict[str, Any]:
    """`shown` has encoded configs that can be reused: thousands of topics may have the same."""
    if result.fault is not Fault.NONE:
        return {
            "name": result.name,
            "topic_id": None,
            "error_code": result.fault,
            "error_message": result.text or result.fault.value,
            "configs": None,
        }
    overrides = frozenset(result.configs.items())
    if overrides not in shown:
        shown[overrides] = [
            {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}
            for entry in configs.topic_entries(service, result.configs)
        ]
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": Fault.NONE,
        "error_message": None,
        "num_partitions": result.partitions,
        "replication_factor": 1,
        "configs": shown[overrides],
    }


def delete_topics(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    engine = service.engine
    asked: list[tuple[str | None, uuid.UUID | None]]
    if version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        asked = [(name, None) for name in body.topic_names]
    names: list[str | None] = []
    for name, topic_id in asked:
        if name is None and topic_id is not None:
            name = engine.topic_name_of(topic_id.bytes)
        names.append(name)
        yield None
    results: list[TopicResult] = yield engine.delete_topics([name for name in dict.fromkeys(names) if name is not None])
    by_name = {result.name: result for result in results}
    rows: list[dict[str, Any]] = []
    for (_, asked_id), name in zip(asked, names, strict=True):
        yield None
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


def create_partitions(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    node = service.address.node_id
    named = Counter(topic.name for topic in body.topics)
    refused: dict[str, TopicResult] = {}
    wanted: list[tuple[str, int]] = []
    for topic in body.topics:
        if named[topic.name] > 1:
            refused[topic.name] = TopicResult(topic.name, Fault.INVALID_REQUEST, "the topic is named more than once")
        elif topic.assignments is not None and not (yield from _are_on(node, topic.assignments)):
            text = f"every new partition must be on broker {node} alone"
            refused[topic.name] = TopicResult(topic.name, Fault.INVALID_REPLICA_ASSIGNMENT, text)
        else:
            wanted.append((topic.name, topic.count))
        yield None
    results: list[TopicResult] = yield service.engine.add_partitions(wanted, validate_only=body.validate_only)
    by_name = {**refused, **{result.name: result for result in results}}
    rows = []
    for topic in body.topics:
        rows.append(_plain(by_name[topic.name]))
        yield None
    return {"results": rows}


def _plain(result: TopicResult) -> dict[str, Any]:
    failed = result.fault is not Fault.NONE
    return {
        "name": result.name,
        "error_code": result.fault,
        "error_message": (result.text or result.fault.value) if failed else None,
    }


def delete_records(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    places = (
        (topic.name, partition.partition_index, partition.offset)
        for topic in body.topics
        for partition in topic.partitions
    )
    results = yield from service.engine.delete_records_in_slices(places)
    rest = iter(results)
    topics = []
    for topic in body.topics:
        rows = []
        for partition in topic.partitions:
            fault, low_watermark = next(rest)
            rows.append(
                {"partition_index": partition.partition_index, "low_watermark": low_watermark, "error_code": fault}
            )
            yield None
        topics.append({"name": topic.name, "partitions": rows})
        yield None
    return {"topics": topics}
