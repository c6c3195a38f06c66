"""What others may know of a classic group: its description, what it reads, whether its offsets may be deleted."""

from __future__ import annotations

from penstock.coordination.classic_group import ClassicGroup
from penstock.coordination.classic_members import subscribed_topics
from penstock.coordination.classic_states import State
from penstock.coordination.group_commands import DescribedMember, GroupDescription
from penstock.model.errors import Fault

CONSUMER_PROTOCOL_TYPE = "consumer"


def describe(group: ClassicGroup) -> GroupDescription:
    """Metadata and assignments are shown of a stable group only: in the others they are about to change."""
    is_stable = group.state is State.STABLE
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if is_stable else b"",
            member.assignment if is_stable else b"",
        )
        for member in group.members
    )
    protocol = (group.protocol or "") if is_stable else ""
    return GroupDescription(Fault.NONE, group.group, group.state.value, group.protocol_type, protocol, members)


def delete_offsets_fault(group: ClassicGroup) -> Fault:
    """Of a group with members only those offsets may go that no member reads, which only consumers can tell."""
    if group.state is State.EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return Fault.NONE
    return Fault.NON_EMPTY_GROUP


def topics_read_by(group: ClassicGroup) -> frozenset[str]:
    """What its consumers subscribe to, as far as their subscriptions can be read."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return frozenset()
    topics = (subscribed_topics(member.metadata(group.protocol)) or () for member in group.members)
    return frozenset(topic for names in topics for topic in names)
