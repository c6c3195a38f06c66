"""Appends that belong to a transaction: the coordinator is asked before a partition lets one begin (KIP-890).

Once a transaction is open on a partition, its batches take the plain way. The first batch of one has to wait: for the
coordinator's word that the partition was added (older clients add it themselves), or for the coordinator to add it
(transaction version 2). Its bytes are copied, because the receive buffer is only borrowed, and what the same producer
sends meanwhile waits behind it, so that sequences stay in order. Thousands of batches are appended in slices from the
receive buffer, which they keep. A batch whose records have to be checked (`Preparing`) is in the log only when its hold is
answered, so later batches wait for that, too.
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
from penstock.model.pending import Hold, Pending, settle
from penstock.model.slices import Work
from penstock.records.batch import Batch, BatchError

T = TypeVar("T")

Results = list[Appended]

_COME_BACK = frozenset({Fault.COORDINATOR_LOADING, Fault.COORDINATOR_NOT_AVAILABLE, Fault.NOT_COORDINATOR})
"""Producers do not expect these from a Produce; NOT_ENOUGH_REPLICAS makes them try again, as Kafka does it."""


class AppendMany(Protocol):
    def __call__(self, appends: Sequence[Append], acks: int) -> Results | Pending[Results]: ...


class AppendInSlices(Protocol):
    def __call__(self, appends: Sequence[Append], acks: int) -> Work[Results | Pending[Results]]: ...


class _Waiting(NamedTuple):
    appends: Sequence[Append]
    acks: int
    adds_partitions: bool
    answer: Pending[Results]


class _Long(NamedTuple):
    """Appends in slices: later requests wait until the last of them is in the log."""

    turn: Pending[None]


class _Behind(NamedTuple):
    """Something that may be asked only when the appends before it are in the log, or refused."""

    ask: Callable[[], Any]
    answer: Pending[Any]


class TransactionalAppends:
    def __init__(
        self,
        transactions: Transactions,
        find: Callable[[str, int], Partition | None],
        append_many: AppendMany,
        append_in_slices: AppendInSlices,
    ) -> None:
        self._transactions = transactions
        self._find = find
        self._append_many = append_many
        self._append_in_slices = append_in_slices
        self._queues: dict[str, deque[_Waiting | _Long | _Behind]] = {}
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

    def append_in_slices(
        self, transactional_id: str, appends: Sequence[Append], acks: int, *, adds_partitions: bool
    ) -> Work[Results | Pending[Results]]:
        """As `append`, for any number of appends, whose bytes are borrowed until the work is done."""
        long = _Long(Pending())
        queue = self._queues.get(transactional_id)
        if queue is None:
            self._queues[transactional_id] = deque((long,))
        else:
            queue.append(long)
            yield long.turn
        try:
            strangers: dict[Identity, set[TopicPartition]] = {}
            for append in appends:
                self._find_stranger(append, strangers)
                yield None
            if strangers:
                result = self._ask(transactional_id, strangers, adds_partitions)
                if isinstance(result, Pending):
                    result = yield result
                refusal = self._let_in(strangers, result, adds_partitions)
                if refusal is not None:
                    return [refusal] * len(appends)
            results = yield from self._append_in_slices(appends, acks)
            if isinstance(results, Hold):
                results = yield results
            return results
        finally:
            self._queues[transactional_id].popleft()
            self._go_on(transactional_id)

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
            if isinstance(first, _Long):
                first.turn.complete(None)
                return
            if isinstance(first, _Behind):
                queue.popleft()
                settle(first.answer, first.ask())
                continue
            strangers = self._strangers(first.appends)
            if strangers:
                asked = self._ask(transactional_id, strangers, first.adds_partitions)
                if isinstance(asked, Pending) and not asked.done:
                    asked.then(partial(self._go_on_told, transactional_id, first, strangers))
                    return
                appended = self._take(first, strangers, asked.result if isinstance(asked, Pending) else asked)
            else:
                appended = self._append_many(first.appends, first.acks)
            if not self._settle(transactional_id, first, appended):
                return
            queue.popleft()
        del self._queues[transactional_id]

    def _go_on_told(
        self,
        transactional_id: str,
        waiting: _Waiting,
        strangers: dict[Identity, set[TopicPartition]],
        result: PartitionsResult | Fault,
    ) -> None:
        if self._settle(transactional_id, waiting, self._take(waiting, strangers, result)):
            self._queues[transactional_id].popleft()
            self._go_on(transactional_id)

    def _settle(self, transactional_id: str, waiting: _Waiting, appended: Results | Pending[Results]) -> bool:
        """Answer the first append in the queue. False if later ones must wait for its answer."""
        if not isinstance(appended, Hold) or appended.done:
            settle(waiting.answer, appended)
            return True

        def prepared(results: Results) -> None:
            self._queues[transactional_id].popleft()
            waiting.answer.complete(results)
            self._go_on(transactional_id)

        appended.then(prepared)
        return False

    def _strangers(self, appends: Sequence[Append]) -> dict[Identity, set[TopicPartition]]:
        """Partitions on which a transaction would begin, by who begins it."""
        strangers: dict[Identity, set[TopicPartition]] = {}
        for append in appends:
            self._find_stranger(append, strangers)
        return strangers

    def _find_stranger(self, append: Append, strangers: dict[Identity, set[TopicPartition]]) -> None:
        topic, index, records = append
        partition = self._find(topic, index)
        if partition is None or is_internal(topic):
            return  # the append refuses it
        try:
            batch = Batch(records)
        except BatchError:
            return  # the append reports what is wrong with it
        if partition.producers.needs_verification(batch):
            identity = Identity(batch.producer_id, batch.producer_epoch)
            strangers.setdefault(identity, set()).add(TopicPartition(TopicName(topic), index))

    def _ask(
        self, transactional_id: str, strangers: dict[Identity, set[TopicPartition]], adds_partitions: bool
    ) -> PartitionsResult | Fault | Pending[PartitionsResult | Fault]:
        if len(strangers) > 1:
            return Fault.INVALID_REQUEST
        ((identity, partitions),) = strangers.items()
        kind = AddPartitions if adds_partitions else VerifyPartitions
        return self._transactions.ask(transactional_id, kind(transactional_id, identity, frozenset(partitions)))

    def _take(
        self, waiting: _Waiting, strangers: dict[Identity, set[TopicPartition]], result: PartitionsResult | Fault
    ) -> Results | Pending[Results]:
        """The coordinator's word on the first in the queue: let it in, or refuse it."""
        refusal = self._let_in(strangers, result, waiting.adds_partitions)
        if refusal is not None:
            return [refusal] * len(waiting.appends)
        return self._append_many(waiting.appends, waiting.acks)

    def _let_in(
        self,
        strangers: dict[Identity, set[TopicPartition]],
        result: PartitionsResult | Fault,
        adds_partitions: bool,
    ) -> Appended | None:
        """Start the transaction on the partitions that the coordinator knows. Returns why it cannot start, or None."""
        fault = result if isinstance(result, Fault) else result.fault
        if fault is not Fault.NONE:
            return Appended(_told_to_producers(fault, adds_partitions))
        unknown = frozenset() if isinstance(result, Fault) else result.strangers
        for identity, partitions in strangers.items():
            for place in partitions - unknown:
                partition = self._find(*place)
                if partition is not None:
                    partition.producers.verified(*identity)
        return None


def _told_to_producers(fault: Fault, knows_transactions: bool) -> Fault:
    if fault in _COME_BACK or (fault is Fault.CONCURRENT_TRANSACTIONS and not knows_transactions):
        return Fault.NOT_ENOUGH_REPLICAS
    return Fault.INVALID_PRODUCER_EPOCH if fault is Fault.PRODUCER_FENCED else fault


def _copied(appends: Sequence[Append]) -> list[Append]:
    return [Append(topic, partition, memoryview(bytearray(records))) for topic, partition, records in appends]
