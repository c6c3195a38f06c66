"""Spark's own Kafka connector, `format("kafka")`, against Penstock: batch and streaming, both ways.

The connector is no part of pyspark; its jars come from Maven, in pyspark's version where the repository has it and else in
the nearest one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from tests.maven import Unresolved
from tests.spark.jvm import connector

pytest.importorskip("pyspark", reason="the spark extra is not installed")

pytestmark = [
    pytest.mark.timeout(300),
    # py4j leaves its sockets to the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _connector() -> None:
    try:
        connector()
    except Unresolved as missing:
        pytest.skip(str(missing))


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
        # the newest time that every partition has reached: the connector fails where one has nothing as young
        times = [(row.partition, row.offset, int(row.timestamp.timestamp() * 1000)) for row in seen]
        since_ms = min(max(at for place, _, at in times if place == partition) for partition in range(3))
        begin = {partition: min(o for p, o, at in times if p == partition and at >= since_ms) for partition in range(3)}
        later = read(subscribe="written", startingTimestamp=str(since_ms)).select("partition", "offset").collect()
        expected = sorted((place, offset) for place, offset, _ in times if offset >= begin[place])
        assert sorted((row.partition, row.offset) for row in later) == expected

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
