"""Consumer groups and committed offsets, for every dialect: `__consumer_offsets`, a coordinator for each of its partitions.

The pure machine answers at once or parks the ticket; its records are appended in one batch, and no answer leaves before
what it rests on is flushed, except that a commit from a listener with weaker acks is answered when it is written.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from typing import Any

from penstock.broker.coordinators import Shard, Shards
from penstock.broker.engine import Acks
from penstock.broker.gathering import Gathering
from penstock.broker.internal_log import NO_ROOM
from penstock.broker.partition import Partition
from penstock.broker.patterns import Patterns
from penstock.broker.pauses import result_of
from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.coordination.group_commands import (
    Command,
    CommitOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    DropTopics,
    Effects,
    FetchOffsets,
    GroupSettings,
    Heartbeat,
    ListedGroup,
    ListGroups,
)
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.coordination.group_records import GroupRecord, decode, encode
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending, settle
from penstock.model.slices import Work
from penstock.records.batch import Batch
from penstock.records.control import MarkerKind, read_marker
from penstock.records.record import read_records
from penstock.records.walk import unpacked_bytes_max

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = TopicName("__consumer_offsets")
LISTED_AT_ONCE = 500
"""Groups that one command lists: about a millisecond."""
DROPPED_AT_ONCE = 200
"""Offsets of deleted topics that one command removes: about a millisecond."""
STORES_NOTHING = (DescribeGroup, DescribeConsumerGroup, FetchOffsets, Heartbeat, ListGroups)
"""Commands that are executed even if nothing can be stored."""

DROP_RETRY_S = 0.25
"""Interval of attempts to remove the offsets of deleted topics while the coordinator cannot store the removal."""


class WrittenTicket(Pending[Any]):
    """Whoever asked waits until what it asked for is written, and not until it is flushed."""

    __slots__ = ()


class GroupShard(Shard[GroupCoordinator]):
    def __init__(
        self,
        partition: Partition,
        now_ms: Callable[[], int],
        readers: Executor,
        make_machine: Callable[[], GroupCoordinator],
        gathering: Gathering,
    ) -> None:
        super().__init__(partition, now_ms, readers, make_machine)
        self._gathering = gathering
        self._gathered: list[Effects] = []
        """What the commands of this turn of the loop led to, to be appended in one batch."""
        self._undropped: set[str] = set()
        """Deleted topics whose offsets have not been removed yet."""
        self._dropping: asyncio.Task[None] | None = None

    def take(self, machine: GroupCoordinator, batch: Batch) -> Iterator[None]:
        if batch.is_control:
            marker = read_marker(batch)
            if marker is not None:
                machine.end_transaction(batch.producer_id, committed=marker.kind is MarkerKind.COMMIT)
            return
        producer_id = batch.producer_id if batch.is_transactional else None
        for entry in read_records(batch, unpacked_bytes_max(batch.size)):
            record = decode(entry.key or b"", entry.value)
            if record is not None:
                machine.replay(record, producer_id)
            yield

    def serve(self, machine: GroupCoordinator) -> None:
        machine.loaded(self.now_ms())

    def ask(self, command: Command, *, until_flushed: bool = True) -> Pending[Any] | Fault:
        machine = self.machine
        if machine is None:
            return self.fault
        if self.log.problem is not None and not isinstance(command, STORES_NOTHING):
            return Fault.COORDINATOR_NOT_AVAILABLE
        ticket: Pending[Any] = Pending() if until_flushed else WrittenTicket()
        self._carry_out(machine.handle(command, self.now_ms(), ticket))
        self.schedule()
        return ticket

    @property
    def stores(self) -> bool:
        """Whether commands can be executed: the state is loaded, and the disk has space."""
        return self.machine is not None and self.log.problem != NO_ROOM

    def drop_later(self, topics: frozenset[str], existing: AbstractSet[str]) -> None:
        """Remove the offsets of deleted topics once that can be stored, unless the topics exist again."""
        self._undropped |= topics
        if self._dropping is None or self._dropping.done():
            self._dropping = self.begin(self._drop_undropped(existing))

    async def _drop_undropped(self, existing: AbstractSet[str]) -> None:
        while self._undropped:
            if self.machine is None and self.fault is not Fault.COORDINATOR_LOADING:
                self._undropped.clear()
            elif self.machine is None or not self.stores:
                await asyncio.sleep(DROP_RETRY_S)
            else:
                topics = frozenset(self._undropped)
                gone = topics - existing
                left: Any = self.machine.has_offsets_of(gone)
                if left:
                    asked = self.ask(DropTopics(gone, DROPPED_AT_ONCE))
                    left = await result_of(asked) if isinstance(asked, Pending) else asked
                if left is False or (left is not True and self.stores):
                    self._undropped -= topics  # removed, or refused permanently because the log is read-only
                await asyncio.sleep(0)

    def tick(self, machine: GroupCoordinator) -> None:
        self._carry_out(machine.tick(self.now_ms()))

    def _carry_out(self, effects: Effects) -> None:
        """Append the records, and answer when they are safe; while the broker gathers, note it for later."""
        if self._gathering.active and effects.producer is None:
            if not self._gathered:
                self._gathering.call_when_settled(self.settle)
            self._gathered.append(effects)
            return
        self.settle()
        producer = (-1, -1) if effects.producer is None else effects.producer
        self._append(effects.records, effects.answers, *producer)

    def settle(self) -> None:
        """Append what was noted. Whatever else is written to this partition comes after it."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._append(
                [record for effects in gathered for record in effects.records],
                [answer for effects in gathered for answer in effects.answers],
            )

    def _append(
        self, records: Sequence[GroupRecord], answers: list[Any], producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if records:
            try:
                self.log.append([encode(record) for record in records], self.now_ms(), producer_id, producer_epoch)
            except BrokerError as error:
                self._start_again(answers, error)
                return
        if answers:
            for ticket, result in answers:
                if type(ticket) is WrittenTicket:
                    ticket.complete(result)
            self.log.when_safe(lambda fault: _tell(answers, fault))

    def _start_again(self, answers: list[Any], error: BrokerError) -> None:
        """The state is ahead of its log: nobody may see it. Those who wait are sent away, the log tells what holds."""
        logger.error("%s: %s; its groups are loaded again", self.log.id, error)
        machine = self.machine
        _tell(answers, Fault.COORDINATOR_NOT_AVAILABLE)
        if machine is not None:
            _tell(machine.unload(Fault.COORDINATOR_NOT_AVAILABLE).answers, Fault.COORDINATOR_NOT_AVAILABLE)
        self.load()

    def stop(self) -> None:
        self.settle()
        if self.machine is not None:
            _tell(self.machine.unload(Fault.NOT_COORDINATOR).answers, Fault.NOT_COORDINATOR)
        super().stop()


def _tell(answers: list[Any], fault: Fault) -> None:
    for ticket, result in answers:
        if isinstance(ticket, Pending):
            ticket.complete(result if fault is Fault.NONE else fault)


class Groups(Shards[GroupShard]):
    """All groups of this broker."""

    def __init__(
        self,
        settings: GroupSettings,
        topic_names: Callable[[], Collection[str]],
        now_ms: Callable[[], int],
        readers: Executor,
        make_topic: Callable[[], Pending[Fault]],
        gathering: Gathering,
    ) -> None:
        super().__init__(lambda partition: GroupShard(partition, now_ms, readers, self._machine, gathering), make_topic)
        self._settings = settings
        self._patterns = Patterns(topic_names)
        self._topics: dict[str, SubscribedTopic] = {}

    def _machine(self) -> GroupCoordinator:
        machine = GroupCoordinator(self._settings, lambda: str(uuid.uuid4()), self._patterns.matching)
        machine.topics_changed(self._topics)
        return machine

    def partition_of(self, group: str) -> TopicPartition:
        """Where the group's records are; the topic must be there (`ensure`)."""
        return TopicPartition(OFFSETS_TOPIC, self.index_of(group))

    def commit(self, command: CommitOffsets, acks: int) -> Pending[Any] | Fault:
        """Commit offsets; answered as a produce with these acks is: when they are flushed, or when they are written."""
        if acks == Acks.ALL:
            return self.ask(command.group, command)
        if self.shards:
            return self.shards[self.index_of(command.group)].ask(command, until_flushed=False)
        answer: Pending[Any] = Pending()

        def made(fault: Fault) -> None:
            ready = fault is Fault.NONE and self.shards
            settle(answer, self.commit(command, acks) if ready else Fault.COORDINATOR_NOT_AVAILABLE)

        self.ensure().then(made)
        return answer

    def partitions_of(self, group: str) -> dict[str, list[int]]:
        """The partitions with offsets of the group, by topic."""
        if not self.shards:
            return {}
        machine = self.shards[self.index_of(group)].machine
        return {} if machine is None else machine.partitions_of(group)

    def find_topics(self, group: str, pattern: str | None) -> Work[None]:
        """Find the topics of a new pattern and of all patterns of a consumer group, for use by its heartbeat.

        Raises BrokerError for a pattern that is invalid or matches too many topics."""
        machine = self.shards[self.index_of(group)].machine if self.shards else None
        patterns = () if machine is None else machine.patterns_of(group)
        for each in dict.fromkeys((*patterns, pattern or "")):
            if each:
                yield from self._patterns.matching_in_slices(each)

    def list_in_slices(self, states: Collection[str], types: Collection[str]) -> Work[list[ListedGroup] | Fault]:
        """All groups in one of these states and of one of these types, listed a few hundred at a time."""
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(kind.lower() for kind in types)
        yield None
        found: list[ListedGroup] = []
        for shard in tuple(self.shards.values()):
            if shard.machine is None:
                return shard.fault
            names = shard.machine.group_names()
            for first in range(0, max(1, len(names)), LISTED_AT_ONCE):
                asked = shard.ask(ListGroups(groups=tuple(names[first : first + LISTED_AT_ONCE])))
                listed = (yield asked) if isinstance(asked, Pending) else asked
                if isinstance(listed, Fault):
                    return listed
                found += [
                    group
                    for group in listed.groups
                    if (not states or group.state.lower() in wanted_states)
                    and (not types or group.type.lower() in wanted_types)
                ]
                yield None
        return found

    def settle(self, partition: int) -> None:
        """A marker is about to be appended: what the groups there have written comes before it."""
        shard = self.shards.get(partition)
        if shard is not None:
            shard.settle()

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker was appended to one of the partitions."""
        shard = self.shards.get(partition)
        if shard is not None and shard.machine is not None:
            shard.machine.end_transaction(producer_id, committed=committed)

    def topics_changed(self, came: Mapping[str, SubscribedTopic], gone: Collection[str]) -> None:
        """Have consumer groups check their subscriptions, because topics were created, deleted or grew."""
        self._topics.update(came)
        for name in gone:
            self._topics.pop(name, None)
        self._patterns.changed((*came, *gone))
        for shard in self.shards.values():
            if shard.machine is not None:
                shard.machine.topics_changed(self._topics)

    def drop_topics(self, gone: frozenset[str]) -> Work[None]:
        """Remove the offsets of deleted topics, a few hundred at a time. No such topic may be created again before the end.

        A coordinator that is loading or cannot store the removal does it later, for topics that do not exist then.
        """
        for shard in tuple(self.shards.values()):
            left: Any = shard.machine is None or shard.machine.has_offsets_of(gone)
            while left is True and shard.stores:
                asked = shard.ask(DropTopics(gone, DROPPED_AT_ONCE))
                left = (yield asked) if isinstance(asked, Pending) else asked
            if left is not False:
                shard.drop_later(gone, self._topics.keys())
            yield None
