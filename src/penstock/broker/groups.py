"""Consumer groups and committed offsets, for every dialect: `__consumer_offsets`, a coordinator for each of its partitions.

The pure machine answers at once or parks the ticket; its records are appended in one batch, and no answer leaves before
what it rests on is flushed, except that a commit from a listener with weaker acks is answered when it is written.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from penstock.broker.coordinators import Shard, Shards
from penstock.broker.engine import Acks
from penstock.broker.gathering import Gathering
from penstock.broker.partition import Partition
from penstock.coordination.consumer_group_records import SubscribedTopic
from penstock.coordination.group_commands import Command, CommitOffsets, DropTopics, Effects, GroupSettings
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.coordination.group_records import GroupRecord, decode, encode
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending, settle
from penstock.records.batch import Batch
from penstock.records.control import MarkerKind, read_marker
from penstock.records.record import read_records

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = TopicName("__consumer_offsets")


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

    def take(self, machine: GroupCoordinator, batch: Batch) -> None:
        if batch.is_control:
            marker = read_marker(batch)
            if marker is not None:
                machine.end_transaction(batch.producer_id, committed=marker.kind is MarkerKind.COMMIT)
            return
        producer_id = batch.producer_id if batch.is_transactional else None
        for entry in read_records(batch):
            record = decode(entry.key or b"", entry.value)
            if record is not None:
                machine.replay(record, producer_id)

    def serve(self, machine: GroupCoordinator) -> None:
        machine.loaded(self.now_ms())

    def ask(self, command: Command, *, until_flushed: bool = True) -> Pending[Any] | Fault:
        machine = self.machine
        if machine is None:
            return self.fault
        ticket: Pending[Any] = Pending() if until_flushed else WrittenTicket()
        self._carry_out(machine.handle(command, self.now_ms(), ticket))
        self.schedule()
        return ticket

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
        resolve: Callable[[str], frozenset[str]],
        now_ms: Callable[[], int],
        readers: Executor,
        make_topic: Callable[[], Pending[Fault]],
        gathering: Gathering,
    ) -> None:
        super().__init__(lambda partition: GroupShard(partition, now_ms, readers, self._machine, gathering), make_topic)
        self._settings = settings
        self._resolve = resolve
        self._topics: Mapping[str, SubscribedTopic] = {}

    def _machine(self) -> GroupCoordinator:
        machine = GroupCoordinator(self._settings, lambda: str(uuid.uuid4()), self._resolve)
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

    def topics_changed(self, topics: Mapping[str, SubscribedTopic]) -> None:
        """Topics came, went or grew: consumer groups look again, offsets of deleted topics go."""
        gone = self._topics.keys() - topics.keys()
        self._topics = topics
        for shard in self.shards.values():
            machine = shard.machine
            if machine is None:
                continue
            machine.topics_changed(topics)
            if machine.offset_topics() & gone:
                shard.ask(DropTopics(frozenset(gone)))
