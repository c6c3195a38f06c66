"""Appends that belong to a transaction: the coordinator is asked before a partition lets one begin (KIP-890).

Once a transaction is open on a partition, its batches take the plain way. The first batch of one has to wait: for the
coordinator's word that the partition was added (older clients add it themselves), or for the coordinator to add it
(transaction version 2). Its bytes are copied, because the receive buffer is only borrowed, and what the same producer
sends meanwhile waits behind it, so that sequences stay in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock.broker.engine import Append, Appended
from penstock.broker.partition import Partition
from penstock.broker.transactions import Transactions
from penstock.coordination.transaction_commands import AddPartitions, PartitionsResult, VerifyPartitions
from penstock.coordination.transaction_states import Identity
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition, is_internal
from penstock.model.pending import Pending, settle
from penstock.records.batch import Batch, BatchError

T = TypeVar("T")

Results = list[Appended]

_COME_BACK = frozenset({Fault.COORDINATOR_LOADING, Fault.COORDINATOR_NOT_AVAILABLE, Fault.NOT_COORDINATOR})
"""Producers do not expect these from a Produce; NOT_ENOUGH_REPLICAS makes them try again, as Kafka does it."""


class AppendMany(Protocol):
    def __call__(self, appends: Sequence[Append], acks: int) -> Results | Pending[Results]: ...


class _Waiting(NamedTuple):
    appends: Sequence[Append]
    acks: int
    adds_partitions: bool
    answer: Pending[Results]


class _Behind(NamedTuple):
    """Something that may be asked only when the appends before it are in the log, or refused."""

    ask: Callable[[], Any]
    answer: Pending[Any]


class TransactionalAppends:
    def __init__(
        self, transactions: Transactions, find: Callable[[str, int], Partition | None], append_many: AppendMany
    ) -> None:
        self._transactions = transactions
        self._find = find
        self._append_many = append_many
        self._queues: dict[str, deque[_Waiting | _Behind]] = {}
        """By transactional id, while one of its appends waits for the coordinator: those behind it."""

    def append(
        self, transactional_id: str, appends: Sequence[Append], acks: int, *, adds_partitions: bool
    ) -> Results | Pending[Results]:
        queue = self._queues.get(transactional_id)
        if queue is None and not self._strangers(appends):
            return self._append_many(appends, acks)
        waiting = _Waiting(_copied(appends), acks, adds_partitions, Pending())
        if queue is None:
            self._queues[transactional_id] = deque((waiting,))
            self._go_on(transactional_id)
        else:
            queue.append(waiting)
        return waiting.answer

    def behind(self, transactional_id: str, ask: Callable[[], T | Pending[T]]) -> T | Pending[T]:
        """What `ask` gives when the appends that came before are in the log or refused: a transaction ends with them."""
        queue = self._queues.get(transactional_id)
        if queue is None:
            return ask()
        answer: Pending[T] = Pending()
        queue.append(_Behind(ask, answer))
        return answer

    def _go_on(self, transactional_id: str) -> None:
        """Append what is first in the queue until one has to wait for the coordinator, or none is left."""
        queue = self._queues[transactional_id]
        while queue:
            first = queue[0]
            if isinstance(first, _Behind):
                queue.popleft()
                settle(first.answer, first.ask())
                continue
            strangers = self._strangers(first.appends)
            if strangers:
                asked = self._ask(transactional_id, first, strangers)
                if isinstance(asked, Pending) and not asked.done:
                    asked.then(partial(self._go_on_told, transactional_id, first, strangers))
                    return
                self._take(first, strangers, asked.result if isinstance(asked, Pending) else asked)
            else:
                settle(first.answer, self._append_many(first.appends, first.acks))
            queue.popleft()
        del self._queues[transactional_id]

    def _go_on_told(
        self,
        transactional_id: str,
        waiting: _Waiting,
        strangers: dict[Identity, set[TopicPartition]],
        result: PartitionsResult | Fault,
    ) -> None:
        self._take(waiting, strangers, result)
        self._queues[transactional_id].popleft()
        self._go_on(transactional_id)

    def _strangers(self, appends: Sequence[Append]) -> dict[Identity, set[TopicPartition]]:
        """Partitions on which a transaction would begin, by who begins it."""
        strangers: dict[Identity, set[TopicPartition]] = {}
        for topic, index, records in appends:
            partition = self._find(topic, index)
            if partition is None or is_internal(topic):
                continue  # the append refuses it
            try:
                batch = Batch(records)
            except BatchError:
                continue  # the append says what is wrong with it
            if partition.producers.needs_verification(batch):
                identity = Identity(batch.producer_id, batch.producer_epoch)
                strangers.setdefault(identity, set()).add(TopicPartition(TopicName(topic), index))
        return strangers

    def _ask(
        self, transactional_id: str, waiting: _Waiting, strangers: dict[Identity, set[TopicPartition]]
    ) -> PartitionsResult | Fault | Pending[PartitionsResult | Fault]:
        if len(strangers) > 1:
            return Fault.INVALID_REQUEST
        ((identity, partitions),) = strangers.items()
        kind = AddPartitions if waiting.adds_partitions else VerifyPartitions
        return self._transactions.ask(transactional_id, kind(transactional_id, identity, frozenset(partitions)))

    def _take(
        self, waiting: _Waiting, strangers: dict[Identity, set[TopicPartition]], result: PartitionsResult | Fault
    ) -> None:
        """The coordinator's word on the first in the queue: let it in, or refuse it."""
        fault = result if isinstance(result, Fault) else result.fault
        if fault is not Fault.NONE:
            refused = Appended(_told_to_producers(fault, waiting.adds_partitions))
            waiting.answer.complete([refused] * len(waiting.appends))
            return
        unknown = frozenset() if isinstance(result, Fault) else result.strangers
        for identity, partitions in strangers.items():
            for place in partitions - unknown:
                partition = self._find(*place)
                if partition is not None:
                    partition.producers.verified(*identity)
        settle(waiting.answer, self._append_many(waiting.appends, waiting.acks))


def _told_to_producers(fault: Fault, knows_transactions: bool) -> Fault:
    if fault in _COME_BACK or (fault is Fault.CONCURRENT_TRANSACTIONS and not knows_transactions):
        return Fault.NOT_ENOUGH_REPLICAS
    return Fault.INVALID_PRODUCER_EPOCH if fault is Fault.PRODUCER_FENCED else fault


def _copied(appends: Sequence[Append]) -> list[Append]:
    return [Append(topic, partition, memoryview(bytearray(records))) for topic, partition, records in appends]
