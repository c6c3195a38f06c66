"""Transactions: `__transaction_state`, a coordinator for each of its partitions, and the markers that end transactions.

The pure machine decides. Its records are appended and flushed first; only then is the answer given and are the markers
written, to every partition of the transaction, so that no marker is in a log before the decision is safe. Markers are
tried until they are all flushed or their partitions are gone for good; then the machine is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from penstock.broker.coordinators import Shard, Shards
from penstock.broker.groups import OFFSETS_TOPIC, Groups
from penstock.broker.partition import Partition
from penstock.coordination.transaction_commands import (
    Command,
    MarkersWritten,
    Outcome,
    TransactionSettings,
    WriteMarkers,
)
from penstock.coordination.transaction_records import decode, encode
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending, gather, when
from penstock.records.batch import Batch
from penstock.records.control import Marker, MarkerKind
from penstock.records.record import read_records

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = TopicName("__transaction_state")
MARKER_RETRY_S = 0.5

FindPartition = Callable[[str, int], Partition | None]


class MarkerWriter:
    """Appends end markers to partitions and tells the groups of those in `__consumer_offsets`."""

    def __init__(self, find: FindPartition, groups: Groups, now_ms: Callable[[], int]) -> None:
        self._find = find
        self._groups = groups
        self._now_ms = now_ms

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

    def take(self, machine: TransactionCoordinator, batch: Batch) -> None:
        if batch.is_control:
            return  # a marker that a tool wrote here ends nothing
        for entry in read_records(batch):
            record = decode(entry.key or b"", entry.value)
            if record is not None:
                machine.replay(record)

    def serve(self, machine: TransactionCoordinator) -> None:
        for markers in machine.loaded(self.now_ms()):
            self.begin(self._finish(machine, markers))

    def ask(self, command: Command) -> Pending[Any] | Fault:
        machine = self.machine
        if machine is None:
            return self.fault
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
        while left and self.machine is machine:
            waits = [(partition_id, self._markers.write(markers, partition_id)) for partition_id in left]
            left = []
            for partition_id, wait in waits:
                fault = await _result(wait)
                if fault is Fault.STORAGE_ERROR:
                    left.append(partition_id)
                elif fault not in (Fault.NONE, Fault.UNKNOWN_TOPIC_OR_PARTITION):
                    # fenced: a newer decision about this producer is in that log already
                    logger.warning("marker of %r for %s: %s", markers.transactional_id, partition_id, fault.value)
            if left:
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

    def write_markers(self, markers: Sequence[WriteMarkers]) -> Pending[list[dict[TopicPartition, Fault]]]:
        """WriteTxnMarkers from an admin tool: a fault for each partition of each."""
        places = [(at, place) for at, marker in enumerate(markers) for place in sorted(marker.partitions)]
        parts: list[Fault | Pending[Fault]] = [self._markers.write(markers[at], place) for at, place in places]

        def sort_out(faults: list[Fault]) -> list[dict[TopicPartition, Fault]]:
            results: list[dict[TopicPartition, Fault]] = [{} for _ in markers]
            for (at, place), fault in zip(places, faults, strict=True):
                results[at][place] = fault
            return results

        sorted_out = when(gather(parts), sort_out)
        if isinstance(sorted_out, Pending):
            return sorted_out
        done: Pending[list[dict[TopicPartition, Fault]]] = Pending()
        done.complete(sorted_out)
        return done


async def _result(pending: Pending[Fault]) -> Fault:
    future: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()

    def done(fault: Fault) -> None:
        if not future.done():
            future.set_result(fault)

    pending.then(done)
    return await future
