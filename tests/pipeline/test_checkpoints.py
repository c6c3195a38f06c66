"""A checkpoint says where its query is, and one that cannot be read says so in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.pipeline.checkpoints import UnreadableCheckpoint, read_checkpoint


def write_checkpoint(place: Path, planned: dict[int, list[object]], committed: list[int], version: str = "v1") -> None:
    """The files that Spark writes, with the offsets of each planned batch's sources."""
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"the-query"}')
    for batch, sources in planned.items():
        head = json.dumps({"batchWatermarkMs": 5_000 * batch, "batchTimestampMs": 1_000 + batch, "conf": {}})
        lines = [version, head, *(json.dumps(source) for source in sources)]
        (place / "offsets" / str(batch)).write_text("\n".join(lines))
        (place / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in committed:
        (place / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_no_query_ever_began(tmp_path: Path) -> None:
    assert read_checkpoint(str(tmp_path / "none")) is None


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_the_last_committed_batch_counts_and_one_that_was_cut_off_is_told(tmp_path: Path, form: str) -> None:
    write_checkpoint(
        tmp_path,
        {
            8: [{"orders": {"0": 5}}],
            9: [{"orders": {"0": 10, "1": 7}}, {"logOffset": 3}],
            10: [{"orders": {"0": 20, "1": 8}}, {"logOffset": 4}],
        },
        [8, 9],
    )
    found = read_checkpoint(form.format(tmp_path))
    assert found is not None
    assert (found.query_id, found.committed_batch, found.planned_batch) == ("the-query", 9, 10)
    assert found.offsets == {("orders", 0): 10, ("orders", 1): 7}
    assert (found.batch_time_ms, found.watermark_ms) == (1_009, 45_000)
    assert found.is_in_batch


def test_a_topic_of_two_sources_is_as_far_as_the_slower(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {0: [{"a": {"0": 9}}, {"a": {"0": 4}, "b": {"0": 1}}]}, [0])
    found = read_checkpoint(str(tmp_path))
    assert found is not None
    assert found.offsets == {("a", 0): 4, ("b", 0): 1}
    assert not found.is_in_batch


def test_before_the_first_commit_there_are_no_offsets(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {0: [{"a": {"0": 9}}]}, [])
    found = read_checkpoint(str(tmp_path))
    assert found is not None
    assert (found.committed_batch, found.planned_batch, found.offsets) == (None, 0, {})


def test_what_is_not_a_checkpoint_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("something else")
    with pytest.raises(UnreadableCheckpoint, match=str(tmp_path)):
        read_checkpoint(str(tmp_path))
    write_checkpoint(tmp_path / "other", {0: [{"a": {"0": 9}}]}, [0], version="?")
    with pytest.raises(UnreadableCheckpoint, match="corrupt"):
        read_checkpoint(str(tmp_path / "other"))
    with pytest.raises(UnreadableCheckpoint, match="nothing://"):
        read_checkpoint("nothing://at/all")
