from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.lake.archiver import Archiver, Pace, Step
from penstock.lake.engines import LocalEngine
from penstock.lake.errors import ArchiveError, Conflict, Held
from penstock.lake.lock import locked
from penstock.lake.opening import open_table
from penstock.lake.places import place_of
from penstock.lake.tables import Append
from penstock.lake.tasks import Task, Written
from penstock.records.builder import NewRecord, build_batch
from tests.cli.conftest import Run
from tests.lake.lake import Interrupted, archive, made, natively, rows
from tests.lake.topics import T0_MS, Topic, table_rows


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def test_every_committed_record_is_in_the_table_once_and_no_aborted_one(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(200)
    topic.transaction(10, commit=False)
    topic.transaction(10, commit=True)
    topic.fill(50)
    (step,) = archive(topic, tmp_path / "table", format_)
    expected = topic.rows()
    assert len(expected) == 3 * 250 + 10
    assert (step.rows, step.lag) == (len(expected), 0)
    assert rows(tmp_path / "table") == expected
    assert table_rows(natively(tmp_path / "table")) == expected


def test_a_later_run_adds_what_is_new_in_the_topic(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.fill(60)
    archive(topic, tmp_path / "table", format_)
    assert archive(topic, tmp_path / "table", format_) == []
    topic.fill(60)
    archive(topic, tmp_path / "table", format_, pace=Pace(commit_records_max=50))
    assert rows(tmp_path / "table") == topic.rows()


def test_an_open_transaction_is_waited_for(topic: Topic, tmp_path: Path) -> None:
    topic.write([b"before"])
    name = f"{topic.name}-open"
    producer = topic.client.init_producer_id(name)
    topic.client.add_partitions_to_txn(name, producer, [(topic.name, 0)])
    batch = build_batch(
        [NewRecord(T0_MS, None, b"undecided", ())],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    topic.client.produce({(topic.name, 0): batch}, transactional_id=name)
    topic.write([b"after"])
    archive(topic, tmp_path / "table")
    assert [row.value for row in rows(tmp_path / "table")] == [b"before"]
    topic.client.end_txn(name, producer, commit=True)
    archive(topic, tmp_path / "table")
    assert [row.value for row in rows(tmp_path / "table")] == [b"before", b"undecided", b"after"]


def test_partitions_that_come_later_are_archived_from_their_start(
    admin: AdminClient, topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.write([b"first"], partition=2)
    archive(topic, tmp_path / "table", format_)
    admin.create_partitions([NewPartitions(topic.name, 5)])[topic.name].result(30)
    topic.write([b"later"], partition=4)
    archive(topic, tmp_path / "table", format_)
    assert [(row.partition, row.value) for row in rows(tmp_path / "table")] == [(2, b"first"), (4, b"later")]


def test_every_hour_has_its_folder(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.fill(100, days=1)
    archive(topic, tmp_path / "table", format_, by="hour")
    hours = {file.bucket for file in open_table(str(tmp_path / "table")).files()}
    assert len(hours) > 20
    assert all((tmp_path / "table" / f"hour={hour}").is_dir() for hour in hours)
    assert rows(tmp_path / "table") == topic.rows()


def test_times_that_no_calendar_has_are_kept(topic: Topic, tmp_path: Path, format_: str) -> None:
    """Microseconds sent as milliseconds are the year 55,000."""
    topic.write([b"no time"], timestamp_ms=-1)
    topic.write([b"before Christ"], timestamp_ms=-(10**14))
    topic.write([b"far away"], timestamp_ms=T0_MS * 1_000)
    topic.write([b"now"])
    archive(topic, tmp_path / "table", format_)
    table = tmp_path / "table"
    assert [row.timestamp_ms for row in rows(table)] == [-1, -(10**14), T0_MS * 1_000, T0_MS]
    assert natively(table).num_rows == 4


@pytest.mark.parametrize("url", ["memory://archives/{name}", "file://{path}/table"])
def test_a_table_lies_wherever_a_url_leads(topic: Topic, tmp_path: Path, url: str) -> None:
    pytest.importorskip("fsspec")
    place = url.format(name=topic.name, path=tmp_path)
    topic.fill(50)
    archive(topic, place)
    topic.fill(50)
    archive(topic, place, pace=Pace(commit_records_max=40))
    assert rows(place) == topic.rows()


def test_a_url_of_a_local_file_is_a_path_for_every_format(topic: Topic, tmp_path: Path, format_: str) -> None:
    topic.fill(20)
    archive(topic, f"file://{tmp_path}/table", format_)
    topic.fill(20)
    archive(topic, tmp_path / "table", format_)
    assert rows(f"file://{tmp_path}/table") == topic.rows()
    assert table_rows(natively(tmp_path / "table")) == topic.rows()


# -------------------------------------------------------------------------------------------------- what goes wrong


def test_a_step_that_died_before_its_commit_is_done_again_under_the_same_names(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(40)
    with pytest.raises(ArchiveError, match="killed"):
        archive(topic, tmp_path / "table", format_, engine=Interrupted(2))
    left = {path.name for path in tmp_path.rglob("part-*.parquet")}
    assert left
    assert rows(tmp_path / "table") == []
    topic.fill(40)
    archive(topic, tmp_path / "table", format_)
    assert rows(tmp_path / "table") == topic.rows()
    # nor does a folder's reader, who knows nothing of commits, see a row twice
    there = {path.name for path in tmp_path.rglob("part-*.parquet")}
    assert there > left
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.rglob("part-*.parquet")) == 240


def test_a_second_archiver_is_refused_with_the_name_of_the_first(topic: Topic, tmp_path: Path) -> None:
    topic.fill(10)
    told = r"table is in use by archive run orders \(process \d+ on .*one writer"
    with locked(place_of(str(tmp_path / "table")), "archive run orders"), pytest.raises(Held, match=told):
        archive(topic, tmp_path / "table")
    archive(topic, tmp_path / "table")


def test_of_two_commits_that_were_planned_on_the_same_state_the_second_is_refused(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    """Should a lock ever fail: the commit itself is the guard."""
    topic.fill(20)
    archive(topic, tmp_path / "table", format_)
    before = topic.rows()
    one, other = open_table(str(tmp_path / "table")), open_table(str(tmp_path / "table"))
    state = one.state()
    assert other.state() == state
    ahead = {partition: offset + 10 for partition, offset in state.offsets.items()}
    one.append(Append(state.offsets, ahead, [], state.kinds, state.with_error))
    first = one.files()[0]
    copy = msgspec.structs.replace(first, name=str(Path(first.name).with_name("copy.parquet")))
    shutil.copy(tmp_path / "table" / first.name, tmp_path / "table" / copy.name)
    with pytest.raises(Conflict, match="another"):
        other.append(Append(state.offsets, ahead, [copy], state.kinds, state.with_error))
    assert rows(tmp_path / "table") == before


def test_of_two_archivers_that_race_without_a_lock_one_commits_and_the_other_is_refused(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(20)
    archive(topic, tmp_path / "table", format_)
    topic.fill(20)
    barrier = threading.Barrier(2)

    class Together(LocalEngine):
        """Begins when the other has planned too, and ends when it has written too."""

        def run(self, tasks: Sequence[Task]) -> list[Written]:
            barrier.wait(60)
            written = super().run(tasks)
            barrier.wait(60)
            return written

    def race() -> Step:
        table = open_table(str(tmp_path / "table"))
        with contextlib.closing(Archiver(topic.settings, table, Together(1))) as archiver:
            step = archiver.step()
        assert step is not None
        return step

    with ThreadPoolExecutor(2) as racers:
        ended = [racers.submit(race) for _ in range(2)]
    (refused,) = (one for one in ended if one.exception() is not None)
    (first,) = (one.result() for one in ended if one is not refused)
    assert isinstance(refused.exception(), Conflict)
    assert (first.rows, first.lag) == (60, 0)
    assert rows(tmp_path / "table") == topic.rows()
    topic.fill(5)
    archive(topic, tmp_path / "table", format_)
    assert rows(tmp_path / "table") == table_rows(natively(tmp_path / "table")) == topic.rows()


def test_a_topic_that_was_deleted_stops_the_archive_and_leaves_the_table(
    admin: AdminClient, broker: Broker, topic: Topic, tmp_path: Path
) -> None:
    topic.fill(20)
    archive(topic, tmp_path / "table")
    there = rows(tmp_path / "table")
    admin.delete_topics([topic.name])[topic.name].result(30)
    with pytest.raises(ArchiveError, match=f"no topic {topic.name}"):
        archive(topic, tmp_path / "table")
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic.name, 3)
    topic.fill(40)
    with pytest.raises(ArchiveError, match=r"was deleted and created again.*another path"):
        archive(topic, tmp_path / "table")
    assert rows(tmp_path / "table") == there


def test_a_topic_that_is_deleted_between_the_fetch_and_the_commit_commits_nothing(
    admin: AdminClient, topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(20)
    archive(topic, tmp_path / "table", format_)
    there = rows(tmp_path / "table")
    topic.fill(20)

    class Deleting(LocalEngine):
        def run(self, tasks: Sequence[Task]) -> list[Written]:
            written = super().run(tasks)
            admin.delete_topics([topic.name])[topic.name].result(30)
            return written

    with pytest.raises(ArchiveError, match=f"no topic {topic.name}; the table is unchanged"):
        archive(topic, tmp_path / "table", format_, engine=Deleting(2))
    assert rows(tmp_path / "table") == there
    if format_ != "parquet":  # a bare folder has no commits, and so shows what is not committed
        assert table_rows(natively(tmp_path / "table")) == there


def test_offsets_that_the_broker_deleted_are_not_passed_over_in_silence(
    admin: AdminClient, topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.write([b"a", b"b"])
    archive(topic, tmp_path / "table", format_)
    topic.write([b"c", b"d", b"e"])
    place = confluent_kafka.TopicPartition(topic.name, 0, 4)
    for future in admin.delete_records([place]).values():
        future.result(30)
    with pytest.raises(ArchiveError, match=r"offsets 2 to 3 of partition 0 .* were deleted .* --skip-lost"):
        archive(topic, tmp_path / "table", format_)
    archive(topic, tmp_path / "table", format_, pace=Pace(skip_lost=True))
    assert [(row.offset, row.value) for row in rows(tmp_path / "table")] == [(0, b"a"), (1, b"b"), (4, b"e")]


def test_a_path_that_cannot_be_written_stops_the_step_and_the_next_run_goes_on(
    topic: Topic, tmp_path: Path, format_: str
) -> None:
    topic.fill(50)
    archive(topic, tmp_path / "table", format_)
    there = rows(tmp_path / "table")
    topic.write([b"new"], timestamp_ms=T0_MS + 400 * 86_400_000)
    obstacle = tmp_path / "table" / "day=2024-12-18"
    obstacle.write_text("not a folder")
    with pytest.raises(ArchiveError, match=r"cannot write .*day=2024-12-18"):
        archive(topic, tmp_path / "table", format_)
    assert rows(tmp_path / "table") == there
    obstacle.unlink()
    archive(topic, tmp_path / "table", format_)
    assert rows(tmp_path / "table") == topic.rows()


def test_a_path_below_a_file_is_refused(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match=r"cannot write .*Not a directory"):
        archive(topic, tmp_path / "file" / "table")


def test_a_folder_with_other_things_in_it_is_refused(topic: Topic, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ArchiveError, match="not empty and not an archive"):
        archive(topic, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mine.txt"]


def test_a_catalog_that_is_down_stops_the_archive_and_the_next_run_goes_on(topic: Topic, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    topic.fill(20)
    archive(topic, tmp_path / "table", "iceberg")
    topic.fill(20)
    database = tmp_path / "table" / "_penstock" / "catalog.db"
    shutil.move(database, tmp_path / "away.db")
    database.mkdir()
    with pytest.raises(ArchiveError, match=r"the Iceberg table penstock.*unable to open database") as raised:
        archive(topic, tmp_path / "table", "iceberg")
    assert "\n" not in str(raised.value)
    database.rmdir()
    shutil.move(tmp_path / "away.db", database)
    archive(topic, tmp_path / "table", "iceberg")
    assert rows(tmp_path / "table") == topic.rows()


def test_a_catalog_that_goes_down_before_the_commit_leaves_nothing_half_done(topic: Topic, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    topic.fill(20)
    archive(topic, tmp_path / "table", "iceberg")
    there = rows(tmp_path / "table")
    topic.fill(20)
    database, away = tmp_path / "table" / "_penstock" / "catalog.db", tmp_path / "away.db"

    class TurningOff(LocalEngine):
        def run(self, tasks: Sequence[Task]) -> list[Written]:
            written = super().run(tasks)
            shutil.copy(database, away)
            with contextlib.closing(sqlite3.connect(database)) as connection:
                connection.execute("DROP TABLE iceberg_tables")
            return written

    with pytest.raises(ArchiveError, match=r"the Iceberg table penstock.*no such table: iceberg_tables") as raised:
        archive(topic, tmp_path / "table", "iceberg", engine=TurningOff(2))
    assert "\n" not in str(raised.value)
    shutil.move(away, database)
    assert rows(tmp_path / "table") == there
    archive(topic, tmp_path / "table", "iceberg")
    assert rows(tmp_path / "table") == table_rows(natively(tmp_path / "table")) == topic.rows()


def test_a_delta_log_that_cannot_be_written_leaves_nothing_half_done(topic: Topic, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    topic.fill(20)
    archive(topic, tmp_path / "table", "delta")
    there = rows(tmp_path / "table")
    topic.fill(20)
    log, away = tmp_path / "table" / "_delta_log", tmp_path / "away"

    class InTheWay(LocalEngine):
        def run(self, tasks: Sequence[Task]) -> list[Written]:
            written = super().run(tasks)
            shutil.move(log, away)
            log.write_text("not a folder")
            return written

    with pytest.raises(ArchiveError, match=r"the Delta table .*_delta_log") as raised:
        archive(topic, tmp_path / "table", "delta", engine=InTheWay(2))
    assert "\n" not in str(raised.value)
    log.unlink()
    shutil.move(away, log)
    assert rows(tmp_path / "table") == there
    archive(topic, tmp_path / "table", "delta")
    assert rows(tmp_path / "table") == table_rows(natively(tmp_path / "table")) == topic.rows()


def test_a_catalog_that_nobody_serves_is_one_line_and_leaves_no_files(
    penstock: Run, topic: Topic, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    uri = "http://127.0.0.1:1"
    topic.fill(5)
    table = ("--to", str(tmp_path / "table"), "--format", "iceberg", "--engine", "local", "-b", topic.bootstrap)
    catalog = ("--catalog-option", "type=rest", "--catalog-option", f"uri={uri}")
    ended = penstock("archive", "run", topic.name, *table, *catalog)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert f"the Iceberg table penstock.{topic.name}: " in ended.err
    assert "onnection" in ended.err
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_damaged_batch_stops_the_step_with_its_offset(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    from penstock.records.batch import BatchError

    topic.write([b"whole"])
    topic.write([b"to be damaged"])
    log = next(broker.data_dir.glob(f"{topic.name}-0/*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(b"to be damaged")] ^= 1
    log.write_bytes(data)
    with pytest.raises((BatchError, ArchiveError), match="CRC mismatch in the batch at offset 1"):
        archive(topic, tmp_path / "table")
    assert rows(tmp_path / "table") == []


def test_an_empty_topic_gives_an_empty_table(topic: Topic, tmp_path: Path) -> None:
    assert archive(topic, tmp_path / "table") == []
    assert rows(tmp_path / "table") == []
    assert isinstance(made(topic, tmp_path / "table").state().schema, pa.Schema)


def test_a_run_that_is_stopped_says_that_it_is_not_done_and_goes_on_later(topic: Topic, tmp_path: Path) -> None:
    topic.fill(600)
    where = ("archive", "run", topic.name, "--to", str(tmp_path / "table"), "-b", topic.bootstrap)
    command = [sys.executable, "-m", "penstock.cli.main", *where, "--engine", "local"]
    # so many steps that it is still at them when it is told to stop, however late that is
    in_steps = [*command, "--commit-records", "6"]
    with subprocess.Popen(in_steps, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("archived ")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert rest.endswith("penstock: stopped before the archive was complete; run the same command again to resume\n")
    assert 0 < len(rows(tmp_path / "table")) < 1_800
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert rows(tmp_path / "table") == topic.rows()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--engine", "local", "--master", "local[2]"), "--master requires --engine spark"),
        (("--master", "nonsense"), "--master 'nonsense' is not local[N], spark://HOST:PORT, k8s://... or yarn"),
        (("--catalog", "prod"), "--catalog, --catalog-option and --table require --format iceberg"),
        (("--table", "a.b", "--format", "delta"), "--catalog, --catalog-option and --table require --format iceberg"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    penstock: Run, topic: Topic, tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    ended = penstock("archive", "run", topic.name, "--to", str(tmp_path / "table"), "-b", topic.bootstrap, *options)
    assert (ended.code, ended.err) == (2, f"penstock: {text}\n")
    assert not (tmp_path / "table" / "_penstock" / "table.json").exists()


@pytest.mark.parametrize("folder", ["la#ke", "la?ke", "la%20ke", "l a k é"])
def test_a_path_that_is_no_url_is_taken_as_it_is_or_refused(
    penstock: Run, topic: Topic, tmp_path: Path, format_: str, folder: str
) -> None:
    topic.fill(5)
    place = tmp_path / "lake" / folder / "table"
    arguments = ("--to", str(place), "--format", format_, "--engine", "local", "-b", topic.bootstrap)
    ended = penstock("archive", "run", topic.name, *arguments)
    if ended.code:
        assert format_ != "parquet"
        assert ended.err == f"penstock: {place}: the path of a {format_} table must not contain #, ? or %\n"
        assert set(folder) & set("#?%")
    else:
        assert rows(place) == topic.rows()
    assert [found.name for found in (tmp_path / "lake").iterdir()] == [folder]


def test_a_run_that_cannot_begin_leaves_nothing_behind(penstock: Run, topic: Topic, tmp_path: Path) -> None:
    place = tmp_path / "lake" / "new"
    for arguments in (
        ("nothing-of-that-name",),
        (topic.name, "--type", "price=double"),
        (topic.name, "--kafka", "no=such"),
    ):
        ended = penstock("archive", "run", *arguments, "--to", str(place), "--engine", "local", "-b", topic.bootstrap)
        assert ended.code in (1, 2)
        assert not place.exists()
    place.mkdir(parents=True)
    (place / "mine.txt").touch()
    ended = penstock("archive", "run", topic.name, "--to", str(place), "--engine", "local", "-b", topic.bootstrap)
    assert ended.code == 1
    assert (place / "mine.txt").exists()
