"""The engine port: what every dialect may ask of the log underneath, whichever engine that is.

It is completion-based: a call gives its result at once, or a `Pending` when it has to wait for a flush, for data or for
the disk. Buffers are borrowed until the call returns. It speaks of topics, partitions, offsets and batches, and of neither
segments nor wire types, so that an existing Kafka-protocol cluster can stand behind the same port.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.model.chunks import FileRange
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord
from penstock.records.record import Record

Bytes = bytes | bytearray | memoryview


class Acks(enum.IntEnum):
    """When a producer is answered."""

    NONE = 0
    LEADER = 1
    ALL = -1


ACKS_ALL = int(Acks.ALL)
"""For code that runs on every request, as `NO_FAULT`."""


class Isolation(enum.IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Append(NamedTuple):
    """One record batch for one partition. The view is borrowed and writable: offset and epoch are written into it."""

    topic: str
    partition: int
    records: memoryview


class Appended(NamedTuple):
    fault: Fault
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    text: str | None = None
    record_index: int = -1
    """Which record broke the rule, where one did."""


class Read(NamedTuple):
    """What to read of one partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1


class ReadResult(NamedTuple):
    fault: Fault
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileRange | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions in the range, sorted by first offset; read_committed only."""


class RunAppended(NamedTuple):
    """What became of a run of bare records: the first `written` are in the log from `base_offset` on, without a gap."""

    fault: Fault
    """Of the records past `written`, or of all when none made it."""
    base_offset: int = -1
    written: int = 0
    text: str = ""


class LargeRecord(NamedTuple):
    """A record without headers whose value can leave from where it lies in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: FileRange


class RecordsRead(NamedTuple):
    """Committed records in offset order: no control records, nothing of open or aborted transactions."""

    fault: Fault
    records: Sequence[Record] = ()
    next_offset: int = -1
    """Where to go on: behind the last record, or behind what was skipped."""
    log_start_offset: int = -1
    high_watermark: int = -1
    """Where committed records end: the last stable offset."""
    larges: Sequence[LargeRecord] = ()
    """Instead of `records`, when the caller takes large ones so."""
    text: str = ""
    """What is wrong, where it is more than the fault says; `next_offset` is then the next readable offset."""

    @property
    def first(self) -> Record | LargeRecord | None:
        if self.records:
            return self.records[0]
        return self.larges[0] if self.larges else None


class OffsetFound(NamedTuple):
    fault: Fault
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    fault: Fault
    leader_epoch: int = -1
    end_offset: int = -1


class NewTopic(NamedTuple):
    name: str
    partitions: int = -1
    """-1: the broker's num.partitions."""
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


class TopicResult(NamedTuple):
    """What became of one topic of an admin request."""

    name: str
    fault: Fault
    text: str | None = None
    topic_id: uuid.UUID | None = None
    partitions: int = -1
    configs: Mapping[str, str] = {}


class PartitionInfo(NamedTuple):
    partition: int
    online: bool
    leader_epoch: int


class TopicInfo(NamedTuple):
    name: str
    topic_id: uuid.UUID
    internal: bool
    partitions: Sequence[PartitionInfo]


class Engine(Protocol):
    def gather(self) -> None:
        """Until `settle`, `append` and `append_run` may only note what to do: they give pendings, and borrow their
        buffers longer. Who calls performs requests of many connections, and has time until it answers them."""
        ...

    def settle(self) -> None:
        """Do what was noted since `gather`, in as few writes as there are partitions."""
        ...

    def append(
        self, topic: str, partition: int, batches: Sequence[memoryview], acks: int
    ) -> list[Appended] | Pending[list[Appended]]:
        """Append a run of batches to one partition, in one write and one flush; a result each, in order."""
        ...

    def append_many(self, appends: Sequence[Append], acks: int) -> list[Appended] | Pending[list[Appended]]:
        """Append to several partitions; the results in the order of `appends`."""
        ...

    def append_run(
        self,
        topic: str,
        partition: int,
        values: Sequence[Bytes],
        keys: Sequence[Bytes | None] | None,
        acks: int,
        timestamp_ms: int = 0,
    ) -> RunAppended | Pending[RunAppended]:
        """Append bare records of one time, in order, in as few batches as they fit; one write, one flush. A timestamp of 0
        or less is the time of the append.

        The caller's own limit on a record rules, not max.message.bytes.
        """
        ...

    def append_new(
        self, topic: str, partition: int, records: Sequence[NewRecord], acks: int, compression: int = 0
    ) -> RunAppended | Pending[RunAppended]:
        """As `append_run`, for records with headers or timestamps of their own."""
        ...

    def read_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_records: int,
        max_bytes: int,
        max_wait_ms: int = 0,
        *,
        large: bool = False,
        keys: bool = True,
        headers: bool = True,
    ) -> RecordsRead | Pending[RecordsRead]:
        """Up to `max_records` committed records from `offset` on, at least one if there is one; `max_bytes` counts values,
        and keys unless the caller has no use for them (`keys`). A read that stops at the high watermark before these
        limits waits for the flush of what was written before it; at the end of the log it waits up to `max_wait_ms` for
        more. An offset outside the log is OFFSET_OUT_OF_RANGE (the log end
        itself is not). With `large` records with large values may come by themselves, as ranges of their file
        (`RecordsRead.larges`). Without `headers` records may come without theirs."""
        ...

    def read(
        self, reads: Sequence[Read], max_bytes: int, min_bytes: int, max_wait_ms: int, isolation: int
    ) -> list[ReadResult] | Pending[list[ReadResult]]:
        """Read each, at least one batch if there is any, and wait for `min_bytes` at most `max_wait_ms`."""
        ...

    def list_offset(
        self, topic: str, partition: int, timestamp: int, isolation: int, leader_epoch: int = -1
    ) -> OffsetFound | Pending[OffsetFound]:
        """The first offset at or after a timestamp, or a special place (broker.offsets)."""
        ...

    def topic(self, name: str) -> TopicInfo | None: ...

    def topic_name_of(self, topic_id: bytes) -> str | None: ...

    def topics(self) -> list[TopicInfo]: ...

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool) -> Pending[list[TopicResult]]: ...

    def delete_topics(self, names: Sequence[str]) -> Pending[list[TopicResult]]: ...

    def add_partitions(
        self, topics: Sequence[tuple[str, int]], *, validate_only: bool
    ) -> Pending[list[TopicResult]]: ...

    def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool
    ) -> Pending[list[TopicResult]]:
        """Set or, with None, unset topic configs."""
        ...

    def delete_records(self, topic: str, partition: int, offset: int) -> tuple[Fault, int] | Pending[tuple[Fault, int]]:
        """Move the log start offset up (-1: to the high watermark); the new log start offset."""
        ...
