"""The promises of the transaction coordinator, one by one."""

from __future__ import annotations

from itertools import count

from penstock.coordination.transaction_commands import (
    AddPartitions,
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
from penstock.coordination.transaction_records import TransactionRecord
from penstock.coordination.transaction_states import EPOCH_MAX, Identity, Status, TransactionState
from penstock.coordination.transactions import PARTITIONS_PER_TICK_MAX, RECORDS_PER_TICK_MAX, TransactionCoordinator
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.limits import TRANSACTION_PARTITIONS_MAX

P0 = TopicPartition(TopicName("t"), 0)
P1 = TopicPartition(TopicName("t"), 1)
TIMEOUT_MS = 60_000


class Desk:
    """A coordinator with a clock and what it wrote."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.ids = count(100)
        self.now_ms = 1_000
        self.settings = settings
        self.log: list[TransactionRecord] = []
        self.coordinator = TransactionCoordinator(5, self.take, settings)
        self.coordinator.loaded(self.now_ms)
        self.has_ids = True

    def take(self) -> int | None:
        return next(self.ids) if self.has_ids else None

    def keep(self, outcome: Outcome) -> Outcome:
        self.log += outcome.records
        return outcome

    def do(self, command: Command) -> Outcome:
        return self.keep(self.coordinator.handle(command, self.now_ms))

    def init(self, name: str | None = "app", expected: Identity | None = None, timeout_ms: int = TIMEOUT_MS) -> object:
        return self.do(InitProducerId(name, timeout_ms, expected)).answer

    def add(self, identity: Identity, *partitions: TopicPartition, name: str = "app") -> Fault:
        answer = self.do(AddPartitions(name, identity, frozenset(partitions))).answer
        assert isinstance(answer, PartitionsResult)
        return answer.fault

    def end(self, identity: Identity, *, commit: bool, raises_epoch: bool = True) -> Outcome:
        return self.do(EndTransaction("app", identity, commit, raises_epoch))

    def finish(self, outcome: Outcome) -> None:
        for effect in outcome.effects:
            self.do(MarkersWritten(effect.transactional_id, effect.identity))

    @property
    def state(self) -> TransactionState:
        return self.coordinator.states["app"]

    def status(self) -> Status:
        return self.state.status

    def at_epoch(self, epoch: int, status: Status = Status.EMPTY) -> Identity:
        """Jump to an epoch, as if all those before had been used."""
        identity = Identity(next(self.ids), epoch)
        state = TransactionState(*identity, TIMEOUT_MS, status, last_update_ms=self.now_ms)
        self.coordinator.replay(TransactionRecord("app", state))
        return identity


def granted(answer: object) -> Identity:
    assert isinstance(answer, ProducerResult)
    assert answer.fault is Fault.NONE
    return Identity(answer.producer_id, answer.producer_epoch)


def fault(answer: object) -> Fault:
    assert isinstance(answer, ProducerResult)
    assert answer.fault is Fault.NONE or answer.producer_id == -1
    return answer.fault


# ---------------------------------------------------------------------------------------------------- InitProducerId


def test_an_idempotent_producer_gets_a_new_id_each_time_and_leaves_no_record() -> None:
    desk = Desk()
    assert granted(desk.init(None)) == (100, 0)
    assert granted(desk.init(None)) == (101, 0)
    assert desk.log == []


def test_each_init_of_a_name_raises_the_epoch() -> None:
    desk = Desk()
    assert granted(desk.init()) == (100, 0)
    assert granted(desk.init()) == (100, 1)
    assert granted(desk.init("other")) == (101, 0)


def test_bad_names_and_timeouts_are_refused() -> None:
    desk = Desk()
    assert fault(desk.init("")) is Fault.INVALID_REQUEST
    assert fault(desk.init("x" * 32_768)) is Fault.INVALID_REQUEST
    assert fault(desk.init(timeout_ms=0)) is Fault.INVALID_TRANSACTION_TIMEOUT
    assert fault(desk.init(timeout_ms=900_001)) is Fault.INVALID_TRANSACTION_TIMEOUT
    assert granted(desk.init("x" * 32_767, timeout_ms=900_000))


def test_without_producer_ids_nothing_is_written_and_clients_come_again() -> None:
    desk = Desk()
    desk.has_ids = False
    assert fault(desk.init(None)) is Fault.COORDINATOR_NOT_AVAILABLE
    assert fault(desk.init()) is Fault.COORDINATOR_NOT_AVAILABLE
    identity = Identity(7, EPOCH_MAX - 1)
    state = TransactionState(*identity, TIMEOUT_MS, Status.ONGOING, frozenset({P0}), 1, 1)
    desk.coordinator.replay(TransactionRecord("app", state))
    assert fault(desk.end(identity, commit=True).answer) is Fault.COORDINATOR_NOT_AVAILABLE
    assert desk.log == []
    assert desk.state == state


def test_the_number_of_transactional_ids_is_bounded() -> None:
    desk = Desk(TransactionSettings(transactional_ids_max=1))
    assert granted(desk.init())
    assert fault(desk.init("other")) is Fault.POLICY_VIOLATION
    assert granted(desk.init())


def test_init_by_another_aborts_what_is_ongoing_and_fences_its_client() -> None:
    desk = Desk()
    old = granted(desk.init())
    desk.add(old, P0)
    outcome = desk.do(InitProducerId("app", TIMEOUT_MS))
    assert fault(outcome.answer) is Fault.CONCURRENT_TRANSACTIONS
    assert outcome.effects == [WriteMarkers("app", Identity(100, 1), 5, False, frozenset({P0}), 2)]
    assert fault(desk.init()) is Fault.CONCURRENT_TRANSACTIONS
    assert fault(desk.end(old, commit=True).answer) is Fault.PRODUCER_FENCED
    desk.finish(outcome)
    assert granted(desk.init()) == (100, 2)
    assert desk.add(old, P0) is Fault.PRODUCER_FENCED
    assert fault(desk.end(old, commit=False).answer) is Fault.PRODUCER_FENCED


def test_a_client_that_goes_on_after_an_error_gets_the_next_epoch_and_may_repeat_its_request() -> None:
    desk = Desk()
    first = granted(desk.init())
    second = granted(desk.init(expected=first))
    assert second == (100, 1)
    assert granted(desk.init(expected=first)) == second
    assert granted(desk.init(expected=second)) == (100, 2)
    assert fault(desk.init(expected=first)) is Fault.PRODUCER_FENCED


def test_a_replaced_client_cannot_go_on() -> None:
    desk = Desk()
    first = granted(desk.init())
    granted(desk.init())
    assert fault(desk.init(expected=first)) is Fault.PRODUCER_FENCED
    assert fault(desk.init(expected=Identity(99, 0))) is Fault.PRODUCER_FENCED


def test_a_client_that_goes_on_while_its_transaction_is_ongoing_is_not_fenced_by_itself() -> None:
    desk = Desk()
    first = granted(desk.init())
    desk.add(first, P0)
    outcome = desk.do(InitProducerId("app", TIMEOUT_MS, first))
    assert fault(outcome.answer) is Fault.CONCURRENT_TRANSACTIONS
    desk.finish(outcome)
    assert granted(desk.init(expected=first)) == (100, 1)


def test_a_late_init_does_not_abort_the_transaction_that_its_client_began_since() -> None:
    desk = Desk()
    first = granted(desk.init())
    second = granted(desk.init(expected=first))
    desk.add(second, P0)
    assert fault(desk.init(expected=first)) is Fault.PRODUCER_FENCED
    assert desk.status() is Status.ONGOING


def test_a_name_that_expired_takes_its_client_back_as_new() -> None:
    desk = Desk()
    assert granted(desk.init(expected=Identity(7, 3))) == (100, 0)


def test_epochs_that_run_out_give_a_new_producer_id() -> None:
    desk = Desk()
    last = desk.at_epoch(EPOCH_MAX - 1)
    new = granted(desk.init())
    assert new == (last.producer_id + 1, 0)
    assert desk.state.previous_producer_id == last.producer_id


def test_a_client_whose_epochs_ran_out_may_repeat_its_request() -> None:
    desk = Desk()
    last = desk.at_epoch(EPOCH_MAX - 1)
    new = granted(desk.init(expected=last))
    assert new.producer_epoch == 0
    assert granted(desk.init(expected=last)) == new


def test_fencing_the_last_epoch_leaves_a_new_producer_id_to_the_next_client() -> None:
    desk = Desk()
    last = desk.at_epoch(EPOCH_MAX - 1)
    desk.add(last, P0)
    outcome = desk.do(InitProducerId("app", TIMEOUT_MS, last))
    assert outcome.effects[0].identity == Identity(last.producer_id, EPOCH_MAX)
    desk.finish(outcome)
    new = granted(desk.init(expected=last))
    assert new == (last.producer_id + 1, 0)
    assert granted(desk.init(expected=last)) == new


def test_the_epoch_that_only_fences_is_nobodys() -> None:
    """Who shows it could begin what no later epoch can end."""
    desk = Desk()
    last = desk.at_epoch(EPOCH_MAX - 1)
    desk.add(last, P0)
    desk.now_ms += TIMEOUT_MS
    desk.finish(desk.coordinator.tick(desk.now_ms))
    guessed = Identity(last.producer_id, EPOCH_MAX)
    assert desk.state.identity == guessed
    assert desk.add(guessed, P0) is Fault.PRODUCER_FENCED
    for commit in (False, True):
        answer = desk.end(guessed, commit=commit).answer
        assert isinstance(answer, ProducerResult)
        assert answer.fault is Fault.PRODUCER_FENCED
    assert granted(desk.init()) == (last.producer_id + 1, 0)


# -------------------------------------------------------------------------------------------------------- partitions


def test_partitions_are_added_once_and_only_for_the_current_client() -> None:
    desk = Desk()
    assert desk.add(Identity(1, 0), P0) is Fault.INVALID_PRODUCER_ID_MAPPING
    identity = granted(desk.init())
    assert desk.add(Identity(99, 0), P0) is Fault.INVALID_PRODUCER_ID_MAPPING
    assert desk.add(Identity(100, 1), P0) is Fault.PRODUCER_FENCED
    assert desk.add(identity, P0, name="") is Fault.INVALID_REQUEST
    assert desk.add(identity, P0) is Fault.NONE
    desk.now_ms += 1
    assert desk.add(identity, P1) is Fault.NONE
    written = len(desk.log)
    assert desk.add(identity, P0, P1) is Fault.NONE
    assert len(desk.log) == written
    assert desk.state.partitions == {P0, P1}
    assert desk.state.start_ms == 1_000


def test_a_transaction_that_does_not_fit_a_record_is_refused() -> None:
    desk = Desk()
    identity = granted(desk.init())
    many = [TopicPartition(TopicName("x" * 240 + str(n)), 0) for n in range(5_000)]
    assert desk.add(identity, *many) is Fault.POLICY_VIOLATION
    assert desk.status() is Status.EMPTY
    assert desk.add(identity, *many[:3_000]) is Fault.NONE


def test_partitions_of_a_transaction_are_limited() -> None:
    desk = Desk()
    identity = granted(desk.init())
    most = [TopicPartition(TopicName("t"), n) for n in range(TRANSACTION_PARTITIONS_MAX)]
    assert desk.add(identity, *most) is Fault.NONE
    assert desk.add(identity, TopicPartition(TopicName("u"), 0)) is Fault.POLICY_VIOLATION
    assert len(desk.state.partitions) == TRANSACTION_PARTITIONS_MAX


def test_verification_knows_what_belongs_to_the_ongoing_transaction() -> None:
    desk = Desk()
    identity = granted(desk.init())
    both = frozenset({P0, P1})
    assert desk.do(VerifyPartitions("app", identity, both)).answer == PartitionsResult(Fault.NONE, both)
    desk.add(identity, P0)
    assert desk.do(VerifyPartitions("app", identity, both)).answer == PartitionsResult(Fault.NONE, frozenset({P1}))
    desk.finish(desk.end(identity, commit=True, raises_epoch=False))
    assert desk.do(VerifyPartitions("app", identity, both)).answer == PartitionsResult(Fault.NONE, both)
    stranger = VerifyPartitions("app", Identity(100, 9), both)
    assert desk.do(stranger).answer == PartitionsResult(Fault.PRODUCER_FENCED)


# ---------------------------------------------------------------------------------------------------- EndTransaction


def test_version_2_raises_the_epoch_with_each_transaction_and_its_markers_carry_it() -> None:
    desk = Desk()
    identity = granted(desk.init())
    for expected_epoch in (1, 2):
        assert desk.add(identity, P0) is Fault.NONE
        outcome = desk.end(identity, commit=True)
        identity = granted(outcome.answer)
        assert identity == (100, expected_epoch)
        assert outcome.effects == [WriteMarkers("app", identity, 5, True, frozenset({P0}), 2)]
        assert desk.status() is Status.PREPARE_COMMIT
        desk.finish(outcome)
        assert desk.status() is Status.COMPLETE_COMMIT


def test_older_versions_keep_the_epoch() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.add(identity, P0)
    outcome = desk.end(identity, commit=False, raises_epoch=False)
    assert granted(outcome.answer) == identity
    assert outcome.effects == [WriteMarkers("app", identity, 5, False, frozenset({P0}), 0)]
    desk.finish(outcome)
    assert desk.add(identity, P1) is Fault.NONE
    assert desk.state.partitions == {P1}


def test_while_markers_are_written_everybody_waits_and_the_decision_stands() -> None:
    for raises_epoch in (False, True):
        desk = Desk()
        old = granted(desk.init())
        desk.add(old, P0)
        outcome = desk.end(old, commit=True, raises_epoch=raises_epoch)
        new = granted(outcome.answer)
        assert desk.add(new, P1) is Fault.CONCURRENT_TRANSACTIONS
        assert fault(desk.init()) is Fault.CONCURRENT_TRANSACTIONS
        assert fault(desk.init(expected=new)) is Fault.CONCURRENT_TRANSACTIONS
        again = desk.end(old, commit=True, raises_epoch=raises_epoch)
        assert fault(again.answer) is Fault.CONCURRENT_TRANSACTIONS
        other = desk.end(old, commit=False, raises_epoch=raises_epoch)
        assert fault(other.answer) is Fault.INVALID_TXN_STATE
        desk.finish(outcome)
        assert desk.status() is Status.COMPLETE_COMMIT


def test_a_repeated_end_gets_the_answer_of_the_first() -> None:
    for raises_epoch in (False, True):
        for commit in (False, True):
            desk = Desk()
            old = granted(desk.init())
            desk.add(old, P0)
            outcome = desk.end(old, commit=commit, raises_epoch=raises_epoch)
            desk.finish(outcome)
            written = len(desk.log)
            assert granted(desk.end(old, commit=commit, raises_epoch=raises_epoch).answer) == granted(outcome.answer)
            opposite = desk.end(old, commit=not commit, raises_epoch=raises_epoch)
            assert fault(opposite.answer) is Fault.INVALID_TXN_STATE
            assert len(desk.log) == written


def test_a_late_end_cannot_touch_the_next_transaction() -> None:
    desk = Desk()
    old = granted(desk.init())
    desk.add(old, P0)
    outcome = desk.end(old, commit=True)
    desk.finish(outcome)
    new = granted(outcome.answer)
    desk.add(new, P1)
    before = desk.state
    for commit in (False, True):
        late = desk.end(old, commit=commit)
        assert fault(late.answer) is Fault.PRODUCER_FENCED
        assert late.records == []
        assert late.effects == []
    assert desk.state == before


def test_without_a_transaction_version_2_aborts_for_a_new_epoch_and_commits_nothing() -> None:
    desk = Desk()
    identity = granted(desk.init())
    assert fault(desk.end(identity, commit=True).answer) is Fault.INVALID_TXN_STATE
    outcome = desk.end(identity, commit=False)
    assert outcome.effects == []
    assert desk.status() is Status.COMPLETE_ABORT
    new = granted(outcome.answer)
    assert new == (100, 1)
    assert granted(desk.end(identity, commit=False).answer) == new
    assert fault(desk.end(new, commit=True).answer) is Fault.INVALID_TXN_STATE
    assert granted(desk.end(new, commit=False).answer) == (100, 2)
    assert fault(desk.end(identity, commit=False).answer) is Fault.PRODUCER_FENCED


def test_without_a_transaction_older_versions_end_nothing() -> None:
    desk = Desk()
    identity = granted(desk.init())
    for commit in (False, True):
        answer = desk.end(identity, commit=commit, raises_epoch=False).answer
        assert fault(answer) is Fault.INVALID_TXN_STATE


def test_strangers_end_nothing() -> None:
    desk = Desk()
    for raises_epoch in (False, True):
        answer = desk.end(Identity(100, 0), commit=True, raises_epoch=raises_epoch).answer
        assert fault(answer) is Fault.INVALID_PRODUCER_ID_MAPPING
    identity = granted(desk.init())
    desk.add(identity, P0)
    for raises_epoch in (False, True):
        answer = desk.end(Identity(99, 0), commit=True, raises_epoch=raises_epoch).answer
        assert fault(answer) is Fault.INVALID_PRODUCER_ID_MAPPING
        for epoch in (-1, 1):
            answer = desk.end(Identity(100, epoch), commit=True, raises_epoch=raises_epoch).answer
            assert fault(answer) is Fault.PRODUCER_FENCED
    assert fault(desk.do(EndTransaction("", identity, True, True)).answer) is Fault.INVALID_REQUEST
    assert desk.status() is Status.ONGOING


def test_a_transaction_in_the_last_epoch_ends_with_a_new_producer_id() -> None:
    desk = Desk()
    last = desk.at_epoch(EPOCH_MAX - 1)
    desk.add(last, P0)
    outcome = desk.end(last, commit=True)
    new = granted(outcome.answer)
    assert new == (last.producer_id + 1, 0)
    assert outcome.effects[0].identity == Identity(last.producer_id, EPOCH_MAX)
    assert desk.add(new, P1) is Fault.CONCURRENT_TRANSACTIONS
    assert fault(desk.end(new, commit=False).answer) is Fault.CONCURRENT_TRANSACTIONS
    assert fault(desk.end(last, commit=True).answer) is Fault.CONCURRENT_TRANSACTIONS
    desk.finish(outcome)
    assert granted(desk.end(last, commit=True).answer) == new
    assert desk.add(new, P1) is Fault.NONE
    assert fault(desk.end(last, commit=True).answer) is Fault.INVALID_PRODUCER_ID_MAPPING


def test_markers_of_another_time_complete_nothing() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.add(identity, P0)
    desk.do(MarkersWritten("app", identity))
    assert desk.status() is Status.ONGOING
    outcome = desk.end(identity, commit=True)
    desk.do(MarkersWritten("app", identity))
    desk.do(MarkersWritten("other", identity))
    assert desk.status() is Status.PREPARE_COMMIT
    desk.finish(outcome)
    desk.finish(outcome)
    assert desk.status() is Status.COMPLETE_COMMIT


# ------------------------------------------------------------------------------------------------------------- clock


def test_a_transaction_that_times_out_is_aborted_and_its_client_refused() -> None:
    for raises_epoch in (False, True):
        desk = Desk()
        identity = granted(desk.init())
        desk.add(identity, P0)
        assert desk.coordinator.next_deadline_ms == 1_000 + TIMEOUT_MS
        assert desk.coordinator.tick(1_000 + TIMEOUT_MS - 1) == Outcome([], Fault.NONE, [])
        desk.now_ms = 1_000 + TIMEOUT_MS
        outcome = desk.keep(desk.coordinator.tick(desk.now_ms))
        assert outcome.effects == [WriteMarkers("app", Identity(100, 1), 5, False, frozenset({P0}), 2)]
        for _ in range(2):
            answer = desk.end(identity, commit=True, raises_epoch=raises_epoch).answer
            assert fault(answer) is Fault.PRODUCER_FENCED
            assert desk.add(identity, P0) is Fault.PRODUCER_FENCED
            desk.finish(outcome)
        assert desk.coordinator.tick(desk.now_ms + TIMEOUT_MS).effects == []
        assert granted(desk.init()) == (100, 2)


def test_a_timeout_counts_from_the_first_partition() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.now_ms += TIMEOUT_MS * 2
    desk.add(identity, P0)
    assert desk.coordinator.tick(desk.now_ms).effects == []
    desk.now_ms += TIMEOUT_MS - 1
    desk.add(identity, P1)
    assert desk.coordinator.tick(desk.now_ms).effects == []
    assert len(desk.coordinator.tick(desk.now_ms + 1).effects) == 1


def test_idle_names_expire_with_a_tombstone_and_busy_ones_do_not() -> None:
    desk = Desk()
    granted(desk.init())
    busy = granted(desk.init("busy"))
    assert desk.add(busy, P0, name="busy") is Fault.NONE
    week_ms = 7 * 24 * 3_600_000
    desk.coordinator.tick(1_000 + week_ms - 1)
    assert set(desk.coordinator.states) == {"app", "busy"}
    outcome = desk.coordinator.tick(1_000 + week_ms + 3_600_000)
    assert outcome.records == [TransactionRecord("app", None)]
    assert set(desk.coordinator.states) == {"busy"}


def test_a_tick_writes_a_bounded_number_of_records_and_the_rest_is_due_at_once() -> None:
    desk = Desk()
    total = RECORDS_PER_TICK_MAX + 10
    for n in range(total):
        identity = granted(desk.init(str(n)))
        desk.add(identity, P0, name=str(n))
    desk.now_ms += TIMEOUT_MS
    first = desk.keep(desk.coordinator.tick(desk.now_ms))
    assert len(first.records) == RECORDS_PER_TICK_MAX
    assert desk.coordinator.next_deadline_ms <= desk.now_ms
    second = desk.keep(desk.coordinator.tick(desk.now_ms))
    assert len(second.records) == 10
    desk.finish(first)
    desk.finish(second)
    desk.now_ms += 8 * 24 * 3_600_000
    assert len(desk.coordinator.tick(desk.now_ms).records) == RECORDS_PER_TICK_MAX
    assert desk.coordinator.next_deadline_ms <= desk.now_ms
    assert len(desk.coordinator.tick(desk.now_ms).records) == 10
    assert desk.coordinator.next_deadline_ms > desk.now_ms


# ----------------------------------------------------------------------------------------------------------- loading


def test_after_a_crash_prepared_transactions_are_finished() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.add(identity, P0, P1)
    outcome = desk.end(identity, commit=True)
    granted(desk.init("idle"))
    again = TransactionCoordinator(6, desk.take)
    for record in desk.log:
        again.replay(record)
    (markers,) = again.loaded(desk.now_ms)
    assert markers == outcome.effects[0]._replace(coordinator_epoch=6)
    again.handle(MarkersWritten("app", markers.identity), desk.now_ms)
    assert again.states["app"].status is Status.COMPLETE_COMMIT
    late = again.handle(EndTransaction("app", identity, True, True), desk.now_ms)
    assert granted(late.answer) == granted(outcome.answer)


def test_an_ongoing_transaction_times_out_after_a_crash_too() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.add(identity, P0)
    again = TransactionCoordinator(6, desk.take)
    for record in desk.log:
        again.replay(record)
    assert again.loaded(desk.now_ms) == []
    assert again.next_deadline_ms == desk.now_ms + TIMEOUT_MS


def test_a_record_of_a_dead_transaction_is_a_tombstone() -> None:
    desk = Desk()
    identity = granted(desk.init())
    desk.coordinator.replay(TransactionRecord("app", TransactionState(*identity, TIMEOUT_MS, Status.DEAD)))
    assert "app" not in desk.coordinator.states


# --------------------------------------------------------------------------------------------------------- questions


def test_transactions_are_described() -> None:
    desk = Desk()
    granted(desk.init())
    assert desk.do(DescribeTransaction("app")).answer == Description(Fault.NONE, "app", desk.state)
    assert desk.do(DescribeTransaction("no")).answer == Description(Fault.TRANSACTIONAL_ID_NOT_FOUND, "no")
    assert desk.do(DescribeTransaction("")).answer == Description(Fault.INVALID_REQUEST, "")


def test_transactions_are_listed_by_every_filter() -> None:
    desk = Desk()
    granted(desk.init("idle"))
    for name in ("slow", "quick"):
        desk.add(granted(desk.init(name)), P0, name=name)
        desk.now_ms += 1_000

    def names(command: ListTransactions) -> list[str]:
        answer = desk.do(command).answer
        assert isinstance(answer, TransactionList)
        return [name for name, _ in answer.transactions]

    assert names(ListTransactions()) == ["idle", "slow", "quick"]
    assert names(ListTransactions(producer_ids=frozenset({101}))) == ["slow"]
    assert names(ListTransactions(statuses=frozenset({"Ongoing"}))) == ["slow", "quick"]
    assert names(ListTransactions(frozenset(), frozenset({"Ongoing"}), 1_000)) == ["slow"]
    assert names(ListTransactions(matches=lambda name: name.endswith("k"))) == ["quick"]
    odd = desk.do(ListTransactions(statuses=frozenset({"Odd"}))).answer
    assert odd == TransactionList(("Odd",), ())
    assert [status.title for status in Status] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"
    ]  # fmt: skip


def test_large_transactions_time_out_a_few_at_a_time() -> None:
    desk = Desk()
    partitions = frozenset(TopicPartition(TopicName("t"), number) for number in range(PARTITIONS_PER_TICK_MAX))
    names = [f"app{number}" for number in range(5)]
    for name in names:
        desk.do(AddPartitions(name, granted(desk.init(name)), partitions))
    desk.now_ms += TIMEOUT_MS
    for aborted in (2, 2, 1, 0):
        assert (desk.coordinator.next_deadline_ms <= desk.now_ms) == bool(aborted)
        assert len(desk.keep(desk.coordinator.tick(desk.now_ms)).effects) == aborted
    assert all(desk.coordinator.states[name].status is Status.PREPARE_ABORT for name in names)
