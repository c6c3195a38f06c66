"""What Spark's checkpoint says of a batch, and when two batches of one number are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")

from penstock.spark.sink.identity import Batch, check_same, plan_of
from penstock.spark.sink.journal import Decision, Plan
from penstock.spark.sink.options import SinkError
from penstock.spark.sink.row_digest import Content

HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":%d}\n'


def checkpoint(folder: Path, offsets: str) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "offsets" / "3").write_text(offsets)


def test_a_plan_is_that_of_the_offsets_file(tmp_path: Path) -> None:
    checkpoint(tmp_path, HEAD % 1 + '{"t":{"0":5}}')
    plan = plan_of(str(tmp_path), "q", 3)
    assert plan is not None
    assert plan == plan_of(tmp_path.as_uri(), "q", 3) == plan_of(f"file:{tmp_path}", "q", 3)
    checkpoint(tmp_path, HEAD % 2 + '{"t":{"0":5}}')
    planned_again = plan_of(str(tmp_path), "q", 3)
    assert planned_again is not None
    assert planned_again.file != plan.file
    assert planned_again.sources == plan.sources
    checkpoint(tmp_path, HEAD % 2 + '{"t":{"0":6}}')
    other_input = plan_of(str(tmp_path), "q", 3)
    assert other_input is not None
    assert other_input.sources != plan.sources


@pytest.mark.parametrize("place", [None, "s3a://bucket/checkpoint", "hdfs:///checkpoint", "/nowhere", ""])
def test_missing_checkpoint_has_no_plan(place: str | None) -> None:
    assert plan_of(place, "q", 3) is None


def test_checkpoint_of_another_query_or_without_the_batch_has_no_plan(tmp_path: Path) -> None:
    checkpoint(tmp_path, HEAD % 1 + '{"t":{"0":5}}')
    assert plan_of(str(tmp_path), "other", 3) is None
    assert plan_of(str(tmp_path), "q", 4) is None
    (tmp_path / "metadata").write_text("not JSON")
    assert plan_of(str(tmp_path), "q", 3) is None


TWO, OTHER_TWO, THREE = Content(2, 7), Content(2, 8), Content(3, 7)
A, A_AGAIN, B = Plan("1", "a"), Plan("2", "a"), Plan("3", "b")


@pytest.mark.parametrize(
    ("decided", "came", "is_same"),
    [
        ((TWO, None), (TWO, None), True),
        ((TWO, None), (OTHER_TWO, None), False),
        ((TWO, None), (THREE, None), False),
        ((TWO, A), (OTHER_TWO, A), True),
        ((TWO, A), (TWO, A_AGAIN), True),
        ((TWO, A), (OTHER_TWO, A_AGAIN), False),
        ((TWO, A), (TWO, B), False),
        ((TWO, A), (TWO, None), True),
        ((TWO, None), (OTHER_TWO, A), False),
        ((None, None), (THREE, A), True),
    ],
)
def test_batch_is_identified_by_its_plan_or_its_rows(
    decided: tuple[Content | None, Plan | None], came: tuple[Content, Plan | None], is_same: bool
) -> None:
    contents = None if decided[0] is None else {0: decided[0]}
    decision = Decision(3, 1, {}, contents, decided[1])
    batch = Batch("q", 3, {1: came[0]}, came[1])
    if is_same:
        check_same(decision, batch, None)
        return
    with pytest.raises(SinkError, match=r"^batch 3 of query q was already written .* restore the newest checkpoint"):
        check_same(decision, batch, None)
    with pytest.raises(SinkError, match=r"^writeId load was already used .* use another writeId"):
        check_same(decision, batch, "load")
