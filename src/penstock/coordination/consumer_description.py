"""What others may know of a consumer group: its state and its members, and what is wrong with a heartbeat at sight."""

from __future__ import annotations

from penstock.coordination.assignors import CONSUMER_ASSIGNORS
from penstock.coordination.consumer_group import ConsumerGroup
from penstock.coordination.consumer_group_records import MemberState
from penstock.coordination.consumer_members import NEW_MEMBER
from penstock.coordination.group_commands import (
    JOIN_EPOCH,
    NAME_CHARS_MAX,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    DescribedConsumer,
)
from penstock.model.errors import Fault


def state(group: ConsumerGroup) -> str:
    if not group.members:
        return "Empty"
    target_epoch = group.target_epoch.epoch
    if group.epoch > target_epoch:
        return "Assigning"
    for member_id in group.members:
        current = group.current.get(member_id, NEW_MEMBER)
        if current.epoch != target_epoch or current.state is not MemberState.STABLE:
            return "Reconciling"
    return "Stable"


def describe(group: ConsumerGroup) -> ConsumerGroupDescription:
    members = []
    for member_id, metadata in group.members.items():
        current = group.current.get(member_id, NEW_MEMBER)
        members.append(
            DescribedConsumer(
                member_id,
                metadata.instance_id,
                metadata.rack_id,
                current.epoch,
                metadata.client_id,
                metadata.client_host,
                metadata.subscribed_names,
                metadata.subscribed_regex,
                current.assigned,
                group.target.get(member_id, {}),
            )
        )
    return ConsumerGroupDescription(
        Fault.NONE,
        group.group,
        state(group),
        group.epoch,
        group.target_epoch.epoch,
        group.assignor(),
        tuple(members),
        {topic.topic_id: name for name, topic in group.subscribed.items()},
    )


def heartbeat_fault(command: ConsumerHeartbeat) -> tuple[Fault, str]:
    """What no group could accept, with a sentence for the client's log."""
    names = (command.group, command.member_id, command.instance_id, command.rack_id, command.client_id)
    if not command.group:
        return Fault.INVALID_REQUEST, "GroupId can't be empty."
    if command.instance_id == "" or command.rack_id == "":
        return Fault.INVALID_REQUEST, "InstanceId and RackId can't be empty."
    if any(name is not None and len(name) > NAME_CHARS_MAX for name in (*names, command.subscribed_regex)):
        return Fault.INVALID_REQUEST, f"A name has more than {NAME_CHARS_MAX} characters."
    if command.epoch < STATIC_LEAVE_EPOCH:
        return Fault.INVALID_REQUEST, f"MemberEpoch is {command.epoch}, but must be at least {STATIC_LEAVE_EPOCH}."
    if command.epoch == STATIC_LEAVE_EPOCH and command.instance_id is None:
        return Fault.INVALID_REQUEST, "InstanceId can't be null when a static member leaves."
    if command.epoch != JOIN_EPOCH and not command.member_id:
        return Fault.INVALID_REQUEST, "MemberId can't be empty."
    if command.epoch == JOIN_EPOCH:
        if command.rebalance_timeout_ms == -1:
            return Fault.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."
        if command.owned is None or any(command.owned.values()):
            return Fault.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."
        if not command.subscribed_names and not command.subscribed_regex:
            return Fault.INVALID_REQUEST, "SubscribedTopicNames or SubscribedTopicRegex must be set when (re-)joining."
    if command.assignor is not None and command.assignor not in CONSUMER_ASSIGNORS:
        known = ", ".join(CONSUMER_ASSIGNORS)
        return Fault.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {command.assignor} is not supported; known are {known}."
    return Fault.NONE, ""
