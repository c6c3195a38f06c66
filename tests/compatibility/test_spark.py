"""Spark's own Kafka connector, `format("kafka")`, against Penstock: batch and streaming, both ways.

The connector is no part of pyspark; its jars come from Maven, in pyspark's version where the repository has it and else in
the nearest one. One small local session serves the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from tests.compatibility.java import KAFKA_3, Unresolved, is_cached, resolve

pyspark = pytest.importorskip("pyspark", reason="the spark extra is not installed")

pytestmark = [
    pytest.mark.timeout(300),
    # py4j leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

NEAREST = "4.2.0"
"""The newest connector that any repository has been seen to have; pyspark's next minor version takes it."""
NEAREST_TOKENS = "4.0.0"
"""The same of the jar with which it would ask for delegation tokens."""


def connector() -> Path:
    """The folder with the connector's jars, and Kafka's client in the version that Spark 4 is built with."""
    candidates = [(pyspark.__version__, pyspark.__version__), (NEAREST, NEAREST_TOKENS)]
    # what is in the cache is taken as it is: asking again for what a repository does not have takes seconds
    candidates.sort(key=lambda versions: not is_cached(f"spark-kafka-{versions[0]}"))
    for version, tokens in candidates:
        artifacts = (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{tokens}",
            f"org.apache.kafka:kafka-clients:{KAFKA_3}",
            "org.apache.commons:commons-pool2:2.12.0",
        )
        try:
            return resolve(f"spark-kafka-{version}", *artifacts, alone=True)
        except Unresolved as missing:
            reason = str(missing)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    jars = ",".join(str(path) for path in sorted(connector().glob("*.jar")))
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]").appName("format kafka")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def test_topics_are_written_and_read_by_batches_and_streams(spark: Any, tmp_path: Path) -> None:
    with Broker(settings={"broker.num_partitions": 3}) as broker:
        address = {"kafka.bootstrap.servers": broker.bootstrap}

        def read(**options: str) -> Any:
            return spark.read.format("kafka").options(**address, **options).load()

        rows = spark.range(1_000).selectExpr(
            "cast(cast(id as string) as binary) as key",
            "cast(concat('value ', id) as binary) as value",
            "array(struct('trace' as key, cast(cast(id as string) as binary) as value)) as headers",
        )
        rows.write.format("kafka").options(**address, topic="written", includeHeaders="true").save()

        seen = read(subscribe="written", includeHeaders="true").collect()
        assert sorted(bytes(row.value) for row in seen) == sorted(b"value %d" % at for at in range(1_000))
        assert {row.partition for row in seen} == {0, 1, 2}
        assert all(bytes(row.value).endswith(bytes(row.headers[0].value)) for row in seen)
        assert all(row.headers[0].key == "trace" for row in seen)

        # a range of offsets, and the first offset at a time
        bounds = {
            f"{where}Offsets": json.dumps({"written": {"1": at}}) for where, at in (("starting", 5), ("ending", 9))
        }
        ranged = read(assign=json.dumps({"written": [1]}), **bounds).select("offset").collect()
        assert sorted(row.offset for row in ranged) == [5, 6, 7, 8]
        newest_ms = max(int(row.timestamp.timestamp() * 1000) for row in seen)
        later = read(subscribe="written", startingTimestamp=str(newest_ms)).selectExpr("timestamp").collect()
        assert later
        assert all(int(row.timestamp.timestamp() * 1000) >= newest_ms for row in later)

        # a stream from topic to topic, in two runs that share a checkpoint: what was done is not done again
        for first, last in ((0, 0), (1_000, 1_500)):
            if last:
                more = spark.range(first, last).selectExpr("cast(concat('value ', id) as binary) as value")
                more.write.format("kafka").options(**address, topic="written").save()
            stream = (
                spark.readStream.format("kafka")
                .options(**address, subscribePattern="writ+en", startingOffsets="earliest", maxOffsetsPerTrigger="700")
                .load()
            )
            query = (
                stream.selectExpr("key", "cast(concat('out ', cast(value as string)) as binary) as value")
                .writeStream.format("kafka")
                .options(**address, topic="streamed", checkpointLocation=str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
        streamed = read(subscribe="streamed").collect()
        assert sorted(bytes(row.value) for row in streamed) == sorted(b"out value %d" % at for at in range(1_500))
        assert "Traceback" not in broker.log, broker.log
