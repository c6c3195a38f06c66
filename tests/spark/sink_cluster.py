"""Clusters for the tests of the sink: Penstock and Apache Kafka, each started when the first test asks for it; and what a
reader of committed records sees there."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from penstock import Broker
from penstock.client.kafka import EARLIEST, LATEST, Isolation, KafkaClient, KafkaSettings
from penstock.client.kafka_settings import addresses
from penstock.records.batch import whole_batches
from penstock.records.record import Record, read_records
from penstock.records.visibility import visible_batches
from penstock.spark.sink.exactly_once import Task
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.writers import checked
from tests.compatibility.apache_kafka import START_S_MAX, apache_kafka

COMMITTED = Isolation.READ_COMMITTED
_numbers = itertools.count()


class Clusters:
    """`with` ends those that were started."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._stack = contextlib.ExitStack()
        self._addresses: dict[str, str] = {}

    def address(self, kind: str) -> str:
        if kind not in self._addresses:
            self._addresses[kind] = self._started(kind)
        return self._addresses[kind]

    def _started(self, kind: str) -> str:
        if kind == "penstock":
            return self._stack.enter_context(Broker(settings={"storage.flush": "os"})).bootstrap
        address = self._stack.enter_context(apache_kafka(self._folders.mktemp("apache-kafka")))
        with KafkaClient(KafkaSettings(addresses(address), api_timeout_ms=int(START_S_MAX * 1_000))) as client:
            client.metadata()
        return address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Sink:
    """A new topic, the options to write to it exactly once, and what it holds."""

    def __init__(self, bootstrap: str, partitions: int = 3, **options: str) -> None:
        self.bootstrap = bootstrap
        self.query = f"query-{next(_numbers)}"
        self.topic = f"{self.query}-topic"
        self.client = KafkaClient(bootstrap)
        self.client.create_topic(self.topic, partitions)
        self.given = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": self.topic,
            "delivery": "exactly_once",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        self.options = checked(SinkOptions.of(self.given, StructType().add("value", BinaryType())))

    def task(self, batch: int, number: int, attempt: int = 0) -> Task:
        return Task(self.query, batch, number, attempt)

    def records(self, isolation: Isolation = COMMITTED) -> Iterator[Record]:
        return records(self.client, self.topic, isolation)

    def values(self) -> Counter[bytes]:
        """How often each value can be read."""
        return Counter(record.value or b"" for record in self.records())

    def is_held_open(self) -> bool:
        """Whether a transaction keeps readers of committed records from the end of the topic."""
        places = dict.fromkeys(places_of(self.client, self.topic), LATEST)
        ends = self.client.list_offsets(places)
        return any(
            listed.offset != ends[place].offset for place, listed in self.client.list_offsets(places, COMMITTED).items()
        )

    def close(self) -> None:
        self.client.close()


def rows(*values: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"value": pa.array(values, pa.binary())})])


def places_of(client: KafkaClient, topic: str) -> list[tuple[str, int]]:
    return [(topic, partition) for partition in client.metadata([topic]).topics[topic].partitions]


def records(
    client: KafkaClient,
    topic: str,
    isolation: Isolation = COMMITTED,
    places: Iterable[tuple[str, int]] | None = None,
) -> Iterator[Record]:
    """What a reader sees, partition after partition."""
    for place in places_of(client, topic) if places is None else places:
        offset = client.list_offsets({place: EARLIEST})[place].offset
        end = client.list_offsets({place: LATEST}, isolation)[place].offset
        assert offset is not None
        assert end is not None
        while offset < end:
            fetched = client.fetch({place: offset}, isolation=isolation)[place]
            batches = list(whole_batches(fetched.records))
            for batch in visible_batches(batches, fetched.aborted):
                yield from (record for record in read_records(batch) if offset <= record.offset < end)
            offset = batches[-1].next_offset
