"""ProducerTable against a slow model that knows the log alone: each answer is worked out anew from all batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

from penstock.coordination.producer_records import AbortedTransaction, decode_snapshot, encode_snapshot
from penstock.coordination.producers import Duplicate, ProducerTable
from penstock.model.errors import Fault
from penstock.records.batch import HEADER, TRANSACTIONAL_BIT, Batch
from penstock.records.control import Marker, MarkerKind, build_marker

WRAP = 2**31


@dataclass(frozen=True)
class Written:
    """A batch as the model sees it; `commit` is None for data."""

    producer_id: int
    epoch: int
    sequence: int
    count: int
    transactional: bool
    timestamp_ms: int
    offset: int = 0
    commit: bool | None = None
    coordinator_epoch: int = -1

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.count - 1) % WRAP

    @property
    def last_offset(self) -> int:
        return self.offset + self.count - 1

    def batch(self) -> Batch:
        if self.commit is not None:
            marker = Marker(MarkerKind(int(self.commit)), self.coordinator_epoch)
            who = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
            built = build_marker(marker, **who, timestamp_ms=self.timestamp_ms, base_offset=self.offset)
            return Batch(memoryview(built))
        attributes = TRANSACTIONAL_BIT if self.transactional else 0
        ts = self.timestamp_ms
        header = HEADER.pack(
            self.offset, 49, 0, 2, 0, attributes, self.count - 1, ts, ts,
            self.producer_id, self.epoch, self.sequence, self.count,
        )  # fmt: skip
        return Batch(memoryview(bytearray(header)))


class Model:
    def __init__(self) -> None:
        self.log: list[Written] = []
        self.verified: dict[int, int] = {}
        self.high_watermark = 0

    @property
    def end(self) -> int:
        return self.log[-1].last_offset + 1 if self.log else 0

    def of(self, producer_id: int) -> list[Written]:
        return [w for w in self.log if w.producer_id == producer_id]

    def epoch(self, producer_id: int) -> int | None:
        mine = self.of(producer_id)
        return mine[-1].epoch if mine else None

    def window(self, producer_id: int) -> list[Written]:
        mine = self.of(producer_id)
        since = len(mine)
        while since > 0 and mine[since - 1].epoch == mine[-1].epoch:
            since -= 1
        return [w for w in mine[since:] if w.commit is None][-5:]

    def next_sequence(self, producer_id: int) -> int:
        window = self.window(producer_id)
        return (window[-1].last_sequence + 1) % WRAP if window else 0

    def transactions(self, producer_id: int) -> list[tuple[int, int | None, bool]]:
        """(first offset, marker offset or None, aborted)"""
        found: list[tuple[int, int | None, bool]] = []
        first: int | None = None
        for w in self.of(producer_id):
            if w.commit is not None:
                if first is not None:
                    found.append((first, w.offset, not w.commit))
                first = None
            elif w.transactional and first is None:
                first = w.offset
        if first is not None:
            found.append((first, None, False))
        return found

    def open_offset(self, producer_id: int) -> int:
        transactions = self.transactions(producer_id)
        return transactions[-1][0] if transactions and transactions[-1][1] is None else -1

    def coordinator_epoch(self, producer_id: int) -> int:
        markers = [w for w in self.of(producer_id) if w.commit is not None]
        return markers[-1].coordinator_epoch if markers else -1

    def ids(self) -> set[int]:
        return {w.producer_id for w in self.log}

    def first_undecided(self) -> int | None:
        undecided = [
            first
            for producer_id in self.ids()
            for first, marker, _ in self.transactions(producer_id)
            if marker is None or marker >= self.high_watermark
        ]
        return min(undecided, default=None)

    def check(self, new: Written) -> Fault | Duplicate | None:
        epoch = self.epoch(new.producer_id)
        window = self.window(new.producer_id)
        if epoch == new.epoch:
            for w in window:
                if (w.sequence, w.count) == (new.sequence, new.count):
                    return Duplicate(w.offset, w.last_offset, w.timestamp_ms)
        if epoch is None:
            if new.sequence != 0:
                return Fault.UNKNOWN_PRODUCER_ID
        elif new.epoch < epoch:
            return Fault.INVALID_PRODUCER_EPOCH
        elif new.epoch > epoch:
            if new.sequence != 0:
                return Fault.OUT_OF_ORDER_SEQUENCE
        elif new.sequence != self.next_sequence(new.producer_id):
            if window and new.sequence + new.count <= window[0].sequence <= new.sequence + new.count - 1 + WRAP // 2:
                return Fault.DUPLICATE_SEQUENCE
            return Fault.OUT_OF_ORDER_SEQUENCE
        is_open = self.open_offset(new.producer_id) >= 0
        if not new.transactional:
            return Fault.INVALID_TXN_STATE if is_open else None
        if (is_open and epoch == new.epoch) or self.verified.get(new.producer_id) == new.epoch:
            return None
        return Fault.INVALID_TXN_STATE

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> object:
        known = self.epoch(producer_id)
        if known is None:
            return None
        if epoch < known:
            return Fault.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < self.coordinator_epoch(producer_id):
            return Fault.TRANSACTION_COORDINATOR_FENCED
        if version == 2 and epoch == known:
            if self.open_offset(producer_id) >= 0:
                return Fault.INVALID_PRODUCER_EPOCH
            return Duplicate(-1, -1, self.of(producer_id)[-1].timestamp_ms)
        return None


IDS = st.integers(1, 3)
COUNTS = st.one_of(st.integers(1, 5), st.integers(2**27, 2**28))
"""Large ones reach the wrap of the sequences; a window of them is still less than a whole turn."""


class ProducerMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.table = ProducerTable(0)
        self.model = Model()
        self.committed = 0
        """Batches of the model's log that are written; the rest is staged."""
        self.used_verifications: list[tuple[int, int]] = []
        self.timestamps_moved = False

    def append(self, new: Written) -> None:
        new = replace(new, offset=self.model.end)
        before = self.model.open_offset(new.producer_id)
        aborted = self.table.stage(new.batch(), new.offset)
        self.model.log.append(new)
        if new.transactional and (new.commit is not None or before < 0):
            used = self.model.verified.pop(new.producer_id, None)
            if used is not None:
                self.used_verifications.append((new.producer_id, used))
        if new.commit is False and before >= 0:
            stable = min((o for p in self.model.ids() if (o := self.model.open_offset(p)) >= 0), default=new.offset + 1)
            assert aborted == AbortedTransaction(new.producer_id, before, new.offset, stable)
        else:
            assert aborted is None

    def offered(self, new: Written) -> None:
        batch = new.batch()
        expected = self.model.check(new)
        assert self.table.check(batch) == expected
        if expected is None:
            self.append(new)

    @rule(producer_id=IDS, counts=st.lists(COUNTS, min_size=1, max_size=7), ts=st.integers(0, 9))
    def produce(self, producer_id: int, counts: list[int], ts: int) -> None:
        epoch = self.model.epoch(producer_id) or 0
        transactional = self.model.open_offset(producer_id) >= 0
        for count in counts:
            self.offered(Written(producer_id, epoch, self.model.next_sequence(producer_id), count, transactional, ts))

    @rule(producer_id=IDS, count=COUNTS, verified=st.booleans())
    def begin(self, producer_id: int, count: int, verified: bool) -> None:
        epoch = self.model.epoch(producer_id) or 0
        if verified:
            self.verify(producer_id, epoch)
        self.offered(Written(producer_id, epoch, self.model.next_sequence(producer_id), count, True, 1))

    @rule(
        producer_id=IDS,
        sequence=st.one_of(st.integers(0, 20), st.integers(WRAP - 20, WRAP - 1)),
        epoch=st.integers(0, 4),
        count=COUNTS,
        transactional=st.booleans(),
    )
    def produce_any(self, producer_id: int, sequence: int, epoch: int, count: int, transactional: bool) -> None:
        self.offered(Written(producer_id, epoch, sequence, count, transactional, 1))

    @precondition(lambda self: any(w.commit is None for w in self.model.log))
    @rule(data=st.data())
    def produce_again(self, data: st.DataObject) -> None:
        self.offered(data.draw(st.sampled_from([w for w in self.model.log if w.commit is None])))

    @rule(producer_id=IDS, ahead=st.integers(1, 3), count=st.integers(1, 3))
    def produce_with_a_gap(self, producer_id: int, ahead: int, count: int) -> None:
        sequence = (self.model.next_sequence(producer_id) + ahead) % WRAP
        self.offered(Written(producer_id, self.model.epoch(producer_id) or 0, sequence, count, False, 1))

    @rule(producer_id=IDS, epoch=st.integers(0, 4))
    def verify(self, producer_id: int, epoch: int) -> None:
        self.table.verified(producer_id, epoch)
        self.model.verified[producer_id] = epoch

    @rule(
        producer_id=IDS,
        bump=st.integers(-1, 1),
        coordinator_epoch=st.integers(0, 2),
        version=st.sampled_from([0, 2]),
        commit=st.booleans(),
    )
    def end(self, producer_id: int, bump: int, coordinator_epoch: int, version: int, commit: bool) -> None:
        epoch = max(0, (self.model.epoch(producer_id) or 0) + bump)
        expected = self.model.check_marker(producer_id, epoch, coordinator_epoch, version)
        if not (isinstance(expected, Duplicate) and self.timestamps_moved):
            assert self.table.check_marker(producer_id, epoch, coordinator_epoch, version) == expected
        if expected is None:
            marker = Written(producer_id, epoch, -1, 1, True, 3, commit=commit, coordinator_epoch=coordinator_epoch)
            self.append(marker)

    @rule()
    def commit(self) -> None:
        self.table.commit()
        self.committed = len(self.model.log)
        self.used_verifications = []

    @rule()
    def rollback(self) -> None:
        self.table.rollback()
        del self.model.log[self.committed :]
        for producer_id, epoch in reversed(self.used_verifications):
            self.model.verified.setdefault(producer_id, epoch)
        self.used_verifications = []

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        written = self.model.log[: self.committed]
        end = written[-1].last_offset + 1 if written else 0
        self.model.high_watermark = data.draw(
            st.integers(self.model.high_watermark, max(end, self.model.high_watermark))
        )
        self.table.high_watermark_moved(self.model.high_watermark)

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """From a snapshot of any earlier moment, and the log from there or from before."""
        self.commit()
        taken = data.draw(st.integers(0, len(self.model.log)))
        replayed_from = data.draw(st.integers(0, taken))
        earlier = ProducerTable(0)
        for w in self.model.log[:taken]:
            earlier.replay(w.batch())
        self.table = ProducerTable(0)
        self.table.load(decode_snapshot(encode_snapshot(earlier.snapshot())))
        for w in self.model.log[replayed_from:]:
            self.table.replay(w.batch())
        self.model.high_watermark = self.model.end
        self.table.high_watermark_moved(self.model.end)
        self.model.verified = {}
        self.timestamps_moved = True

    @invariant()
    def the_table_is_what_the_log_says(self) -> None:
        rows = {row.producer_id: row for row in self.table.describe()}
        assert set(rows) == self.model.ids()
        for producer_id, row in rows.items():
            window = self.model.window(producer_id)
            assert row.producer_epoch == self.model.epoch(producer_id)
            assert row.last_sequence == (window[-1].last_sequence if window else -1)
            assert row.coordinator_epoch == self.model.coordinator_epoch(producer_id)
            assert row.transaction_first_offset == self.model.open_offset(producer_id)
        assert self.table.first_undecided_offset == self.model.first_undecided()


def test_the_table_answers_as_its_log_says() -> None:
    longer = settings(max_examples=2 * settings().max_examples, stateful_step_count=30)
    run_state_machine_as_test(ProducerMachine, settings=longer)
