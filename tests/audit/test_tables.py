from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock import Broker
from penstock.audit.job import AuditRequest, audit
from penstock.audit.report import AuditReport, partition_row
from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.imports.engine import LocalEngine
from penstock.lake import open_table
from penstock.lake.data_files import DataFile
from penstock.records.builder import NewRecord, build_batch
from tests.audit.logs import TIME, counts
from tests.cli.conftest import Run

COUNT = 9_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """With a topic of two partitions that a transaction was aborted in."""
    with Broker(settings={"storage.flush": "os"}) as running:
        with KafkaClient(running.bootstrap) as client:
            client.create_topic("orders", 2)
            for number in range(2):
                for start in range(0, COUNT, 500):
                    records = [_record(n) for n in range(start, start + 500)]
                    client.produce({("orders", number): build_batch(records)})
            producer = client.init_producer_id("t")
            client.add_partitions_to_txn("t", producer, [("orders", 0)])
            lost = build_batch(
                [_record(0)],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            client.produce({("orders", 0): lost}, transactional_id="t")
            client.end_txn("t", producer, commit=False)
            client.produce({("orders", 0): build_batch([_record(n) for n in range(10)])})
        yield running


def _record(number: int) -> NewRecord:
    key = b"k%d" % (number % 50) if number % 3 else None
    value = b"value %d" % number if number % 5 else None
    return NewRecord(TIME + number, key, value, (("n", b"%d" % number), ("null", None)) if number % 2 else ())


@pytest.fixture
def table(penstock: Run, broker: Broker, tmp_path: Path) -> Path:
    path = tmp_path / "lake" / "orders"
    ended = penstock("archive", "run", "orders", "--to", str(path), "--engine", "local", "-b", broker.bootstrap)
    assert ended.code == 0, ended.err
    return path


def _audit(table: Path, broker: Broker | None = None, segments: Path | None = None) -> AuditReport:
    settings = None if broker is None else KafkaSettings.of(broker.bootstrap)
    return audit(AuditRequest(LocalEngine(), segments, str(table), settings))


def test_a_table_is_what_its_topic_is_by_wire_and_by_segments(broker: Broker, table: Path) -> None:
    by_wire = _audit(table, broker)
    assert (by_wire.is_clean, counts(by_wire)) == (True, {})
    by_segments = _audit(table, segments=broker.data_dir)
    assert (by_segments.is_clean, counts(by_segments)) == (True, {})
    rows = [partition_row(merged) for merged in by_wire.partitions]
    assert [(row["records"], row["keys"], row["log_end_offset"]) for row in rows] == [
        (COUNT + 10, 50, COUNT + 12),
        (COUNT, 50, COUNT),
    ]
    pieces = [merged.facts.pieces for merged in by_wire.topic_partitions]
    assert pieces == [merged.facts.pieces for merged in by_segments.topic_partitions]


@pytest.fixture(params=["delta", "iceberg"])
def lake_table(request: pytest.FixtureRequest, penstock: Run, broker: Broker, tmp_path: Path) -> Path:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    path = tmp_path / "lake" / "orders"
    told = ("--to", str(path), "--format", request.param, "--engine", "local", "-b", broker.bootstrap)
    ended = penstock("archive", "run", "orders", *told, "--commit-records", "8000")
    assert ended.code == 0, ended.err
    return path


def _delete(path: Path, file: DataFile) -> None:
    """The rows of a file, as another tool would delete them."""
    if (path / "_delta_log").is_dir():
        from deltalake import DeltaTable

        DeltaTable(path).delete(f"partition = {file.partition} AND offset <= {file.last_offset}")
    else:
        table = _iceberg(path)
        (gone,) = (task.file for task in table.scan().plan_files() if task.file.file_path.endswith(file.name))
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            overwrite.delete_data_file(gone)


def _append_again(path: Path, partition: int, first: int, last: int) -> None:
    """Rows of a table, as another tool would write them a second time."""
    wanted = (pc.field("partition") == partition) & (pc.field("offset") >= first) & (pc.field("offset") <= last)
    if (path / "_delta_log").is_dir():
        from deltalake import DeltaTable, write_deltalake

        write_deltalake(path, DeltaTable(path).to_pyarrow_dataset().to_table(filter=wanted), mode="append")
    else:
        pq.write_table(_iceberg(path).scan().to_arrow().filter(wanted), path / "again.parquet")
        _iceberg(path).add_files([f"file://{path}/again.parquet"])


def _iceberg(path: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{path}/_penstock/catalog.db")
    return catalog.load_table(("penstock", "orders"))


def test_the_command_holds_delta_and_iceberg_tables_against_their_topic(
    penstock: Run, broker: Broker, lake_table: Path
) -> None:
    def audited(*more: str) -> tuple[int, dict[str, int], list[str]]:
        ended = penstock("logs", "audit", "--table", str(lake_table), "--engine", "local", "--json", *more)
        report = json.loads(ended.out)
        return ended.code, report["counts"], [finding["text"] for finding in report["findings"]]

    against = ("-b", broker.bootstrap)
    assert audited(*against) == (0, {}, [])
    assert audited()[:2] == (1, {"gap": 2})
    first = next(file for file in open_table(str(lake_table)).files() if file.partition == 1)
    _delete(lake_table, first)
    told = f"offsets 0 to {first.rows - 1} are not in the table"
    assert audited(*against) == (1, {"missing": first.rows}, [told])
    _append_again(lake_table, 0, 20, 22)
    code, found, texts = audited(*against)
    assert (code, found) == (1, {"duplicate": 3, "missing": first.rows})
    assert "offsets 20 to 22 are duplicated" in texts
    assert audited(*against, "--allow", "duplicate", "--allow", "missing")[0] == 0


def test_a_table_alone_says_where_offsets_are_missing(table: Path) -> None:
    report = _audit(table)
    assert counts(report) == {"gap": 2}
    assert f"offsets {COUNT} to {COUNT + 1} are missing" in report.found().kept[0].text


def _rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(change(rows), path)


def _file(table: Path, partition: int) -> Path:
    """The data file of a partition with the most rows."""
    files = [path for path in table.rglob("*.parquet") if pq.ParquetFile(path).metadata.num_rows > 100]
    (found,) = (path for path in files if pq.read_table(path, partitioning=None)["partition"][0].as_py() == partition)
    return found


def test_rows_that_are_gone_doubled_changed_or_out_of_order_are_found(broker: Broker, table: Path) -> None:
    original = _file(table, 1).read_bytes()

    def changed(change: Callable[[Any], Any]) -> dict[str, int]:
        _file(table, 1).write_bytes(original)
        _rewrite(_file(table, 1), change)
        return counts(_audit(table, broker))

    def other_value(rows: Any) -> Any:
        values = rows["value"].to_pylist()
        values[4_500] = b"other"
        return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))

    assert changed(lambda rows: pa.concat_tables([rows.slice(0, 100), rows.slice(110)])) == {"missing": 10}
    assert changed(lambda rows: pa.concat_tables([rows, rows.slice(20, 3)])) == {"order": 1, "duplicate": 3}
    assert changed(lambda rows: pa.concat_tables([rows.slice(50), rows.slice(0, 50)])) == {"order": 1}
    assert changed(other_value) == {"content": 1}
    assert changed(lambda rows: rows) == {}


def test_rows_that_the_topic_does_not_have_are_found(broker: Broker, table: Path) -> None:
    def moved(rows: Any) -> Any:
        offsets = [COUNT if offset == 9_001 else offset for offset in rows["offset"].to_pylist()]
        offsets[-1] = COUNT + 1
        return rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offsets, pa.int64()))

    _rewrite(_file(table, 0), moved)
    assert counts(_audit(table, broker))["extra"] == 1


@pytest.mark.parametrize(("column", "value"), [("offset", None), ("partition", None), ("partition", -1)])
def test_rows_without_a_valid_place_are_a_finding(broker: Broker, table: Path, column: str, value: int | None) -> None:
    def changed(rows: Any) -> Any:
        cells = rows[column].to_pylist()
        cells[7] = value
        at = rows.schema.get_field_index(column)
        return rows.set_column(at, column, pa.array(cells, rows.schema.field(at).type))

    _rewrite(_file(table, 1), changed)
    assert counts(_audit(table, broker)) == {"damage": 1, "missing": 1}


def test_a_file_that_cannot_be_read_is_a_finding(broker: Broker, table: Path) -> None:
    path = _file(table, 1)
    path.write_bytes(path.read_bytes()[:-100])
    report = _audit(table, broker)
    found = counts(report)
    assert found["damage"] == 1
    assert found["missing"] == COUNT
    assert path.name in report.found().kept[0].place


def test_a_folder_of_parquet_files_is_a_table_too(broker: Broker, table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    for at, path in enumerate(sorted(table.rglob("*.parquet"))):
        if "partition" in pq.read_schema(path).names:
            shutil.copy(path, folder / f"{at}.parquet")
    settings = KafkaSettings.of(broker.bootstrap)
    report = audit(AuditRequest(LocalEngine(), None, str(folder), settings, ["orders"]))
    assert (report.is_clean, report.records) == (True, 2 * COUNT + 10)
    for path in folder.glob("*.parquet"):
        if pq.read_table(path)["partition"][0].as_py() == 1:
            path.unlink()
    report = audit(AuditRequest(LocalEngine(), None, str(folder), settings, ["orders"]))
    assert counts(report) == {"missing": COUNT}, "a folder that lacks a whole partition"


def test_the_command_compares_and_names_a_topic_that_is_not_there(
    penstock: Run,
    broker: Broker,
    table: Path,
) -> None:
    arguments = ("logs", "audit", "--table", str(table), "-b", broker.bootstrap, "--engine", "local")
    assert penstock(*arguments).code == 0
    ended = penstock(*arguments, "--topic", "other")
    assert (ended.code, "the broker has no topic other" in ended.err, ended.err.count("\n")) == (1, True, 1)


@pytest.mark.parametrize("content", [b"{", None], ids=["damaged", "gone"])
def test_an_archive_whose_own_settings_are_lost_is_not_called_clean(
    penstock: Run, table: Path, content: bytes | None
) -> None:
    settings = table / "_penstock" / "table.json"
    settings.unlink()
    if content is not None:
        settings.write_bytes(content)
    ended = penstock("logs", "audit", "--table", str(table), "--engine", "local")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ("is corrupt" if content else "is not an archive") in ended.err
