"""Topics to archive: filled over the wire, and read by librdkafka, which shares no code with the archive."""

from __future__ import annotations

import random
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

import confluent_kafka

from penstock.client.kafka import EARLIEST, LATEST, Isolation, KafkaClient, KafkaSettings
from penstock.records.builder import NewRecord, build_batch

DAY_MS = 86_400_000
T0_MS = 1_700_000_000_000
WAIT_S = 30.0


class Row(NamedTuple):
    """A record as both sides see it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """Without the offset."""
        return self.partition, self.timestamp_ms, self.key, self.value, self.headers


class Topic:
    def __init__(self, bootstrap: str, name: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.partitions = partitions
        self.client = KafkaClient(bootstrap)
        self.client.create_topic(name, partitions, configs={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
        self._dice = random.Random(name)

    @property
    def settings(self) -> KafkaSettings:
        return KafkaSettings.of(self.bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def write(self, values: list[bytes | None], partition: int = 0, timestamp_ms: int = T0_MS) -> None:
        records = [NewRecord(timestamp_ms + at, b"k%d" % at, value, ()) for at, value in enumerate(values)]
        self.client.produce({(self.name, partition): build_batch(records)})

    def fill(self, count: int, *, days: int = 3, batch: int = 50) -> None:
        """Records of some days, with keys, headers, nulls and empty values among them, in every partition."""
        for partition in range(self.partitions):
            for first in range(0, count, batch):
                records = [self._record(days) for _ in range(min(batch, count - first))]
                self.client.produce({(self.name, partition): build_batch(records)})

    def _record(self, days: int) -> NewRecord:
        dice = self._dice
        key = dice.choice([None, b"", b"key-%d" % dice.randrange(50)])
        value = dice.choice([None, b"", dice.randbytes(dice.randrange(40)), b'{"n": %d}' % dice.randrange(100)])
        names = dice.choice([(), (), ("trace",), ("a", "b", "a")])
        headers = tuple((name, dice.choice([None, b"", b"x"])) for name in names)
        return NewRecord(T0_MS + dice.randrange(days * DAY_MS), key, value, headers)

    def transaction(self, count: int, *, commit: bool, partition: int = 0) -> None:
        """Records that count only if their transaction does."""
        name = f"{self.name}-writer"
        producer = self.client.init_producer_id(name)
        self.client.add_partitions_to_txn(name, producer, [(self.name, partition)])
        records = [NewRecord(T0_MS, b"t", b"committed" if commit else b"aborted", ()) for _ in range(count)]
        batch = build_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        self.client.produce({(self.name, partition): batch}, transactional_id=name)
        self.client.end_txn(name, producer, commit=commit)

    def rows(self) -> list[Row]:
        return topic_rows(self.bootstrap, self.name)


def topic_rows(bootstrap: str, name: str) -> list[Row]:
    """Every committed record, as librdkafka reads it, by partition and offset."""
    with KafkaClient(bootstrap) as client:
        partitions = client.metadata([name]).topics[name].partitions
        spots = [(name, partition) for partition in partitions]
        starts = client.list_offsets(dict.fromkeys(spots, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(spots, LATEST), Isolation.READ_COMMITTED)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    waiting = {place.partition for place, end in ends.items() if (end.offset or 0) > (starts[place].offset or 0)}
    consumer.assign([confluent_kafka.TopicPartition(name, partition, 0) for partition in waiting])
    found: list[Row] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while waiting:
            assert time.monotonic() < deadline, "the topic was not read to its end"
            for message in consumer.consume(1_000, 0.2):
                error = message.error()
                if error is None:
                    headers = tuple(message.headers() or ())
                    stamp = message.timestamp()[1]
                    found.append(
                        Row(message.partition(), message.offset(), stamp, message.key(), message.value(), headers)
                    )
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()
    return sorted(found)


def table_rows(table: Any) -> list[Row]:
    """Every row of a pyarrow table with a record's columns, by partition and offset."""
    milliseconds = [stamp // 1_000 for stamp in table.column("timestamp").cast("int64").to_pylist()]
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "key", "value", "headers")]
    found = []
    for partition, offset, key, value, headers, stamp in zip(*columns, milliseconds, strict=True):
        pairs = tuple((pair["key"], pair["value"]) for pair in headers or ())
        found.append(Row(partition, offset, stamp, key, value, pairs))
    return sorted(found, key=lambda row: (row.partition, row.offset))
