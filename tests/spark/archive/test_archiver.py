from __future__ import annotations

import shutil
from pathlib import Path

import confluent_kafka
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.records.builder import NewRecord, build_batch
from penstock.spark.archive.archiver import Pace
from penstock.spark.archive.errors import ArchiveError, Conflict, Held
from penstock.spark.archive.lock import locked
from penstock.spark.archive.opening import open_table
from penstock.spark.archive.places import place_of
from penstock.spark.archive.tables import Append
from tests.spark.archive.lake import Interrupted, archive, made, natively, rows
from tests.spark.archive.topics import T0_MS, Topic, table_rows


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
    told = r"table is in use by archive run orders of process \d+ on .*one writer"
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
    with pytest.raises(ArchiveError, match=r"was deleted and made anew.*another path"):
        archive(topic, tmp_path / "table")
    assert rows(tmp_path / "table") == there


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
    with pytest.raises(ArchiveError, match="not empty, and no archive"):
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


def test_a_damaged_batch_stops_the_step_with_its_offset(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    from penstock.records.batch import BatchError

    topic.write([b"whole"])
    topic.write([b"to be damaged"])
    log = next(broker.data_dir.glob(f"{topic.name}-0/*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(b"to be damaged")] ^= 1
    log.write_bytes(data)
    with pytest.raises((BatchError, ArchiveError), match="CRC of the batch at offset 1"):
        archive(topic, tmp_path / "table")
    assert rows(tmp_path / "table") == []


def test_an_empty_topic_gives_an_empty_table(topic: Topic, tmp_path: Path) -> None:
    assert archive(topic, tmp_path / "table") == []
    assert rows(tmp_path / "table") == []
    assert isinstance(made(topic, tmp_path / "table").state().schema, pa.Schema)
