"""The transaction coordinator of one `__transaction_state` partition: all transactional ids whose records live there.

    loading   replay(record) for each, then loaded(now_ms), whose effects finish what a crash interrupted
    serving   handle(command, now_ms) -> Outcome, tick(now_ms) -> Outcome at next_deadline_ms or later

What is promised

1. A transaction ends one way. Once PREPARE_COMMIT or PREPARE_ABORT is in the log, every one of its partitions gets that
   marker, crash or not, and no other decision is taken.
2. One client at a time. Whoever initializes a transactional id gets an identity (producer id, epoch) that nobody had
   before, and all older ones are refused from then on, in the coordinator and, by the markers, in the partitions.
3. A repeated request does what the first did, once, and gets its answer.
4. With transaction version 2 the epoch rises with each transaction, so a request that comes late cannot touch the next
   one (KIP-890). Older clients keep their epoch; their late EndTxn can, which is why version 2 exists.
5. No transaction stays open longer than its timeout: it is aborted, and its client refused.

How a transactional id goes from status to status (`transaction_states` has the table):

    DEAD --init--> EMPTY --add partitions--> ONGOING --end--> PREPARE_x --markers flushed--> COMPLETE_x
                     ^                        ^   |                                           |  |  |
                     |                        |   +--timeout, or init by another--> PREPARE_ABORT  |
                     |                        +---------------------------------- add partitions  |
                     +------------------------------------------------------------------- init ---+
    at rest (EMPTY, COMPLETE_x) it expires to DEAD after a week, and version 2 may abort nothing, for a new epoch

Epochs end. Clients get epochs up to 32766; 32767 only fences. A client at the end of its epochs gets a new producer id
with epoch 0; while the markers of its last transaction are being written, the state holds both ids.

Rules of the code

1. Durable state changes only through `replay`, whether the record is new or read from the log. So a coordinator that
   replays what another wrote has the same state, also when log cleaning left only the last record of each id.
2. `handle` never waits. What takes time (markers) is an effect; requests that come meanwhile get
   CONCURRENT_TRANSACTIONS, which clients repeat.

Clock, log, markers and the supply of producer ids are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from penstock.coordination.transaction_commands import (
    AddPartitions,
    Answer,
    Command,
    DescribeTransaction,
    Description,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    Outcome,
    PartitionsResult,
    ProducerResult,
    TransactionList,
    TransactionSettings,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_records import TransactionRecord, encode
from penstock.coordination.transaction_states import (
    EPOCH_MAX,
    NEXT_STATUSES,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TITLES,
    Identity,
    Status,
    TransactionState,
)
from penstock.model.errors import Fault

FOREVER_MS = 2**63 - 1
NAME_BYTES_MAX = 32_767
"""Of a transactional id: what a string of a record's key can hold."""
RECORDS_PER_TICK_MAX = 1_000
"""So that a tick is short and its records fit a batch; the rest is due at once."""
PARTITIONS_PER_TICK_MAX = 2_000
"""Partitions of the transactions that one tick aborts, plus those of one more: each record lists its partitions."""
_PARTITIONS_SURELY_FIT = 1_000
"""So many partitions fit a record whatever their topics are called."""


class TransactionCoordinator:
    def __init__(
        self,
        coordinator_epoch: int,
        take_producer_id: Callable[[], int | None],
        settings: TransactionSettings | None = None,
    ) -> None:
        """`coordinator_epoch` rises with each start and goes into the markers; `take_producer_id` gives an id that was
        never given before, or None when there is none at hand just now."""
        self._coordinator_epoch = coordinator_epoch
        self._take_producer_id = take_producer_id
        self._settings = settings or TransactionSettings()
        self._states: dict[str, TransactionState] = {}
        self._ongoing: dict[str, int] = {}
        """When each ongoing transaction times out."""
        self._timeout_check_ms = FOREVER_MS
        self._expiry_check_ms = FOREVER_MS
        self._records: list[TransactionRecord] = []
        self._effects: list[WriteMarkers] = []
        self._handlers: dict[type[Any], Callable[[Any, int], Answer]] = {
            InitProducerId: self._init,
            AddPartitions: self._add,
            VerifyPartitions: self._verify,
            EndTransaction: self._end,
            MarkersWritten: self._markers_written,
            DescribeTransaction: self._describe,
            ListTransactions: self._list,
        }

    @property
    def states(self) -> Mapping[str, TransactionState]:
        """All there is to know: the durable state."""
        return MappingProxyType(self._states)

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` may have something to do; a lower bound."""
        return min(self._timeout_check_ms, self._expiry_check_ms)

    # -------------------------------------------------------------------------------------------------------- the log

    def replay(self, record: TransactionRecord) -> None:
        name, state = record
        if state is None or state.status is Status.DEAD:
            self._states.pop(name, None)
            self._ongoing.pop(name, None)
            return
        self._states[name] = state
        if state.status is Status.ONGOING:
            deadline_ms = self._ongoing[name] = state.start_ms + state.timeout_ms
            self._timeout_check_ms = min(self._timeout_check_ms, deadline_ms)
        else:
            self._ongoing.pop(name, None)

    def loaded(self, now_ms: int) -> list[WriteMarkers]:
        """The log is replayed: the markers that a crash may have left unwritten, to be written now."""
        self._expiry_check_ms = now_ms + self._settings.expiration_check_interval_ms
        return [self._markers(name, state) for name, state in self._states.items() if state.prepared]

    # -------------------------------------------------------------------------------------------------------- serving

    def handle(self, command: Command, now_ms: int) -> Outcome:
        answer = self._handlers[type(command)](command, now_ms)
        return self._outcome(answer)

    def tick(self, now_ms: int) -> Outcome:
        """Abort what timed out, forget what expired."""
        if now_ms >= self._timeout_check_ms:
            due = [name for name, deadline_ms in self._ongoing.items() if deadline_ms <= now_ms]
            partitions = 0
            for name in due[:RECORDS_PER_TICK_MAX]:
                partitions += len(self._states[name].partitions)
                self._fence(name, self._states[name], NO_EPOCH, now_ms)
                if partitions > PARTITIONS_PER_TICK_MAX:
                    break
            self._timeout_check_ms = min(self._ongoing.values(), default=FOREVER_MS)
        if now_ms >= self._expiry_check_ms:
            self._expire(now_ms)
        return self._outcome(Fault.NONE)

    def _outcome(self, answer: Answer) -> Outcome:
        outcome = Outcome(self._records, answer, self._effects)
        self._records = []
        self._effects = []
        return outcome

    def _write(self, name: str, state: TransactionState | None) -> None:
        before = self._states.get(name)
        old_status = Status.DEAD if before is None else before.status
        new_status = Status.DEAD if state is None else state.status
        assert new_status in NEXT_STATUSES[old_status], f"{name}: {old_status.title} to {new_status.title}"
        record = TransactionRecord(name, state)
        self._records.append(record)
        self.replay(record)

    # -------------------------------------------------------------------------------------------------- InitProducerId

    def _init(self, command: InitProducerId, now_ms: int) -> ProducerResult:
        name, timeout_ms, expected = command
        if name is None:
            producer_id = self._take_producer_id()
            if producer_id is None:
                return ProducerResult(Fault.COORDINATOR_NOT_AVAILABLE)
            return ProducerResult(Fault.NONE, producer_id, 0)
        if not _is_name(name):
            return ProducerResult(Fault.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.transaction_timeout_ms_max:
            return ProducerResult(Fault.INVALID_TRANSACTION_TIMEOUT)
        state = self._states.get(name)
        if state is None:
            return self._init_new(name, timeout_ms, now_ms)
        if state.prepared:
            return ProducerResult(Fault.CONCURRENT_TRANSACTIONS)
        current = state.identity
        if state.status is Status.ONGOING:
            # A repeated InitProducerId that comes this late must not abort what its own client began meanwhile.
            if expected is not None and expected != current:
                return ProducerResult(Fault.PRODUCER_FENCED)
            self._fence(name, state, NO_EPOCH if expected is None else expected.producer_epoch, now_ms)
            return ProducerResult(Fault.CONCURRENT_TRANSACTIONS)
        if expected is not None and expected not in (current, state.last_identity):
            return ProducerResult(Fault.PRODUCER_FENCED)
        ready = TransactionState(
            state.producer_id,
            state.producer_epoch,
            timeout_ms,
            Status.EMPTY,
            last_update_ms=now_ms,
            previous_producer_id=state.previous_producer_id,
            last_producer_epoch=NO_EPOCH if expected is None else expected.producer_epoch,
            transaction_version=state.transaction_version,
        )
        is_repeated = expected is not None and expected != current
        if state.producer_epoch == EPOCH_MAX or (state.epochs_run_out and not is_repeated):
            producer_id = self._take_producer_id()
            if producer_id is None:
                return ProducerResult(Fault.COORDINATOR_NOT_AVAILABLE)
            ready = ready._replace(producer_id=producer_id, producer_epoch=0, previous_producer_id=state.producer_id)
        elif not is_repeated:
            ready = ready._replace(producer_epoch=state.producer_epoch + 1)
        self._write(name, ready)
        return ProducerResult(Fault.NONE, *ready.identity)

    def _init_new(self, name: str, timeout_ms: int, now_ms: int) -> ProducerResult:
        if len(self._states) >= self._settings.transactional_ids_max:
            return ProducerResult(Fault.POLICY_VIOLATION)
        producer_id = self._take_producer_id()
        if producer_id is None:
            return ProducerResult(Fault.COORDINATOR_NOT_AVAILABLE)
        self._write(name, TransactionState(producer_id, 0, timeout_ms, Status.EMPTY, last_update_ms=now_ms))
        return ProducerResult(Fault.NONE, producer_id, 0)

    # ------------------------------------------------------------------------------------------------------ partitions

    def _add(self, command: AddPartitions, now_ms: int) -> PartitionsResult:
        name, identity, partitions = command
        fault = self._fault_of(name, identity)
        if fault is not Fault.NONE:
            return PartitionsResult(fault)
        state = self._states[name]
        ongoing = state.status is Status.ONGOING
        if ongoing and partitions <= state.partitions:
            return PartitionsResult(Fault.NONE)
        grown = state._replace(
            status=Status.ONGOING,
            partitions=state.partitions | partitions if ongoing else partitions,
            last_update_ms=now_ms,
            start_ms=state.start_ms if ongoing else now_ms,
        )
        if len(grown.partitions) > self._settings.partitions_max:
            return PartitionsResult(Fault.POLICY_VIOLATION)
        if len(grown.partitions) > _PARTITIONS_SURELY_FIT:
            _, value = encode(TransactionRecord(name, grown))
            if value is not None and len(value) > self._settings.record_bytes_max:
                return PartitionsResult(Fault.POLICY_VIOLATION)
        self._write(name, grown)
        return PartitionsResult(Fault.NONE)

    def _verify(self, command: VerifyPartitions, now_ms: int) -> PartitionsResult:
        name, identity, partitions = command
        fault = self._fault_of(name, identity)
        if fault is not Fault.NONE:
            return PartitionsResult(fault)
        state = self._states[name]
        return PartitionsResult(
            Fault.NONE, partitions - state.partitions if state.status is Status.ONGOING else partitions
        )

    def _fault_of(self, name: str, identity: Identity) -> Fault:
        """May this client work in a transaction of that name now?"""
        if not _is_name(name):
            return Fault.INVALID_REQUEST
        state = self._states.get(name)
        if state is None:
            return Fault.INVALID_PRODUCER_ID_MAPPING
        current = state.identity
        if identity.producer_id not in (current.producer_id, state.producer_id):
            return Fault.INVALID_PRODUCER_ID_MAPPING
        if identity != current or identity.producer_epoch == EPOCH_MAX:  # which nobody was given: it only fences
            return Fault.PRODUCER_FENCED
        return Fault.CONCURRENT_TRANSACTIONS if state.prepared else Fault.NONE

    # -------------------------------------------------------------------------------------------------- EndTransaction

    def _end(self, command: EndTransaction, now_ms: int) -> ProducerResult:
        name, identity, commit, raises_epoch = command
        if not _is_name(name):
            return ProducerResult(Fault.INVALID_REQUEST)
        state = self._states.get(name)
        if state is None:
            return ProducerResult(Fault.INVALID_PRODUCER_ID_MAPPING)
        if raises_epoch:
            return self._end_raising_epoch(name, state, identity, commit, now_ms)
        if identity.producer_id != state.producer_id:
            return ProducerResult(Fault.INVALID_PRODUCER_ID_MAPPING)
        if identity.producer_epoch != state.producer_epoch:
            return ProducerResult(Fault.PRODUCER_FENCED)
        if state.status is Status.ONGOING:
            return self._prepare(name, state._replace(transaction_version=0), commit, now_ms)
        if state.status is Status.EMPTY or _DECIDED[state.status] is not commit:
            return ProducerResult(Fault.INVALID_TXN_STATE)
        if state.prepared:
            return ProducerResult(Fault.CONCURRENT_TRANSACTIONS)
        return ProducerResult(Fault.NONE, *state.identity)

    def _end_raising_epoch(
        self, name: str, state: TransactionState, identity: Identity, commit: bool, now_ms: int
    ) -> ProducerResult:
        """KIP-890. The answer carries a new epoch; the old one, shown again, is a repeated request, as long as its
        client has not begun another transaction."""
        current = state.identity
        decided = state.transaction_version >= 2 and state.status in _DECIDED
        if decided and identity == state.last_identity:
            if _DECIDED[state.status] is not commit:
                return ProducerResult(Fault.INVALID_TXN_STATE)
            if state.prepared:
                return ProducerResult(Fault.CONCURRENT_TRANSACTIONS)
            return ProducerResult(Fault.NONE, *current)
        if identity.producer_id not in (current.producer_id, state.producer_id):
            return ProducerResult(Fault.INVALID_PRODUCER_ID_MAPPING)
        if identity != current or identity.producer_epoch == EPOCH_MAX:
            return ProducerResult(Fault.PRODUCER_FENCED)
        if state.prepared:
            return ProducerResult(Fault.CONCURRENT_TRANSACTIONS)
        if state.at_rest and commit:
            return ProducerResult(Fault.INVALID_TXN_STATE)
        next_producer_id = NO_PRODUCER_ID
        if state.epochs_run_out:
            taken = self._take_producer_id()
            if taken is None:
                return ProducerResult(Fault.COORDINATOR_NOT_AVAILABLE)
            next_producer_id = taken
        raised = state._replace(
            producer_epoch=state.producer_epoch + 1,
            last_producer_epoch=state.producer_epoch,
            next_producer_id=next_producer_id,
            transaction_version=2,
        )
        if state.at_rest:
            raised = raised._replace(start_ms=now_ms, partitions=frozenset())
        return self._prepare(name, raised, commit, now_ms)

    def _fence(self, name: str, state: TransactionState, last_epoch: int, now_ms: int) -> None:
        """Abort the ongoing transaction under a new epoch that its client does not get; `last_epoch` when it will, by
        repeating its request."""
        epoch = min(state.producer_epoch + 1, EPOCH_MAX)
        raised = state._replace(producer_epoch=epoch, last_producer_epoch=last_epoch, transaction_version=2)
        self._prepare(name, raised, False, now_ms)

    def _prepare(self, name: str, state: TransactionState, commit: bool, now_ms: int) -> ProducerResult:
        """Decide. From here on there is no other way out."""
        assert 0 <= state.producer_epoch <= EPOCH_MAX
        status = Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT
        prepared = state._replace(status=status, last_update_ms=now_ms)
        self._write(name, prepared)
        if prepared.partitions:
            self._effects.append(self._markers(name, prepared))
        else:
            self._complete(name, prepared, now_ms)
        return ProducerResult(Fault.NONE, *prepared.identity)

    def _markers(self, name: str, state: TransactionState) -> WriteMarkers:
        return WriteMarkers(
            name,
            Identity(state.producer_id, state.producer_epoch),
            self._coordinator_epoch,
            state.status is Status.PREPARE_COMMIT,
            state.partitions,
            state.transaction_version,
        )

    def _markers_written(self, command: MarkersWritten, now_ms: int) -> Fault:
        name, identity = command
        state = self._states.get(name)
        if state is not None and state.prepared and identity == (state.producer_id, state.producer_epoch):
            self._complete(name, state, now_ms)
        return Fault.NONE

    def _complete(self, name: str, state: TransactionState, now_ms: int) -> None:
        commit = state.status is Status.PREPARE_COMMIT
        rotated = state.next_producer_id != NO_PRODUCER_ID
        producer_id, producer_epoch = state.identity
        self._write(
            name,
            state._replace(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                status=Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT,
                partitions=frozenset(),
                last_update_ms=now_ms,
                previous_producer_id=state.producer_id if rotated else state.previous_producer_id,
                next_producer_id=NO_PRODUCER_ID,
            ),
        )

    # -------------------------------------------------------------------------------------------- expiry and questions

    def _expire(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._settings.transactional_id_expiration_ms
        gone = [name for name, state in self._states.items() if state.at_rest and state.last_update_ms <= oldest_ms]
        for name in gone[:RECORDS_PER_TICK_MAX]:
            self._write(name, None)
        if len(gone) <= RECORDS_PER_TICK_MAX:
            self._expiry_check_ms = now_ms + self._settings.expiration_check_interval_ms

    def _describe(self, command: DescribeTransaction, now_ms: int) -> Description:
        name = command.transactional_id
        if not _is_name(name):
            return Description(Fault.INVALID_REQUEST, name)
        state = self._states.get(name)
        if state is None:
            return Description(Fault.TRANSACTIONAL_ID_NOT_FOUND, name)
        return Description(Fault.NONE, name, state)

    def _list(self, command: ListTransactions, now_ms: int) -> TransactionList:
        unknown = command.unknown_statuses
        if command.statuses and not command.statuses & TITLES:
            return TransactionList(unknown, ())
        started_before_ms = now_ms - command.running_longer_than_ms
        names = self._states if command.names is None else command.names
        found = tuple(
            (name, state)
            for name in names
            if (state := self._states.get(name)) is not None
            and (not command.producer_ids or state.producer_id in command.producer_ids)
            and (not command.statuses or state.status.title in command.statuses)
            and (command.running_longer_than_ms < 0 or state.start_ms < started_before_ms)
            and (command.matches is None or command.matches(name))
        )
        return TransactionList(unknown, found)


_DECIDED = {
    Status.PREPARE_COMMIT: True,
    Status.COMPLETE_COMMIT: True,
    Status.PREPARE_ABORT: False,
    Status.COMPLETE_ABORT: False,
}
"""Which way the last transaction went: True is committed."""


def _is_name(name: str) -> bool:
    return 0 < len(name.encode()) <= NAME_BYTES_MAX
