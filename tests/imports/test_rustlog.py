from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("position", range(12))
def test_a_flip_in_a_records_head_costs_that_record_alone(tmp_path: Path, position: int) -> None:
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
