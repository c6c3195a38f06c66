"""Batches on their way: sizes, sequences, and brokers that go away in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from pyspark.sql.types import BinaryType, StructType

from penstock import Broker
from penstock.arrow.encode import NOBODY, Writer
from penstock.client.kafka import KafkaClient
from penstock.records.batch import Batch, whole_batches
from penstock.spark.sink.delivery import Sender
from penstock.spark.sink.options import SinkError, SinkOptions
from tests.spark.sink_cluster import places_of, records


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log


def options(broker: Broker, topic: str, **given: str) -> SinkOptions:
    told = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    told |= {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return SinkOptions.of(told, StructType().add("value", BinaryType()))


def tables(count: int, rows: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    for table in range(count):
        values = [b"%d.%d." % (table, row) + bytes(size) for row in range(rows)]
        yield pa.record_batch({"value": pa.array(values, pa.binary())})


def batches(client: KafkaClient, topic: str) -> list[Batch]:
    found: list[Batch] = []
    for place in places_of(client, topic):
        offset = 0
        while held := list(whole_batches(client.fetch({place: offset}, wait_ms_max=0)[place].records)):
            found += held
            offset = held[-1].next_offset
    return found


def test_small_tables_are_gathered_into_large_batches(broker: Broker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("large", 2)
        sender = Sender(client, options(broker, "large"), Writer(*client.init_producer_id()))
        sender.send_all(tables(100, 200, 500))
        assert sender.rows == 20_000
        written = batches(client, "large")
    assert sum(batch.count for batch in written) == 20_000
    assert max(batch.size for batch in written) <= 1_000_000
    assert len(written) < 20
    # one producer, and the sequences of each partition without a gap
    assert len({batch.producer_id for batch in written}) == 1
    following: dict[int, int] = {}
    for at, batch in enumerate(written):
        if batch.base_offset == 0:
            following = {}
        assert batch.base_sequence == following.get(0, 0), at
        following[0] = batch.base_sequence + batch.count


def test_batches_are_no_larger_than_the_topic_takes(broker: Broker) -> None:
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic("narrow", 1, configs={"max.message.bytes": "5000"})
        sender = Sender(client, options(broker, "narrow"), Writer(*client.init_producer_id()))
        sender.send_all(tables(3, 200))
        assert max(batch.size for batch in batches(client, "narrow")) <= 5_000
        with pytest.raises(
            SinkError,
            match=r"a row for topic narrow is .* bytes as a batch, which exceeds the topic's max.message.bytes",
        ):
            sender.send_all(tables(1, 1, 6_000))


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_row_arrives_whatever_acknowledgement_is_asked_for(broker: Broker, acks: str) -> None:
    topic = f"acks-{acks}"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, 3)
        told = options(broker, topic, acks=acks)
        writer = Writer(*client.init_producer_id()) if told.is_idempotent else NOBODY
        Sender(client, told, writer).send_all(tables(5, 1_000))
        # the answer to a later request on the same connection says that acks=0 has arrived
        client.metadata([topic])
        values = Counter(record.value for record in records(client, topic))
    assert len(values) == 5_000
    assert set(values.values()) == {1}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_are_those_asked_for(broker: Broker, codec: str) -> None:
    topic = f"codec-{codec}"
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, 1)
        Sender(client, options(broker, topic, compression_type=codec), Writer(*client.init_producer_id())).send_all(
            tables(1, 100)
        )
        assert {batch.compression for batch in batches(client, topic)} == {
            {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]
        }
        assert sum(1 for _ in records(client, topic)) == 100


def test_a_broker_that_is_killed_while_batches_are_in_flight_has_each_row_once(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"storage.flush": "os"}) as broker, KafkaClient(broker.bootstrap) as client:
        client.create_topic("t", 2)

        def with_kills() -> Iterator[pa.RecordBatch]:
            for at, table in enumerate(tables(60, 1_000, 300)):
                if at in (20, 41):
                    broker.kill()
                    broker.start()
                yield table

        Sender(client, options(broker, "t"), Writer(*client.init_producer_id())).send_all(with_kills())
        values = Counter(record.value for record in records(client, "t"))
    assert len(values) == 60_000
    assert set(values.values()) == {1}
