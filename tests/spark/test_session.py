"""The session that Penstock's commands start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from penstock.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_running_session_is_given_back_as_it_is(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert open_session("another", "local[1]", {"spark.sql.shuffle.partitions": "9"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.sparkContext.master == "local[2]"


def test_the_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def whose(batches):  # type: ignore[no-untyped-def]
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1, numPartitions=1).mapInArrow(whose, "python string").collect()
    assert [row.python for row in rows] == [sys.executable]


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'penstock\[spark\]'"):
        open_session("none")
