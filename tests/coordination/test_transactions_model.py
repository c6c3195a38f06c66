"""The coordinator and the partitions together: clients that crash, repeat and come late, markers that take their time, a
broker that dies at any step. What a reader of committed data sees must be whole transactions, and only committed ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.coordination.producer_records import decode_snapshot, encode_snapshot
from penstock.coordination.producers import Duplicate, ProducerTable
from penstock.coordination.transaction_commands import (
    AddPartitions,
    Answer,
    Command,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    Outcome,
    PartitionsResult,
    ProducerResult,
    VerifyPartitions,
    WriteMarkers,
)
from penstock.coordination.transaction_records import TransactionRecord, decode, encode
from penstock.coordination.transaction_states import EPOCH_MAX, NEXT_STATUSES, Identity, Status, TransactionState
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.records.batch import HEADER, TRANSACTIONAL_BIT, Batch
from penstock.records.control import Marker, MarkerKind, build_marker, read_marker

PARTITIONS = [TopicPartition(TopicName("t"), 0), TopicPartition(TopicName("u"), 0)]
NAMES = st.sampled_from(["a", "b"])
TIMEOUT_MS = 1_000


@dataclass(eq=False)
class Client:
    """One process with a transactional id. It does what a good client does, also when another has taken its place."""

    name: str
    raises_epoch: bool
    identity: Identity | None = None
    must_init: bool = True
    """Until its InitProducerId is answered it does nothing else."""
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    attempt: int | None = None
    """The transaction that it believes to be in."""
    added: set[TopicPartition] = field(default_factory=set)
    """The partitions of that transaction which the coordinator knows: older clients tell it themselves."""
    unanswered_end: bool | None = None
    """It sent this end and heard nothing: all it may do is to send it again, or to begin anew."""

    def leaves_transaction(self) -> None:
        self.attempt = None
        self.added = set()
        self.unanswered_end = None

    def becomes(self, identity: Identity) -> None:
        if identity != self.identity:
            self.identity = identity
            self.sequences = {}


@dataclass
class Log:
    """A partition: its batches, which attempt each belongs to, and the table under test."""

    table: ProducerTable
    batches: list[tuple[Batch, int | None]] = field(default_factory=list)

    def append(self, batch: Batch, attempt: int | None) -> None:
        offset = len(self.batches)
        self.table.stage(batch, offset)
        self.table.commit()
        batch.place(offset, 0)
        self.batches.append((batch, attempt))
        self.table.high_watermark_moved(offset + 1)


def data(identity: Identity, sequence: int) -> Batch:
    fields = (0, 49, 0, 2, 0, TRANSACTIONAL_BIT, 0, 1, 1, *identity, sequence, 1)
    return Batch(memoryview(bytearray(HEADER.pack(*fields))))


class TransactionMachine(RuleBasedStateMachine):
    @initialize(epoch=st.sampled_from([0, 0, EPOCH_MAX - 3, EPOCH_MAX - 1]))
    def start(self, epoch: int) -> None:
        self.now_ms = 1_000
        self.producer_ids = count(100)
        self.attempts = count()
        self.disk: list[tuple[bytes, bytes | None]] = []
        self.statuses: dict[str, Status] = {}
        self.coordinator_epoch = 0
        self.coordinator = TransactionCoordinator(0, self.take)
        self.logs = {partition: Log(ProducerTable(0)) for partition in PARTITIONS}
        self.markers: list[tuple[WriteMarkers, set[TopicPartition]]] = []
        self.clients: list[Client] = []
        self.given: set[Identity] = set()
        self.decided: dict[int, bool] = {}
        self.maybe: set[int] = set()
        """Attempts whose commit was sent and not answered."""
        self.ended: list[EndTransaction] = []
        if epoch:
            used = TransactionState(next(self.producer_ids), epoch, TIMEOUT_MS, Status.EMPTY, last_update_ms=0)
            record = TransactionRecord("a", used)
            self.disk.append(encode(record))
            self.coordinator.replay(record)
            self.given.add(used.identity)
            self.statuses["a"] = Status.EMPTY

    def take(self) -> int:
        return next(self.producer_ids)

    # the broker's side

    def perform(self, outcome: Outcome) -> None:
        for record in outcome.records:
            new = record.value.status if record.value else Status.DEAD
            assert new in NEXT_STATUSES[self.statuses.get(record.transactional_id, Status.DEAD)]
            self.statuses[record.transactional_id] = new
            self.disk.append(encode(record))
        self.markers += [(effect, set(effect.partitions)) for effect in outcome.effects]

    def do(self, command: Command, *, dies: bool = False) -> Answer | None:
        """None when the broker died before the records were flushed: no answer, no record, no effect."""
        outcome = self.coordinator.handle(command, self.now_ms)
        if dies:
            self.reload()
            return None
        self.perform(outcome)
        return outcome.answer

    def replayed(self, disk: list[tuple[bytes, bytes | None]]) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(self.coordinator_epoch, self.take)
        for key, value in disk:
            record = decode(key, value)
            assert record is not None
            coordinator.replay(record)
        return coordinator

    def reload(self) -> None:
        self.coordinator_epoch += 1
        self.coordinator = self.replayed(self.disk)
        self.markers = [(effect, set(effect.partitions)) for effect in self.coordinator.loaded(self.now_ms)]

    # the clients' side

    def fence(self, client: Client) -> None:
        self.clients.remove(client)

    @rule(name=NAMES, raises_epoch=st.booleans())
    def client_comes(self, name: str, raises_epoch: bool) -> None:
        if len(self.clients) < 4:
            self.clients.append(Client(name, raises_epoch))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), goes_on=st.booleans(), lost=st.booleans(), dies=st.integers(0, 9))
    def init(self, data: st.DataObject, goes_on: bool, lost: bool, dies: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.init_as(client, client.identity if goes_on else None, lost=lost, dies=dies == 0)

    def init_as(self, client: Client, expected: Identity | None, *, lost: bool, dies: bool) -> None:
        client.must_init = True
        client.leaves_transaction()
        answer = self.do(InitProducerId(client.name, TIMEOUT_MS, expected), dies=dies)
        if answer is None:
            return
        assert isinstance(answer, ProducerResult)
        identity = Identity(answer.producer_id, answer.producer_epoch)
        if answer.fault is Fault.NONE:
            if expected is None:
                assert identity not in self.given
            assert identity.producer_epoch < EPOCH_MAX
            self.given.add(identity)
            if not lost:
                client.must_init = False
                client.becomes(identity)
            elif expected is None:
                client.identity = None
        elif answer.fault is Fault.PRODUCER_FENCED:
            assert expected is not None
            self.fence(client)
        else:
            assert answer.fault is Fault.CONCURRENT_TRANSACTIONS

    def ready(self) -> list[Client]:
        return [c for c in self.clients if not c.must_init and c.unanswered_end is None]

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), dies=st.integers(0, 9))
    def produce(self, data: st.DataObject, partition: TopicPartition, dies: int) -> None:
        client = data.draw(st.sampled_from(self.ready()))
        self.produce_as(client, partition, dies=dies == 0)

    def produce_as(self, client: Client, partition: TopicPartition, *, dies: bool) -> None:
        assert client.identity is not None
        state = self.coordinator.states.get(client.name)
        is_owner = state is not None and state.identity == client.identity and not state.prepared
        log = self.logs[partition]
        batch = data(client.identity, client.sequences.get(partition, 0))
        asked = frozenset({partition})
        unknown = log.table.needs_verification(batch)
        if (unknown and client.raises_epoch) or (partition not in client.added and not client.raises_epoch):
            answer = self.do(AddPartitions(client.name, client.identity, asked), dies=dies)
            if answer is None:
                return
            assert isinstance(answer, PartitionsResult)
            if answer.fault is not Fault.NONE:
                assert not is_owner
                if answer.fault is not Fault.CONCURRENT_TRANSACTIONS:
                    self.fence(client)
                return
            client.added.add(partition)
        if unknown:
            verified = self.do(VerifyPartitions(client.name, client.identity, asked))
            assert isinstance(verified, PartitionsResult)
            if verified != PartitionsResult(Fault.NONE):
                assert not is_owner
                self.fence(client)
                return
            log.table.verified(*client.identity)
        verdict = log.table.check(batch)
        if verdict is not None:
            assert not is_owner, verdict
            self.fence(client)
            return
        if client.attempt is None:
            client.attempt = next(self.attempts)
        log.append(batch, client.attempt)
        client.sequences[partition] = client.sequences.get(partition, 0) + 1

    @precondition(lambda self: any(c.attempt is not None for c in self.clients))
    @rule(data=st.data(), commit=st.booleans(), lost=st.booleans(), dies=st.integers(0, 9))
    def end(self, data: st.DataObject, commit: bool, lost: bool, dies: int) -> None:
        client = data.draw(st.sampled_from([c for c in self.clients if c.attempt is not None]))
        self.end_as(client, commit=commit, lost=lost, dies=dies == 0)

    def end_as(self, client: Client, *, commit: bool, lost: bool, dies: bool) -> None:
        assert client.identity is not None
        assert client.attempt is not None
        if client.unanswered_end is not None:
            commit = client.unanswered_end
        command = EndTransaction(client.name, client.identity, commit, client.raises_epoch)
        client.unanswered_end = commit
        if commit:
            self.maybe.add(client.attempt)
        answer = self.do(command, dies=dies)
        if answer is None or lost:
            return
        assert isinstance(answer, ProducerResult)
        if answer.fault is Fault.NONE:
            self.decided[client.attempt] = commit
            self.maybe.discard(client.attempt)
            client.leaves_transaction()
            identity = Identity(answer.producer_id, answer.producer_epoch)
            assert client.raises_epoch is (identity != client.identity)
            self.given.add(identity)
            client.becomes(identity)
            if client.raises_epoch:
                self.ended.append(command)
        elif answer.fault is not Fault.CONCURRENT_TRANSACTIONS:
            assert answer.fault in (Fault.PRODUCER_FENCED, Fault.INVALID_PRODUCER_ID_MAPPING)
            self.fence(client)

    @precondition(lambda self: self.clients)
    @rule(
        data=st.data(),
        partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
        commit=st.booleans(),
        lost=st.booleans(),
        slow=st.booleans(),
    )
    def a_whole_transaction(
        self, data: st.DataObject, partitions: list[TopicPartition], commit: bool, lost: bool, slow: bool
    ) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.must_init:
            self.all_markers_are_written()
            self.init_as(client, client.identity, lost=False, dies=False)
        for partition in partitions:
            if client in self.ready():
                self.produce_as(client, partition, dies=False)
        if client in self.clients and client.attempt is not None:
            self.end_as(client, commit=commit, lost=lost, dies=False)
            if not slow:
                self.all_markers_are_written()

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), commit=st.booleans())
    def an_answered_end_comes_again(self, data: st.DataObject, commit: bool) -> None:
        late = data.draw(st.sampled_from(self.ended))
        before = dict(self.coordinator.states)
        self.do(late._replace(commit=commit))
        assert self.coordinator.states == before

    # markers, time and death

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def a_marker_is_written(self, data: st.DataObject) -> None:
        effect, missing = data.draw(st.sampled_from(self.markers))
        if missing:
            partition = data.draw(st.sampled_from(sorted(missing)))
            missing.discard(partition)
            self.write_marker(effect, partition)
        else:
            self.markers.remove((effect, missing))
            self.do(MarkersWritten(effect.transactional_id, effect.identity))

    def write_marker(self, effect: WriteMarkers, partition: TopicPartition) -> None:
        table = self.logs[partition].table
        version = effect.transaction_version
        verdict = table.check_marker(*effect.identity, effect.coordinator_epoch, version)
        if isinstance(verdict, Duplicate):
            return
        assert verdict is None, verdict
        kind = MarkerKind.COMMIT if effect.commit else MarkerKind.ABORT
        producer_id, epoch = effect.identity
        marker = Marker(kind, effect.coordinator_epoch)
        batch = build_marker(marker, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=1)
        self.logs[partition].append(Batch(memoryview(batch)), None)

    @rule()
    def all_markers_are_written(self) -> None:
        while self.markers:
            effect, missing = self.markers.pop()
            for partition in missing:
                self.write_marker(effect, partition)
            self.do(MarkersWritten(effect.transactional_id, effect.identity))

    @rule(ms=st.sampled_from([1, 1, 400, TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.perform(self.coordinator.tick(self.now_ms))

    @rule(data=st.data(), cleaned=st.booleans())
    def the_broker_dies_and_comes_back(self, data: st.DataObject, cleaned: bool) -> None:
        if cleaned:
            self.disk = list(dict(self.disk).items())
        self.reload()
        for log in self.logs.values():
            taken = data.draw(st.integers(0, len(log.batches)))
            earlier = ProducerTable(0)
            for batch, _ in log.batches[:taken]:
                earlier.replay(batch)
            log.table = ProducerTable(0)
            log.table.load(decode_snapshot(encode_snapshot(earlier.snapshot())))
            for batch, _ in log.batches[taken:]:
                log.table.replay(batch)
            log.table.high_watermark_moved(len(log.batches))

    # what must hold

    def outcomes(self) -> dict[int, set[bool | None]]:
        """How each attempt's records look to a reader of committed data: committed, aborted or open (None)."""
        seen: dict[int, set[bool | None]] = {}
        for log in self.logs.values():
            still_open: dict[int, set[int]] = {}
            for batch, attempt in log.batches:
                mine = still_open.setdefault(batch.producer_id, set())
                if attempt is not None:
                    mine.add(attempt)
                    assert len(mine) == 1, "two transactions under one marker"
                    continue
                marker = read_marker(batch)
                assert marker is not None
                for ended in mine:
                    seen.setdefault(ended, set()).add(marker.kind is MarkerKind.COMMIT)
                mine.clear()
            for mine in still_open.values():
                for attempt in mine:
                    seen.setdefault(attempt, set()).add(None)
        return seen

    @invariant()
    def readers_of_committed_data_see_whole_committed_transactions(self) -> None:
        for attempt, ways in self.outcomes().items():
            assert not ways >= {True, False}, "a transaction ended both ways"
            if True in ways:
                assert self.decided.get(attempt, attempt in self.maybe), "committed without a word from its client"
            if False in ways:
                assert not self.decided.get(attempt, False), "a committed transaction was aborted"

    @invariant()
    def replaying_the_cleaned_log_gives_the_live_state(self) -> None:
        assert self.replayed(list(dict(self.disk).items())).states == self.coordinator.states

    @invariant()
    def the_open_transactions_of_partitions_are_known_to_the_coordinator(self) -> None:
        states = self.coordinator.states.values()
        for partition, log in self.logs.items():
            for row in log.table.describe():
                if row.transaction_first_offset >= 0:
                    assert any(s.producer_id == row.producer_id and partition in s.partitions for s in states)

    def teardown(self) -> None:
        """Nothing hangs: with time and markers every transaction ends, and everything becomes stable."""
        if not hasattr(self, "logs"):
            return
        assert self.replayed(self.disk).states == self.coordinator.states
        self.all_markers_are_written()
        self.time_passes(TIMEOUT_MS)
        self.all_markers_are_written()
        assert all(state.at_rest for state in self.coordinator.states.values())
        for log in self.logs.values():
            assert log.table.first_undecided_offset is None
        for attempt, ways in self.outcomes().items():
            assert len(ways) == 1
            assert None not in ways
            if attempt in self.decided:
                assert ways == {self.decided[attempt]}


def test_committed_data_is_whole_transactions_whatever_happens() -> None:
    longer = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
    run_state_machine_as_test(TransactionMachine, settings=longer)
