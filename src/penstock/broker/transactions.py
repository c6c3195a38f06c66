"""Transactions: `__transaction_state`, a coordinator for each of its partitions, and the markers that end transactions.

The pure machine decides. Its records are appended and flushed first; only then is the answer given and are the markers
written, to every partition of the transaction, so that no marker is in a log before the decision is safe. Markers are
tried until they are all flushed or their partitions are gone for good; then the machine is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from penstock.broker.coordinators import Shard, Shards
from penstock.broker.groups import OFFSETS_TOPIC, Groups
from penstock.broker.partition import Partition
from penstock.broker.pauses import SharedPauses, result_of
from penstock.coordination.transaction_commands import (
    Command,
    DescribeTransaction,
    ListTransactions,
    MarkersWritten,
    Outcome,
    TransactionList,
    TransactionSettings,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_records import decode, encode
from penstock.coordination.transaction_states import TITLES, TransactionState
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records.batch import Batch
from penstock.records.control import Marker, MarkerKind
from penstock.records.record import read_records
from penstock.records.walk import unpacked_bytes_max

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = TopicName("__transaction_state")
MARKER_RETRY_S = 0.5
LISTED_AT_ONCE = 500
"""Transactions that one command lists: about a millisecond."""
STORES_NOTHING = (DescribeTransaction, ListTransactions, VerifyPartitions)
"""Commands that are executed even if nothing can be stored."""

FindPartition = Callable[[str, int], Partition | None]


class MarkerWriter:
    """Appends end markers to partitions and tells the groups of those in `__consumer_offsets`."""

    def __init__(self, find: FindPartition, groups: Groups, now_ms: Callable[[], int]) -> None:
        self._find = find
        self._groups = groups
        self._now_ms = now_ms
        self.pauses = SharedPauses()

    def write_for_client(self, markers: WriteMarkers, partition_id: TopicPartition) -> Fault | Pending[Fault]:
        """Append one marker of an administrator, for a producer that wrote to the partition.

        The coordinators are in this broker, so no client can act for one. The epoch of a producer is not raised: that would
        fence the producer and its coordinator permanently."""
        partition = self._find(partition_id.topic, partition_id.partition)
        if partition is None:
            return Fault.UNKNOWN_TOPIC_OR_PARTITION
        epoch = partition.producers.epoch_of(markers.identity.producer_id)
        if epoch is None:
            return Fault.UNKNOWN_PRODUCER_ID
        if markers.identity.producer_epoch > epoch:
            return Fault.INVALID_PRODUCER_EPOCH
        return self.write(markers, partition_id)

    def write(self, markers: WriteMarkers, partition_id: TopicPartition) -> Pending[Fault]:
        """One marker; what became of it once it is flushed."""
        written: Pending[Fault] = Pending()
        partition = self._find(partition_id.topic, partition_id.partition)
        if partition is None:
            written.complete(Fault.UNKNOWN_TOPIC_OR_PARTITION)
            return written
        marker = Marker(MarkerKind.COMMIT if markers.commit else MarkerKind.ABORT, markers.coordinator_epoch)
        if partition_id.topic == OFFSETS_TOPIC:
            self._groups.settle(partition_id.partition)
        try:
            safe_offset = partition.append_marker(
                marker, *markers.identity, markers.transaction_version, self._now_ms()
            )
        except BrokerError as error:
            written.complete(error.fault)
            return written
        if partition_id.topic == OFFSETS_TOPIC:
            producer_id = markers.identity.producer_id
            self._groups.end_transaction(partition_id.partition, producer_id, committed=markers.commit)
        if not partition.durable or not partition.when_flushed(safe_offset, written.complete):
            written.complete(Fault.NONE)
        return written


class TransactionShard(Shard[TransactionCoordinator]):
    def __init__(
        self,
        partition: Partition,
        now_ms: Callable[[], int],
        readers: Executor,
        make_machine: Callable[[], TransactionCoordinator],
        markers: MarkerWriter,
    ) -> None:
        super().__init__(partition, now_ms, readers, make_machine)
        self._markers = markers

    def take(self, machine: TransactionCoordinator, batch: Batch) -> Iterator[None]:
        if batch.is_control:
            return  # a marker that a tool wrote here ends nothing
        for entry in read_records(batch, unpacked_bytes_max(batch.size)):
            record = decode(entry.key or b"", entry.value)
            if record is not None:
                machine.replay(record)
            yield

    def serve(self, machine: TransactionCoordinator) -> None:
        for markers in machine.loaded(self.now_ms()):
            self.begin(self._finish(machine, markers))

    def ask(self, command: Command) -> Pending[Any] | Fault:
        machine = self.machine
        if machine is None:
            return self.fault
        if self.log.problem is not None and not isinstance(command, STORES_NOTHING):
            return Fault.COORDINATOR_NOT_AVAILABLE
        return self._carry_out(machine, machine.handle(command, self.now_ms()))

    def tick(self, machine: TransactionCoordinator) -> None:
        self._carry_out(machine, machine.tick(self.now_ms()))

    def _carry_out(self, machine: TransactionCoordinator, outcome: Outcome) -> Pending[Any]:
        """Append the records; when they are safe, answer and write the markers."""
        answer: Pending[Any] = Pending()
        if outcome.records:
            try:
                self.log.append([encode(record) for record in outcome.records], self.now_ms())
            except BrokerError as error:
                logger.error("%s: %s; its transactions are loaded again", self.log.id, error)
                answer.complete(Fault.COORDINATOR_NOT_AVAILABLE)
                self.load()
                return answer

        def safe(fault: Fault) -> None:
            if fault is not Fault.NONE:
                answer.complete(Fault.COORDINATOR_NOT_AVAILABLE)
                return
            answer.complete(outcome.answer)
            for markers in outcome.effects:
                self.begin(self._finish(machine, markers))

        self.log.when_safe(safe)
        self.schedule()
        return answer

    async def _finish(self, machine: TransactionCoordinator, markers: WriteMarkers) -> None:
        """Write the markers until each is flushed or its partition is gone, then tell the machine."""
        left = sorted(markers.partitions)
        pauses = self._markers.pauses
        while self.machine is machine:
            waits = []
            for partition_id in left:
                waits.append((partition_id, self._markers.write(markers, partition_id)))
                if pauses.due:
                    await pauses.pause()
            left = []
            for partition_id, wait in waits:
                fault = await result_of(wait)
                if fault is Fault.STORAGE_ERROR:
                    left.append(partition_id)
                elif fault not in (Fault.NONE, Fault.UNKNOWN_TOPIC_OR_PARTITION):
                    # fenced: a newer decision about this producer is in that log already
                    logger.warning("marker of %r for %s: %s", markers.transactional_id, partition_id, fault.value)
            if not left and self.log.problem is None:
                break
            await asyncio.sleep(MARKER_RETRY_S)
        if self.machine is machine:
            command = MarkersWritten(markers.transactional_id, markers.identity)
            self._carry_out(machine, machine.handle(command, self.now_ms()))


class Transactions(Shards[TransactionShard]):
    """All transactional ids of this broker."""

    def __init__(
        self,
        settings: TransactionSettings,
        coordinator_epoch: int,
        take_producer_id: Callable[[], int | None],
        find: FindPartition,
        groups: Groups,
        now_ms: Callable[[], int],
        readers: Executor,
        make_topic: Callable[[], Pending[Fault]],
    ) -> None:
        self._markers = MarkerWriter(find, groups, now_ms)

        def make_machine() -> TransactionCoordinator:
            return TransactionCoordinator(coordinator_epoch, take_producer_id, settings)

        super().__init__(
            lambda partition: TransactionShard(partition, now_ms, readers, make_machine, self._markers), make_topic
        )

    def write_markers_in_slices(self, markers: WriteMarkers) -> Work[dict[TopicPartition, Fault | Pending[Fault]]]:
        """Execute WriteTxnMarkers of an admin tool. Returns the outcome for each partition."""
        written: dict[TopicPartition, Fault | Pending[Fault]] = {}
        for place in sorted(markers.partitions):
            written[place] = self._markers.write_for_client(markers, place)
            yield None
        return written

    def list_in_slices(self, command: ListTransactions) -> Work[TransactionList | Fault]:
        """All matching transactions, listed a few hundred at a time."""
        unknown = command.unknown_statuses
        known = command.statuses & TITLES
        found: list[tuple[str, TransactionState]] = []
        for shard in tuple(self.shards.values()):
            if shard.machine is None:
                return shard.fault
            names = tuple(shard.machine.states) if known or not command.statuses else ()
            for first in range(0, max(1, len(names)), LISTED_AT_ONCE):
                some = names[first : first + LISTED_AT_ONCE]
                asked = shard.ask(command._replace(statuses=known, names=some))
                listed = (yield asked) if isinstance(asked, Pending) else asked
                if isinstance(listed, Fault):
                    return listed
                found += listed.transactions
                yield None
        return TransactionList(unknown, tuple(found))
