"""A member of a consumer group (KIP-848) on its way from what it holds to what it should hold.

    Stable                nothing to do until the target changes
    UnrevokedPartitions   it has to give partitions up and has not said that it did; its epoch stands still
    UnreleasedPartitions  it is in the target's epoch and waits for partitions that others still hold

Two rules keep a partition from having two owners. A member gives up first: as long as it says, or does not say, that it
owns what it must give up, it gets nothing. And a partition is given only when nobody holds it, where holding lasts until the
giving up was confirmed. `reconcile` is that step for one member, as a function of values.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from penstock.coordination.consumer_group_records import (
    Assignment,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from penstock.coordination.group_commands import ConsumerHeartbeat
from penstock.model.errors import Fault

NOBODY: frozenset[int] = frozenset()

NEW_MEMBER = CurrentAssignment(0, 0, MemberState.STABLE, {}, {})


def merged(known: MemberMetadata | None, command: ConsumerHeartbeat) -> MemberMetadata:
    """Who the member is after it said this; what it left out stays. An empty pattern is none."""
    names = command.subscribed_names
    if names is not None:
        names = tuple(sorted(set(names)))
    if known is None:
        return MemberMetadata(
            command.instance_id,
            command.rack_id,
            command.client_id,
            command.client_host,
            names or (),
            command.subscribed_regex or None,
            command.rebalance_timeout_ms,
            command.assignor,
        )
    return MemberMetadata(
        command.instance_id if command.instance_id is not None else known.instance_id,
        command.rack_id if command.rack_id is not None else known.rack_id,
        command.client_id,
        command.client_host,
        names if names is not None else known.subscribed_names,
        known.subscribed_regex if command.subscribed_regex is None else command.subscribed_regex or None,
        command.rebalance_timeout_ms if command.rebalance_timeout_ms != -1 else known.rebalance_timeout_ms,
        command.assignor if command.assignor is not None else known.assignor,
    )


def epoch_fault(current: CurrentAssignment, command: ConsumerHeartbeat) -> Fault:
    """Whether the member lives in the epoch that it is in. The last one is allowed if the answer may have been lost."""
    if command.epoch == current.epoch:
        return Fault.NONE
    if (
        command.epoch == current.previous_epoch
        and command.epoch < current.epoch
        and command.owned is not None
        and all(partitions <= current.assigned.get(topic, NOBODY) for topic, partitions in command.owned.items())
    ):
        return Fault.NONE
    return Fault.FENCED_MEMBER_EPOCH


def overlap(first: Mapping[uuid.UUID, frozenset[int]], second: Mapping[uuid.UUID, frozenset[int]]) -> bool:
    return any(partitions & second.get(topic, NOBODY) for topic, partitions in first.items())


def reconcile(
    current: CurrentAssignment,
    target: Assignment,
    target_epoch: int,
    owned: Mapping[uuid.UUID, frozenset[int]] | None,
    holders: Mapping[uuid.UUID, Mapping[int, str]],
    member_id: str,
) -> CurrentAssignment:
    """The member's next step towards its target; the same when there is none. `owned` is what it says it has, or None;
    `holders` are the members that hold partitions."""

    def still_owns(partitions: Assignment) -> bool:
        return bool(partitions) and (owned is None or overlap(owned, partitions))

    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and still_owns(current.revoking):
        return current

    assigned: Assignment = {}
    revoking: Assignment = {}
    gained: Assignment = {}
    must_wait = False
    for topic in target.keys() | current.assigned.keys():
        wanted = target.get(topic, NOBODY)
        had = current.assigned.get(topic, NOBODY)
        if kept := had & wanted:
            assigned[topic] = kept
        if lost := had - wanted:
            revoking[topic] = lost
        missing = wanted - had
        held = holders.get(topic)
        if held:
            free = frozenset([partition for partition in missing if held.get(partition, member_id) == member_id])
        else:
            free = missing
        must_wait = must_wait or len(free) < len(missing)
        if free:
            gained[topic] = free

    if still_owns(revoking):
        return CurrentAssignment(current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic, partitions in gained.items():
        assigned[topic] = assigned.get(topic, NOBODY) | partitions
    state = MemberState.UNRELEASED_PARTITIONS if must_wait else MemberState.STABLE
    previous = current.previous_epoch if target_epoch == current.epoch else current.epoch
    return CurrentAssignment(target_epoch, previous, state, assigned, {})
