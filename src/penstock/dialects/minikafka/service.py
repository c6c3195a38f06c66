"""What all MiniKafka connections of a listener share: the engine, the settings, and what each line does.

A group's place in a partition is Kafka's committed offset, which all dialects share. A poll gives the first record at or
behind it; offsets that are gone are passed over. Reading makes nothing: an unknown topic or partition is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Bytes, LargeRecord, NewTopic, RecordsRead, RunAppended
from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    FetchOffsets,
    FetchResult,
    OffsetToCommit,
)
from penstock.dialects.minikafka.lines import Poll, ProduceRun, SetOffset, partition_of
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.ids import GROUP_NAME_BYTES_MAX, is_group_name, topic_name
from penstock.model.listeners import ListenerSettings
from penstock.model.pending import Pending, gather, in_turn, when
from penstock.model.slices import Work, all_of
from penstock.records.record import Record

ALL_PARTITIONS = -1
APPENDED_AT_ONCE = 32
"""Partitions that a run is spread over without a pause; appends to more partitions run in slices."""
ASKED_AT_ONCE = 200
"""Partitions whose offsets one command commits; more partitions need several commands, in slices."""
POLLED_AT_ONCE = 32
"""Partitions that a poll looks at between two pauses: about half a millisecond for the offsets and the reads."""


class Refusal(NamedTuple):
    """Why a line was not served."""

    text: str


class Delivery(NamedTuple):
    """A message on its way to a consumer, and whose place an ACK moves behind it."""

    topic: str
    group: str
    partition: int
    record: Record | LargeRecord


Found = Delivery | Refusal | None
"""None: there is no message."""


class Placed(NamedTuple):
    """What became of a run: for each partition the requests that went there, and what the log said."""

    places: list[tuple[int, int]]
    """Of each request its part, and its place in that part."""
    parts: list[RunAppended]


_Part = tuple[int, list[Bytes], list[Bytes | None]]
"""The messages of a run for one partition: the number of the part, values and keys."""


class MiniKafkaService:
    def __init__(self, engine: EmbeddedEngine, settings: ListenerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self._counts: dict[str, int] = {}
        self._counts_version = -1

    def partitions(self, topic: str) -> int:
        """How many the topic has; 0 when there is no such topic."""
        version = self.engine.catalogue_version
        if version != self._counts_version:
            self._counts = {}
            self._counts_version = version
        count = self._counts.get(topic)
        if count is None:
            info = self.engine.topic(topic)
            if info is None:
                return 0
            count = self._counts[topic] = len(info.partitions)
        return count

    # ------------------------------------------------------------------------------------------------ produce

    def append(
        self, topic: str, run: ProduceRun, partitions: int
    ) -> RunAppended | Placed | Pending[RunAppended] | Pending[Placed]:
        """Append each message to the partition that its key chooses, with one write a partition. What became of a message
        alone is what the log said."""
        acks = self.settings.acks
        append_run = self.engine.append_run
        if len(run.keys) == 1:
            return append_run(topic, partition_of(run.keys[0], partitions), run.values, run.keys, acks)
        parts: dict[int, _Part] = {}
        places: list[tuple[int, int]] = []
        for key, value in zip(run.keys, run.values, strict=True):
            at = partition_of(key, partitions)
            part = parts.get(at)
            if part is None:
                part = parts[at] = (len(parts), [], [])
            number, values, keys = part
            places.append((number, len(values)))
            values.append(value)
            keys.append(key)
        if len(parts) > APPENDED_AT_ONCE:
            appending = self._append_parts(topic, parts, places)
            return self.engine.in_slices(appending, borrows=True)  # type: ignore[no-any-return]
        results = gather([append_run(topic, at, values, keys, acks) for at, (_, values, keys) in parts.items()])
        placed: Placed | Pending[Placed] = when(results, lambda appended: Placed(places, appended))
        return placed

    def _append_parts(
        self, topic: str, parts: Mapping[int, _Part], places: list[tuple[int, int]]
    ) -> Work[Placed | Pending[Placed]]:
        append_run, acks = self.engine.append_run, self.settings.acks
        results: list[RunAppended | Pending[RunAppended]] = []
        for at, (_, values, keys) in parts.items():
            results.append(append_run(topic, at, values, keys, acks))
            yield None
        return when(gather(results), lambda appended: Placed(places, appended))

    def make(self, topic: str) -> Pending[Refusal | None]:
        """Make the topic as a produce makes it. Somebody else may just have done it."""
        new = NewTopic(topic, self.settings.partitions or -1)

        def made(results: list[Any]) -> Refusal | None:
            fault, text = results[0].fault, results[0].text
            return None if fault in (NO_FAULT, Fault.TOPIC_EXISTS) else Refusal(text or fault.value)

        return self.engine.create_topics([new], validate_only=False).map(made)

    # ------------------------------------------------------------------------------------------------ consume

    def poll(self, request: Poll) -> Found | Pending[Found]:
        """The next message for the group; None when there is none."""
        topic = request.topic
        group = checked_names(topic, request.group)
        if isinstance(group, Refusal):
            return group
        count = self.partitions(topic)
        wanted = tuple(range(count)) if request.partition == ALL_PARTITIONS else (request.partition,)
        if not all(0 <= at < count for at in wanted) or not wanted:
            return None
        if len(wanted) > POLLED_AT_ONCE:
            return self.engine.in_slices(self._poll_many(request, group, wanted), drop=True)  # type: ignore[no-any-return]
        return self._poll_some(request, group, wanted)

    def _poll_many(self, request: Poll, group: str, wanted: tuple[int, ...]) -> Work[Found]:
        for first in range(0, len(wanted), POLLED_AT_ONCE):
            found = self._poll_some(request, group, wanted[first : first + POLLED_AT_ONCE])
            if isinstance(found, Pending):
                found = yield found
            else:
                yield None
            if found is not None:
                return found
        return None

    def _poll_some(self, request: Poll, group: str, wanted: tuple[int, ...]) -> Found | Pending[Found]:
        topic = request.topic
        command = FetchOffsets(group, {topic: wanted})
        asked: Any = self.engine.once_loaded(lambda: self.engine.groups.ask(group, command))

        def look(result: FetchResult | Fault) -> Found | Pending[Found]:
            if isinstance(result, Fault):
                return Refusal(result.value)
            if result.fault is not NO_FAULT:
                return Refusal(result.fault.value)
            values = result.offsets[topic]
            starts = {at: 0 if (value := values[at].value) is None else max(0, value.offset) for at in wanted}
            return self._first(request, group, starts)

        return in_turn(asked, look)

    def _first(self, request: Poll, group: str, starts: Mapping[int, int]) -> Found | Pending[Found]:
        """The first message in the order of the partitions, from each one's start on."""
        topic, to_offset = request.topic, request.to_offset
        left = iter(starts.items())

        def next_partition() -> Found | Pending[Found]:
            for partition, offset in left:
                read = self._read(topic, partition, offset)
                if isinstance(read, Pending):
                    return in_turn(read, partial(read_later, partition))
                found = taken(partition, read)
                if found is not None:
                    return found
            return None

        def read_later(partition: int, read: RecordsRead) -> Found | Pending[Found]:
            found = taken(partition, read)
            return next_partition() if found is None else found

        def taken(partition: int, read: RecordsRead) -> Found:
            if read.fault not in (NO_FAULT, Fault.OFFSET_OUT_OF_RANGE):
                return Refusal(f"partition {partition}: {read.text}" if read.text else read.fault.value)
            record = read.first
            if record is None or 0 <= to_offset < record.offset:
                return None
            return self._deliverable(Delivery(topic, group, partition, record))

        return next_partition()

    def _read(self, topic: str, partition: int, offset: int) -> RecordsRead | Pending[RecordsRead]:
        """The record at `offset`, or the first behind it."""

        def from_start(read: RecordsRead) -> RecordsRead | Pending[RecordsRead]:
            if read.fault is Fault.OFFSET_OUT_OF_RANGE and offset < read.log_start_offset:
                return self.engine.read_records(
                    topic, partition, read.log_start_offset, 1, 0, large=True, headers=False
                )
            return read

        read = in_turn(self.engine.read_records(topic, partition, offset, 1, 0, large=True, headers=False), from_start)
        return read.result if isinstance(read, Pending) and read.done else read

    def _deliverable(self, delivery: Delivery) -> Delivery | Refusal:
        value = delivery.record.value
        size, limit = 0 if value is None else len(value), self.settings.frame_bytes_max
        if size <= limit:
            return delivery
        return Refusal(
            f"the message at offset {delivery.record.offset} of partition {delivery.partition} has {size} bytes, "
            f"more than {limit}; SET_OFFSET goes past it"
        )

    # ------------------------------------------------------------------------------------------------ offsets

    def acknowledge(self, delivery: Delivery) -> Refusal | Pending[Refusal | None] | None:
        offset = delivery.record.offset + 1
        return self._commit(delivery.group, [OffsetToCommit(delivery.topic, delivery.partition, offset, -1, "")])

    def set_offset(self, request: SetOffset) -> Refusal | Pending[Refusal | None] | None:
        """Move the group in every partition; of a topic that is not there yet, in those that a produce would make."""
        group = checked_names(request.topic, request.group)
        if isinstance(group, Refusal):
            return group
        count = self.partitions(request.topic) or self.settings.partitions or 1
        if count > ASKED_AT_ONCE:
            return self.engine.in_slices(self._set_many(request, group, count))  # type: ignore[no-any-return]
        return self._set_some(request, group, range(count))

    def _set_many(self, request: SetOffset, group: str, count: int) -> Work[Refusal | None]:
        asked = []
        for first in range(0, count, ASKED_AT_ONCE):
            asked.append(self._set_some(request, group, range(first, min(count, first + ASKED_AT_ONCE))))
            yield None
        results = yield from all_of(asked)
        return next((result for result in results if result is not None), None)

    def _set_some(
        self, request: SetOffset, group: str, partitions: Iterable[int]
    ) -> Refusal | Pending[Refusal | None] | None:
        offset = max(0, request.offset)
        return self._commit(group, [OffsetToCommit(request.topic, at, offset, -1, "") for at in partitions])

    def _commit(self, group: str, offsets: list[OffsetToCommit]) -> Refusal | Pending[Refusal | None] | None:
        command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, tuple(offsets))
        groups, acks = self.engine.groups, self.settings.acks
        asked: Any = self.engine.once_loaded(lambda: groups.commit(command, acks))

        def committed(result: CommitResult | Fault) -> Refusal | None:
            fault = result if isinstance(result, Fault) else result.fault
            if fault is Fault.UNKNOWN_MEMBER_ID:
                fault = Fault.NON_EMPTY_GROUP  # it has members, and this consumer is none of them
            return None if fault is NO_FAULT else Refusal(fault.value)

        return when(asked, committed)


def checked_names(topic: str, group: bytes) -> str | Refusal:
    """The name of the group, if both names are valid: it is UTF-8 for everybody else, and bytes here."""
    try:
        topic_name(topic)
        name = group.decode()
    except BrokerError as error:
        return Refusal(error.text)
    except UnicodeDecodeError:
        return Refusal("the group name is not UTF-8")
    if not is_group_name(name):
        return Refusal(f"the group name is not 1 to {GROUP_NAME_BYTES_MAX} bytes without control characters")
    return name
