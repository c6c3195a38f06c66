"""Rows on their way to the brokers: gathered, divided by partition, packed into batches, several of them in flight.

Spark brings rows in small Arrow batches. They are gathered until partitions can have batches of about a megabyte, and
sent without waiting for each answer. Batches of a partition carry a producer's sequence, so that one that is sent again
after a lost answer is written once; the broker remembers the last five of them, and no more than four are ever on their
way. Until the first is answered there is only one: a broker that knows nothing of a producer takes any sequence, and the
second would overtake a first that has to be sent again.

What is sent in a transaction needs its partitions added first; `joining` is called with them before their first batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from penstock.arrow.encode import NOBODY, Encoded, Writer, encode
from penstock.arrow.ways import Way
from penstock.client.kafka import Call, ConfigKind, KafkaClient, KafkaError, Produced, TopicInfo
from penstock.model.ids import TopicPartition
from penstock.records.batch import NO_SEQUENCE
from penstock.spark.sink.options import SinkError, SinkOptions
from penstock.spark.sink.rows import Router, partitions_of

GATHERED_BYTES = 8 * 1024 * 1024
"""The last batch of a partition is smaller than the others, once each time."""
WAY = Way.NUMPY
"""Loading numba takes a worker a second of processor time; it would give that back after some six million rows."""
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
IN_FLIGHT_OF_PARTITION_MAX = 4
"""One fewer than the batches by which a broker knows a producer's copies."""
_SEQUENCE_MASK = 0x7FFFFFFF
_OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
_TOO_LARGE = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")


class Sent(NamedTuple):
    place: TopicPartition
    batch: bytearray
    call: Call[Produced]


class Sender:
    """The rows of one task to their topics."""

    def __init__(
        self,
        client: KafkaClient,
        options: SinkOptions,
        writer: Writer = NOBODY,
        *,
        transactional_id: str | None = None,
        joining: Callable[[Sequence[TopicPartition]], None] | None = None,
    ) -> None:
        self.rows = 0
        self._client = client
        self._options = options
        self._writer = writer
        self._transactional_id = transactional_id
        self._joining = joining
        self._router = Router(options.topic, partitions_of(self._topic), options.batch_bytes_max)
        self._batch_bytes: dict[str, int] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._answered: set[TopicPartition] = set()
        self._flying: deque[Sent] = deque()
        self._flying_bytes = 0
        self._flying_of: dict[TopicPartition, int] = {}

    def send_all(self, tables: Iterator[pa.RecordBatch]) -> None:
        """Every row of `tables`, acknowledged when this returns."""
        for gathered in self._gathered(tables):
            self.rows += gathered.num_rows
            parts = list(self._router.route(gathered))
            self._join([place for place, _ in parts if place not in self._sequences])
            for place, rows in parts:
                self._send(place, rows)
        while self._flying:
            self._land()

    # ------------------------------------------------------------------------------------------------ rows

    def _gathered(self, tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for table in tables:
            if not table.num_rows:
                continue
            held.append(table.select(list(self._options.columns)))
            size += held[-1].nbytes
            if size >= GATHERED_BYTES:
                yield _joined(held)
                held, size = [], 0
        if held:
            yield _joined(held)

    def _topic(self, name: str) -> TopicInfo | None:
        return self._client.metadata([name]).topics.get(name)

    def _bound(self, topic: str) -> int:
        """How large a batch may be: as the options say, and no larger than the topic takes."""
        if topic not in self._batch_bytes:
            bound = self._options.batch_bytes_max
            # Who may write to a topic may not always see how it is configured; the broker has the last word then.
            with suppress(KafkaError, KeyError, TypeError, ValueError):
                told = self._client.describe_configs(ConfigKind.TOPIC, topic)["max.message.bytes"].value
                bound = min(bound, int(told or bound))
            self._batch_bytes[topic] = bound
        return self._batch_bytes[topic]

    # ------------------------------------------------------------------------------------------------ batches

    def _join(self, places: Sequence[TopicPartition]) -> None:
        if places and self._joining is not None:
            self._joining(places)
        self._sequences.update(dict.fromkeys(places, NO_SEQUENCE if self._writer is NOBODY else 0))

    def _send(self, place: TopicPartition, rows: pa.RecordBatch) -> None:
        try:
            for encoded in encode(
                rows,
                timestamp_ms=time.time_ns() // 1_000_000,
                codec=self._options.codec,
                writer=self._writer,
                base_sequence=self._sequences[place],
                batch_bytes_max=self._bound(place.topic),
                way=WAY,
            ):
                self._launch(place, encoded)
        except ValueError as error:
            raise SinkError(str(error)) from None

    def _launch(self, place: TopicPartition, encoded: Encoded) -> None:
        one_at_a_time = self._writer is NOBODY or place not in self._answered
        allowed = 1 if one_at_a_time else IN_FLIGHT_OF_PARTITION_MAX
        size = len(encoded.batch)
        while self._flying and (
            self._flying_of.get(place, 0) >= allowed or self._flying_bytes + size > IN_FLIGHT_BYTES_MAX
        ):
            self._land()
        call = self._client.begin_produce(
            {place: encoded.batch}, acks=self._options.acks, transactional_id=self._transactional_id
        )
        self._flying.append(Sent(place, encoded.batch, call))
        self._flying_of[place] = self._flying_of.get(place, 0) + 1
        self._flying_bytes += size
        if self._writer is not NOBODY:
            self._sequences[place] = self._sequences[place] + encoded.records & _SEQUENCE_MASK

    def _land(self) -> None:
        """Wait for the oldest batch in flight."""
        place, batch, call = self._flying.popleft()
        try:
            try:
                call.wait()
            except KafkaError as error:
                if error.name != _OUT_OF_ORDER:
                    raise
                # One before it had to be sent again, and came behind it. That one is answered by now.
                self._client.produce({place: batch}, acks=self._options.acks, transactional_id=self._transactional_id)
        except KafkaError as error:
            if error.name in _TOO_LARGE:
                raise SinkError(
                    f"a row for topic {place.topic} is {len(batch):,} bytes as a batch, which exceeds the topic's "
                    "max.message.bytes: increase it"
                ) from None
            raise
        self._flying_of[place] -= 1
        self._flying_bytes -= len(batch)
        self._answered.add(place)


def _joined(tables: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(tables) == 1:
        return tables[0]
    (joined,) = pa.Table.from_batches(tables).combine_chunks().to_batches()
    return joined
