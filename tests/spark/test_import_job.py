from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.imports.engine import ImportFailed
from penstock.imports.run import Import, ImportRequest
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record
from tests.imports.fixtures import FIXTURES, Fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("fixture", [FIXTURES[1], FIXTURES[3]], ids=lambda fixture: fixture.name)
def test_partitions_read_and_written_by_tasks_come_over_as_without_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixture: Fixture
) -> None:
    from penstock.spark.import_job import SparkEngine

    monkeypatch.chdir(tmp_path)
    root = tmp_path / "source"
    fixture.make(root)
    fixture.damage(root)
    request = ImportRequest(fixture.name, root, engine=SparkEngine(spark))
    with Broker() as broker, KafkaClient(broker.bootstrap) as client:
        report = Import(request).into_broker(KafkaSettings.of(broker.bootstrap), broker.bootstrap)
        assert report.verified
        assert (
            report.as_dict()["partitions"]
            == Import(ImportRequest(fixture.name, root)).dry_run().as_dict()["partitions"]
        )
        expected = fixture.expected(damaged=True)
        records = read_all(client, "orders", 0, 0, len(expected["orders-0"]))
        assert [(record.key, record.value) for record in records] == [row[1:] for row in expected["orders-0"]]


def test_a_failure_inside_a_task_is_the_same_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.import_job import SparkEngine

    monkeypatch.chdir(tmp_path)
    day1_log(tmp_path / "s", "t", 0, [day1_record(0, b"", b"v" * 5000)])
    request = ImportRequest("day1", tmp_path / "s", configs={"max.message.bytes": "100"}, engine=SparkEngine(spark))
    with Broker() as broker, pytest.raises(ImportFailed, match=r"^t-0: MESSAGE_TOO_LARGE") as failed:
        Import(request).into_broker(KafkaSettings.of(broker.bootstrap), broker.bootstrap)
    assert "\n" not in str(failed.value)
