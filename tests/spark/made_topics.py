"""Topics with records in them, for the tests of the source."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.client.kafka import KafkaClient, Producer
from penstock.records.builder import NewRecord, build_batch
from penstock.spark.source.options import SourceOptions, parse_options


class Cluster(Protocol):
    """A Penstock, or another that speaks Kafka's protocol."""

    @property
    def bootstrap(self) -> str: ...


TIME_MS = 1_700_000_000_000
_numbers = itertools.count()


def topic(broker: Cluster, partitions: int = 1, records: int = 0, configs: Mapping[str, str] | None = None) -> str:
    """A new topic with so many records in each partition; the record at offset n was made n seconds after TIME_MS."""
    name = f"source-{next(_numbers)}"
    with KafkaClient(broker.bootstrap) as client:
        # The records are of 2023.
        client.create_topic(name, partitions, configs={"retention.ms": "-1", **(configs or {})})
    for partition in range(partitions):
        append(broker, name, partition, range(records))
    return name


def append(broker: Cluster, name: str, partition: int, numbers: Iterable[int], batch_records: int = 10) -> None:
    """Records with these numbers as keys."""
    with KafkaClient(broker.bootstrap) as client:
        todo = list(numbers)
        for start in range(0, len(todo), batch_records):
            batch = build_batch([record(number) for number in todo[start : start + batch_records]])
            client.produce({(name, partition): batch})


def record(number: int) -> NewRecord:
    headers = (("n", b"%d" % number),) if number % 2 else ()
    return NewRecord(TIME_MS + number * 1_000, b"k%d" % number, b"v%d" % number, headers)


def append_transaction(
    broker: Cluster, name: str, numbers: Iterable[int], *, commit: bool | None, transactional_id: str = ""
) -> None:
    """One transaction in partition 0; None leaves it open."""
    with KafkaClient(broker.bootstrap) as client:
        identity = transactional_id or f"{name}-{next(_numbers)}"
        producer = client.init_producer_id(identity)
        client.add_partitions_to_txn(identity, producer, [(name, 0)])
        client.produce(
            {(name, 0): _transactional([record(number) for number in numbers], producer)}, transactional_id=identity
        )
        if commit is not None:
            client.end_txn(identity, producer, commit=commit)


def _transactional(records: list[NewRecord], producer: Producer) -> bytearray:
    return build_batch(
        records,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )


def delete_before(broker: Cluster, name: str, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(name, partition, offset)]).values():
        future.result(30)


def delete_topic(broker: Cluster, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(30)


def recreate_topic(broker: Cluster, name: str, records: int, partitions: int = 1) -> None:
    """Another topic of the same name, with so many records in each partition."""
    delete_topic(broker, name)
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(name, partitions, configs={"retention.ms": "-1"})
    for partition in range(partitions):
        append(broker, name, partition, range(records))


def topic_id(broker: Cluster, name: str) -> str:
    """As Kafka's tools show it."""
    with KafkaClient(broker.bootstrap) as client:
        found = client.metadata([name]).topics[name].topic_id
    assert found is not None
    return base64.urlsafe_b64encode(found.bytes).decode().rstrip("=")


def add_partitions(broker: Cluster, name: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, total)])[name].result(30)


def given(broker: Cluster, **options: Any) -> dict[str, str]:
    """Options of a read, as Spark gives them; an underscore stands for the dot of a name."""
    named = {name.replace("_", "."): str(value) for name, value in options.items()}
    return {"kafka.bootstrap.servers": broker.bootstrap, **named}


def options(broker: Cluster, **some: Any) -> SourceOptions:
    return parse_options(given(broker, **some))
