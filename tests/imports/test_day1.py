from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.imports import day1
from penstock.imports.source import Findings
from tests.imports.directories import day1_log, day1_record, flip, read, tear, values
from tests.imports.races import day1_race

PAIRS = [(b"k1", b"v1"), (b"", b"hello"), (b"k3", b""), (b"key", b"v" * 200), (b"k5", b"v5"), (b"k6", b"v6")]


def _log(root: Path, name: str = "test", partition: int = 0) -> Path:
    return day1_log(root, name, partition, [day1_record(n, *pair) for n, pair in enumerate(PAIRS)])


def test_records_have_their_offsets_keys_and_the_files_time(tmp_path: Path) -> None:
    path = _log(tmp_path, "a-b", 7)
    assert path.read_bytes()[:18].hex() == "0000000000000000" + "0002" + "6b31" + "00000002" + "7631"
    records, findings = read("day1", tmp_path)
    assert [(record.key, record.value) for record in records["a-b-7"]] == PAIRS
    assert [record.offset for record in records["a-b-7"]] == list(range(6))
    assert {record.timestamp for record in records["a-b-7"]} == {path.stat().st_mtime_ns // 1_000_000}
    assert findings["a-b-7"].count == 0


def test_other_files_are_named_as_skipped(tmp_path: Path) -> None:
    _log(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "nonumber.log").write_bytes(b"")
    found = day1.find(tmp_path)
    assert [str(one) for one in found.partitions] == ["test-0"]
    assert {one.what for one in found.skipped} == {"notes.txt", "nonumber.log"}


@pytest.mark.parametrize("count", [1, 3, 10, 17])
def test_a_torn_tail_costs_the_torn_record(tmp_path: Path, count: int) -> None:
    """Its own broker does not open such a file at all."""
    path = _log(tmp_path)
    tear(path, count)
    records, findings = read("day1", tmp_path)
    assert len(records["test-0"]) == 5
    assert (findings["test-0"].count, findings["test-0"].bytes) == (1, 18 - count)


@pytest.mark.parametrize("position", [8, 9, *range(13, 17)])
def test_flipped_byte_in_lengths_loses_only_that_record(tmp_path: Path, position: int) -> None:
    path = _log(tmp_path)
    flip(path, 18 + 19 + 16 + position)
    records, findings = read("day1", tmp_path)
    assert [record.offset for record in records["test-0"]] == [0, 1, 2, 4, 5]
    assert findings["test-0"].count == 1


@pytest.mark.parametrize("number", range(len(PAIRS)))
@pytest.mark.parametrize("position", range(8))
def test_flipped_byte_in_an_offset_loses_no_record(tmp_path: Path, number: int, position: int) -> None:
    path = _log(tmp_path)
    flip(path, sum(14 + len(key) + len(value) for key, value in PAIRS[:number]) + position)
    records, findings = read("day1", tmp_path)
    assert [(record.key, record.value) for record in records["test-0"]] == PAIRS
    assert findings["test-0"].count == 0
    if number < len(PAIRS) - 1:  # the last one may as well be a record after a gap
        assert [record.offset for record in records["test-0"]] == list(range(6))
        assert findings["test-0"].renumbered == 1


def test_offsets_that_were_given_twice_get_the_next_free_ones(tmp_path: Path) -> None:
    """Two requests at once open a log twice."""
    day1_log(tmp_path, "t", 0, [day1_record(n, b"", b"%d" % at) for at, n in enumerate([0, 1, 2, 1, 2, 3])])
    records, findings = read("day1", tmp_path)
    assert values(records["t-0"]) == [(n, b"%d" % n) for n in range(6)]
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 3)


@pytest.mark.parametrize("producers", [2, 4, 8, 16])
def test_every_record_of_racing_producers_is_imported_in_file_order(tmp_path: Path, producers: int) -> None:
    data, written = day1_race(producers, producers, 800 // producers)
    day1_log(tmp_path, "t", 0, [data])
    records, findings = read("day1", tmp_path)
    assert [(record.key, record.value) for record in records["t-0"]] == written
    assert [record.offset for record in records["t-0"]] == list(range(len(written)))
    assert findings["t-0"].count == 0
    assert findings["t-0"].renumbered > len(written) / 2


def test_torn_record_in_a_log_of_racing_producers_loses_only_that_record(tmp_path: Path) -> None:
    data, written = day1_race(3, 8, 50)
    path = day1_log(tmp_path, "t", 0, [data])
    tear(path, 5)
    records, findings = read("day1", tmp_path)
    assert [(record.key, record.value) for record in records["t-0"]] == written[:-1]
    assert findings["t-0"].count == 1


def test_zeros_left_by_a_crash_are_damage_and_not_records(tmp_path: Path) -> None:
    path = _log(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(100_000))
    records, findings = read("day1", tmp_path)
    assert [(record.key, record.value) for record in records["test-0"]] == PAIRS
    assert [(one.position, one.length) for one in findings["test-0"].kept] == [(size, 100_000)]


def test_records_after_a_sector_of_zeros_are_imported(tmp_path: Path) -> None:
    pairs = [(b"k%d" % n, b"value %d" % n) for n in range(100)]
    data = bytearray(b"".join(day1_record(n, *pair) for n, pair in enumerate(pairs)))
    data[512:1024] = bytes(512)
    day1_log(tmp_path, "t", 0, [bytes(data)])
    records, findings = read("day1", tmp_path)
    kept = [(record.key or b"", record.value or b"") for record in records["t-0"]]
    assert kept == [pair for pair in pairs if pair in kept]
    assert len(kept) >= len(pairs) - 512 // 23 - 2
    assert [record.offset for record in records["t-0"]] == [pairs.index(pair) for pair in kept]
    assert findings["t-0"].bytes < 512 + 2 * 30


def test_empty_records_of_racing_first_requests_are_records(tmp_path: Path) -> None:
    day1_log(tmp_path, "t", 0, [day1_record(n, b"", b"") for n in (0, 0, 0, 1, 1)])
    records, findings = read("day1", tmp_path)
    assert values(records["t-0"]) == [(n, b"") for n in range(5)]
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 4)


@pytest.mark.parametrize("offsets", [(-1, 0, 1), (1 << 62, (1 << 62) + 1), (5,), (-5,), (7, 6, 5, 8)])
def test_records_get_rising_offsets_whatever_the_file_has(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    day1_log(tmp_path, "t", 0, [day1_record(n, b"k", b"value %d" % n) for n in offsets])
    records, findings = read("day1", tmp_path)
    assert [record.value for record in records["t-0"]] == [b"value %d" % n for n in offsets]
    given_offsets = [record.offset for record in records["t-0"]]
    assert given_offsets == list(range(given_offsets[0], given_offsets[0] + len(offsets)))
    assert findings["t-0"].count == 0


@given(
    pairs=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=80)), min_size=1, max_size=12),
    first=st.integers(0, 1000),
    data=st.data(),
)
def test_whatever_flips_only_whole_records_come_out_and_most_do(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[bytes, bytes]], first: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("day1")
    path = day1_log(root, "t", 0, [day1_record(first + n, *pair) for n, pair in enumerate(pairs)])
    size = path.stat().st_size
    flip(path, data.draw(st.integers(0, size - 1)), 1 << data.draw(st.integers(0, 7)))
    records, findings = read("day1", root)
    found = records["t-0"]
    assert len({record.offset for record in found}) == len(found)
    assert findings["t-0"].bytes + sum(14 + len(one.key or b"") + len(one.value or b"") for one in found) == size


def test_a_file_that_ends_in_the_middle_of_nowhere_is_no_error(tmp_path: Path) -> None:
    day1_log(tmp_path, "t", 0, [b"\x00" * 5])
    findings = Findings()
    assert list(day1.batches(day1.find(tmp_path).partitions[0], findings)) == []
    assert findings.bytes == 5
