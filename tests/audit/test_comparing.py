"""A table against its topic, in all three formats: every difference is found, and --allow hides only what it names."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow")

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import Broker
from penstock.audit import rereading
from penstock.audit.comparing import subtract
from penstock.audit.job import AuditRequest, audit
from penstock.audit.report import AuditReport
from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.imports.engine import LocalEngine
from penstock.records.builder import NewRecord, build_batch
from tests.audit.logs import TIME, counts
from tests.cli.conftest import Run

COUNT = 5_000
"""More than one piece (4,096 offsets), and the last piece is not full."""
HOLE = COUNT
"""Offset of an aborted record: neither readers nor the table see it."""
END = COUNT + 102
COMPARED = ("missing", "extra", "content", "duplicate", "order", "topic")
_NAMES = itertools.count()

Rows = pa.Table
Change = Callable[[Rows], Rows]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "os"}) as running:
        yield running


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def format_(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[name])
    return name


class Archived(NamedTuple):
    """A topic and the table that was made of it."""

    broker: Broker
    topic: str
    path: Path

    def data_file(self) -> Path:
        """The one with the rows of partition 0."""
        for path in self.path.rglob("*.parquet"):
            if "offset" in pq.read_schema(path).names and pq.ParquetFile(path).metadata.num_rows > 100:
                return path
        raise AssertionError("no data file of partition 0")

    def rewrite(self, change: Change) -> None:
        """Exchange the rows of partition 0."""
        path = self.data_file()
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)

    def by_wire(self) -> AuditReport:
        settings = KafkaSettings.of(self.broker.bootstrap)
        return audit(AuditRequest(LocalEngine(), None, str(self.path), settings))

    def by_segments(self) -> AuditReport:
        return audit(AuditRequest(LocalEngine(), self.broker.data_dir, str(self.path)))


@pytest.fixture
def archived(penstock: Run, broker: Broker, format_: str, tmp_path: Path) -> Archived:
    """With a topic of its own."""
    return archive(penstock, broker, format_, tmp_path / "lake" / "orders")


@pytest.fixture(scope="module")
def made() -> dict[str, Archived]:
    """Tables that several tests change, by format."""
    return {}


@pytest.fixture
def shared(
    penstock: Run,
    broker: Broker,
    format_: str,
    made: dict[str, Archived],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Archived]:
    """With a topic that no test changes; what a test changes in the table is restored."""
    if format_ not in made:
        made[format_] = archive(penstock, broker, format_, tmp_path_factory.mktemp("lake") / "orders")
    table = made[format_]
    path = table.data_file()
    original = path.read_bytes()
    yield table
    path.write_bytes(original)


def archive(penstock: Run, broker: Broker, format_: str, path: Path) -> Archived:
    topic = f"orders-{next(_NAMES)}"
    fill(broker, topic)
    told = ("--to", str(path), "--format", format_, "--engine", "local", "-b", broker.bootstrap)
    ended = penstock("archive", "run", topic, *told)
    assert ended.code == 0, ended.err
    return Archived(broker, topic, path)


def record(number: int) -> NewRecord:
    key = b"k%d" % (number % 50) if number % 3 else None
    headers = (("n", b"%d" % number), ("null", None)) if number % 2 else ()
    return NewRecord(TIME + number, key, b"value %d" % number if number % 5 else None, headers)


def fill(broker: Broker, topic: str) -> None:
    with KafkaClient(broker.bootstrap) as client:
        client.create_topic(topic, 2)
        for start in range(0, COUNT, 500):
            client.produce({(topic, 0): build_batch([record(n) for n in range(start, start + 500)])})
        producer = client.init_producer_id(topic)
        client.add_partitions_to_txn(topic, producer, [(topic, 0)])
        aborted = build_batch(
            [record(0)],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        client.produce({(topic, 0): aborted}, transactional_id=topic)
        client.end_txn(topic, producer, commit=False)
        client.produce({(topic, 0): build_batch([record(n) for n in range(100)])})
        client.produce({(topic, 1): build_batch([record(n) for n in range(10)])})


# ---- changes of a table ------------------------------------------------------------------------------------------------


def with_cell(column: str, offset: int, value: Any) -> Change:
    def change(rows: Rows) -> Rows:
        cells = rows[column].to_pylist()
        cells[rows["offset"].to_pylist().index(offset)] = value
        at = rows.schema.get_field_index(column)
        return rows.set_column(at, rows.schema.field(at), pa.array(cells, rows.schema.field(at).type))

    return change


def without(first: int, last: int) -> Change:
    return lambda rows: rows.filter(
        pa.array([not first <= offset <= last for offset in rows["offset"].to_pylist()], pa.bool_())
    )


def with_copies(first: int, last: int, *changes: Change) -> Change:
    """Some rows once more at the end, changed."""

    def change(rows: Rows) -> Rows:
        copies = both(without(0, first - 1), without(last + 1, END), *changes)(rows)
        return pa.concat_tables([rows, copies])

    return change


def with_extra(offset: int) -> Change:
    """A record that the topic never had, at its place in the order."""

    def change(rows: Rows) -> Rows:
        at = sum(1 for one in rows["offset"].to_pylist() if one < offset)
        old = rows["offset"][at - 1].as_py()
        extra = with_cell("offset", old, offset)(rows.slice(at - 1, 1))
        return pa.concat_tables([rows.slice(0, at), extra, rows.slice(at)])

    return change


def both(*changes: Change) -> Change:
    def change(rows: Rows) -> Rows:
        for one in changes:
            rows = one(rows)
        return rows

    return change


OTHER_TIME = datetime.datetime(2023, 11, 14, 22, 15, tzinfo=datetime.UTC)
OTHER_VALUE = with_cell("value", 4_501, b"other")
OTHER_LATER_VALUE = with_cell("value", HOLE + 3, b"other")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(lambda rows: rows, {}, id="same"),
        pytest.param(without(100, 109), {"missing": 10}, id="missing"),
        pytest.param(without(HOLE - 10, END), {"missing": 110}, id="missing-at-the-end"),
        pytest.param(with_extra(HOLE), {"extra": 1}, id="extra"),
        pytest.param(with_extra(END + 5), {"extra": 1}, id="extra-after-the-end"),
        pytest.param(OTHER_VALUE, {"content": 1}, id="value"),
        pytest.param(with_cell("value", 4_501, None), {"content": 1}, id="null-value"),
        pytest.param(with_cell("key", 4_501, b"other"), {"content": 1}, id="key"),
        pytest.param(with_cell("timestamp", 4_501, OTHER_TIME), {"content": 1}, id="timestamp"),
        pytest.param(with_cell("timestamp", 4_501, None), {"content": 1}, id="null-timestamp"),
        pytest.param(with_cell("timestamp_type", 4_501, 1), {"content": 1}, id="timestamp-type"),
        pytest.param(with_cell("headers", 4_501, []), {"content": 1}, id="headers"),
        pytest.param(
            both(with_cell("key", 4_501, b"k1v"), with_cell("value", 4_501, b"alue 4501")),
            {"content": 1},
            id="byte-moved-from-value-to-key",
        ),
        pytest.param(both(without(100, 109), with_cell("key", 7, b"other")), {"missing": 10, "content": 1}, id="both"),
        pytest.param(both(with_extra(HOLE), OTHER_LATER_VALUE), {"extra": 1, "content": 1}, id="extra-and-value"),
        pytest.param(
            both(without(4_200, 4_200), with_extra(HOLE), OTHER_VALUE, OTHER_LATER_VALUE),
            {"missing": 1, "extra": 1, "content": 2},
            id="as-many-records-but-others",
        ),
        pytest.param(with_copies(20, 22), {"order": 1, "duplicate": 3}, id="duplicates"),
        pytest.param(
            with_copies(20, 22, with_cell("value", 21, b"other")),
            {"order": 1, "duplicate": 3, "content": 1},
            id="duplicate-with-another-value",
        ),
        pytest.param(
            both(with_cell("value", 7, b"other"), with_copies(20, 22)),
            {"order": 1, "duplicate": 3, "content": 1},
            id="duplicates-and-value",
        ),
    ],
)
def test_every_difference_is_found_and_only_allowed_kinds_are_forgiven(
    shared: Archived, change: Change, found: dict[str, int]
) -> None:
    shared.rewrite(change)
    for report in (shared.by_wire(), shared.by_segments()):
        assert counts(report) == found
        check_allowed(report, set(found))


def check_allowed(report: AuditReport, found: set[str]) -> None:
    for size in range(len(COMPARED) + 1):
        for allowed in itertools.combinations(COMPARED, size):
            assert dataclasses.replace(report, allowed=allowed).is_clean == (found <= set(allowed)), allowed


def test_allow_on_the_command_line_forgives_only_the_kinds_it_names(penstock: Run, shared: Archived) -> None:
    shared.rewrite(both(without(100, 109), with_extra(HOLE), OTHER_VALUE))

    def audited(*allowed: str) -> tuple[int, dict[str, int]]:
        told = ("--table", str(shared.path), "-b", shared.broker.bootstrap, "--engine", "local", "--json")
        ended = penstock("logs", "audit", *told, *(part for kind in allowed for part in ("--allow", kind)))
        return ended.code, json.loads(ended.out)["counts"]

    found = {"missing": 10, "extra": 1, "content": 1}
    for size in range(len(found) + 1):
        for allowed in itertools.combinations(found, size):
            assert audited(*allowed) == (0 if set(allowed) == set(found) else 1, found)


@pytest.mark.parametrize("change", [None, OTHER_LATER_VALUE], ids=["same", "value"])
def test_a_topic_that_extends_past_the_table_is_compared_up_to_its_end(
    archived: Archived, change: Change | None
) -> None:
    with KafkaClient(archived.broker.bootstrap) as client:
        for start in range(0, 6_000, 500):
            client.produce({(archived.topic, 0): build_batch([record(n) for n in range(start, start + 500)])})
    if change is not None:
        archived.rewrite(change)
    for report in (archived.by_wire(), archived.by_segments()):
        assert counts(report) == ({} if change is None else {"content": 1})
        check_allowed(report, set(counts(report)))


def test_table_older_than_the_topic_is_compared_from_the_topics_start(archived: Archived) -> None:
    delete_records(archived, 50)
    archived.rewrite(with_cell("value", 49, b"only the table has it"))
    assert counts(archived.by_wire()) == {}
    archived.rewrite(with_cell("value", 51, b"other"))
    report = archived.by_wire()
    assert counts(report) == {"content": 1}
    assert [one.offsets for one in report.found().kept] == [(51, 51)]


def test_a_topic_whose_records_are_all_deleted_leaves_nothing_to_compare(archived: Archived) -> None:
    delete_records(archived, END)
    assert counts(archived.by_wire()) == {}


def delete_records(archived: Archived, before: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": archived.broker.bootstrap, "log_level": 0})
    (deleted,) = admin.delete_records([confluent_kafka.TopicPartition(archived.topic, 0, before)]).values()
    assert deleted.result(30).low_watermark == before


def test_a_table_of_a_topic_that_was_created_again_is_not_the_topics(penstock: Run, archived: Archived) -> None:
    ended = penstock("topics", "delete", archived.topic, "-b", archived.broker.bootstrap)
    assert ended.code == 0, ended.err
    fill(archived.broker, archived.topic)
    for report in (archived.by_wire(), archived.by_segments()):
        assert counts(report) == {"topic": 1}
        check_allowed(report, {"topic"})


def test_findings_of_a_comparison_name_the_offsets_they_are_about(shared: Archived) -> None:
    shared.rewrite(both(without(100, 109), with_extra(HOLE), OTHER_VALUE, with_cell("value", 4_502, b"other")))
    named = {one.kind: (one.place, one.offsets) for one in shared.by_wire().found().kept}
    place = f"{shared.topic}-0"
    assert named == {
        "missing": (place, (100, 109)),
        "extra": (place, (HOLE, HOLE)),
        "content": (place, (4_501, 4_502)),
    }


def test_rows_are_compared_however_few_pieces_are_held_at_a_time(
    shared: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "PIECES_HELD_MAX", 1)
    shared.rewrite(both(with_cell("value", 7, b"other"), OTHER_VALUE, OTHER_LATER_VALUE))
    for report in (shared.by_wire(), shared.by_segments()):
        assert [one.offsets for one in report.found().kept] == [(7, 7), (4_501, 4_501), (HOLE + 3, HOLE + 3)]


def test_subtract_leaves_what_only_the_first_has() -> None:
    assert subtract([(0, 9)], []) == [(0, 9)]
    assert subtract([(0, 9)], [(0, 9)]) == []
    assert subtract([(0, 9), (20, 29)], [(5, 22), (25, 25)]) == [(0, 4), (23, 24), (26, 29)]
