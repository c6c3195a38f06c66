"""Groups of the newer protocol (KIP-848): one heartbeat that joins, stays and leaves, and their description."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.coordination.group_commands import (
    NAME_CHARS_MAX,
    NO_MEMBER,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribeConsumerGroup,
)
from penstock.dialects.kafka.coordinators import Room, ask_each, ask_group
from penstock.dialects.kafka.groups import GROUP_OPERATIONS
from penstock.dialects.kafka.kio_bridge import milliseconds
from penstock.dialects.kafka.metadata import OPERATIONS_NOT_ASKED
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import ZERO_ID
from penstock.model.pending import Pending
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.dialects.kafka.service import Caller, KafkaService

_CONSUMER_MEMBER = 1
_FIRST_WITH_CLIENT_MADE_MEMBER_IDS = 1


def consumer_group_heartbeat(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    if version >= _FIRST_WITH_CLIENT_MADE_MEMBER_IDS and body.member_id == NO_MEMBER:  # KIP-1082
        return _heartbeat_answer(ConsumerHeartbeatResult(Fault.INVALID_REQUEST, "MemberId can't be empty."))
    names = body.subscribed_topic_names
    pattern = getattr(body, "subscribed_topic_regex", None)
    if len(pattern or "") <= NAME_CHARS_MAX:
        try:
            yield from service.engine.groups.find_topics(body.group_id, pattern)
        except BrokerError as error:
            return _heartbeat_answer(ConsumerHeartbeatResult(error.fault, error.text))
    command = ConsumerHeartbeat(
        group=body.group_id,
        member_id=body.member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        subscribed_names=None if names is None else tuple(names),
        subscribed_regex=pattern,
        assignor=body.server_assignor,
        owned=(yield from _owned(body.topic_partitions)),
    )
    result = ask_group(service, command.group, command)
    answer = _heartbeat_answer((yield result) if isinstance(result, Pending) else result)
    yield None  # a large assignment is encoded in slices
    return answer


def _owned(topics: Any) -> Work[dict[uuid.UUID, frozenset[int]] | None]:
    if topics is None:
        return None
    owned: dict[uuid.UUID, frozenset[int]] = {}
    for topic in topics:
        owned[topic.topic_id or ZERO_ID] = frozenset(topic.partitions)
        yield None
    return owned


def _heartbeat_answer(result: ConsumerHeartbeatResult | Fault) -> dict[str, Any]:
    if isinstance(result, Fault):
        result = ConsumerHeartbeatResult(result, result.value)
    assignment = None
    if result.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(partitions)}
                for topic_id, partitions in result.assignment.items()
            ]
        }
    return {
        "error_code": result.fault,
        "error_message": None if result.fault is Fault.NONE else result.text or result.fault.value,
        "member_id": result.member_id,
        "member_epoch": result.epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": assignment,
    }


def consumer_group_describe(service: KafkaService, body: Any, version: int, caller: Caller) -> Work[dict[str, Any]]:
    operations = GROUP_OPERATIONS if body.include_authorized_operations else OPERATIONS_NOT_ASKED

    def ask(group: str) -> Any:
        return ask_group(service, group, DescribeConsumerGroup(group)) if group else Fault.INVALID_GROUP_ID

    room = Room()

    def row(group: str, result: ConsumerGroupDescription | Fault) -> dict[str, Any]:
        room.take(1 if isinstance(result, Fault) else 1 + _elements(result))
        return _described(service, group, result, operations)

    return {"groups": (yield from ask_each(body.group_ids, ask, row))}


def _elements(result: ConsumerGroupDescription) -> int:
    """Approximate number of elements of the answer: members, names and partitions."""
    count = 0
    for member in result.members:
        count += 1 + len(member.subscribed_names)
        for assignment in (member.assignment, member.target):
            count += len(assignment) + sum(map(len, assignment.values()))
    return count


def _described(
    service: KafkaService, group: str, result: ConsumerGroupDescription | Fault, operations: int
) -> dict[str, Any]:
    if isinstance(result, Fault):
        result = ConsumerGroupDescription(result, group)
    fault = result.fault
    text = None
    if fault is not Fault.NONE:
        text = f"Group {group} is not a consumer group." if fault is Fault.GROUP_ID_NOT_FOUND else fault.value
    return {
        "error_code": fault,
        "error_message": text,
        "group_id": group,
        "group_state": result.state,
        "group_epoch": result.epoch,
        "assignment_epoch": result.assignment_epoch,
        "assignor_name": result.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack_id,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscribed_topic_names": member.subscribed_names,
                "subscribed_topic_regex": member.subscribed_regex,
                "assignment": _assignment(service, member.assignment, result.topic_names),
                "target_assignment": _assignment(service, member.target, result.topic_names),
                "member_type": _CONSUMER_MEMBER,
            }
            for member in result.members
        ],
        "authorized_operations": operations if fault is Fault.NONE else OPERATIONS_NOT_ASKED,
    }


def _assignment(
    service: KafkaService, assignment: Mapping[uuid.UUID, frozenset[int]], names: Mapping[uuid.UUID, str]
) -> dict[str, Any]:
    """With names; a topic that is gone has none and is left out."""
    rows = []
    for topic_id, partitions in assignment.items():
        name = names.get(topic_id) or service.engine.topic_name_of(topic_id.bytes)
        if name is not None:
            rows.append({"topic_id": topic_id, "topic_name": name, "partitions": sorted(partitions)})
    return {"topic_partitions": rows}
