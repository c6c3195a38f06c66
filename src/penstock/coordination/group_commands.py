"""What the group coordinator is asked, what it answers, and what comes out of it: plain values, no behaviour.

`GroupCoordinator.handle(command, now_ms, ticket)` returns `Effects`:

1. `records` have been replayed already and must be appended to the shard's log, in this order, in one batch unless it
   were too large (a transactional one when `producer` is set). If that fails, the shard is unloaded: its state is ahead of
   its log.
2. `answers` pair a ticket with a result. The ticket is whatever the caller gave with the command; each is answered exactly
   once, in these effects or in later ones (JoinGroup and SyncGroup wait inside the machine). An answer leaves when all
   records that were made before it are flushed.

Faults are in the results; nothing is raised for what a client may do wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.coordination.group_records import CommittedOffset, GroupRecord, Replay
from penstock.model import limits
from penstock.model.errors import Fault

Ticket = object
"""Names a parked request; anything but None."""

NO_MEMBER = ""
NO_GENERATION = -1
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

NAME_CHARS_MAX = 8_191
"""Names from clients that end up in records, whose strings hold 32,767 bytes at most."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's broker settings for groups, with its defaults."""

    initial_rebalance_delay_ms: int = 3_000
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    new_member_join_timeout_ms: int = 300_000
    group_size_max: int = limits.GROUP_MEMBERS_MAX
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_group_size_max: int = limits.GROUP_MEMBERS_MAX


class Answer(NamedTuple):
    ticket: Ticket
    result: Any


class Producer(NamedTuple):
    """The transactional producer in whose name offsets are committed."""

    producer_id: int
    producer_epoch: int


class Effects:
    """What a command led to. Machines write records through it, which replays them at once."""

    __slots__ = ("_replay", "answers", "producer", "records")

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.records: list[GroupRecord] = []
        self.answers: list[Answer] = []
        self.producer: Producer | None = None

    def write(self, record: GroupRecord) -> None:
        self.records.append(record)
        self._replay(record, None if self.producer is None else self.producer.producer_id)

    def answer(self, ticket: Ticket, result: object) -> None:
        self.answers.append(Answer(ticket, result))


# -------------------------------------------------------------------------------------------------- classic groups


class JoinGroup(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and what the member says under each, in its order of preference."""
    needs_member_id: bool = False
    """A new dynamic member is sent back with an id first (KIP-394, JoinGroup 4 and later)."""
    may_skip_assignment: bool = False
    """A static leader that comes back understands that it need not assign (KIP-814, JoinGroup 9 and later)."""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    fault: Fault
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """For the leader only."""


class SyncGroup(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class SyncResult(NamedTuple):
    fault: Fault
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


class Heartbeat(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    generation: int


class HeartbeatResult(NamedTuple):
    fault: Fault


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None


class LeaveGroup(NamedTuple):
    group: str
    members: tuple[LeavingMember, ...]


class LeaveResult(NamedTuple):
    fault: Fault
    members: tuple[tuple[LeavingMember, Fault], ...] = ()


class DescribeGroup(NamedTuple):
    group: str


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    fault: Fault
    """GROUP_ID_NOT_FOUND goes with the state Dead: older versions of the request know only the state."""
    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


# --------------------------------------------------------------------------------------------------- all groups


class ListGroups(NamedTuple):
    states: Collection[str] = ()
    types: Collection[str] = ()
    groups: tuple[str, ...] | None = None
    """Topics or partitions to restrict the answer to; None for all."""


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: str
    type: str


class GroupList(NamedTuple):
    groups: tuple[ListedGroup, ...]


class DeleteGroup(NamedTuple):
    group: str
    offsets_max: int = 2**31
    """Maximum number of offsets to delete. The group is deleted with its last offset."""


class DeleteResult(NamedTuple):
    fault: Fault
    is_partial: bool = False
    """Whether the group has more offsets, so that the command must be repeated."""


# ------------------------------------------------------------------------------------------------------ offsets


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class CommitOffsets(NamedTuple):
    group: str
    member_id: str
    instance_id: str | None
    generation: int
    """Of a classic member; for a consumer member its epoch."""
    offsets: tuple[OffsetToCommit, ...]
    producer: Producer | None = None
    """Set for TxnOffsetCommit: pending until the producer's marker."""
    retention_ms: int | None = None
    knows_consumer_groups: bool = True
    """OffsetCommit 9 and later; consumer members may not use an older one."""


class CommitResult(NamedTuple):
    fault: Fault
    """For all partitions, when it is not NONE."""
    refused: Mapping[tuple[str, int], Fault] = {}


class FetchOffsets(NamedTuple):
    group: str
    partitions: Mapping[str, tuple[int, ...]] | None
    """None asks for every partition that has an offset."""
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class FetchedOffset(NamedTuple):
    value: CommittedOffset | None
    """None when nothing is committed."""
    is_unstable: bool = False
    """A transaction has an offset pending and the reader asked for stable ones (KIP-447): it is to ask again."""


class FetchResult(NamedTuple):
    fault: Fault
    offsets: Mapping[str, Mapping[int, FetchedOffset]] = {}


class DeleteOffsets(NamedTuple):
    group: str
    partitions: tuple[tuple[str, int], ...]


class DeleteOffsetsResult(NamedTuple):
    fault: Fault
    refused: Mapping[tuple[str, int], Fault] = {}


class DropTopics(NamedTuple):
    """Delete the offsets of deleted topics in every group. The answer says whether some are left."""

    topics: frozenset[str]
    offsets_max: int = 2**31
    """Offsets deleted by one command."""


# ---------------------------------------------------------------------------------------------- consumer groups


class ConsumerHeartbeat(NamedTuple):
    """ConsumerGroupHeartbeat: joins (epoch 0), stays, or leaves (-1, static -2). None means: as I said before."""

    group: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_names: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    assignor: str | None = None
    owned: Mapping[uuid.UUID, frozenset[int]] | None = None


class ConsumerHeartbeatResult(NamedTuple):
    fault: Fault
    text: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[uuid.UUID, frozenset[int]] | None = None
    """None: unchanged since the last answer."""


class DescribeConsumerGroup(NamedTuple):
    group: str


class DescribedConsumer(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    subscribed_names: tuple[str, ...]
    subscribed_regex: str | None
    assignment: Mapping[uuid.UUID, frozenset[int]]
    target: Mapping[uuid.UUID, frozenset[int]]


class ConsumerGroupDescription(NamedTuple):
    fault: Fault
    group: str
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    topic_names: Mapping[uuid.UUID, str] = {}
    """The names of the topics that assignments speak of, as far as they are known."""


Command = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | DescribeGroup
    | ListGroups
    | DeleteGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | DropTopics
    | ConsumerHeartbeat
    | DescribeConsumerGroup
)
