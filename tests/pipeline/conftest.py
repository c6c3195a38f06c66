"""Running pipelines in this process, with the session that all tests share and a real broker."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.client.kafka import LATEST, KafkaClient
from penstock.pipeline.batches import QUERY_ID
from penstock.pipeline.declaration import Pipeline, Trigger
from penstock.pipeline.reading import read_pipeline
from tests.spark.shared import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

CAUGHT_UP = Trigger("available_now")
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a pipeline's file into a folder of the test's own."""

    def write(text: str, name: str = "pipeline.yaml") -> Path:
        file = tmp_path / name
        file.write_text(textwrap.dedent(text))
        return file

    return write


@dataclass
class Ran:
    """What was told while a pipeline ran."""

    events: list[Any] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


Run = Callable[..., Ran]


@pytest.fixture
def run(spark: SparkSession) -> Run:
    """Run a pipeline until it has done what there is to do."""
    from penstock.pipeline.supervision import Supervisor

    def run(
        file: Path,
        environment: Mapping[str, str] | None = None,
        flows: Iterable[str] | None = None,
        stop: Callable[[Ran], bool] = lambda ran: False,
        change: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline,
        trigger: Trigger | None = CAUGHT_UP,
    ) -> Ran:
        pipeline = change(read_pipeline(file, environment or {}))
        wanted = [pipeline.flows[name] for name in flows or pipeline.flows]
        if trigger is not None:
            wanted = [replace(flow, trigger=trigger) for flow in wanted]
        ran = Ran()
        Supervisor(
            spark, pipeline, wanted, ran.events.append, lambda flow, batch, rows, more: ran.shown.extend(rows)
        ).run(lambda: stop(ran))
        return ran

    return run


class Topics:
    """Topics with names of their own on the broker of the test session."""

    _numbers = itertools.count()

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def create(self, name: str, partitions: int = 2) -> str:
        full = f"{name}-{next(self._numbers)}"
        self.ensure(full, partitions)
        return full

    def ensure(self, name: str, partitions: int = 1) -> str:
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(10)
        return name

    def write(self, topic: str, values: Iterable[Any], key: Callable[[Any], str] | None = None) -> None:
        """Texts and bytes as they are, everything else as JSON."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0})
        for value in values:
            raw = value if isinstance(value, str | bytes) or value is None else json.dumps(value)
            producer.produce(topic, raw, None if key is None else key(value))
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Any]:
        """The committed records, partition by partition."""
        self._until_readable(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            open_ends, found = set(partitions), []
            while open_ends:
                message = consumer.poll(20)
                assert message is not None, "the broker does not answer"
                if message.error() is None:
                    found.append(message)
                elif message.error().name() == "_PARTITION_EOF":
                    open_ends.discard(message.partition())
                else:
                    raise KafkaException(message.error())
            return found
        finally:
            consumer.close()

    def _until_readable(self, topic: str) -> None:
        """A transaction is over before its marker is flushed; the end of a log is told when all before it is safe."""
        with KafkaClient(self.bootstrap) as client:
            places = [(topic, number) for number in client.metadata([topic]).topics[topic].partitions]
            client.list_offsets(dict.fromkeys(places, LATEST))

    def values(self, topic: str) -> list[Any]:
        return [json.loads(message.value()) for message in self.read(topic)]


@pytest.fixture
def topics(penstock_broker: Broker) -> Topics:
    return Topics(penstock_broker)


@pytest.fixture
def as_query(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Say which query the batches are of, as Spark does around a batch."""

    def set_query(name: str) -> None:
        spark.sparkContext.setLocalProperty(QUERY_ID, name)

    set_query("one")
    yield set_query
    spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]
