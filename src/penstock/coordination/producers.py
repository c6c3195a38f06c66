"""The producers of one partition: idempotence (KIP-98) and the partition's side of transactions (KIP-98, KIP-890).

What is promised

1. A batch that was appended is not appended again: a producer's last five batches are remembered, and a copy of one of
   them gets the offsets of the original.
2. A producer's batches stand in the log in the order of their sequences, without a gap, within one epoch.
3. An older epoch of a producer writes nothing once a newer one, or the coordinator's marker, was seen.
4. No record is stable before its transaction is decided and the decision is flushed.

How it is used

An append is `check(batch)`, and if that accepts, `stage(batch, base_offset)`. Staged state is visible to later checks,
so a run of batches goes through in one write; `commit()` follows when the write returned, `rollback()` when it failed,
and the table is as if the run had never been. End markers go the same way with `check_marker` in place of `check`.
`replay(batch)` is both steps without checks, for recovery: what stands in the log is true.

Sequences are 31 bits and wrap to 0. A batch with a newer epoch starts at 0 again. Markers take no sequence, but carry
an epoch: one that is newer than the producer's ends what the old epoch was doing (KIP-890 raises it each transaction).

A transactional batch opens its producer's transaction at its own first offset. Before that, the coordinator must have
said that the partition belongs to the transaction: otherwise a late batch could open a transaction that nobody will
ever end, and block every reader of committed data. So `check` answers INVALID_TXN_STATE; where `needs_verification` is
true, the broker asks the coordinator, tells the table with `verified`, and checks again.

Not here: files, clocks, the coordinator's own state (`transactions`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.coordination.producer_records import AbortedTransaction, SnapshotEntry
from penstock.model.errors import Fault
from penstock.model.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_PARTITION_MAX
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, Batch
from penstock.records.control import Marker, MarkerKind, read_marker

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
COORDINATOR_EPOCH_MAX = 2**31 - 1
_SEQUENCE_MASK = 0x7FFFFFFF
_SEQUENCE_HALF = 0x40000000
_KIND_MASK = TRANSACTIONAL_BIT | CONTROL_BIT
_EARLIER_BATCHES_KEPT = PRODUCER_BATCHES_REMEMBERED - 1
_EVICTION_LOOKS_MAX = 16
"""Producers in a transaction are passed over; after so many of them the table is let grow until the next commit."""


RememberedBatch = tuple[int, int, int, int, int]
"""(base sequence, last sequence, base offset, last offset, timestamp): a plain tuple, made for each append."""


class Duplicate(NamedTuple):
    """The batch is in the log already: answer with these. A marker's offsets are not remembered (-1)."""

    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerRow(NamedTuple):
    """What DescribeProducers tells of a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class _Producer:
    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "first_offset",
        "kind",
        "next_sequence",
        "producer_id",
        "seen_ms",
        "timestamp_ms",
        "window",
    )

    def __init__(self, producer_id: int, seen_ms: int) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.next_sequence = 0
        self.window: tuple[RememberedBatch, ...] = ()
        self.timestamp_ms = -1
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.first_offset = NO_OFFSET
        self.kind = 0
        """The attribute bits that its next batch must have: TRANSACTIONAL_BIT while a transaction is open."""
        self.seen_ms = seen_ms


_Undo = tuple[_Producer, int, int, tuple[RememberedBatch, ...], int, int, int, int | None]


class ProducerTable:
    __slots__ = (
        "_completed",
        "_now_ms",
        "_open",
        "_producers",
        "_producers_max",
        "_staged",
        "_staged_completions",
        "_verified",
        "_verify",
    )

    def __init__(self, now_ms: int, *, producers_max: int = PRODUCERS_PER_PARTITION_MAX, verify: bool = True) -> None:
        """`now_ms` is when producers that are loaded or replayed were last seen; `verify` asks for the coordinator's
        word before a transaction opens (Kafka's transaction.partition.verification.enable)."""
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        """Least recently written first."""
        self._producers_max = producers_max
        self._open: OrderedDict[int, int] = OrderedDict()
        """Producer id -> first offset of its open transaction, by first offset."""
        self._completed: deque[tuple[int, int]] = deque()
        """(first offset, marker offset) of ended transactions whose marker is not flushed, by marker offset."""
        self._verified: dict[int, int] = {}
        self._verify = verify
        self._staged: list[_Undo] = []
        self._staged_completions = 0
        self._now_ms = now_ms

    def __len__(self) -> int:
        return len(self._producers)

    # appends

    def check(self, batch: Batch) -> Fault | Duplicate | None:
        """None: append it. The batch has a producer id and comes from a client."""
        producer = self._producers.get(batch.producer_id)
        if (
            producer is not None
            and producer.epoch == batch.producer_epoch
            and producer.next_sequence == batch.base_sequence
            and producer.kind == batch.attributes & _KIND_MASK
        ):
            return None
        return self._judge(producer, batch)

    def stage(self, batch: Batch, base_offset: int) -> AbortedTransaction | None:
        """Take in a batch that is about to be written at `base_offset`. An abort marker gives the entry for the index
        of aborted transactions, to be written when the batch is."""
        attributes = batch.attributes
        marker = read_marker(batch) if attributes & CONTROL_BIT else None
        if marker is None and attributes & CONTROL_BIT:
            return None
        producer_id = batch.producer_id
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(producer_id, self._now_ms)
        else:
            self._producers.move_to_end(producer_id)
        self._staged.append(
            (
                producer,
                producer.epoch,
                producer.next_sequence,
                producer.window,
                producer.timestamp_ms,
                producer.coordinator_epoch,
                producer.first_offset,
                None,
            )
        )
        if marker is not None:
            return self._stage_marker(producer, batch, marker, base_offset)
        delta = batch.last_offset_delta
        base_sequence = batch.base_sequence
        last_sequence = (base_sequence + delta) & _SEQUENCE_MASK
        timestamp_ms = batch.max_timestamp
        remembered = (base_sequence, last_sequence, base_offset, base_offset + delta, timestamp_ms)
        if producer.epoch == batch.producer_epoch:
            producer.window = (*producer.window[-_EARLIER_BATCHES_KEPT:], remembered)
        else:
            producer.epoch = batch.producer_epoch
            producer.window = (remembered,)
        producer.next_sequence = (last_sequence + 1) & _SEQUENCE_MASK
        producer.timestamp_ms = timestamp_ms
        producer.seen_ms = self._now_ms
        if attributes & TRANSACTIONAL_BIT and producer.first_offset == NO_OFFSET:
            self._begin(producer, base_offset)
        return None

    def commit(self) -> None:
        """What was staged stands in the log."""
        self._staged.clear()
        self._staged_completions = 0
        if len(self._producers) > self._producers_max:
            self._evict()

    def rollback(self) -> None:
        """What was staged is not in the log: the table is as it was after the last commit."""
        transactions_changed = False
        for producer, epoch, next_sequence, window, timestamp_ms, coordinator_epoch, first_offset, verified in reversed(
            self._staged
        ):
            if verified is not None:
                self._verified.setdefault(producer.producer_id, verified)
            if first_offset != producer.first_offset:
                transactions_changed = True
                _set_first_offset(producer, first_offset)
            if epoch == -1:
                del self._producers[producer.producer_id]
                continue
            producer.epoch = epoch
            producer.next_sequence = next_sequence
            producer.window = window
            producer.timestamp_ms = timestamp_ms
            producer.coordinator_epoch = coordinator_epoch
        self._staged.clear()
        for _ in range(self._staged_completions):
            self._completed.pop()
        self._staged_completions = 0
        if transactions_changed:
            self._rebuild_open()

    def replay(self, batch: Batch) -> AbortedTransaction | None:
        """Take in a batch that recovery found in the log, at its own offset. Batches that the table knows are passed
        over, so recovery may start anywhere at or before the snapshot's end."""
        if batch.producer_id < 0:
            return None
        producer = self._producers.get(batch.producer_id)
        if producer is not None:
            known_offset = producer.window[-1][3] if producer.window else NO_OFFSET
            if batch.last_offset <= known_offset:
                return None
        aborted = self.stage(batch, batch.base_offset)
        self.commit()
        return aborted

    # transactions

    def needs_verification(self, batch: Batch) -> bool:
        """The batch would open a transaction, and the coordinator has not said yet that it may."""
        if not self._verify or not batch.attributes & TRANSACTIONAL_BIT:
            return False
        producer = self._producers.get(batch.producer_id)
        if producer is not None and producer.first_offset != NO_OFFSET and producer.epoch == batch.producer_epoch:
            return False
        epoch: int = batch.producer_epoch
        return self._verified.get(batch.producer_id) != epoch

    def verified(self, producer_id: int, producer_epoch: int) -> None:
        """The coordinator says that this partition belongs to the producer's ongoing transaction."""
        self._verified[producer_id] = producer_epoch

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int = 0,
        *,
        newest_coordinator_epoch: int = COORDINATOR_EPOCH_MAX,
    ) -> Fault | Duplicate | None:
        """May the coordinator's end marker be written? From transaction version 2 on a marker's epoch is newer than
        that of its transaction, so one with the producer's own epoch was written before, or comes too late for a
        transaction that began meanwhile.

        No coordinator has an epoch above `newest_coordinator_epoch`. A marker with a higher one is refused, and such a
        marker in the log does not fence any coordinator."""
        if coordinator_epoch > newest_coordinator_epoch:
            return Fault.TRANSACTION_COORDINATOR_FENCED
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if producer_epoch < producer.epoch:
            return Fault.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < min(producer.coordinator_epoch, newest_coordinator_epoch):
            return Fault.TRANSACTION_COORDINATOR_FENCED
        if transaction_version >= 2 and producer_epoch == producer.epoch:
            if producer.first_offset != NO_OFFSET:
                return Fault.INVALID_PRODUCER_EPOCH
            return Duplicate(NO_OFFSET, NO_OFFSET, producer.timestamp_ms)
        return None

    def epoch_of(self, producer_id: int) -> int | None:
        """The latest epoch seen of a producer; None if the producer is unknown here."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def has_open_transaction(self, producer_id: int) -> bool:
        return producer_id in self._open

    @property
    def first_open_offset(self) -> int | None:
        """The start of the earliest transaction that no marker has ended, or None."""
        return next(iter(self._open.values())) if self._open else None

    @property
    def first_undecided_offset(self) -> int | None:
        """Where stable data ends, or None: the start of the earliest transaction that is open, or whose marker is not
        below the high watermark. The last stable offset is the smaller of this and the high watermark."""
        first = self.first_open_offset
        if self._completed:
            unflushed = min(self._completed)[0]
            if first is None or unflushed < first:
                first = unflushed
        return first

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below it are flushed: the transactions they end are decided."""
        completed = self._completed
        while completed and completed[0][1] < high_watermark:
            completed.popleft()

    # keeping the table small and on disk

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for `expiration_ms` and have no transaction open; how many went.

        Age counts from the last write as this clock saw it, not from the timestamps of the records: a producer that
        loads old data is not an old producer. The clock is as fine as the calls of this method."""
        assert not self._staged
        oldest_ms = now_ms - expiration_ms
        gone = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.seen_ms <= oldest_ms and producer.first_offset == NO_OFFSET
        ]
        for producer_id in gone:
            del self._producers[producer_id]
            self._verified.pop(producer_id, None)
        self._now_ms = now_ms
        return len(gone)

    def log_start_moved(self, log_start_offset: int) -> None:
        """Records below are deleted. Producers stay, so that their sequences go on; transactions that ended below are
        over."""
        self.high_watermark_moved(log_start_offset)

    def clear(self) -> None:
        """The log was emptied or cut: start again, with `load` and `replay` of what is left."""
        self._producers.clear()
        self._open.clear()
        self._completed.clear()
        self._verified.clear()
        self._staged.clear()
        self._staged_completions = 0

    def snapshot(self) -> Iterator[SnapshotEntry]:
        """The committed state, least recently written producers first. Up to five entries a producer, oldest first: the
        whole window comes back, and Kafka, which keeps one a producer, ends with the newest."""
        assert not self._staged
        for producer in self._producers.values():
            who = (producer.producer_id, producer.epoch)
            transaction = (producer.coordinator_epoch, producer.first_offset)
            if not producer.window:
                yield SnapshotEntry(*who, -1, NO_OFFSET, 0, producer.timestamp_ms, *transaction)
            for _, last_sequence, base_offset, last_offset, timestamp_ms in producer.window:
                delta = last_offset - base_offset
                yield SnapshotEntry(*who, last_sequence, last_offset, delta, timestamp_ms, *transaction)

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Start from a snapshot: the table is what it was when the snapshot was made."""
        self.clear()
        for entry in entries:
            producer = self._producers.get(entry.producer_id)
            if producer is None:
                producer = self._producers[entry.producer_id] = _Producer(entry.producer_id, self._now_ms)
            if producer.epoch != entry.producer_epoch:
                producer.epoch = entry.producer_epoch
                producer.window = ()
                producer.next_sequence = 0
            if entry.last_offset >= 0:
                batch = (
                    (entry.last_sequence - entry.offset_delta) & _SEQUENCE_MASK,
                    entry.last_sequence,
                    entry.last_offset - entry.offset_delta,
                    entry.last_offset,
                    entry.timestamp_ms,
                )
                producer.window = (*producer.window[-_EARLIER_BATCHES_KEPT:], batch)
                producer.next_sequence = (entry.last_sequence + 1) & _SEQUENCE_MASK
            producer.timestamp_ms = entry.timestamp_ms
            producer.coordinator_epoch = entry.coordinator_epoch
            _set_first_offset(producer, entry.transaction_first_offset)
        self._rebuild_open()
        self.commit()

    def last_offsets(self) -> dict[int, int]:
        """Producer id -> the last offset of its last batch: what log cleaning must leave a trace of."""
        return {
            producer.producer_id: producer.window[-1][3] for producer in self._producers.values() if producer.window
        }

    def ids(self) -> list[int]:
        return list(self._producers)

    def row(self, producer_id: int) -> ProducerRow | None:
        """The state of a producer; None if it has been forgotten."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return ProducerRow(
            producer.producer_id,
            producer.epoch,
            producer.window[-1][1] if producer.window else -1,
            producer.timestamp_ms,
            producer.coordinator_epoch,
            producer.first_offset,
        )

    def describe(self) -> list[ProducerRow]:
        return [row for producer_id in self._producers if (row := self.row(producer_id)) is not None]

    # inside

    def _judge(self, producer: _Producer | None, batch: Batch) -> Fault | Duplicate | None:
        """The rules in full, in Kafka's order: duplicate, epoch, sequence, transaction."""
        kind = batch.attributes & _KIND_MASK
        base_sequence = batch.base_sequence
        if kind & CONTROL_BIT or base_sequence < 0:
            return Fault.INVALID_RECORD
        epoch = batch.producer_epoch
        if epoch < 0:
            return Fault.INVALID_PRODUCER_EPOCH
        last_sequence = (base_sequence + batch.last_offset_delta) & _SEQUENCE_MASK
        if producer is not None and producer.epoch == epoch:
            for known in producer.window:
                if known[0] == base_sequence and known[1] == last_sequence:
                    return Duplicate(*known[2:])
        if producer is not None and epoch < producer.epoch:
            return Fault.INVALID_PRODUCER_EPOCH
        if producer is None:
            if base_sequence != 0:
                return Fault.UNKNOWN_PRODUCER_ID
        elif producer.epoch != epoch:
            if base_sequence != 0:
                return Fault.OUT_OF_ORDER_SEQUENCE
        elif producer.next_sequence != base_sequence:
            return _misplaced(producer.window, base_sequence, last_sequence)
        if kind:
            return Fault.INVALID_TXN_STATE if self.needs_verification(batch) else None
        if producer is not None and producer.first_offset != NO_OFFSET:
            return Fault.INVALID_TXN_STATE
        return None

    def _begin(self, producer: _Producer, first_offset: int) -> None:
        _set_first_offset(producer, first_offset)
        self._open[producer.producer_id] = first_offset
        verified = self._verified.pop(producer.producer_id, None)
        if verified is not None:
            self._staged[-1] = (*self._staged[-1][:-1], verified)

    def _stage_marker(
        self, producer: _Producer, batch: Batch, marker: Marker, offset: int
    ) -> AbortedTransaction | None:
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.window = ()
            producer.next_sequence = 0
        producer.timestamp_ms = batch.max_timestamp
        producer.seen_ms = self._now_ms
        producer.coordinator_epoch = marker.coordinator_epoch
        verified = self._verified.pop(producer.producer_id, None)
        if verified is not None:
            self._staged[-1] = (*self._staged[-1][:-1], verified)
        first_offset = producer.first_offset
        if first_offset == NO_OFFSET:
            return None
        _set_first_offset(producer, NO_OFFSET)
        del self._open[producer.producer_id]
        self._completed.append((first_offset, offset))
        self._staged_completions += 1
        if marker.kind is MarkerKind.COMMIT:
            return None
        last_stable_offset = next(iter(self._open.values())) if self._open else offset + 1
        return AbortedTransaction(producer.producer_id, first_offset, offset, last_stable_offset)

    def _evict(self) -> None:
        producers = self._producers
        looks = 0
        while len(producers) > self._producers_max and looks < _EVICTION_LOOKS_MAX:
            producer_id, producer = next(iter(producers.items()))
            if producer.first_offset == NO_OFFSET:
                del producers[producer_id]
                self._verified.pop(producer_id, None)
            else:
                producers.move_to_end(producer_id)
                looks += 1

    def _rebuild_open(self) -> None:
        rows = [(p.first_offset, p.producer_id) for p in self._producers.values() if p.first_offset != NO_OFFSET]
        self._open = OrderedDict((producer_id, first_offset) for first_offset, producer_id in sorted(rows))


def _set_first_offset(producer: _Producer, first_offset: int) -> None:
    producer.first_offset = first_offset
    producer.kind = 0 if first_offset == NO_OFFSET else TRANSACTIONAL_BIT


def _misplaced(window: tuple[RememberedBatch, ...], base_sequence: int, last_sequence: int) -> Fault:
    """A gap, or a duplicate from before the window? A client takes DUPLICATE_SEQUENCE for success, so it is said only
    where no reading of the wrapped sequence makes the batch a new one."""
    if window:
        behind = window[0][0] - last_sequence
        if base_sequence <= last_sequence and 0 < behind <= _SEQUENCE_HALF:
            return Fault.DUPLICATE_SEQUENCE
    return Fault.OUT_OF_ORDER_SEQUENCE
