"""Transactions by opcode: TXN_BEGIN, TXN_PRODUCE, TXN_COMMIT, TXN_ABORT, on the broker's real transactions.

A FlyMQ transaction is a name that the broker makes up at its beginning, and any connection may use it. Behind the name is
an identity (producer id and epoch) under a transactional id of ours, a slot; the name holds all three. What is produced is
in the log at once and seen by nobody until the commit's markers are; everything that matters is in the coordinator's log,
so a transaction goes on after a restart of the broker, and one that is left alone is aborted when its time is over.

Slots are used again by later transactions under a newer epoch, because the coordinator remembers each for a week.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Append, Appended, Isolation, Read
from penstock.coordination.producers import ProducerRow
from penstock.coordination.transaction_commands import (
    DescribeTransaction,
    Description,
    EndTransaction,
    InitProducerId,
    ProducerResult,
)
from penstock.coordination.transaction_states import Identity, Status, TransactionState
from penstock.dialects.flymq.opcode_frames import record_metadata
from penstock.dialects.flymq.placing import Columns, Placing
from penstock.dialects.flymq.turns import Lane, detached, follow
from penstock.dialects.flymq.wire import TRUE, Reader, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.pending import Pending, gather, held, when
from penstock.records.builder import NewRecord, build_batch

if TYPE_CHECKING:
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

TIMEOUT_MS = 60_000
"""The original's transaction.timeout."""
OPEN_MAX = 10_000
"""Transactions that are open at once; beyond it none begins."""
ENDED_REMEMBERED = 10_000
MARKER_WAIT_MS = 5_000
"""A commit is answered when its records can be read, or after so long: an older transaction in the same partition may
keep them hidden, and then they come when that one ends."""

_SLOT = "__flymq-transaction-%d"
_NAME = re.compile(r"txn-producer-([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,5})")
_FALSE = b"\x00"
_COMMITTED, _ABORTED = "committed", "aborted"
_OVER = frozenset({Fault.PRODUCER_FENCED, Fault.INVALID_PRODUCER_EPOCH, Fault.INVALID_PRODUCER_ID_MAPPING})


class Transaction:
    __slots__ = (
        "begun_ms",
        "entering",
        "first_offsets",
        "identity",
        "lane",
        "name",
        "quiet",
        "sequences",
        "slot",
        "unanswered",
    )

    def __init__(self, slot: int, identity: Identity, begun_ms: int) -> None:
        self.slot = slot
        self.identity = identity
        self.begun_ms = begun_ms
        self.name = f"txn-producer-{slot}-{identity.producer_id}-{identity.producer_epoch}"
        self.sequences: dict[tuple[str, int], int] = {}
        """The next of each partition."""
        self.first_offsets: dict[tuple[str, int], int] = {}
        self.lane = Lane()
        self.entering = 0
        """Unanswered produces into partitions it had nothing in: they are in the log when the coordinator knows of them."""
        self.unanswered = 0
        """Produces that are not flushed yet."""
        self.quiet: Pending[None] | None = None
        """Completed when there are none: who ends the transaction waits for it."""

    @property
    def is_settled(self) -> bool:
        """Whether all that was produced so far is in the log."""
        return not self.lane.busy and not self.entering

    @property
    def transactional_id(self) -> str:
        return _SLOT % self.slot


class FlyMQTransactions:
    """The transactions of a broker, for the FlyMQ connections of all its listeners."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._open: OrderedDict[str, Transaction] = OrderedDict()
        """By name, the oldest first."""
        self._ended: OrderedDict[str, str] = OrderedDict()
        """How the last ones ended."""
        self._free: deque[int] = deque()
        """Slots without a transaction, the longest unused first."""
        self._timeout_ms = min(TIMEOUT_MS, self._engine.settings.transaction_max_timeout_ms)

    # ------------------------------------------------------------------------------------------------ begin

    def begin(self) -> Any:
        self._forget_late_ones()
        if len(self._open) >= OPEN_MAX:
            raise BrokerError(Fault.POLICY_VIOLATION, f"{OPEN_MAX} transactions are open, the most allowed")
        if not self._free:
            return self._begin_in_new_slot()
        slot = self._free.popleft()

        def told(result: ProducerResult | Fault) -> Any:
            if isinstance(result, ProducerResult) and result.fault is Fault.NONE:
                return self._begun(slot, result)
            # Its last transaction is still being ended.
            self._free.append(slot)
            return self._begin_in_new_slot()

        return follow(self._init(slot), told)

    def _begin_in_new_slot(self) -> Any:
        """Its number is a producer id: no other slot ever had it, before a restart or after."""

        async def take() -> int:
            return await self._engine.new_producer_id()

        def taken(slot: int) -> Any:
            if slot < 0:
                raise BrokerError(Fault.COORDINATOR_NOT_AVAILABLE)
            return follow(self._init(slot), lambda result: self._begun(slot, result))

        return follow(self._engine.spawn(take(), lambda _: -1), taken)

    def _init(self, slot: int) -> Any:
        name = _SLOT % slot
        return self._engine.transactions.ask(name, InitProducerId(name, self._timeout_ms))

    def _begun(self, slot: int, result: ProducerResult | Fault) -> Transaction:
        if isinstance(result, Fault):
            raise BrokerError(result)
        if result.fault is not Fault.NONE:
            raise BrokerError(result.fault)
        identity = Identity(result.producer_id, result.producer_epoch)
        transaction = Transaction(slot, identity, self._engine.now_ms())
        self._open[transaction.name] = transaction
        return transaction

    def _forget_late_ones(self) -> None:
        """Whoever does not end a transaction in time has lost it: the coordinator aborted what was in it."""
        oldest_ms = self._engine.now_ms() - 2 * self._timeout_ms
        while self._open:
            transaction = next(iter(self._open.values()))
            if transaction.begun_ms > oldest_ms or transaction.lane.busy:
                return
            self._end(transaction, _ABORTED)

    def _end(self, transaction: Transaction, how: str) -> None:
        self._open.pop(transaction.name, None)
        self._free.append(transaction.slot)
        self._ended[transaction.name] = how
        if len(self._ended) > ENDED_REMEMBERED:
            self._ended.popitem(last=False)

    # ------------------------------------------------------------------------------------------------ find

    def open_now(self, name: str) -> Transaction | None:
        return self._open.get(name)

    def find(self, name: str) -> Any:
        """The open transaction of that name, now or later; a BrokerError when there is none."""
        known = self._open.get(name)
        if known is not None:
            return known
        how = self._ended.get(name)
        if how is not None:
            raise _not_active(how)
        shaped = _NAME.fullmatch(name)
        if shaped is None:
            raise _not_found(name)
        slot, producer_id, producer_epoch = map(int, shaped.groups())
        identity = Identity(producer_id, producer_epoch)
        slot_id = _SLOT % slot

        def described(result: Description | Fault) -> Transaction:
            if isinstance(result, Fault):
                raise BrokerError(result)
            again = self._open.get(name)
            return again or self._revived(name, slot, identity, result.state)

        return follow(self._engine.transactions.ask(slot_id, DescribeTransaction(slot_id)), described)

    def _revived(self, name: str, slot: int, identity: Identity, state: TransactionState | None) -> Transaction:
        """From before a restart of the broker: the coordinator knows what became of it."""
        if state is None:
            raise _not_found(name)
        if identity != (state.producer_id, state.producer_epoch):
            if state.status in _ENDS and identity == (state.producer_id, state.producer_epoch - 1):
                raise _not_active(_ENDS[state.status])
            raise _not_found(name)
        if state.status not in (Status.EMPTY, Status.ONGOING):
            raise _not_active(_ENDS[state.status])
        transaction = Transaction(slot, identity, self._engine.now_ms())
        for place in state.partitions:
            row = self._row(transaction, place)
            transaction.first_offsets[place] = 0 if row is None else max(0, row.transaction_first_offset)
        self._open[transaction.name] = transaction
        return transaction

    # ------------------------------------------------------------------------------------------------ produce

    def produce(self, placing: Placing, transaction: Transaction, topic: str, value: bytes) -> Any:
        """Produces of a transaction follow each other without waiting: the broker keeps their order."""
        lane = transaction.lane

        def work() -> Any:
            return self._produce(placing, transaction, topic, value)

        if lane.busy:
            return lane.run(work)
        if not placing.partitions(topic):
            return lane.run(lambda: follow(placing.create(topic), lambda _: work()))
        return work()

    def _produce(self, placing: Placing, transaction: Transaction, topic: str, value: bytes) -> Any:
        self._check_open(transaction)
        count = placing.partitions(topic)
        if not count:
            return follow(placing.create(topic), lambda _: self._produce(placing, transaction, topic, value))
        partition = placing.choose(topic, Columns([value]), count)[0]
        place = topic, partition
        now_ms = self._engine.now_ms()
        sequence = transaction.sequences.get(place)
        if sequence is None:
            row = self._row(transaction, place)
            sequence = 0 if row is None else row.last_sequence + 1
        batch = build_batch(
            [NewRecord(now_ms, None, value)],
            producer_id=transaction.identity.producer_id,
            producer_epoch=transaction.identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        transaction.sequences[place] = sequence + 1
        transaction.unanswered += 1
        enters = place not in transaction.first_offsets
        transaction.entering += enters

        def appended(results: list[Appended]) -> bytes:
            result = results[0]
            if result.fault is Fault.NONE:
                transaction.first_offsets.setdefault(place, result.base_offset)
            else:
                transaction.sequences.pop(place, None)
            transaction.unanswered -= 1
            transaction.entering -= enters
            if not transaction.unanswered and transaction.quiet is not None:
                transaction.quiet.complete(None)
            if result.fault in _OVER:
                self._end(transaction, _ABORTED)
                raise _not_active(_ABORTED)
            if result.fault is not Fault.NONE:
                raise BrokerError(result.fault, result.text or "")
            return record_metadata(topic, partition, result.base_offset, now_ms, None, value)

        # Flushed whatever the listener's acks: a commit must not be safe before what it commits.
        result = self._engine.append_transactional(
            transaction.transactional_id,
            [Append(topic, partition, memoryview(batch))],
            Acks.ALL,
            adds_partitions=True,
        )
        return detached(follow(result, appended))

    def _row(self, transaction: Transaction, place: tuple[str, int]) -> ProducerRow | None:
        """What the partition itself knows, for transactions from before a restart."""
        found = self._engine.partition(*place)
        row = None if found is None else found.producers.row(transaction.identity.producer_id)
        return row if row is not None and row.producer_epoch == transaction.identity.producer_epoch else None

    def _check_open(self, transaction: Transaction) -> None:
        if transaction.name not in self._open:
            raise _not_active(self._ended.get(transaction.name, _ABORTED))

    # ------------------------------------------------------------------------------------------------ end

    def end(self, transaction: Transaction, commit: bool) -> Any:
        return transaction.lane.run(
            lambda: follow(self._when_quiet(transaction), lambda _: self._end_now(transaction, commit))
        )

    @staticmethod
    def _when_quiet(transaction: Transaction) -> Pending[None] | None:
        if not transaction.unanswered:
            return None
        transaction.quiet = Pending()
        return transaction.quiet

    def _end_now(self, transaction: Transaction, commit: bool) -> Any:
        self._check_open(transaction)
        how = _COMMITTED if commit else _ABORTED
        if not transaction.first_offsets:
            self._end(transaction, how)  # the coordinator never heard of it
            return TRUE
        name = transaction.transactional_id
        command = EndTransaction(name, transaction.identity, commit, raises_epoch=True)

        def decided(result: ProducerResult | Fault) -> Any:
            fault = result if isinstance(result, Fault) else result.fault
            if fault in _OVER:
                self._end(transaction, _ABORTED)
                return _FALSE
            if fault is not Fault.NONE:
                raise BrokerError(fault)
            self._end(transaction, how)
            return follow(self._when_marked(transaction), lambda _: TRUE)

        return follow(self._engine.transactions.ask(name, command), decided)

    def _when_marked(self, transaction: Transaction) -> Any:
        """When no record of the transaction is undecided any more, in any of its partitions."""

        def wait(read: Read) -> Any:
            return self._engine.read([read], 1, 1, MARKER_WAIT_MS, Isolation.READ_COMMITTED)

        waits = [wait(Read(*place, offset, 1)) for place, offset in transaction.first_offsets.items()]
        return gather(waits)


_ENDS = {
    Status.PREPARE_COMMIT: _COMMITTED,
    Status.COMPLETE_COMMIT: _COMMITTED,
    Status.PREPARE_ABORT: _ABORTED,
    Status.COMPLETE_ABORT: _ABORTED,
}


def _not_found(name: str) -> BrokerError:
    return BrokerError(Fault.TRANSACTIONAL_ID_NOT_FOUND, f"transaction not found: {name}")


def _not_active(how: str) -> BrokerError:
    return BrokerError(Fault.INVALID_TXN_STATE, f"transaction is not active: {how}")


# ---- the opcodes --------------------------------------------------------------------------------------------------


def txn_begin(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    return follow(service.transactions.begin(), lambda transaction: string(transaction.name) + TRUE)


def txn_produce(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    name, topic, value = reader.string(), reader.string(), reader.raw()
    transactions = service.transactions
    known = transactions.open_now(name)
    answer = follow(
        transactions.find(name) if known is None else known,
        lambda transaction: transactions.produce(service.placing, transaction, topic, value),
    )
    return answer if known is not None and known.is_settled else held(answer)


def txn_commit(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    return _txn_end(service, reader.string(), commit=True)


def txn_abort(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    return _txn_end(service, reader.string(), commit=False)


def _txn_end(service: FlyMQService, name: str, *, commit: bool) -> Any:
    """An unknown or ended transaction is no error but the answer "not ok"."""
    transactions = service.transactions
    try:
        ended = follow(transactions.find(name), lambda transaction: transactions.end(transaction, commit))
    except BrokerError as error:
        return _told(name, error)
    return when(ended, lambda result: _told(name, result))


def _told(name: str, result: bytes | BrokerError) -> Any:
    if not isinstance(result, BrokerError):
        return string(name) + result
    if result.fault in (Fault.TRANSACTIONAL_ID_NOT_FOUND, Fault.INVALID_TXN_STATE):
        return string(name) + _FALSE
    return result
