"""What all RustLog connections of a listener share: the engine, the settings, the counts, and what each request does.

The two forms share the topics and the groups and differ in rules, each as its text has it:

- Fetch with a group. JSON: from the larger of the committed and the requested offset, and from the requested one when
  nothing is committed. Binary: from the committed offset, and nothing at all when nothing is committed.
- Fetch outside the log. JSON: below its start an error, past its end no records and the log end. Binary: below its start
  the first records there are, past its end no records and the offset that was asked for.
- `max_bytes`. JSON counts payloads and always gives one record. Binary counts 12 bytes more for each, and 0 gives none.
- OffsetCommit for a partition that does not exist. JSON: no success. Binary: success.
"""

from __future__ import annotations

from typing import Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import LargeRecord, NewTopic, RecordsRead, RunAppended, TopicResult
from penstock.broker.long_runs import READ_AT_ONCE, append_long_run, read_on
from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    FetchOffsets,
    FetchResult,
    OffsetToCommit,
)
from penstock.dialects.rustlog.binary_form import (
    FETCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RECORD_WEIGHT_BYTES,
    topic_row,
)
from penstock.dialects.rustlog.metrics import ListenerMetrics
from penstock.dialects.rustlog.requests import (
    JSON,
    CreateTopic,
    Fetch,
    Fetched,
    OffsetCommit,
    OffsetFetch,
    ProduceRun,
    Refusal,
)
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.ids import is_group_name, topic_name
from penstock.model.listeners import ListenerSettings
from penstock.model.pending import Pending, in_turn, when
from penstock.model.slices import Work, all_of
from penstock.records.record import Record

FETCH_RECORDS_MAX = 4_096
"""Records in one answer: more of them would hold up the other connections; `next_offset` says where to go on."""
LISTED_AT_ONCE = 100
"""Topics or partitions between two pauses."""
_I64_MAX = 2**63 - 1
_I32_MAX = 2**31 - 1


class RustLogService:
    def __init__(self, engine: EmbeddedEngine, settings: ListenerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = ListenerMetrics()

    # ------------------------------------------------------------------------------------------------ produce

    def append(self, run: ProduceRun) -> RunAppended | Pending[RunAppended]:
        if run.values:
            return self.engine.append_run(run.topic, run.partition, run.values, None, self.settings.acks)
        known = self.engine.partition(run.topic, run.partition) is not None
        return RunAppended(NO_FAULT if known else Fault.UNKNOWN_TOPIC_OR_PARTITION, 0, 0)

    def append_long(self, run: ProduceRun) -> Work[RunAppended | Pending[RunAppended]]:
        """As `append`, for many records. Creates the topic if needed and allowed."""
        appended = yield from self._append_long(run)
        if (
            isinstance(appended, Pending)
            or appended.fault is not Fault.UNKNOWN_TOPIC_OR_PARTITION
            or not self.makes(run)
        ):
            return appended
        fault = yield self.make(run)
        if fault is NO_FAULT or self.engine.partition(run.topic, run.partition) is not None:
            return (yield from self._append_long(run))
        return RunAppended(fault)

    def _append_long(self, run: ProduceRun) -> Work[RunAppended | Pending[RunAppended]]:
        return append_long_run(self.engine, run.topic, run.partition, run.values, None, self.settings.acks)

    def makes(self, run: ProduceRun) -> bool:
        """Whether a produce to that partition, which does not exist, is to make it."""
        settings = self.settings
        if not settings.creates_topics:
            return False
        if self.engine.topic(run.topic) is None:
            return run.partition < (settings.partitions or settings.partitions_max)
        return not settings.partitions and run.partition < settings.partitions_max

    def make(self, run: ProduceRun) -> Pending[Fault]:
        """Make the topic of the run, or as many partitions as it needs. Somebody else may just have done it."""
        partitions = self.settings.partitions or run.partition + 1
        if self.engine.topic(run.topic) is None:
            made = self.engine.create_topics([NewTopic(run.topic, partitions)], validate_only=False)
        else:
            made = self.engine.add_partitions([(run.topic, partitions)], validate_only=False)
        return made.map(lambda results: results[0].fault)

    # ------------------------------------------------------------------------------------------------ fetch

    def fetch(self, request: Fetch) -> Fetched | Refusal | Pending[Fetched | Refusal]:
        if not request.group:
            return self._read(request, request.offset)
        if self.engine.partition(request.topic, request.partition) is None:
            return Refusal(Fault.UNKNOWN_TOPIC_OR_PARTITION)

        def from_committed(committed: int | Refusal | None) -> Fetched | Refusal | Pending[Fetched | Refusal]:
            if isinstance(committed, Refusal):
                return committed
            self._note_lag(request, committed)
            if request.form is JSON:
                return self._read(request, max(request.offset, committed or 0))
            return Fetched((), 0) if committed is None else self._read(request, committed)

        return in_turn(self._committed(request.group, request.topic, request.partition), from_committed)

    def _read(self, request: Fetch, offset: int) -> Fetched | Refusal | Pending[Fetched | Refusal]:
        max_bytes = min(request.max_bytes, self.settings.frame_bytes_max)
        records_max = FETCH_RECORDS_MAX
        if request.form is not JSON:
            if not max_bytes:
                known = self.engine.partition(request.topic, request.partition) is not None
                return Fetched((), offset) if known else Refusal(Fault.UNKNOWN_TOPIC_OR_PARTITION)
            records_max = max(1, min(records_max, max_bytes // RECORD_WEIGHT_BYTES))
        is_binary = request.form is not JSON
        count = min(records_max, READ_AT_ONCE)
        found = self.engine.read_records(
            request.topic, request.partition, offset, count, max_bytes, large=is_binary, keys=False, headers=False
        )
        if type(found) is RecordsRead and len(found.records) < READ_AT_ONCE:
            return self._taken(request, offset, max_bytes, found)

        def taken(read: RecordsRead) -> Fetched | Refusal | Pending[Fetched | Refusal]:
            if len(read.records) < READ_AT_ONCE or records_max == count:
                return self._taken(request, offset, max_bytes, read)
            reading = self._read_on(request, offset, read, records_max, max_bytes)
            return self.engine.in_slices(reading, drop=True)  # type: ignore[no-any-return]

        return in_turn(found, taken) if isinstance(found, Pending) else taken(found)

    def _read_on(
        self, request: Fetch, offset: int, read: RecordsRead, records_max: int, max_bytes: int
    ) -> Work[Fetched | Refusal | Pending[Fetched | Refusal]]:
        topic, partition = request.topic, request.partition
        found = yield from read_on(
            self.engine, topic, partition, read, records_max, max_bytes, keys=False, headers=False
        )
        return self._taken(request, offset, max_bytes, found)

    def _taken(
        self, request: Fetch, offset: int, max_bytes: int, found: RecordsRead
    ) -> Fetched | Refusal | Pending[Fetched | Refusal]:
        is_json = request.form is JSON
        if found.fault is not NO_FAULT:
            if found.fault is not Fault.OFFSET_OUT_OF_RANGE:
                return Refusal(found.fault, found.text)
            if offset >= found.log_start_offset:
                return Fetched((), self._log_end(request) if is_json else offset)
            if is_json:
                text = f"offset={offset}, log start offset={found.log_start_offset}"
                return Refusal(Fault.OFFSET_OUT_OF_RANGE, text)
            return self._read(request, found.log_start_offset)
        if is_json:
            # a record that is not flushed yet, or in a transaction, is before the end: nobody is sent back behind it
            return Fetched(found.records, found.next_offset if found.records else max(offset, found.next_offset))
        return self._fitting(found, offset, max_bytes)

    def _fitting(self, found: RecordsRead, offset: int, max_bytes: int) -> Fetched | Refusal:
        """What a binary answer takes: within `max_bytes`, and without a gap, so that its next offset dates every record."""
        value_bytes_max = self.settings.frame_bytes_max - FETCH_OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES
        records: list[Record | LargeRecord] = []
        weight = 0
        for record in found.larges or found.records:
            size = 0 if record.value is None else len(record.value)
            weight += RECORD_WEIGHT_BYTES + size
            if records and (weight > max_bytes or record.offset != records[-1].offset + 1):
                break
            if size > value_bytes_max:
                return self.too_large(record)
            records.append(record)
        if records:
            return Fetched(records, records[-1].offset + 1)
        return Fetched((), max(offset, found.next_offset))

    def _note_lag(self, request: Fetch, committed: int | None) -> None:
        found = self.engine.partition(request.topic, request.partition)
        if found is not None and found.log is not None:
            start = found.log.log_start_offset if committed is None else committed
            lag = max(found.log.log_end_offset - start, 0)
            self.metrics.note_lag(request.topic, request.partition, request.group or "", lag)

    def _log_end(self, request: Fetch) -> int:
        found = self.engine.partition(request.topic, request.partition)
        return 0 if found is None or found.log is None else found.log.log_end_offset

    def too_large(self, record: Record | LargeRecord) -> Refusal:
        size = 0 if record.value is None else len(record.value)
        limit = self.settings.frame_bytes_max
        return Refusal(
            Fault.MESSAGE_TOO_LARGE,
            f"the record at offset {record.offset} has {size} bytes and does not fit a frame of {limit}; "
            f"go on at {record.offset + 1}",
        )

    # ------------------------------------------------------------------------------------------------ offsets

    def commit(self, request: OffsetCommit) -> Refusal | Pending[Refusal | None] | None:
        """None when it is committed."""
        group, topic, partition, offset = request.group, request.topic, request.partition, request.offset
        if not is_group_name(group):
            return Refusal(Fault.INVALID_GROUP_ID)
        if request.form is JSON and self.engine.partition(topic, partition) is None:
            return Refusal(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if partition > _I32_MAX:
            return Refusal(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if offset > _I64_MAX:
            return Refusal(Fault.OFFSET_OUT_OF_RANGE, f"an offset is at most {_I64_MAX}")
        try:
            topic_name(topic)
        except BrokerError as error:
            return Refusal(error.fault, error.text)
        place = OffsetToCommit(topic, partition, offset, -1, "")
        command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, (place,))
        groups, acks = self.engine.groups, self.settings.acks
        asked: Any = self.engine.once_loaded(lambda: groups.commit(command, acks))

        def committed(result: CommitResult | Fault) -> Refusal | None:
            fault = result if isinstance(result, Fault) else result.fault
            return None if fault is NO_FAULT else Refusal(fault)

        return when(asked, committed)

    def committed(self, request: OffsetFetch) -> int | Refusal | Pending[int | Refusal | None] | None:
        return self._committed(request.group, request.topic, request.partition)

    def _committed(
        self, group: str, topic: str, partition: int
    ) -> int | Refusal | Pending[int | Refusal | None] | None:
        if not is_group_name(group):
            return Refusal(Fault.INVALID_GROUP_ID)
        command = FetchOffsets(group, {topic: (partition,)})
        asked: Any = self.engine.once_loaded(lambda: self.engine.groups.ask(group, command))

        def offset_of(result: FetchResult | Fault) -> int | Refusal | None:
            if isinstance(result, Fault):
                return Refusal(result)
            if result.fault is not NO_FAULT:
                return Refusal(result.fault)
            value = result.offsets[topic][partition].value
            return None if value is None or value.offset < 0 else value.offset

        return when(asked, offset_of)

    # ------------------------------------------------------------------------------------------------ topics

    def create(self, request: CreateTopic) -> Refusal | Pending[Refusal | None] | None:
        """None when it is created."""
        count = request.partitions
        if not count:
            return Refusal(Fault.INVALID_PARTITIONS, "Invalid partition count: 0")
        made = self.engine.create_topics([NewTopic(request.topic, count)], validate_only=False)

        def created(results: list[TopicResult]) -> Refusal | None:
            fault, text = results[0].fault, results[0].text or ""
            if fault is Fault.INVALID_PARTITIONS:
                text = f"Invalid partition count: {count}: {text}"
            return None if fault is NO_FAULT else Refusal(fault, text)

        return made.map(created)

    def topics(self) -> Work[list[bytes]]:
        """A row for each topic, sorted by name. Internal topics are not listed, although they can be read."""
        rows: list[bytes] = []
        for number, name in enumerate(self.engine.topic_names(), 1):
            topic = self.engine.topic(name)
            if topic is not None and not topic.internal:
                rows.append(topic_row(name, len(topic.partitions)))
            if number % LISTED_AT_ONCE == 0:
                yield None
        return rows

    def high_watermarks(self, topic: str) -> Work[list[int] | None]:
        info = self.engine.topic(topic)
        if info is None:
            return None
        found: list[int | Pending[int]] = []
        for at in range(len(info.partitions)):
            found.append(self.high_watermark(topic, at) or 0)
            if at % LISTED_AT_ONCE == 0:
                yield None
        return (yield from all_of(found))

    def high_watermark(self, topic: str, partition: int) -> int | Pending[int] | None:
        """With all that was acknowledged before it was asked for."""
        found = self.engine.partition(topic, partition)
        return None if found is None else found.end(committed=False)

    def metrics_text(self) -> str:
        return self.metrics.text(self.engine.housekeeping.totals, self.engine.cleaning.totals)
