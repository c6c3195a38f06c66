"""The journal of the exactly-once sink: the compacted topic `penstock-sink`, and what it says of one query.

Two kinds of records, and compaction keeps the last of each key:

    key  <query>/<task>   value  <batch>                      a marker: this task's rows of this batch are in their topics
    key  <query>          value  {"batch", "tasks", "open"}   a decision: these transactions will be committed

A decision also has "rows", the content of each task, and "plan"; both identify the batch (sink_identity). Decisions of
earlier versions have neither, and earlier versions ignore both.

A marker is written inside the transaction that holds the rows, so it is there when they are and never without them. A
decision is written outside any transaction, by the driver alone.

All records of a query are in one partition. It is read to its end and not only to its last stable offset: an open
transaction of another query must not hide what this one has committed. Which markers count is decided here, as a reader of
committed records would: by the control batch that ends the transaction. `JournalState` is that machine, and knows no
broker; `Journal` feeds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.client.kafka import EARLIEST, ConfigKind, KafkaClient, KafkaError, Producer
from penstock.records.batch import Batch, whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import MarkerKind, read_marker
from penstock.records.record import read_records
from penstock.spark.sink.options import SinkError
from penstock.spark.sink.row_digest import Content

TOPIC = "penstock-sink"
PARTITIONS = 8
"""Fixed for good: with another number a query would look for its records elsewhere."""
CONFIGS = {
    "cleanup.policy": "compact",
    # What is read at a start is what compaction has left; it leaves the newest segment alone.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
_PAUSE_S, _PAUSE_S_MAX = 0.01, 0.2
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class Opened(NamedTuple):
    """A transaction that holds the rows of one task, and waits for its end."""

    transactional_id: str
    producer: Producer


class Plan(NamedTuple):
    """Digests of the plan of a batch in Spark's checkpoint."""

    file: str
    """Digest of the whole offsets file."""
    sources: str
    """Digest of the offsets in it."""


class Decision(NamedTuple):
    """What the driver has promised to commit: a batch, by how many tasks, and their transactions.

    A task without one had no rows, or had committed before."""

    batch: int
    tasks: int
    opened: Mapping[int, Opened]
    contents: Mapping[int, Content] | None = None
    """Content by task, for tasks with rows; None in a decision of an earlier version."""
    plan: Plan | None = None

    def encode(self) -> bytes:
        opened = {str(task): [one.transactional_id, *one.producer] for task, one in sorted(self.opened.items())}
        fields: dict[str, Any] = {"batch": self.batch, "tasks": self.tasks, "open": opened}
        if self.contents is not None:
            contents = sorted(self.contents.items())
            fields["rows"] = {str(task): [one.rows, f"{one.digest:016x}"] for task, one in contents if one.rows}
        if self.plan is not None:
            fields["plan"] = list(self.plan)
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Decision:
        """Raises ValueError, TypeError or KeyError for what no driver wrote."""
        fields = json.loads(value)
        opened = {
            int(task): Opened(name, Producer(producer_id, epoch))
            for task, (name, producer_id, epoch) in fields["open"].items()
        }
        contents = None
        if "rows" in fields:
            contents = {
                int(task): Content(int(rows), int(digest, 16)) for task, (rows, digest) in fields["rows"].items()
            }
        plan = Plan(*fields["plan"]) if "plan" in fields else None
        return cls(int(fields["batch"]), int(fields["tasks"]), opened, contents, plan)


class Marker(NamedTuple):
    """A task's word, in a transaction that has not ended."""

    task: int
    batch: int
    producer: Producer
    offset: int


class JournalState:
    """What the records up to `offset` say of one query."""

    def __init__(self, query: str, offset: int = 0) -> None:
        self.query = query
        self.offset = offset
        self.decision: Decision | None = None
        self.committed: dict[int, int] = {}
        """By task, the last batch whose rows are in their topics."""
        self.pending: list[Marker] = []

    @property
    def settled_offset(self) -> int:
        """From here on a reader who knows nothing learns all that is still to be learnt."""
        return min((marker.offset for marker in self.pending), default=self.offset)

    def missing(self, decision: Decision) -> list[int]:
        """The tasks of a decided batch whose rows are not in their topics."""
        return [task for task in sorted(decision.opened) if self.committed.get(task) != decision.batch]

    def is_pending(self, opened: Opened) -> bool:
        """Whether that transaction has written its marker and not ended; a later one of the same producer is another."""
        producer_id, epoch = opened.producer
        return any(
            one.producer.producer_id == producer_id and one.producer.producer_epoch <= epoch for one in self.pending
        )

    def feed(self, batch: Batch) -> None:
        if batch.base_offset < self.offset and batch.last_offset < self.offset:
            return
        if batch.is_control:
            self._end(batch)
        elif batch.count:
            self._take(batch)
        self.offset = batch.next_offset

    def _end(self, batch: Batch) -> None:
        marker = read_marker(batch)
        if marker is None:
            return
        # The marker of a producer that was fenced has the next epoch: what counts is the producer's id.
        ended = [one for one in self.pending if one.producer.producer_id == batch.producer_id]
        if ended and marker.kind is MarkerKind.COMMIT:
            self.committed.update((one.task, one.batch) for one in ended)
        if ended:
            self.pending = [one for one in self.pending if one.producer.producer_id != batch.producer_id]

    def _take(self, batch: Batch) -> None:
        mine = self.query.encode()
        for record in read_records(batch):
            if record.key is None or record.value is None or not record.key.startswith(mine):
                continue
            name, _, task = record.key.decode(errors="replace").partition("/")
            if name != self.query:
                continue
            try:
                if not task:
                    self.decision = Decision.decode(record.value)
                elif batch.is_transactional:
                    producer = Producer(batch.producer_id, batch.producer_epoch)
                    self.pending.append(Marker(int(task), int(record.value), producer, batch.base_offset))
            except (ValueError, TypeError, KeyError):
                raise SinkError(
                    f"the record at offset {record.offset} of {TOPIC} was not written by the sink: "
                    "another program writes to this topic"
                ) from None


class Journal:
    """The journal of one query, on a cluster."""

    def __init__(self, client: KafkaClient, state: JournalState) -> None:
        self.state = state
        self.place = (TOPIC, partition_of(state.query))
        self._client = client

    def read_on(self) -> JournalState:
        """All that was there when this was called."""
        state = self.state
        end: int | None = None
        while True:
            try:
                (fetched,) = self._client.fetch({self.place: state.offset}, wait_ms_max=0).values()
            except KafkaError as error:
                if error.name != "OFFSET_OUT_OF_RANGE":
                    raise
                self._begin_again()
                state = self.state
                continue
            end = fetched.high_watermark if end is None else end
            for batch in whole_batches(fetched.records):
                if batch.base_offset >= fetched.high_watermark:
                    break
                state.feed(batch)
            if state.offset >= end or not len(fetched.records):
                return state

    def _begin_again(self) -> None:
        """What was read is no longer the log: it was cut, or begins later now."""
        (listed,) = self._client.list_offsets({self.place: EARLIEST}).values()
        self.state = JournalState(self.state.query, listed.offset or 0)

    def read_until(self, is_settled: Callable[[JournalState], bool], what: str) -> JournalState:
        """Read on until it is so; a coordinator ends a transaction in its partitions a moment after it has said yes."""
        deadline = time.monotonic() + self._client.settings.api_timeout_ms / 1_000
        pause_s = _PAUSE_S
        while not is_settled(self.read_on()):
            if time.monotonic() > deadline:
                raise SinkError(f"{what} in {self._client.settings.api_timeout_ms} ms; check the cluster")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)
        return self.state

    def decide(self, decision: Decision) -> None:
        """Once this returns the decision is on every replica that counts."""
        record = NewRecord(_now_ms(), self.state.query.encode(), decision.encode())
        self._client.produce({self.place: build_batch([record])})


def marker_batch(query: str, task: int, batch: int, producer: Producer) -> bytearray:
    """The one record of a task's transaction that goes to the journal."""
    return build_batch(
        [NewRecord(_now_ms(), f"{query}/{task}".encode(), str(batch).encode())],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )


def partition_of(query: str) -> int:
    """The same in every process and for ever (FNV-1a)."""
    value = _FNV_OFFSET
    for byte in query.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value % PARTITIONS


def prepare(client: KafkaClient) -> None:
    """Make the topic if it is not there; refuse one that would forget."""
    info = client.metadata([TOPIC]).topics.get(TOPIC)
    if info is None:
        client.create_topic(TOPIC, PARTITIONS, configs=CONFIGS, exists_ok=True)
        return
    if len(info.partitions) < PARTITIONS:
        raise SinkError(
            f"topic {TOPIC} has {len(info.partitions)} partitions, exactly_once requires {PARTITIONS}: "
            "delete it, and the sink creates it again"
        )
    try:
        policy = client.describe_configs(ConfigKind.TOPIC, TOPIC)["cleanup.policy"].value
    except (KafkaError, KeyError):
        # Who may write to it may not always see how it is configured.
        return
    if policy != "compact":
        raise SinkError(f"topic {TOPIC} has cleanup.policy={policy} and would lose state: set it to compact")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
