"""Admin requests about the cluster, which is this node: its disks, its partitions page by page, and the moves and elections
that one node has no need of. Every requested item is named in the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from penstock.broker.engine import PartitionInfo
from penstock.dialects.kafka.configs import BROKER, BROKER_LOGGER, TOPIC
from penstock.dialects.kafka.lookups import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from penstock.dialects.kafka.metadata import OPERATIONS_NOT_ASKED
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import topic_name
from penstock.model.slices import Work, sorted_in_slices

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

PAGE_PARTITIONS_MAX = 2_000
"""Of a DescribeTopicPartitions answer: Kafka's max.request.partition.size.limit."""

_BROKER_ENDPOINT = 1
_CLIENT_METRICS = 16
_GROUP = 32
_PREFERRED, _UNCLEAN = 0, 1


def describe_cluster(service: KafkaService, body: Any, version: int, caller: Caller) -> dict[str, Any]:
    if getattr(body, "endpoint_type", _BROKER_ENDPOINT) != _BROKER_ENDPOINT:
        return {
            "error_code": Fault.INVALID_REQUEST,
            "error_message": "this listener serves broker endpoints",
            "cluster_id": service.engine.identity.cluster_id,
            "controller_id": -1,
            "brokers": [],
        }
    address = service.address
    asked = body.include_cluster_authorized_operations
    return {
        "error_code": Fault.NONE,
        "error_message": None,
        "endpoint_type": _BROKER_ENDPOINT,
        "cluster_id": service.engine.identity.cluster_id,
        "controller_id": address.node_id,
        "brokers": [
            {"broker_id": address.node_id, "host": address.host, "port": address.port, "rack": None, "is_fenced": False}
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    }


# ---- partitions, page by page -----------------------------------------------------------------------------------------


def describe_topic_partitions(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """All topics or the named ones, in the order of their names; the cursor says where the next page begins (KIP-966)."""
    engine = service.engine
    cursor = body.cursor
    asked = {topic.name for topic in body.topics}
    names: Iterable[str] = (yield from sorted_in_slices(asked)) if asked else engine.topic_names()
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked):
            refused = []
            for topic in body.topics:
                refused.append(_refused_topic(topic.name, Fault.INVALID_REQUEST))
                yield None
            return {"topics": refused}
        names = (name for name in names if name >= cursor.topic_name)
        first = cursor.partition_index
    left = max(1, min(body.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[dict[str, Any]] = []
    for name in names:
        yield None
        info = engine.topic(name)
        if left == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        if info is None:
            topics.append(_refused_topic(name, _missing(name)))
            continue
        begin = first if cursor is not None and name == cursor.topic_name else 0
        page = info.partitions[begin : begin + left]
        topics.append(
            {
                "error_code": Fault.NONE,
                "name": name,
                "topic_id": info.topic_id,
                "is_internal": info.internal,
                "partitions": [_partition(service, partition) for partition in page],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        left -= len(page)
        end = begin + len(page)
        if end < len(info.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


def _missing(name: str) -> Fault:
    try:
        topic_name(name)
    except BrokerError as error:
        return error.fault
    return Fault.UNKNOWN_TOPIC_OR_PARTITION


def _refused_topic(name: str, fault: Fault) -> dict[str, Any]:
    return {"error_code": fault, "name": name, "topic_id": None, "partitions": []}


def _partition(service: KafkaService, info: PartitionInfo) -> dict[str, Any]:
    node = service.address.node_id
    return {
        "error_code": Fault.NONE if info.online else Fault.LEADER_NOT_AVAILABLE,
        "partition_index": info.partition,
        "leader_id": node if info.online else -1,
        "leader_epoch": info.leader_epoch,
        "replica_nodes": [node],
        "isr_nodes": [node] if info.online else [],
        "eligible_leader_replicas": [],
        "last_known_elr": [],
        "offline_replicas": [] if info.online else [node],
    }


# ---- disks ------------------------------------------------------------------------------------------------------------


def describe_log_dirs(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """The one data directory with the sizes of the logs in it; asked partitions that are not here are left out, as Kafka
    does."""
    engine = service.engine
    places: Iterable[tuple[str, int]]
    if body.topics is None:
        places = [(str(partition.id.topic), partition.id.partition) for partition in engine.partitions()]
    else:
        places = ((topic.topic, at) for topic in body.topics for at in topic.partitions)
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, at in places:
        partition = engine.partition(name, at)
        if partition is not None and partition.log is not None:
            topics.setdefault(name, []).append(
                {
                    "partition_index": at,
                    "partition_size": partition.log.size_bytes,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
        yield None
    return {
        "error_code": Fault.NONE,
        "results": [
            {
                "error_code": Fault.NONE,
                "log_dir": str(engine.directory.path.absolute()),
                "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            }
        ],
    }


# ---- elections and moves ----------------------------------------------------------------------------------------------


def elect_leaders(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """Every partition that is online has the only leader it can have. Asked about all, those that need none are left out."""
    kind = getattr(body, "election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        return {"error_code": Fault.INVALID_REQUEST, "replica_election_results": []}
    asked: list[tuple[str, Sequence[int]]] = []
    if body.topic_partitions is None:
        offline: dict[str, list[int]] = {}
        for partition in list(service.engine.partitions()):
            if not partition.online:
                offline.setdefault(partition.id.topic, []).append(partition.id.partition)
            yield None
        asked = [(name, sorted(offline[name])) for name in sorted(offline)]
    else:
        asked = [(topic.topic, topic.partitions) for topic in body.topic_partitions]
    results = []
    for name, partitions in asked:
        rows = []
        for at in partitions:
            rows.append(_election(service, name, at, kind))
            yield None
        results.append({"topic": name, "partition_result": rows})
        yield None
    return {"error_code": Fault.NONE, "replica_election_results": results}


def _election(service: KafkaService, topic: str, partition: int, kind: int) -> dict[str, Any]:
    found = service.engine.partition(topic, partition)
    error: Fault | ErrorCode = Fault.ELECTION_NOT_NEEDED
    text = Fault.ELECTION_NOT_NEEDED.value
    if found is None:
        error = Fault.UNKNOWN_TOPIC_OR_PARTITION
        text = Fault.UNKNOWN_TOPIC_OR_PARTITION.value
    elif not found.online:
        unclean = kind == _UNCLEAN
        error = ErrorCode.eligible_leaders_not_available if unclean else ErrorCode.preferred_leader_not_available
        text = f"the log of {topic}-{partition} is offline: {found.reason}"
    return {"partition_id": partition, "error_code": error, "error_message": text}


def list_partition_reassignments(service: KafkaService, body: Any, version: int, caller: Caller) -> dict[str, Any]:
    """None: there is nowhere to move to."""
    return {"error_code": Fault.NONE, "error_message": None, "topics": []}


def alter_partition_reassignments(
    service: KafkaService, body: Any, version: int, caller: Caller
) -> Work[dict[str, Any]]:
    """To this node alone is where every partition is; anywhere else it cannot go."""
    responses = []
    for topic in body.topics:
        rows = []
        for partition in topic.partitions:
            rows.append(_reassignment(service, topic.name, partition))
            yield None
        responses.append({"name": topic.name, "partitions": rows})
        yield None
    return {
        "error_code": Fault.NONE,
        "error_message": None,
        "allow_replication_factor_change": getattr(body, "allow_replication_factor_change", True),
        "responses": responses,
    }


def _reassignment(service: KafkaService, topic: str, asked: Any) -> dict[str, Any]:
    fault, text = Fault.NONE, None
    if service.engine.partition(topic, asked.partition_index) is None:
        fault = Fault.UNKNOWN_TOPIC_OR_PARTITION
    elif asked.replicas is None:
        fault = Fault.NO_REASSIGNMENT_IN_PROGRESS
    elif len(asked.replicas) != 1 or asked.replicas[0] != service.address.node_id:
        fault = Fault.INVALID_REPLICA_ASSIGNMENT
        text = f"the partition can be on broker {service.address.node_id} alone: there is no other"
    return {
        "partition_index": asked.partition_index,
        "error_code": fault,
        "error_message": None if fault is Fault.NONE else text or fault.value,
    }


# ---- what has configs -------------------------------------------------------------------------------------------------


def list_config_resources(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    """Version 0 asks for client metrics alone, of which there are none; from version 1 on for any type (KIP-1142)."""
    node = str(service.address.node_id)
    resources: dict[int, Sequence[str]] = {
        TOPIC: service.engine.topic_names(),
        BROKER: [node],
        BROKER_LOGGER: [node],
        _CLIENT_METRICS: [],
        _GROUP: [],
    }
    asked = [_CLIENT_METRICS] if version == 0 else list(dict.fromkeys(body.resource_types)) or list(resources)
    if any(kind not in resources for kind in asked):
        return {"error_code": Fault.UNSUPPORTED_VERSION, "config_resources": []}
    rows = []
    for kind in asked:
        for name in resources[kind]:
            rows.append({"resource_name": name, "resource_type": kind})
            yield None
    return {"error_code": Fault.NONE, "config_resources": rows}
