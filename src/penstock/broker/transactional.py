"""Appends that belong to a transaction: the coordinator is asked before a partition lets one begin (KIP-890).

Once a transaction is open on a partition, its batches take the plain way. The first batch of one has to wait: for the
coordinator's word that the partition was added (older clients add it themselves), or for the coordinator to add it
(transaction version 2). Its bytes are copied, because the receive buffer is only borrowed, and what the same producer
sends meanwhile waits behind it, so that sequences stay in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.broker.engine import Append, Appended
from penstock.broker.partition import Partition
from penstock.broker.transactions import Transactions
from penstock.coordination.transaction_commands import AddPartitions, PartitionsResult, VerifyPartitions
from penstock.coordination.transaction_states import Identity
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.pending import Pending
from penstock.records.batch import Batch, BatchError

Results = list[Appended]

_COME_BACK = frozenset({Fault.COORDINATOR_LOADING, Fault.COORDINATOR_NOT_AVAILABLE, Fault.NOT_COORDINATOR})
"""Producers do not expect these from a Produce; NOT_ENOUGH_REPLICAS makes them try again, as Kafka does it."""


class AppendMany(Protocol):
    def __call__(self, appends: Sequence[Append], acks: int) -> Results | Pending[Results]: ...


class TransactionalAppends:
    def __init__(
        self, transactions: Transactions, find: Callable[[str, int], Partition | None], append_many: AppendMany
    ) -> None:
        self._transactions = transactions
        self._find = find
        self._append_many = append_many
        self._gates: dict[str, Pending[None]] = {}
        """By transactional id: who waits for the coordinator, and so makes the others wait."""

    def append(
        self, transactional_id: str, appends: Sequence[Append], acks: int, *, adds_partitions: bool
    ) -> Results | Pending[Results]:
        gate = self._gates.get(transactional_id)
        if gate is None:
            strangers = self._strangers(appends)
            if not strangers:
                return self._append_many(appends, acks)
            return self._ask(transactional_id, _copied(appends), acks, strangers, adds_partitions)
        # behind the one that waits
        copied = _copied(appends)
        answer: Pending[Results] = Pending()
        opened: Pending[None] = Pending()
        self._gates[transactional_id] = opened

        def go(_: None) -> None:
            if self._gates.get(transactional_id) is opened:
                del self._gates[transactional_id]
            result = self.append(transactional_id, copied, acks, adds_partitions=adds_partitions)
            opened.complete(None)
            _pass_on(result, answer)

        gate.then(go)
        return answer

    def _strangers(self, appends: Sequence[Append]) -> dict[Identity, set[TopicPartition]]:
        """Partitions on which a transaction would begin, by who begins it."""
        strangers: dict[Identity, set[TopicPartition]] = {}
        for topic, index, records in appends:
            partition = self._find(topic, index)
            if partition is None:
                continue
            try:
                batch = Batch(records)
            except BatchError:
                continue  # the append says what is wrong with it
            if partition.producers.needs_verification(batch):
                identity = Identity(batch.producer_id, batch.producer_epoch)
                strangers.setdefault(identity, set()).add(TopicPartition(TopicName(topic), index))
        return strangers

    def _ask(
        self,
        transactional_id: str,
        appends: Sequence[Append],
        acks: int,
        strangers: dict[Identity, set[TopicPartition]],
        adds_partitions: bool,
    ) -> Results | Pending[Results]:
        if len(strangers) > 1:
            return [Appended(Fault.INVALID_REQUEST, text="one request, several producers")] * len(appends)
        ((identity, partitions),) = strangers.items()
        kind = AddPartitions if adds_partitions else VerifyPartitions
        asked = self._transactions.ask(transactional_id, kind(transactional_id, identity, frozenset(partitions)))
        answer: Pending[Results] = Pending()
        gate: Pending[None] = Pending()
        self._gates[transactional_id] = gate

        def told(result: PartitionsResult | Fault) -> None:
            fault = result if isinstance(result, Fault) else result.fault
            unknown: frozenset[TopicPartition] = frozenset() if isinstance(result, Fault) else result.strangers
            if fault is Fault.NONE:
                for place in partitions - unknown:
                    partition = self._find(*place)
                    if partition is not None:
                        partition.producers.verified(*identity)
            if self._gates.get(transactional_id) is gate:
                del self._gates[transactional_id]
            if fault is Fault.NONE:
                _pass_on(self._append_many(appends, acks), answer)
            else:
                answer.complete([Appended(_told_to_producers(fault, adds_partitions))] * len(appends))
            gate.complete(None)

        if isinstance(asked, Pending):
            asked.then(told)
        else:
            told(asked)
        return answer


def _told_to_producers(fault: Fault, knows_transactions: bool) -> Fault:
    if fault in _COME_BACK or (fault is Fault.CONCURRENT_TRANSACTIONS and not knows_transactions):
        return Fault.NOT_ENOUGH_REPLICAS
    return Fault.INVALID_PRODUCER_EPOCH if fault is Fault.PRODUCER_FENCED else fault


def _copied(appends: Sequence[Append]) -> list[Append]:
    return [Append(topic, partition, memoryview(bytearray(records))) for topic, partition, records in appends]


def _pass_on(result: Results | Pending[Results], answer: Pending[Results]) -> None:
    if isinstance(result, Pending):
        result.then(answer.complete)
    else:
        answer.complete(result)
