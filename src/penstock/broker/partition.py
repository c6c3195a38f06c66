"""A partition as the broker serves it: its log, its producers, and who waits for it.

It checks every batch before it is appended (the hot path: header and CRC, never the records, unless the topic's rules
need them), keeps the idempotence window in step with the log, and moves the high watermark: to the flushed offset
where the flush policy promises durability, else to the log end. Whoever waits for a flush or for data is told from there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.broker.aborted import AbortedTransactions
from penstock.broker.engine import Appended, RunAppended
from penstock.coordination.producer_records import AbortedTransaction
from penstock.coordination.producers import Duplicate, ProducerTable
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.ids import TopicPartition
from penstock.model.pending import Pending
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    Batch,
    BatchError,
)
from penstock.records.control import Marker, build_marker
from penstock.records.record import RECORD_BYTES_MIN, header_problem
from penstock.records.varint import INT64_MIN
from penstock.records.walk import Violation
from penstock.storage.log import PartitionLog

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CODECS_MAX = 4
_LONG_MAX = 2**63 - 1


class DataWaiter(Protocol):
    def data_came(self, partition: Partition) -> None: ...


class Lane(Protocol):
    """Appends that are being prepared, in order (broker/preparing.py)."""

    def close(self, fault: Fault) -> None:
        """Refuse all batches that have not been appended."""
        ...


class Partition:
    __slots__ = (
        "_flush_seen_ms",
        "_flush_waiters",
        "_lane",
        "_stamps",
        "aborted",
        "compacts",
        "config",
        "data_waiters",
        "durable",
        "flush_within_ms",
        "flushes_by_interval",
        "high_watermark",
        "id",
        "leader_epoch",
        "log",
        "looks_inside",
        "producers",
        "reason",
        "request_flush",
        "snapshot_offset",
        "staged",
        "waits_always",
    )

    def __init__(
        self,
        partition_id: TopicPartition,
        log: PartitionLog | None,
        config: TopicConfig,
        flush_policy: str,
        leader_epoch: int,
        producers: ProducerTable,
        request_flush: Callable[[PartitionLog], None],
        reason: str = "",
    ) -> None:
        self.id = partition_id
        self.log = log
        """None while the partition is offline."""
        self.reason = reason
        """Why the partition is offline, as text for clients: without paths of this machine."""
        self.leader_epoch = leader_epoch
        self.producers = producers
        self.request_flush = request_flush
        self.snapshot_offset = -1
        """The log end offset that the last producer snapshot covers."""
        self.aborted = AbortedTransactions()
        self.data_waiters: dict[DataWaiter, None] = {}
        self._flush_waiters: deque[tuple[int, Callable[[Fault], None]]] = deque()
        self.high_watermark = 0 if log is None else log.log_end_offset
        self._flush_seen_ms = 0
        self._lane: Lane | None = None
        self.configure(config, flush_policy)

    def configure(self, config: TopicConfig, flush_policy: str) -> None:
        self.config = config
        self._stamps = config.has_log_append_time
        self.compacts = config.compacts
        self.looks_inside = self.compacts or config.message_timestamp_before_max_ms != _LONG_MAX
        """Whether the topic has rules about records."""
        self.staged = self.looks_inside or self._lane is not None
        """Whether batches of clients go through `Preparing`."""
        policy = config.penstock_flush or flush_policy
        self.durable = policy in ("acks", "always")
        """Whether the high watermark is the flushed offset."""
        self.waits_always = policy == "always"
        self.flushes_by_interval = policy == "interval"
        self.flush_within_ms = None if self.durable or config.flush_ms == _LONG_MAX else config.flush_ms
        if self.log is not None:
            self.log.config = config
            if not self.durable:
                self._advance(self.log.log_end_offset)  # records that waited for a flush under the old policy

    @property
    def lane(self) -> Lane | None:
        """Appends that are being prepared; later appends queue after them."""
        return self._lane

    @lane.setter
    def lane(self, lane: Lane | None) -> None:
        self._lane = lane
        self.staged = self.looks_inside or lane is not None

    @property
    def online(self) -> bool:
        return self.log is not None

    @property
    def last_stable_offset(self) -> int:
        undecided = self.producers.first_undecided_offset
        if undecided is None:
            return self.high_watermark
        # records may be deleted under an open transaction
        start = 0 if self.log is None else self.log.log_start_offset
        return min(max(undecided, start), self.high_watermark)

    def awaits_flush(self, offset: int, written: int) -> bool:
        """Whether a read of committed records from `offset` stops short of records that a pending flush will show.

        `written` is the log end offset at the time of the request. A read that reaches the last stable offset before its
        own limit asks this, and waits for that flush once. So an acknowledged record is in every later answer, and
        neither later appends nor an open transaction delay the reader. Kafka's fetch of whole batches does not ask: it
        returns what is below the high watermark, and a client that wants more polls again.
        """
        log = self.log
        if log is None or self.high_watermark >= written or offset >= written:
            return False
        if offset >= self.high_watermark:
            return True
        first_open = self.producers.first_open_offset
        # the marker of a transaction holds the last stable offset back until it is flushed
        return first_open is None or self.last_stable_offset < max(first_open, log.log_start_offset)

    # ------------------------------------------------------------------------------------------------ appending

    def append(
        self, views: Sequence[memoryview], now_ms: int, looked: Sequence[Batch | BrokerError] | None = None
    ) -> tuple[list[Appended], int]:
        """Append a run of batches in one write. Returns a result for each, and the offset whose flush makes all durable.

        If the topic has rules about records, `looked` has the findings of `Preparing` about each batch.
        """
        assert looked is not None or not self.looks_inside, "the records have not been checked"
        log = self.log
        if log is None:
            return [Appended(Fault.STORAGE_ERROR, text=f"{self.id} is offline: {self.reason}")] * len(views), 0
        results: list[Appended | None] = []
        accepted: list[Batch] = []
        offset = log.log_end_offset
        safe_offset = 0
        epoch = self.leader_epoch
        producers = self.producers
        staged = False
        stamps = self._stamps
        newest_ms = now_ms + self.config.message_timestamp_after_max_ms
        check: Callable[[Any], Batch] = self.sound if looked is None else _accepted
        for given in views if looked is None else looked:
            try:
                batch = check(given)
                if stamps:
                    batch.stamp(now_ms)
                elif batch.max_timestamp > newest_ms:
                    raise self._too_late(batch.max_timestamp)
            except BrokerError as error:
                results.append(Appended(error.fault, text=error.text, record_index=error.record_index))
                continue
            if batch.producer_id >= 0:
                verdict = producers.check(batch)
                if verdict is None:
                    producers.stage(batch, offset)
                    staged = True
                elif type(verdict) is Duplicate:
                    safe_offset = max(safe_offset, verdict.last_offset + 1)
                    append_time = self._append_time(verdict.timestamp_ms)
                    results.append(Appended(NO_FAULT, verdict.base_offset, append_time, log.log_start_offset))
                    continue
                else:
                    assert isinstance(verdict, Fault)
                    results.append(Appended(verdict))
                    continue
            batch.place(offset, epoch)
            offset += batch.last_offset_delta + 1
            accepted.append(batch)
            results.append(None)
        if accepted:
            written = self._write(log, accepted, now_ms, staged=staged, results=results)
            if written:
                safe_offset = log.log_end_offset
                self._written(log)
        return results, safe_offset  # type: ignore[return-value]  # every None was filled by _write

    def _write(
        self,
        log: PartitionLog,
        accepted: list[Batch],
        now_ms: int,
        *,
        staged: bool,
        results: list[Appended | None],
    ) -> int:
        """Write what was accepted and fill in the results; how many batches made it."""
        failure = ""
        try:
            written = log.append(accepted, now_ms)
        except BrokerError as error:
            written, failure = 0, error.text
        if staged:
            self._settle(accepted, written)
        append_time = self._append_time(now_ms)
        start = log.log_start_offset
        if written == len(results):
            results[:] = [Appended(NO_FAULT, batch.base_offset, append_time, start) for batch in accepted]
            return written
        filled = 0
        for at, result in enumerate(results):
            if result is None:
                if filled < written:
                    results[at] = Appended(NO_FAULT, accepted[filled].base_offset, append_time, start)
                else:
                    results[at] = Appended(Fault.STORAGE_ERROR, text=failure or "no room on the disk")
                filled += 1
        return written

    def _settle(self, accepted: list[Batch], written: int) -> None:
        """Bring the producer window in step with what the log took."""
        if written == len(accepted):
            self.producers.commit()
            return
        self.producers.rollback()
        for batch in accepted[:written]:
            if batch.producer_id >= 0:
                self.producers.stage(batch, batch.base_offset)
                self.producers.commit()

    def _append_time(self, now_ms: int) -> int:
        return now_ms if self._stamps else NO_TIMESTAMP

    def sound(self, view: memoryview) -> Batch:
        """The batch, if its header and its CRC are valid. Raises BrokerError."""
        config = self.config
        try:
            batch = Batch(view)
        except BatchError as error:
            raise _unsound(view, error) from None
        if batch.magic != MAGIC:
            raise BrokerError(Fault.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        size = batch.size
        if size != len(view):
            raise BrokerError(Fault.INVALID_RECORD, "exactly one record batch a partition is taken")
        if size > config.max_message_bytes:
            raise BrokerError(
                Fault.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes is larger than max.message.bytes = {config.max_message_bytes}",
            )
        if not batch.crc_is_right():
            raise BrokerError(Fault.CORRUPT_MESSAGE, "the CRC does not fit the batch")
        attributes = batch.attributes
        if attributes & (CONTROL_BIT | LOG_APPEND_TIME_BIT):
            if attributes & CONTROL_BIT:
                raise BrokerError(Fault.INVALID_RECORD, "clients may not write control batches")
            raise BrokerError(Fault.INVALID_TIMESTAMP, "a producer may not say LogAppendTime")
        count = batch.count
        if count <= 0 or batch.last_offset_delta != count - 1:
            raise BrokerError(Fault.INVALID_RECORD, f"{count} records end at offset delta {batch.last_offset_delta}")
        if attributes & COMPRESSION_MASK > _CODECS_MAX:
            raise BrokerError(Fault.UNSUPPORTED_COMPRESSION_TYPE)
        if count * RECORD_BYTES_MIN > size - HEADER_BYTES:  # impossible, or well compressed
            problem = header_problem(batch)
            if problem is not None:
                raise BrokerError(Fault.INVALID_RECORD, problem)
        if batch.producer_id >= 0:
            if batch.base_sequence < 0 or batch.producer_epoch < 0:
                raise BrokerError(
                    Fault.INVALID_RECORD,
                    f"producer id {batch.producer_id} requires an epoch and a sequence of at least 0, "
                    f"got epoch {batch.producer_epoch} and sequence {batch.base_sequence}",
                )
        elif attributes & TRANSACTIONAL_BIT:
            raise BrokerError(Fault.INVALID_RECORD, "a transactional batch requires a producer id")
        return batch

    def rules(self, now_ms: int) -> tuple[bool, int]:
        """The topic's rules about records: whether a key is required, and the oldest allowed timestamp."""
        before_max_ms = self.config.message_timestamp_before_max_ms
        return self.compacts, INT64_MIN if self._stamps or before_max_ms == _LONG_MAX else now_ms - before_max_ms

    def refusal_of(self, violation: Violation) -> BrokerError:
        """The error for a record that breaks a rule."""
        index, timestamp = violation
        if timestamp is None:
            return BrokerError(Fault.INVALID_RECORD, "a record of a compacted topic needs a key", index)
        return self._too_early(timestamp, index)

    def timestamp_refusal(self, oldest_ms: int, newest_ms: int, now_ms: int) -> BrokerError | None:
        """What the topic's rules have against records of these times, if anything."""
        config = self.config
        if self._stamps:
            return None
        if newest_ms - now_ms > config.message_timestamp_after_max_ms:
            return self._too_late(newest_ms)
        return self._too_early(oldest_ms) if now_ms - oldest_ms > config.message_timestamp_before_max_ms else None

    def _too_late(self, timestamp_ms: int) -> BrokerError:
        return BrokerError(
            Fault.INVALID_TIMESTAMP,
            f"timestamp {timestamp_ms} is more than message.timestamp.after.max.ms = "
            f"{self.config.message_timestamp_after_max_ms} after the broker's clock",
        )

    def _too_early(self, timestamp_ms: int, record_index: int = -1) -> BrokerError:
        return BrokerError(
            Fault.INVALID_TIMESTAMP,
            f"timestamp {timestamp_ms} is more than message.timestamp.before.max.ms = "
            f"{self.config.message_timestamp_before_max_ms} before the broker's clock",
            record_index,
        )

    def append_made(self, made: Sequence[bytearray], now_ms: int) -> RunAppended:
        """Append batches that the broker made of bare records: sound by making, so only placed and written."""
        log = self._writable()
        batches = []
        base_offset = offset = log.log_end_offset
        for data in made:
            batch = Batch(memoryview(data))
            if self._stamps:
                batch.stamp(now_ms)
            batch.place(offset, self.leader_epoch)
            offset += batch.last_offset_delta + 1
            batches.append(batch)
        try:
            written = log.append(batches, now_ms)
        except BrokerError as error:
            return RunAppended(error.fault, text=error.text)
        end_offset = log.log_end_offset
        self._written(log)
        count = end_offset - base_offset
        if written < len(batches):
            return RunAppended(Fault.STORAGE_ERROR, base_offset, count, "no room on the disk")
        return RunAppended(NO_FAULT, base_offset, count)

    def append_own(self, data: bytearray, now_ms: int) -> int:
        """Append a batch that the broker made itself; the offset whose flush makes it safe. Raises BrokerError."""
        log = self._writable()
        batch = Batch(memoryview(data))
        offset = log.log_end_offset
        if batch.producer_id >= 0:
            self.producers.stage(batch, offset)  # a coordinator checked who it is; its batches have no sequences
        batch.place(offset, self.leader_epoch)
        self._append_staged(log, batch, now_ms)
        return log.log_end_offset

    def append_marker(
        self, marker: Marker, producer_id: int, producer_epoch: int, transaction_version: int, now_ms: int
    ) -> int:
        """End a producer's transaction here; the offset whose flush makes the end safe. Raises BrokerError."""
        log = self._writable()
        verdict = self.producers.check_marker(
            producer_id,
            producer_epoch,
            marker.coordinator_epoch,
            transaction_version,
            newest_coordinator_epoch=self.leader_epoch,
        )
        if isinstance(verdict, Duplicate):
            return log.log_end_offset
        if verdict is not None:
            raise BrokerError(verdict)
        data = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms)
        batch = Batch(memoryview(data))
        offset = log.log_end_offset
        batch.place(offset, self.leader_epoch)
        aborted = self.producers.stage(batch, offset)
        self._append_staged(log, batch, now_ms, aborted)
        return log.log_end_offset

    def _writable(self) -> PartitionLog:
        if self.log is None:
            raise BrokerError(Fault.STORAGE_ERROR, f"{self.id} is offline: {self.reason}")
        return self.log

    def _append_staged(
        self, log: PartitionLog, batch: Batch, now_ms: int, aborted: AbortedTransaction | None = None
    ) -> None:
        try:
            if aborted is not None:
                log.append_aborted(aborted.encode())
            log.append_own(batch, now_ms)
        except BrokerError:
            self.producers.rollback()
            raise
        self.producers.commit()
        if aborted is not None:
            self.aborted.add(aborted)  # before the reads that wait are woken
        self._written(log)

    def _written(self, log: PartitionLog) -> None:
        """Request the flush of an append, and make it visible unless it must be flushed first."""
        if self.durable:
            self.request_flush(log)
            return
        # Kafka flushes a segment when it is closed, whatever the policy is; here, its files also stay open until then.
        if log.keeps_files_open or log.log_end_offset - log.flushed_offset >= self.config.flush_messages:
            self.request_flush(log)
        self._advance(log.log_end_offset)

    # ------------------------------------------------------------------------------------------------ waiting

    def when_flushed(self, offset: int, callback: Callable[[Fault], None]) -> bool:
        """Call back when everything below `offset` is safe on disk; False when it is already, and nothing is called."""
        log = self.log
        if log is None or log.flushed_offset >= offset:
            return False
        if log.failure is not None:
            callback(Fault.STORAGE_ERROR)
            return True
        self._flush_waiters.append((offset, callback))
        return True

    def once_readable(self, ask: Callable[[], T], written: int | None = None) -> T | Pending[T]:
        """What `ask` says when all that is written by now, or below `written`, can be read: at once, or when its flush
        has ended."""
        log = self.log
        if log is None:
            return ask()
        if written is None:
            written = log.log_end_offset
        if self.high_watermark >= written:
            return ask()
        waiting: Pending[T] = Pending()
        if self.when_flushed(written, lambda _: waiting.complete(ask())):
            return waiting
        return ask()

    def end(self, *, committed: bool) -> int | Pending[int]:
        """Where the records of that reader end: with all that is written by now, and nothing that comes behind it."""
        written = self.high_watermark if self.log is None else self.log.log_end_offset
        return self.once_readable(lambda: min(written, self.last_stable_offset if committed else self.high_watermark))

    def flushed(self) -> None:
        """The log was flushed, or failed: move the high watermark and answer those who waited."""
        log = self.log
        if log is None:
            return
        if self.durable:
            self._advance(log.flushed_offset)
        waiting, self._flush_waiters = self._flush_waiters, deque()
        flushed, failed = log.flushed_offset, log.failure is not None
        for offset, callback in waiting:
            if offset > flushed and not failed:
                self._flush_waiters.append((offset, callback))
                continue
            try:
                callback(NO_FAULT if offset <= flushed else Fault.STORAGE_ERROR)
            except Exception:
                logger.exception("%s: one that waited for a flush failed; the others go on", self.id)

    def flush_is_due(self, now_ms: int, next_look_ms: int, flush_interval_ms: int) -> bool:
        """Whether what was appended would wait too long for a timed flush if this waited for the next look.

        Where every append is flushed anyway, only after such a flush was refused; never where the policy leaves it to the
        system.
        """
        log = self.log
        if log is None or not log.dirty or self.durable:
            self._flush_seen_ms = now_ms
            return log is not None and log.dirty and log.flush_refused is not None
        if self.flush_within_ms is not None:
            within_ms = self.flush_within_ms
        elif self.flushes_by_interval:
            within_ms = flush_interval_ms
        else:
            return False
        if next_look_ms - self._flush_seen_ms < within_ms:
            return False
        self._flush_seen_ms = now_ms
        return True

    def log_start_moved(self) -> None:
        """Segments were deleted, or records below an offset."""
        assert self.log is not None
        self.producers.log_start_moved(self.log.log_start_offset)
        self.aborted.cut_start(self.log.log_start_offset)

    def _advance(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        self.producers.high_watermark_moved(offset)
        self.wake()

    def wake(self) -> None:
        """Tell the waiting reads that there may be something."""
        if self.data_waiters:
            for waiter in list(self.data_waiters):
                waiter.data_came(self)

    def close(self) -> None:
        """The partition is deleted or the broker stops: nobody waits any longer."""
        if self._lane is not None:
            self._lane.close(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        waiters, self._flush_waiters = self._flush_waiters, deque()
        for _, callback in waiters:
            callback(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        self.wake()


def _accepted(looked: Batch | BrokerError) -> Batch:
    if isinstance(looked, BrokerError):
        raise looked
    return looked


def _unsound(view: memoryview, error: BatchError) -> BrokerError:
    if len(view) == 0:
        return BrokerError(Fault.INVALID_RECORD, "a produce needs a record batch for each partition")
    if len(view) > 16 and view[16] < MAGIC:
        return BrokerError(Fault.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    return BrokerError(Fault.CORRUPT_MESSAGE, str(error))
