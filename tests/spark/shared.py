"""The one Spark session of a test process: it takes ten seconds to start, and a process can have but one.

Spark's own Kafka connector is on its class path where Maven gives it, so that tests which compare the two share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.jvm import Archive, connector_or_none, end_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.session import open_session

    running = SparkSession.getActiveSession()
    if running is not None:
        # two folders ask for the fixture, and each has its own
        yield running
        return
    place = tmp_path_factory.mktemp("spark")
    jars = connector_or_none()
    archive = Archive(jars)
    session = open_session(
        "penstock-tests",
        "local[2]",
        {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": archive.reading_or_writing(),
            "spark.driver.extraClassPath": ":".join(map(str, jars)),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place / "local"),
            "spark.sql.shuffle.partitions": "2",
        },
    )
    yield session
    session.stop()
    assert SparkContext._active_spark_context is None
    end_java()
    archive.exited()
