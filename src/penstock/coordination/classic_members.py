"""The members of a classic group: who they are, which protocols they share, who leads. No states, no waiting.

A dynamic member is known by its id alone. A static member (KIP-345) has an instance id as well, which survives restarts: a
new process with the same instance id takes the place of the old one under a new member id, and who still uses the old id
is fenced.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

from penstock.coordination.group_commands import JoinedMember, JoinGroup
from penstock.coordination.group_records import StoredMember
from penstock.model.errors import Fault

Protocols = tuple[tuple[str, bytes], ...]


class ClassicMember:
    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        """Has not seen the answer to its first join yet, so it cannot send heartbeats."""
        self.deadline_ms: int | None = None
        """When its session ends; None while its request is parked, for then the waiting is ours."""

    @classmethod
    def joining(cls, member_id: str, command: JoinGroup) -> ClassicMember:
        return cls(
            member_id,
            command.instance_id,
            command.client_id,
            command.client_host,
            command.session_timeout_ms,
            command.rebalance_timeout_ms,
            command.protocols,
        )

    @classmethod
    def stored(cls, stored: StoredMember, protocol: str) -> ClassicMember:
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
            ((protocol, stored.subscription),),
            stored.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def store(self, protocol: str | None) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )


class ClassicMembers:
    __slots__ = ("_by_id", "_static", "_support", "leader", "metadata_bytes")

    def __init__(self) -> None:
        self._by_id: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}
        self._support: Counter[str] = Counter()
        """How many members name a protocol."""
        self.leader: str | None = None
        self.metadata_bytes = 0
        """Size of the metadata of all protocols of all members."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._by_id[member_id]

    def static_id(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def fault(self, member_id: str, instance_id: str | None) -> Fault:
        """Whether somebody who says so is a member."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is None:
                return Fault.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return Fault.FENCED_INSTANCE_ID
        return Fault.NONE if member_id in self._by_id else Fault.UNKNOWN_MEMBER_ID

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self._by_id
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id
        self._count(member.protocols, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicMember:
        member = self._by_id.pop(member_id)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._count(member.protocols, -1)
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        return member

    def _count(self, protocols: Protocols, sign: int) -> None:
        for name in {name for name, _ in protocols}:
            self._support[name] += sign
        self.metadata_bytes += sign * metadata_bytes(protocols)

    def update(self, member: ClassicMember, command: JoinGroup) -> None:
        """The member says again who it is and what it can."""
        self._count(member.protocols, -1)
        member.protocols = command.protocols
        self._count(member.protocols, 1)
        member.session_timeout_ms = command.session_timeout_ms
        member.rebalance_timeout_ms = command.rebalance_timeout_ms
        member.client_id = command.client_id
        member.client_host = command.client_host

    def replace(self, old_id: str, new_id: str) -> ClassicMember:
        """A static member comes back under a new id: same place, same assignment, same lead."""
        was_leader = self.leader == old_id
        member = self.remove(old_id)
        member.member_id = new_id
        self.add(member)
        if was_leader:
            self.leader = new_id
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        """The group waits as long as its most patient member; never not at all, or a deadline would follow itself."""
        return max(1, max((member.rebalance_timeout_ms for member in self._by_id.values()), default=1))

    def support(self, protocols: Protocols) -> bool:
        """Whether every member names one of these protocols."""
        everybody = len(self._by_id)
        return any(self._support[name] == everybody for name, _ in protocols)

    def elected_protocol(self) -> str:
        """Each member votes for the first of its protocols that all members name; the leader's order breaks ties."""
        everybody = len(self._by_id)
        votes = Counter(
            next(name for name, _ in member.protocols if self._support[name] == everybody)
            for member in self._by_id.values()
        )
        assert self.leader is not None
        order = [name for name, _ in self._by_id[self.leader].protocols]
        return max(order, key=lambda name: votes[name])

    def roster(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """What the leader needs to assign."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self._by_id.values()
        )


def metadata_bytes(protocols: Protocols) -> int:
    return sum(len(metadata) for _, metadata in protocols)


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """The topics in a consumer's subscription (ConsumerProtocolSubscription); None when it is something else."""
    topics = []
    try:
        count = struct.unpack_from(">i", subscription, 2)[0]
        at = 6
        for _ in range(count):
            end = at + 2 + struct.unpack_from(">h", subscription, at)[0]
            if end > len(subscription):
                return None
            topics.append(subscription[at + 2 : end].decode())
            at = end
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
