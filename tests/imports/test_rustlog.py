from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.imports.run import Import, ImportRequest
from tests.imports.conftest import read_all
from tests.imports.directories import flip, read, rustlog_log, rustlog_record, tear, values

PAYLOADS = [b"zero", b"", b"two" * 50, b"three", b"four", b"five"]


def _log(folder: Path, base_offset: int = 0, payloads: list[bytes] = PAYLOADS) -> Path:
    return rustlog_log(folder, base_offset, [rustlog_record(base_offset + n, one) for n, one in enumerate(payloads)])


@pytest.mark.parametrize("folder", ["orders-3", "orders_3", "orders/3", "orders/partition-3"])
def test_partitions_are_found_where_they_may_lie(tmp_path: Path, folder: str) -> None:
    _log(tmp_path / folder)
    _log(tmp_path / folder, 6, [b"six"])
    records, findings = read("rustlog", tmp_path)
    assert values(records["orders-3"]) == [*enumerate(PAYLOADS), (6, b"six")]
    assert findings["orders-3"].count == 0


def test_folder_created_by_the_server_becomes_a_topic_of_its_name(tmp_path: Path) -> None:
    _log(tmp_path / ".tmpAb3dE9")
    _log(tmp_path / ".tmpZZ12xy", payloads=[b"other"])
    records, findings = read("rustlog", tmp_path)
    assert values(records[".tmpAb3dE9-0"]) == list(enumerate(PAYLOADS))
    assert values(records[".tmpZZ12xy-0"]) == [(0, b"other")]
    assert findings[".tmpAb3dE9-0"].count == 0


def test_folders_of_the_server_are_mapped_to_their_partitions(
    broker: Broker, client: KafkaClient, tmp_path: Path
) -> None:
    for number, name in enumerate([".tmpAb3dE9", ".tmpZZ12xy", ".tmp000000"]):
        _log(tmp_path / name, payloads=[b"%d of %d" % (at, number) for at in range(3)])
    mapping = {".tmpAb3dE9": "placed:0", ".tmpZZ12xy": "placed:1"}
    report = Import(ImportRequest("rustlog", tmp_path, mapping)).into_broker(
        KafkaSettings.of(broker.bootstrap), broker.bootstrap
    )
    assert (report.records, report.is_complete) == (9, True)
    assert {(row.topic, row.partition, row.source_topic) for row in report.partitions} == {
        ("placed", 0, ".tmpAb3dE9"),
        ("placed", 1, ".tmpZZ12xy"),
        (".tmp000000", 0, ".tmp000000"),
    }
    for number in range(2):
        records = read_all(client, "placed", number, 0, 3)
        assert [record.value for record in records] == [b"%d of %d" % (at, number) for at in range(3)]


@pytest.mark.parametrize(
    ("mapping", "refused"),
    [
        ({"a": "t:0", "b": "t:0"}, "topic 'b'"),
        ({"a": "t:0", "b": "t"}, "topic 'b'"),
        ({"a": "t", "b": "t:1"}, "topic 'b'"),
        ({"two": "t:1"}, "topic 'two'"),
    ],
)
def test_two_logs_for_one_place_are_refused(tmp_path: Path, mapping: dict[str, str], refused: str) -> None:
    for name in ("a", "b", "two-0", "two-1"):
        _log(tmp_path / name)
    report = Import(ImportRequest("rustlog", tmp_path, mapping)).dry_run()
    assert [one.what for one in report.skipped] == [refused]
    assert not report.is_complete


def test_two_folders_of_one_partition_are_not_mixed(tmp_path: Path) -> None:
    for name in ("t-1", "t_1", "t/1"):
        _log(tmp_path / name)
    report = Import(ImportRequest("rustlog", tmp_path)).dry_run()
    assert [(row.topic, row.partition) for row in report.partitions] == [("t", 1)]
    assert len(report.skipped) == 2
    assert not report.is_complete


def test_segments_right_in_the_directory_are_a_topic_of_its_name(tmp_path: Path) -> None:
    _log(tmp_path / "events", 100)
    records, _ = read("rustlog", tmp_path / "events")
    assert [record.offset for record in records["events-0"]] == [100, 101, 102, 103, 104, 105]


def test_a_torn_tail_costs_the_torn_record(tmp_path: Path) -> None:
    path = _log(tmp_path / "t-0")
    tear(path, 2)
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == list(enumerate(PAYLOADS[:-1]))
    assert (findings["t-0"].count, findings["t-0"].bytes) == (1, 14)


@pytest.mark.parametrize("position", range(4, 12))
def test_flipped_byte_in_an_offset_loses_no_record(tmp_path: Path, position: int) -> None:
    path = _log(tmp_path / "t-0")
    flip(path, 28 + position)
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == list(enumerate(PAYLOADS))
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 1)


@pytest.mark.parametrize("position", range(4))
def test_flipped_byte_in_a_length_loses_only_that_record(tmp_path: Path, position: int) -> None:
    path = _log(tmp_path / "t-0")
    flip(path, 28 + position)
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == [pair for pair in enumerate(PAYLOADS) if pair[0] != 2]
    assert (findings["t-0"].count, findings["t-0"].bytes) == (1, 162)


def test_gaps_that_compaction_left_are_no_damage(tmp_path: Path) -> None:
    rustlog_log(tmp_path / "t-0", 5, [rustlog_record(n, b"v%d" % n) for n in (5, 6, 9, 10, 40)])
    records, findings = read("rustlog", tmp_path)
    assert [record.offset for record in records["t-0"]] == [5, 6, 9, 10, 40]
    assert findings["t-0"].count == 0


def test_the_index_is_not_needed(tmp_path: Path) -> None:
    _log(tmp_path / "t-0").with_suffix(".index").unlink()
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == list(enumerate(PAYLOADS))
    assert findings["t-0"].count == 0


@pytest.mark.parametrize("count", [1, 3])
def test_zeros_of_the_size_of_records_are_damage_and_no_records(tmp_path: Path, count: int) -> None:
    """No offset is given twice, so offset 0 is that of the first record only."""
    payloads = [b"%08d" % n * 3 for n in range(20)]
    path = _log(tmp_path / "t-0", payloads=payloads)
    data = bytearray(path.read_bytes())
    data[5 * 36 : (5 + count) * 36] = bytes(36 * count)
    path.write_bytes(data)
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == [(n, one) for n, one in enumerate(payloads) if not 5 <= n < 5 + count]
    assert findings["t-0"].bytes == 36 * count


def test_records_around_gaps_come_over_when_values_look_like_records(tmp_path: Path) -> None:
    """Empty values, zeros, and records inside values: what compaction leaves is no damage."""
    payloads = [b"", bytes(30), b"", rustlog_record(7, b"x") * 3, b"", bytes(100), b"last"]
    written = [(n * n + 300, payloads[n % len(payloads)]) for n in range(200)]
    rustlog_log(tmp_path / "t-0", 300, [rustlog_record(*one) for one in written])
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == written
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 0)


def test_a_length_that_leads_past_whole_records_is_damage(tmp_path: Path) -> None:
    written = [(n * 3, b"%052d" % n) for n in range(10)]
    path = rustlog_log(tmp_path / "t-0", 0, [rustlog_record(*one) for one in written])
    flip(path, 4 * 64 + 3)
    records, findings = read("rustlog", tmp_path)
    assert values(records["t-0"]) == written[:4] + written[5:]
    assert findings["t-0"].count == 1
