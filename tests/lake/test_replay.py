from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.kafka import LATEST, KafkaClient
from penstock.lake import replay as replay_module
from penstock.lake.archiver import Pace
from penstock.lake.buckets import Bucketing
from penstock.lake.columns import RECORD
from penstock.lake.compaction import compact_table
from penstock.lake.data_files import MIXED, FileSet
from penstock.lake.engines import LocalEngine
from penstock.lake.errors import ArchiveError
from penstock.lake.opening import open_table
from penstock.lake.places import Place
from penstock.lake.replay import Replay, Replayed
from penstock.lake.row_order import Bounds, ordered_rows
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from tests.lake.lake import archive, rows
from tests.lake.topics import DAY_MS, T0_MS, Topic, topic_rows

EVERYTHING = Bounds()
_NUMBERS = itertools.count()


def replay(
    topic: Topic, path: Path, to: str, bounds: Bounds = EVERYTHING, *, restart: bool = False, steps: int | None = None
) -> Replayed:
    """All of it, or only so many requests."""
    left = itertools.count() if steps is None else iter([*range(steps)])
    table = open_table(str(path))
    with contextlib.closing(Replay(topic.settings, table, to, bounds, restart=restart)) as work:
        return work.run(lambda: next(left, None) is None)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No killed replay is about in these tests; the one that is killed runs in a process of its own."""
    monkeypatch.setattr(replay_module, "SETTLED_S", 0.01)


@pytest.fixture
def target(topic: Topic) -> str:
    return f"{topic.name}-again-{next(_NUMBERS)}"


def test_a_replay_gives_the_same_records_and_its_archive_equals_the_first(
    topic: Topic, target: str, tmp_path: Path, format_: str
) -> None:
    topic.fill(300)
    archive(topic, tmp_path / "table", format_, pace=Pace(commit_records_max=250))
    compact_table(open_table(str(tmp_path / "table")), LocalEngine(2), files_min=2)
    assert replay(topic, tmp_path / "table", target).rows == 900
    # offsets too: the topic had no gaps
    assert topic_rows(topic.bootstrap, target) == topic.rows()
    with Topic(topic.bootstrap, f"{target}-unused", 1) as again:
        again.name = target
        archive(again, tmp_path / "again", format_)
    assert rows(tmp_path / "again") == rows(tmp_path / "table")


def test_a_record_larger_than_a_topic_usually_takes_is_replayed(topic: Topic, target: str, tmp_path: Path) -> None:
    large = build_batch([NewRecord(T0_MS, b"k", bytes(3_000_000), ())], compression=Codec.ZSTD)
    topic.client.produce({(topic.name, 0): large})
    archive(topic, tmp_path / "table")
    assert replay(topic, tmp_path / "table", target).rows == 1
    assert topic_rows(topic.bootstrap, target) == topic.rows()


def test_where_transactions_left_gaps_records_and_order_are_the_same(topic: Topic, target: str, tmp_path: Path) -> None:
    topic.fill(20)
    topic.transaction(5, commit=False)
    topic.transaction(5, commit=True)
    topic.fill(20)
    archive(topic, tmp_path / "table")
    replay(topic, tmp_path / "table", target)
    there = topic_rows(topic.bootstrap, target)
    assert [row.content for row in there] == [row.content for row in topic.rows()]


def test_a_replay_that_was_stopped_goes_on(
    topic: Topic, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "PARTITION_BYTES", 2_000)
    topic.fill(200)
    archive(topic, tmp_path / "table")
    first = replay(topic, tmp_path / "table", target, steps=3)
    assert 0 < first.rows < 600
    assert not first.is_complete
    second = replay(topic, tmp_path / "table", target, steps=2)
    assert second.before == first.rows
    replay(topic, tmp_path / "table", target)
    assert topic_rows(topic.bootstrap, target) == topic.rows()
    assert replay(topic, tmp_path / "table", target) == Replayed(0, 600, 3)


def test_a_replay_that_was_killed_goes_on(topic: Topic, target: str, tmp_path: Path) -> None:
    topic.fill(4_000, batch=500)
    archive(topic, tmp_path / "table")
    # small requests, so that the blow falls among them
    script = (
        "from penstock.lake import replay; replay.PARTITION_BYTES = 3_000\nfrom penstock.cli.main import main; main()"
    )
    arguments = ["archive", "replay", str(tmp_path / "table"), "--to", target, "-b", topic.bootstrap]
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.DEVNULL, env=os.environ)
    try:
        deadline = time.monotonic() + 60
        while not _end(topic.bootstrap, target) > 0 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = replay(topic, tmp_path / "table", target)
    assert finished.before > 0
    assert finished.before + finished.rows == 12_000
    assert topic_rows(topic.bootstrap, target) == topic.rows()


def _end(bootstrap: str, topic: str) -> int:
    with KafkaClient(bootstrap) as client:
        if topic not in client.metadata([topic]).topics:
            return 0
        return client.list_offsets({(topic, 0): LATEST}).popitem()[1].offset or 0


def test_a_range_of_offsets_or_of_times_can_be_replayed(topic: Topic, target: str, tmp_path: Path) -> None:
    topic.write([b"%d" % at for at in range(10)], timestamp_ms=T0_MS)
    topic.write([b"%d" % at for at in range(10, 20)], timestamp_ms=T0_MS + DAY_MS)
    archive(topic, tmp_path / "table")
    replay(topic, tmp_path / "table", target, Bounds(first_offset=3, end_offset=12))
    assert [row.value for row in topic_rows(topic.bootstrap, target)] == [b"%d" % at for at in range(3, 12)]
    by_time = Bounds(first_ms=T0_MS + 8, end_ms=T0_MS + DAY_MS + 2)
    with pytest.raises(ArchiveError, match=r"replay of other rows .* --restart"):
        replay(topic, tmp_path / "table", target, by_time)
    replay(topic, tmp_path / "table", target, by_time, restart=True)
    assert [row.value for row in topic_rows(topic.bootstrap, target)][9:] == [b"8", b"9", b"10", b"11"]


def test_a_table_that_another_tool_rewrote_is_replayed_in_order(topic: Topic, target: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    topic.fill(60)
    archive(topic, tmp_path / "table", "delta", pace=Pace(commit_records_max=50))
    deltalake.DeltaTable(str(tmp_path / "table")).optimize.z_order(["key"])
    # the tool decides how many files it makes of a day, so one may have the rows of a single partition by chance
    assert MIXED in {file.partition for file in open_table(str(tmp_path / "table")).files()}
    replay(topic, tmp_path / "table", target)
    assert topic_rows(topic.bootstrap, target) == topic.rows()
    topic.fill(10)
    archive(topic, tmp_path / "table", "delta")
    assert rows(tmp_path / "table") == topic.rows()


def test_somebody_else_who_writes_to_the_topic_is_noticed(
    topic: Topic, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "PARTITION_BYTES", 2_000)
    topic.fill(200)
    archive(topic, tmp_path / "table")
    replay(topic, tmp_path / "table", target, steps=2)
    with Topic(topic.bootstrap, f"{target}-unused", 1) as other:
        other.name = target
        other.write([b"foreign"])
    with pytest.raises(ArchiveError, match=r"partition 0 .* does not contain what this replay wrote"):
        replay(topic, tmp_path / "table", target)


def test_a_table_is_not_replayed_into_its_own_topic(topic: Topic, tmp_path: Path) -> None:
    topic.fill(5)
    archive(topic, tmp_path / "table")
    with pytest.raises(ArchiveError, match="archive of this topic"):
        replay(topic, tmp_path / "table", topic.name)


def test_a_topic_that_would_change_records_is_refused(topic: Topic, target: str, tmp_path: Path) -> None:
    topic.fill(5)
    archive(topic, tmp_path / "table")
    topic.client.create_topic(target, 3, configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(ArchiveError, match="LogAppendTime and would lose the timestamps"):
        replay(topic, tmp_path / "table", target)
    topic.client.create_topic(f"{target}-narrow", 2)
    with pytest.raises(ArchiveError, match="has 2 partitions, but the table has 3"):
        replay(topic, tmp_path / "table", f"{target}-narrow")


# -------------------------------------------------------------------------------------------------- order


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.booleans(), min_size=60, max_size=60),
    st.integers(0, 30),
    st.integers(0, 60),
)
def test_rows_come_in_the_order_of_offsets_however_files_overlap(
    tmp_path_factory: pytest.TempPathFactory, homes: list[int], cuts: list[bool], first: int, end: int
) -> None:
    """Each offset lies in the file that `homes` says; files are cut anew where `cuts` says, as ranges are."""
    place = Place(str(tmp_path_factory.mktemp("order")))
    files = []
    groups: dict[tuple[int, int], list[int]] = {}
    generation = 0
    for offset, home in enumerate(homes):
        generation += cuts[offset]
        groups.setdefault((generation, home), []).append(offset)
    for number, offsets in enumerate(groups.values()):
        columns = {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(np.array(offsets) * 1_000, pa.int64()).cast(RECORD.field("timestamp").type),
        }
        arrays = [columns.get(field.name, pa.nulls(len(offsets), field.type)) for field in RECORD]
        with FileSet(place, f"f{number}", 0, Bucketing.NONE, RECORD) as written:
            written.write("", pa.RecordBatch.from_arrays(arrays, schema=RECORD))
        files += written.files()
    bounds = Bounds(first_offset=first, end_ms=end)
    found = [offset for some in ordered_rows(place, files, bounds, 0) for offset in some.column("offset").to_pylist()]
    assert found == [offset for offset in range(len(homes)) if first <= offset < end]
