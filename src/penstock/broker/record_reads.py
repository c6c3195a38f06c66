"""Reading records instead of batches, for dialects that hand out records: committed ones only, through the cache.

Nothing here blocks the loop. A reader thread loads a batch that is not in memory. Another thread reads and unpacks a batch
that is large, or unpacks to a large size, within the bounds of `Unpacking`. A read of many records or headers continues in
slices, and its answer ends at READ_OBJECTS_MAX of them.

A read that would stop at the high watermark before its own limit, while later records are being flushed, waits for that
flush, once. No answer has records that were appended after its request, unless the caller asked to wait for them at the end
of the log.

No answer has a record of a batch whose CRC is wrong. A read gives the records before such a batch, and the read that starts
at it fails with a text that names the offset and the next readable one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.broker.batch_checks import BatchChecks, Unchecked, Unreadable, Verdict, examine, next_readable
from penstock.broker.batch_loading import BatchLoading
from penstock.broker.engine import Isolation, Read, RecordsRead
from penstock.broker.large_values import LargeBatch, Limits, has_large_values, read_larges
from penstock.broker.partition import Partition
from penstock.broker.reads import COLD_TRIES_MAX, Reads
from penstock.broker.record_cache import DecodedBatch, Far
from penstock.broker.unpacking import Unpacking
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.limits import READ_OBJECTS_MAX
from penstock.model.pending import Pending, settle
from penstock.model.slices import Work
from penstock.records.batch import HEADER_BYTES, Batch, BatchError, BatchTooLarge, whole_batches
from penstock.records.record import Record
from penstock.storage.files import Cold, Disk, ReadFailed, is_temporary, public_reason
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Rebuilding, Segment

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNPACK_ON_LOOP_BYTES_MAX = 32 * 1024
"""Larger compressed batches are unpacked on a thread: about a tenth of a millisecond each."""
UNPACKED_ON_LOOP_BYTES_MAX = 256 * 1024
"""Total unpacked size of the compressed batches that one read unpacks on the loop: less than a millisecond."""
OBJECTS_AT_ONCE = 2_000
"""Records and headers that a read collects before other work runs: about three milliseconds."""
BATCH_OBJECTS = 8
"""Objects that visiting a batch counts as, even if its records are hidden."""
READ_ON_LOOP_BYTES_MAX = 1024 * 1024
"""Larger plain batches are read and checked on a thread: about a third of a millisecond each."""
SPAN_BYTES = 16 * 1024
"""One read of a log of small batches."""
AT_HAND_BYTES_MAX = 2 * 1024
"""Whoever asks for no more gets it from one batch most often, and loses little when not."""


class _SoFar(NamedTuple):
    """The records found so far by a read that waits for a thread or for its turn, and where it continues."""

    records: Sequence[Record]
    size: int
    at: int


_NOTHING = _SoFar((), 0, -1)


class _Large(Exception):
    """The batch has large values, which the caller takes as ranges of the file."""

    def __init__(self, batch: LargeBatch) -> None:
        self.batch = batch


class _Slow(Exception):
    """The batch has to be fetched or unpacked elsewhere first."""

    def __init__(self, segment: Segment, position: int, header: Batch) -> None:
        self.segment = segment
        self.position = position
        self.header = header
        self.so_far = _NOTHING
        """What the read found before it."""


class _Pause(Exception):
    """The read has used its time and continues after other work."""

    def __init__(self, so_far: _SoFar) -> None:
        self.so_far = so_far


class _Unflushed(Exception):
    """The read ends at the high watermark, short of records that were written before it and are being flushed."""


class _Wanted(NamedTuple):
    """What a reader asks of a partition."""

    offset: int
    max_records: int
    max_bytes: int
    large: bool
    keys: bool
    headers: bool
    max_wait_ms: int
    written: int
    """The log end offset at the time of the request: later records belong to later answers."""
    waits_for_flush: bool = True
    cold_tries: int = 0
    span_bytes: int = SPAN_BYTES
    """What one read of a file brings. After a failed read no more than is needed: the damage may lie after it."""
    so_far: _SoFar = _NOTHING


class RecordReads:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reads: Reads,
        readers: ThreadPoolExecutor,
        partitions: Mapping[tuple[str, int], Partition],
        disk: Disk,
        unpacking: Unpacking,
    ) -> None:
        self._partitions = partitions
        self._reads = reads
        self._disk = disk
        self._loading = BatchLoading(loop, readers, unpacking)
        self._cache = self._loading.cache
        self._checks = BatchChecks(disk)

    def read(
        self,
        topic: str,
        index: int,
        offset: int,
        max_records: int,
        max_bytes: int,
        max_wait_ms: int = 0,
        *,
        large: bool = False,
        keys: bool = True,
        headers: bool = True,
    ) -> RecordsRead | Pending[RecordsRead]:
        partition = self._partitions.get((topic, index))
        if partition is None:
            return RecordsRead(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if max_records == 1 or max_bytes <= AT_HAND_BYTES_MAX:
            at_hand = self._at_hand(partition, offset, max_records, max_bytes, keys, headers)
            if at_hand is not None:
                return at_hand
        written = 0 if partition.log is None else partition.log.log_end_offset
        wanted = _Wanted(offset, max_records, max_bytes, large, keys, headers, max_wait_ms, written)
        return self._read(partition, wanted)

    def _read(self, partition: Partition, wanted: _Wanted) -> RecordsRead | Pending[RecordsRead]:
        try:
            found = self._look(partition, wanted)
        except (Cold, _Slow, Unchecked, Far) as slow:
            return self._later(slow, partition, wanted)
        except _Pause as pause:
            rest: RecordsRead | Pending[RecordsRead] = self._loading.in_slices(
                self._rest(partition, wanted._replace(so_far=pause.so_far)), drop=True
            )
            return rest
        except _Unflushed:
            again = wanted._replace(waits_for_flush=False)  # once: under load there is always a flush under way
            flushed = partition.once_readable(lambda: None, wanted.written)
            if isinstance(flushed, Pending):
                return self._when(flushed, partition, again)
            return self._read(partition, again)
        if found.fault is not NO_FAULT or found.first is not None or wanted.max_wait_ms <= 0:
            return found
        return self._when_more(partition, wanted)

    def _when(self, waited: Pending[Any], partition: Partition, wanted: _Wanted) -> Pending[RecordsRead]:
        """Look again when that has come."""
        answer: Pending[RecordsRead] = Pending(waited.abandon)
        waited.then(lambda _: self._again(answer, partition, wanted))
        return answer

    def _again(self, answer: Pending[RecordsRead], partition: Partition, wanted: _Wanted) -> None:
        if not answer.done:
            settle(answer, self._read(partition, wanted))

    # ------------------------------------------------------------------------------------------------ now

    def _at_hand(
        self, partition: Partition, offset: int, max_records: int, max_bytes: int, keys: bool, headers: bool
    ) -> RecordsRead | None:
        """As much as is asked for, if one batch has it that is in the cache, and nothing about it has to be asked: the way
        of most reads."""
        log = partition.log
        end = partition.last_stable_offset
        if log is None or not log.log_start_offset <= offset < end:
            return None
        segments = log.segments
        segment = segments[-1]
        if offset < segment.base_offset:
            segment = segments[log.segment_at(offset)]
        batch = self._cache.find(segment, offset)
        if batch is None or batch.is_control or batch.is_transactional:
            return None
        start = log.log_start_offset
        try:
            if max_records == 1:
                first = batch.record_at(offset, with_headers=headers)
                if first is None:
                    return None
                # made without the keywords of a NamedTuple, which take longer than all the rest of this
                return tuple.__new__(RecordsRead, (NO_FAULT, (first,), first.offset + 1, start, end, (), ""))
            records: list[Record] = []
            size = header_count = 0
            for record in batch.from_offset(offset, with_headers=headers):
                size += _weight(record, keys)
                if records and size > max_bytes:
                    return RecordsRead(NO_FAULT, records, record.offset, start, end)
                header_count += len(record.headers)
                if header_count >= OBJECTS_AT_ONCE:
                    return None  # too long for one go: they do not count as bytes
                records.append(record)
                if size >= max_bytes or len(records) >= max_records:
                    return RecordsRead(NO_FAULT, records, record.offset + 1, start, end)
        except BatchError as error:
            return self._failed(log, offset, end, Unreadable(segment, Verdict(str(error)), batch.header))
        except Far:
            return None
        return None

    def _look(self, partition: Partition, wanted: _Wanted) -> RecordsRead:
        """The records that can be read now. Raises Cold, _Slow, Unchecked, Far, _Pause and _Unflushed."""
        offset, max_records, max_bytes, large, keys, headers, _, written, _, _, span_bytes, so_far = wanted
        log = partition.log
        if log is None:
            return RecordsRead(Fault.STORAGE_ERROR)
        start, end = log.log_start_offset, min(partition.last_stable_offset, written)
        if not start <= offset <= log.log_end_offset:
            return RecordsRead(Fault.OFFSET_OUT_OF_RANGE, (), offset, start, end)
        records: list[Record] = []
        size = 0
        at = offset
        if so_far is not _NOTHING:
            records, size, at = list(so_far.records), so_far.size, so_far.at
        objects = 0
        batch: DecodedBatch | None = None
        try:
            for batch in self._batches(log, at, end if large else 0, span_bytes):
                if batch.base_offset >= end:
                    at = end
                    break
                objects += BATCH_OBJECTS
                if not self._hidden(partition, batch):
                    for record in batch.from_offset(max(at, start), with_headers=headers):
                        weight = _weight(record, keys)
                        if records and size + weight > max_bytes:
                            return RecordsRead(NO_FAULT, records, record.offset, start, end)
                        records.append(record)
                        size += weight
                        objects += 1 + len(record.headers)
                        if size >= max_bytes or len(records) >= max_records:
                            return RecordsRead(NO_FAULT, records, record.offset + 1, start, end)
                        if objects >= OBJECTS_AT_ONCE:
                            raise _Pause(_SoFar(records, size, record.offset + 1))
                at = batch.last_offset + 1
                if objects >= OBJECTS_AT_ONCE:
                    raise _Pause(_SoFar(records, size, at))
            else:
                at = end
            _check_flushed(partition, wanted)
        except _Slow as slow:
            slow.so_far = _SoFar(records, size, at)
            if objects_of(records) < READ_OBJECTS_MAX:
                raise
            at = records[-1].offset + 1
        except (Cold, Far):
            if not records:
                raise
            at = records[-1].offset + 1  # what is at hand is an answer; the next read fetches on
        except _Large as large_one:
            if not records:
                return self._look_at_larges(partition, log, large_one.batch, max(at, start), end, wanted)
            at = records[-1].offset + 1
        except (OSError, BatchError, Unreadable) as error:
            if not records:
                if isinstance(error, ReadFailed) and span_bytes > HEADER_BYTES:
                    return self._look(partition, wanted._replace(span_bytes=HEADER_BYTES))
                if isinstance(error, OSError) and is_temporary(error):
                    return self._refused(log, at, end, error)
                segment = log.segments[log.segment_at(at)]
                return self._failed(log, at, end, _damage(segment, error, batch))
            at = records[-1].offset + 1  # the next read meets it again and says so
        return RecordsRead(NO_FAULT, records, min(at, end), start, end)

    def _look_at_larges(
        self, partition: Partition, log: PartitionLog, first: LargeBatch, offset: int, end: int, wanted: _Wanted
    ) -> RecordsRead:
        offset = max(offset, first.header.base_offset)
        limits = Limits(end, wanted.max_records, wanted.max_bytes, wanted.keys)
        try:
            larges, up_to_end = read_larges(log, first, offset, limits, self._checks)
        except (OSError, Unreadable) as error:
            if isinstance(error, OSError) and is_temporary(error):
                return self._refused(log, offset, end, error)
            return self._failed(log, offset, end, _damage(first.segment, error))
        if not larges:
            return self._look(partition, wanted._replace(large=False))
        if up_to_end:
            _check_flushed(partition, wanted)
        return RecordsRead(NO_FAULT, (), larges[-1].offset + 1, log.log_start_offset, end, larges)

    def _failed(self, log: PartitionLog, offset: int, end: int, damage: Unreadable) -> RecordsRead:
        """The answer to a read whose first record cannot be served."""
        if damage.header is not None:
            offset = max(offset, damage.header.base_offset)
        next_offset = next_readable(log, damage, offset)
        self._checks.warn(log, damage, offset, next_offset)
        text = f"record at offset {offset} {damage.problem}; next readable offset is {next_offset}"
        return RecordsRead(Fault.STORAGE_ERROR, (), next_offset, log.log_start_offset, end, text=text)

    def _refused(self, log: PartitionLog, offset: int, end: int, error: OSError) -> RecordsRead:
        """The answer to a read that failed though nothing is wrong with the records: the same read may succeed."""
        self._reads.errors.note(log.name, offset, error)
        text = f"record at offset {offset} cannot be read now: {public_reason(error)}; retry"
        return RecordsRead(Fault.STORAGE_ERROR, (), offset, log.log_start_offset, end, text=text)

    def _batches(self, log: PartitionLog, offset: int, large_below: int, span_bytes: int) -> Iterator[DecodedBatch]:
        """The decoded batches from the one that holds `offset` on. Raises Cold and _Slow, and _Large at a batch of large
        values that begins below `large_below`."""
        while offset < log.log_end_offset:
            known = self._cache.find(log.segments[log.segment_at(offset)], offset)
            if known is not None:
                yield known
                offset = known.last_offset + 1
                continue
            located = log.locate(offset)
            if located is None:
                return
            segment, place = located
            span = self._decoded(segment, place.position, large_below, span_bytes)
            # whoever begins at the first record of a batch walks the log: all that the read brought is kept at once
            for batch in list(span) if offset == place.base_offset else span:
                yield batch
                offset = batch.last_offset + 1

    def _decoded(self, segment: Segment, position: int, large_below: int, span_bytes: int) -> Iterator[DecodedBatch]:
        """The batches that one read brings, at least one; they are in the cache then."""
        first = True
        room = UNPACKED_ON_LOOP_BYTES_MAX
        for batch in self._span(segment, position, large_below, span_bytes):
            try:
                decoded = DecodedBatch(batch, room) if batch.compression else DecodedBatch(batch)
            except BatchTooLarge:
                if first:
                    raise _Slow(segment, position, Batch.of_header(batch.view)) from None
                return
            except BatchError as error:
                if first:
                    raise Unreadable(segment, Verdict(str(error)), batch, position) from None
                return  # it is told to those who ask for it
            if batch.compression:
                room -= decoded.size
            self._cache.put(segment, decoded)
            first = False
            yield decoded

    @staticmethod
    def _span(segment: Segment, position: int, large_below: int, span_bytes: int) -> Iterator[Batch]:
        """The batches that one read brings, at least one. A large one is left to a thread."""
        span = segment.read_span_now(position, min(span_bytes, segment.size - position))
        header = Batch.of_header(span)
        if header.base_offset < large_below and has_large_values(header):
            raise _Large(LargeBatch(segment, position, header))
        if header.size > (UNPACK_ON_LOOP_BYTES_MAX if header.compression else READ_ON_LOOP_BYTES_MAX):
            raise _Slow(segment, position, header)
        if header.size > len(span):
            span = segment.read_span_now(position, header.size)
            if header.size > len(span):
                reason = f"the file ends at {position + len(span)}, the batch at {position + header.size}"
                raise Unreadable(segment, Verdict(reason), header, position)
        for batch in whole_batches(span):
            if batch.compression and batch.size > UNPACK_ON_LOOP_BYTES_MAX:
                return
            yield batch

    @staticmethod
    def _hidden(partition: Partition, batch: DecodedBatch) -> bool:
        if batch.is_control:
            return True
        if not batch.is_transactional:
            return False
        aborted = partition.aborted.between(batch.base_offset, batch.last_offset + 1)
        return any(producer_id == batch.producer_id for producer_id, _ in aborted)

    # ------------------------------------------------------------------------------------------------ later

    def _rest(self, partition: Partition, wanted: _Wanted) -> Work[RecordsRead]:
        """The answer of a read that takes several slices."""
        log = partition.log
        so_far = wanted.so_far
        objects = objects_of(so_far.records)
        while log is not None and objects < READ_OBJECTS_MAX:
            yield None
            try:
                found = self._look(partition, wanted)
            except _Pause as pause:
                objects += objects_of(pause.so_far.records[len(so_far.records) :])
                so_far = pause.so_far
                wanted = wanted._replace(so_far=so_far)
            except _Unflushed:
                wanted = wanted._replace(waits_for_flush=False)
                flushed = partition.once_readable(lambda: None, wanted.written)
                if isinstance(flushed, Pending):
                    yield flushed
            except (Cold, _Slow, Unchecked, Far) as slow:
                answer: RecordsRead = yield self._later(slow, partition, wanted)
                return answer
            else:
                if found.fault is NO_FAULT and found.first is None and wanted.max_wait_ms > 0:
                    waits = self._when_more(partition, wanted._replace(offset=found.next_offset, so_far=_NOTHING))
                    answer = (yield waits) if isinstance(waits, Pending) else waits
                    return answer
                return found
        if log is None:
            return RecordsRead(Fault.STORAGE_ERROR)
        return RecordsRead(
            NO_FAULT,
            so_far.records,
            so_far.at,
            log.log_start_offset,
            min(partition.last_stable_offset, wanted.written),
        )

    def _later(
        self, slow: Cold | _Slow | Unchecked | Far, partition: Partition, wanted: _Wanted
    ) -> Pending[RecordsRead]:
        answer: Pending[RecordsRead] = Pending()
        if isinstance(slow, Cold):
            self._warm(slow, answer, partition, wanted)
        elif isinstance(slow, _Slow):
            self._unpack(slow, answer, partition, wanted)
        elif isinstance(slow, Far):
            self._seek(slow, answer, partition, wanted)
        else:
            self._check(slow, answer, partition, wanted)
        return answer

    def _unpack(self, slow: _Slow, answer: Pending[RecordsRead], partition: Partition, wanted: _Wanted) -> None:
        """Go on with the batch when a thread has unpacked it, or without it when that failed."""
        segment, position, header, so_far = slow.segment, slow.position, slow.header, slow.so_far

        def ended(error: BaseException | None) -> None:
            log = partition.log
            if error is None:
                self._again(answer, partition, wanted._replace(so_far=so_far))
            elif log is None:
                answer.complete(RecordsRead(Fault.STORAGE_ERROR, (), wanted.offset))
            elif so_far.records:
                start, end = log.log_start_offset, partition.last_stable_offset
                next_offset = so_far.records[-1].offset + 1
                answer.complete(RecordsRead(NO_FAULT, so_far.records, next_offset, start, end))
            elif isinstance(error, OSError) and is_temporary(error):
                answer.complete(self._refused(log, wanted.offset, partition.last_stable_offset, error))
            else:
                is_corrupt = isinstance(error, BatchError) and not isinstance(error, BatchTooLarge)
                verdict = Verdict(str(error) or repr(error), is_corrupt=is_corrupt)
                damage = Unreadable(segment, verdict, header, position)
                answer.complete(self._failed(log, wanted.offset, partition.last_stable_offset, damage))

        self._loading.unpack(segment, position, header.size, max(wanted.offset, so_far.at), ended)

    def _seek(self, far: Far, answer: Pending[RecordsRead], partition: Partition, wanted: _Wanted) -> None:
        """Continue once the marks of a batch are set."""
        log = partition.log
        assert log is not None, "a batch was found in it"

        def ended(batch: DecodedBatch | None, error: BaseException | None) -> None:
            if batch is None or error is None:
                self._again(answer, partition, wanted)
                return
            damage = Unreadable(log.segments[log.segment_at(far.offset)], Verdict(str(error)), batch.header)
            answer.complete(self._failed(log, far.offset, partition.last_stable_offset, damage))

        self._loading.seek(log, far, ended)

    def _check(self, slow: Unchecked, answer: Pending[RecordsRead], partition: Partition, wanted: _Wanted) -> None:
        """Go on when a thread has checked the batches."""
        stretches = slow.stretches

        def ended(error: BaseException | None) -> None:
            if error is None:
                self._again(answer, partition, wanted)
            else:
                logger.error("%s: a check of batches failed", partition.id, exc_info=error)
                answer.complete(RecordsRead(Fault.STORAGE_ERROR, (), wanted.offset))

        key = stretches[0].file, stretches[0].position, len(stretches)
        self._loading.on_thread(
            key, partial(examine, self._disk, stretches), partial(self._checks.note, stretches), ended
        )

    def _warm(self, cold: Cold, answer: Pending[RecordsRead], partition: Partition, wanted: _Wanted) -> None:
        """Look again when a thread has read the bytes. The look meets an error of that read."""
        log = partition.log
        if wanted.cold_tries < COLD_TRIES_MAX or log is None:
            tries = wanted.cold_tries + (not isinstance(cold, Rebuilding))  # which always comes to an end
            tried = wanted._replace(cold_tries=tries)
            self._reads.warm(cold, partial(self._again, answer, partition, tried))
            return
        error = OSError(errno.EAGAIN, f"{cold.file.path}: the log does not stay in memory")
        answer.complete(self._refused(log, wanted.offset, partition.last_stable_offset, error))

    def _when_more(self, partition: Partition, wanted: _Wanted) -> RecordsRead | Pending[RecordsRead]:
        """Wait as a fetch does, then look again, once."""
        topic, index = partition.id
        offset = max(wanted.offset, partition.last_stable_offset)
        waited = self._reads.read([Read(topic, index, offset, 1)], 1, 1, wanted.max_wait_ms, Isolation.READ_COMMITTED)
        again = wanted._replace(max_wait_ms=0, written=sys.maxsize, waits_for_flush=False)
        return self._when(waited, partition, again) if isinstance(waited, Pending) else self._read(partition, again)


def _weight(record: Record, keys: bool) -> int:
    size = 0 if record.value is None else len(record.value)
    return size + len(record.key) if keys and record.key is not None else size


def objects_of(records: Sequence[Record]) -> int:
    """Number of records and their headers."""
    return sum(1 + len(record.headers) for record in records)


def _check_flushed(partition: Partition, wanted: _Wanted) -> None:
    if wanted.waits_for_flush and partition.awaits_flush(wanted.offset, wanted.written):
        raise _Unflushed


def _damage(
    segment: Segment, error: OSError | BatchError | Unreadable, batch: DecodedBatch | None = None
) -> Unreadable:
    """What is known of the failure of a look: a record of `batch` that cannot be decoded, or whatever the disk said."""
    if isinstance(error, Unreadable):
        return error
    if isinstance(error, BatchError):
        assert batch is not None, "the records of a batch are decoded"
        return Unreadable(segment, Verdict(str(error)), batch.header)
    return Unreadable(segment, Verdict(str(error), is_corrupt=False))
