"""Delta tables take each batch once, and changes leave each row as it is now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.declaration import TableSink, Upsert
from penstock.pipeline.delta import DeltaWriter, read_delta
from penstock.pipeline.problems import PipelineFailed
from penstock.spark.failures import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("deltalake", reason="the lake extra is not installed")
pytestmark = pytest.mark.timeout(300)

CHANGES = "id BIGINT, name STRING, op STRING, change BIGINT"


def content(path: Path) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return DeltaTable(str(path)).to_pyarrow_table().to_pylist()


def test_a_batch_that_is_written_again_is_there_once(
    spark: SparkSession, tmp_path: Path, as_query: Callable[[str], None]
) -> None:
    writer = DeltaWriter(TableSink(str(tmp_path / "t"), "delta", (), None), "f")
    batches = [spark.createDataFrame([(number,)], "n INT") for number in range(3)]
    for batch_id in (0, 1, 1, 0, 2, 2):
        writer(batches[batch_id], batch_id)
    assert sorted(row["n"] for row in content(tmp_path / "t")) == [0, 1, 2]
    # another query has batches of its own
    as_query("two")
    writer(batches[0], 0)
    assert sorted(row["n"] for row in content(tmp_path / "t")) == [0, 0, 1, 2]


def test_a_new_column_is_added_and_the_table_reads_as_one(
    spark: SparkSession, tmp_path: Path, as_query: Callable[[str], None]
) -> None:
    path = tmp_path / "t"
    writer = DeltaWriter(TableSink(str(path), "delta", ("day",), None), "f")
    writer(spark.createDataFrame([(1, "mon day")], "n INT, day STRING"), 0)
    writer(spark.createDataFrame([(2, "tue", "new")], "n INT, day STRING, more STRING"), 1)
    found = read_delta(spark, str(path)).orderBy("n").collect()
    assert [(row.n, row.day, row.more) for row in found] == [(1, "mon day", None), (2, "tue", "new")]
    assert len(list(path.glob("day=*"))) == 2


def test_changes_leave_each_row_as_it_is_now(
    spark: SparkSession, tmp_path: Path, as_query: Callable[[str], None]
) -> None:
    sink = TableSink(str(tmp_path / "t"), "delta", (), Upsert(("id",), "change", "op = 'd'"))
    writer = DeltaWriter(sink, "f")

    def apply(batch_id: int, *changes: tuple[int, str | None, str, int]) -> dict[int, Any]:
        writer(spark.createDataFrame(list(changes), CHANGES), batch_id)
        return {row["id"]: row["name"] for row in content(tmp_path / "t")}

    assert apply(0, (1, "a", "c", 1), (2, "b", "c", 2), (1, "aa", "u", 3), (3, "c", "c", 4), (3, None, "d", 5)) == {
        1: "aa",
        2: "b",
    }
    assert apply(1, (2, None, "d", 6), (4, "d", "c", 7)) == {1: "aa", 4: "d"}
    # written again: nothing changes, whatever it holds
    assert apply(1, (9, "x", "c", 99)) == {1: "aa", 4: "d"}
    # an older change that comes late does not undo a newer one
    assert apply(2, (1, "old", "u", 2), (4, None, "d", 6), (4, "dd", "u", 8)) == {1: "aa", 4: "dd"}


def test_what_a_merge_cannot_decide_is_refused(
    spark: SparkSession, tmp_path: Path, as_query: Callable[[str], None]
) -> None:
    writer = DeltaWriter(TableSink(str(tmp_path / "t"), "delta", (), Upsert(("id",), None, None)), "f")
    with pytest.raises(PipelineFailed, match=r"flows.f: a batch has two rows with the same key; set upsert.order_by"):
        writer(spark.createDataFrame([(1, "a"), (1, "b")], "id INT, name STRING"), 0)
    with pytest.raises(Exception, match="upsert key") as failed:
        writer(spark.createDataFrame([(None, "a")], "id INT, name STRING"), 0)
    assert one_line(failed.value) == "the upsert key id is null in a row: reject such rows with a check"
    assert not (tmp_path / "t").exists()
    writer(spark.createDataFrame([(1, "a"), (2, "b")], "id INT, name STRING"), 0)
    writer(spark.createDataFrame([(1, "c")], "id INT, name STRING"), 1)
    assert {row["id"]: row["name"] for row in content(tmp_path / "t")} == {1: "c", 2: "b"}


def test_a_table_that_is_not_there_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match="no delta table at"):
        read_delta(spark, str(tmp_path / "none"))


def test_an_empty_table_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable

    DeltaTable.create(str(tmp_path / "t"), pa.schema([("a", pa.int64()), ("b", pa.timestamp("us", "UTC"))]))
    assert read_delta(spark, str(tmp_path / "t")).dtypes == [("a", "bigint"), ("b", "timestamp")]
