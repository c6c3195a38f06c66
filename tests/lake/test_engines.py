"""The same work by Spark's workers: its tasks are the tasks of threads, so that here only the way there is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.client.kafka import KafkaError, KafkaSettings
from penstock.lake.archiver import Archiver
from penstock.lake.buckets import Bucketing
from penstock.lake.compaction import compact_table
from penstock.lake.engines import SparkEngine
from penstock.lake.errors import ArchiveError
from penstock.lake.opening import open_table
from penstock.lake.places import place_of
from penstock.lake.ranges import OffsetRange
from penstock.lake.settings import Values, ValueSettings
from penstock.lake.tasks import ArchiveRange
from tests.lake.lake import archive, made, natively, rows
from tests.lake.topics import Topic, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_archives_and_merges_what_spark_reads_again(
    spark: SparkSession, topic: Topic, tmp_path: Path, format_: str
) -> None:
    engine = SparkEngine(lambda: spark)
    value = ValueSettings(Values.JSON)
    topic.fill(100)
    archive(topic, tmp_path / "table", format_, engine=engine, value=value)
    topic.fill(100)
    archive(topic, tmp_path / "table", format_, engine=engine)
    assert rows(tmp_path / "table") == topic.rows()
    compact_table(open_table(str(tmp_path / "table")), engine, files_min=2)
    assert table_rows(natively(tmp_path / "table")) == topic.rows()
    if format_ == "parquet":
        read = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "table"))
        assert read.count() == 600
        assert {"day", "n", "_error"} <= set(read.columns)
        assert read.where("n is not null").count() > 0


def test_what_a_task_cannot_do_comes_back_as_one_line(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    engine = SparkEngine(lambda: spark)
    topic.fill(5)
    place = place_of(str(tmp_path))
    task = ArchiveRange(place, topic.settings, topic.name, OffsetRange(0, 0, 5), Bucketing.DAY, ValueSettings(), {}, {})
    (written,) = engine.run([task])
    assert sum(file.rows for file in written.files) == 5
    for folder in tmp_path.glob("day=*"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("in the way")
    with pytest.raises(ArchiveError, match=r"cannot write .*day=") as raised:
        engine.run([task])
    assert "\n" not in str(raised.value)
    gone = ArchiveRange(
        place,
        KafkaSettings.of(topic.bootstrap),
        "no-such-topic",
        OffsetRange(0, 0, 5),
        Bucketing.DAY,
        ValueSettings(),
        {},
        {},
    )
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        engine.run([gone])


def test_a_table_in_memory_is_not_given_to_other_processes(spark: SparkSession, topic: Topic) -> None:
    pytest.importorskip("fsspec")
    table = made(topic, f"memory://spark/{topic.name}")
    with pytest.raises(ArchiveError, match="use --engine local"):
        Archiver(topic.settings, table, SparkEngine(lambda: spark))
