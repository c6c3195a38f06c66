"""Spark in the matrix of dialects: what it writes, all six read; what each of the six writes, it reads both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock import Broker
from penstock.cli.dialect_clients import Pair
from penstock.model.listeners import PORTS
from tests.dialects.test_matrix import ALL, RECORDS, carries_keys, make_topic, read, until_readable, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the spark extra is not installed")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=tuple(f"{dialect}=127.0.0.1:0" for dialect in PORTS)) as running:
        yield running


def read_by_spark(spark: SparkSession, broker: Broker, topic: str, **options: str) -> list[Pair]:
    address = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    rows = spark.read.format("penstock").options(**address, **options).load().orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(len(rows)))
    assert {(row.topic, row.partition) for row in rows} == {(topic, 0)}
    return [Pair(bytes(row.key or b""), bytes(row.value)) for row in rows]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_spark_writes_every_dialect_reads(spark: SparkSession, broker: Broker, delivery: str) -> None:
    topic = f"written-by-spark-{delivery}"
    make_topic(broker, topic)
    rows = spark.createDataFrame(
        [(bytearray(key), bytearray(value)) for key, value in RECORDS], "key binary, value binary"
    ).coalesce(1)
    address = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    once = {"delivery": delivery, **({"writeId": topic} if delivery == "exactly_once" else {})}
    rows.write.format("penstock").mode("append").options(**address, **once).save()
    until_readable(broker, topic)
    for reader in ALL:
        wanted = [Pair(key if carries_keys(reader) else b"", value) for key, value in RECORDS]
        assert read(broker, reader, topic) == wanted, f"read by {reader}"
    assert read_by_spark(spark, broker, topic) == RECORDS


@pytest.mark.parametrize("writer", ALL)
def test_what_a_dialect_writes_spark_reads(spark: SparkSession, broker: Broker, writer: str) -> None:
    topic = f"for-spark-by-{writer}"
    make_topic(broker, topic)
    write(broker, writer, topic)
    wanted = [Pair(key if carries_keys(writer) else b"", value) for key, value in RECORDS]
    assert read_by_spark(spark, broker, topic, read="wire") == wanted
    segments = {"read": "segments", "segments.dir": str(broker.data_dir)}
    assert read_by_spark(spark, broker, topic, **segments) == wanted
