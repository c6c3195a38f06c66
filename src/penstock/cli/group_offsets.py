"""What the broker knows of consumer groups, as the commands show it: members, committed offsets, lag. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli.connection import TIMEOUT_S, Spot, failing_as, offsets
from penstock.cli.failure import Failed

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, ConsumerGroupListing

_STATES = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}


class Member(NamedTuple):
    id: str
    instance_id: str | None
    """The name that a static member gave itself."""
    client_id: str
    host: str
    spots: tuple[Spot, ...]


class Group(NamedTuple):
    name: str
    state: str
    """In Kafka's words: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead, Unknown."""
    protocol: str
    """classic or consumer (KIP-848)."""
    assignor: str
    members: tuple[Member, ...]

    @property
    def idle(self) -> bool:
        """Nobody reads, so that offsets may be changed."""
        return not self.members and self.state in ("Empty", "Dead")


class PartitionLag(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    """None when the partition is gone."""
    lag: int | None
    member: str | None
    """The id of the member that reads it now."""


def list_groups(admin: AdminClient) -> list[ConsumerGroupListing]:
    with failing_as("cannot list groups"):
        found = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        for error in found.errors:
            raise error
    return sorted(found.valid, key=lambda listing: str(listing.group_id))


def describe_groups(admin: AdminClient, names: list[str]) -> dict[str, Group]:
    """Groups that the broker does not know are Dead, as Kafka has it."""
    if not names:
        return {}
    futures = admin.describe_consumer_groups(names, request_timeout=TIMEOUT_S)
    groups: dict[str, Group] = {}
    for name, future in futures.items():
        with failing_as(f"group {name}"):
            groups[name] = _group(future.result())
    return groups


def describe_group(admin: AdminClient, name: str) -> Group:
    return describe_groups(admin, [name])[name]


def _group(found: ConsumerGroupDescription) -> Group:
    members = [
        Member(
            member.member_id,
            member.group_instance_id or None,
            member.client_id,
            member.host.removeprefix("/"),
            tuple(sorted((place.topic, place.partition) for place in member.assignment.topic_partitions)),
        )
        for member in found.members
    ]
    members.sort(key=lambda member: (member.client_id, member.id))
    protocol = found.type.name.lower()
    return Group(found.group_id, _state_word(found.state), protocol, found.partition_assignor, tuple(members))


def _state_word(state: Any) -> str:
    word = str(state.name)
    return _STATES.get(word, word.capitalize())


def committed_offsets(admin: AdminClient, names: Iterable[str]) -> dict[str, dict[Spot, int]]:
    """What each group committed, all asked for at once."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    futures = {
        name: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)], request_timeout=TIMEOUT_S)[name]
        for name in names
    }
    committed: dict[str, dict[Spot, int]] = {}
    for name, future in futures.items():
        with failing_as(f"cannot read offsets of group {name}"):
            places = future.result().topic_partitions
        for place in places:
            if place.error is not None:
                with failing_as(
                    f"cannot read offsets of group {name} in partition {place.partition} of topic {place.topic}"
                ):
                    raise place.error
        committed[name] = {(p.topic, p.partition): p.offset for p in places if p.offset >= 0}
    return committed


def end_offsets(admin: AdminClient, spots: Iterable[Spot]) -> dict[Spot, int]:
    from confluent_kafka.admin import OffsetSpec

    return offsets(admin, spots, OffsetSpec.latest(), gone_ok=True)


def lag(committed: int | None, end: int | None) -> int | None:
    """How many offsets are still to be read; None where nothing was committed, or the partition is gone."""
    return None if committed is None or end is None else max(0, end - committed)


def partition_lags(group: Group, committed: Mapping[Spot, int], ends: Mapping[Spot, int]) -> list[PartitionLag]:
    """Every partition that the group committed in or has assigned."""
    readers = {spot: member.id for member in group.members for spot in member.spots}
    return [
        PartitionLag(
            *spot, committed.get(spot), ends.get(spot), lag(committed.get(spot), ends.get(spot)), readers.get(spot)
        )
        for spot in sorted(committed.keys() | readers.keys())
    ]


def require_known(group: Group, committed: Mapping[Spot, int]) -> None:
    if group.state == "Dead" and not committed:
        raise Failed(f"group {group.name}: the broker has no such group")
