from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.lake.archiver import Pace
from penstock.lake.compaction import compact_table, recover
from penstock.lake.data_files import SUFFIX
from penstock.lake.engines import LocalEngine
from penstock.lake.errors import ArchiveError, Conflict
from penstock.lake.opening import open_table
from penstock.lake.settings import Values, ValueSettings
from penstock.lake.tables import Append
from tests.lake.lake import Interrupted, archive, natively, rows
from tests.lake.topics import DAY_MS, T0_MS, Topic, table_rows

SMALL_STEPS = Pace(commit_records_max=60)


def data_files(path: Path) -> set[str]:
    found = {str(one.relative_to(path)) for one in path.rglob(f"*{SUFFIX}")}
    return {name for name in found if not name.startswith("_")}


def test_many_small_files_become_one_a_partition_and_day(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.fill(200, days=2)
    archive(topic, tmp_path / "table", format_, pace=SMALL_STEPS)
    table = open_table(str(tmp_path / "table"))
    before = Counter((file.partition, file.bucket) for file in table.files())
    merged = compact_table(table, LocalEngine(2), files_min=2)
    after = Counter((file.partition, file.bucket) for file in table.files())
    assert after == dict.fromkeys(before, 1)
    assert merged.before == sum(count for count in before.values() if count > 1) > topic.partitions * 2
    assert rows(tmp_path / "table") == topic.rows()
    assert table_rows(natively(tmp_path / "table")) == topic.rows()
    assert compact_table(table, LocalEngine(2), files_min=2).before == 0


def test_the_archive_goes_on_after_a_compaction(topic: Topic, tmp_path: Path, format_: str) -> None:
    value = ValueSettings(Values.JSON)
    topic.write([b'{"a": 1}'])
    archive(topic, tmp_path / "table", format_, value=value)
    topic.write([b'{"a": 2, "b": "x"}'])
    archive(topic, tmp_path / "table", format_)
    compact_table(open_table(str(tmp_path / "table")), LocalEngine(2), files_min=2)
    topic.write([b'{"a": 3, "c": true}'])
    archive(topic, tmp_path / "table", format_)
    table = natively(tmp_path / "table").sort_by("offset")
    assert table.select(["a", "b", "c"]).to_pydict() == {
        "a": [1, 2, 3],
        "b": [None, "x", None],
        "c": [None, None, True],
    }


def test_a_compaction_that_was_interrupted_leaves_no_row_twice(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.fill(100)
    archive(topic, tmp_path / "table", format_, pace=SMALL_STEPS)
    table = open_table(str(tmp_path / "table"))
    before = data_files(tmp_path / "table")
    with pytest.raises(ArchiveError, match="killed"):
        compact_table(table, Interrupted(2), files_min=2)
    assert data_files(tmp_path / "table") > before
    recover(table)
    assert data_files(tmp_path / "table") == before
    assert rows(tmp_path / "table") == topic.rows()


def test_files_that_a_compaction_replaced_go_when_they_are_old_enough(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(100)
    archive(topic, tmp_path / "table", format_, pace=SMALL_STEPS)
    table = open_table(str(tmp_path / "table"))
    compact_table(table, LocalEngine(2), files_min=2)
    needed = {file.name for file in table.files()}
    stray = tmp_path / "table" / "day=2023-11-14" / f"part-stray{SUFFIX}"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"left by nobody")
    long_ago = time.time() - 7 * 86_400
    for name in data_files(tmp_path / "table"):
        os.utime(tmp_path / "table" / name, (long_ago, long_ago))
    expired = table.expire(None, time.time() + 1)
    assert (expired.rows, expired.files) == (0, 0)
    assert expired.unused_files >= 1
    assert data_files(tmp_path / "table") == needed
    assert rows(tmp_path / "table") == topic.rows()
    topic.fill(20)
    archive(topic, tmp_path / "table", format_)
    assert table_rows(natively(tmp_path / "table")) == topic.rows()


def test_a_stale_writer_is_refused_even_when_the_commits_it_missed_are_forgotten(topic: Topic, tmp_path: Path) -> None:
    topic.fill(20)
    archive(topic, tmp_path / "table")
    stale = open_table(str(tmp_path / "table"))
    state = stale.state()
    topic.fill(20)
    archive(topic, tmp_path / "table", pace=Pace(commit_records_max=10))
    open_table(str(tmp_path / "table")).expire(None, time.time())
    with pytest.raises(Conflict):
        stale.append(Append(state.offsets, state.offsets, [], {}, with_error=False))
    assert len(stale.files()) == len(open_table(str(tmp_path / "table")).files())


def test_days_that_are_past_are_dropped_and_not_archived_again(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.write([b"old"] * 5, timestamp_ms=T0_MS)
    topic.write([b"new"] * 5, timestamp_ms=T0_MS + 10 * DAY_MS)
    archive(topic, tmp_path / "table", format_)
    table = open_table(str(tmp_path / "table"))
    before_s = table.settings.bucketing.before(T0_MS / 1_000 + 5 * 86_400)
    expired = table.expire(before_s, time.time() - 3_600)
    assert (expired.rows, expired.files) == (5, 1)
    assert archive(topic, tmp_path / "table", format_) == []
    assert [row.offset for row in table_rows(natively(tmp_path / "table"))] == [5, 6, 7, 8, 9]


def test_a_table_of_many_commits_is_read_from_its_checkpoint(topic: Topic, tmp_path: Path) -> None:
    topic.fill(60, batch=5)
    archive(topic, tmp_path / "table", pace=Pace(commit_records_max=3))
    commits = tmp_path / "table" / "_penstock" / "commits"
    assert len(list(commits.iterdir())) >= 50
    for commit in sorted(commits.iterdir())[:50]:
        commit.unlink()
    assert rows(tmp_path / "table") == topic.rows()
