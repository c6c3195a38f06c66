from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.imports import day1
from penstock.imports.source import Findings
from tests.imports.directories import day1_log, day1_record, flip, read, tear, values

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


@pytest.mark.parametrize("position", [*range(10), *range(13, 17)])
def test_a_flip_in_offset_or_lengths_costs_that_record_alone(tmp_path: Path, position: int) -> None:
    path = _log(tmp_path)
    flip(path, 18 + 19 + 16 + position)
    records, findings = read("day1", tmp_path)
    assert [record.offset for record in records["test-0"]] == [0, 1, 2, 4, 5]
    assert findings["test-0"].count == 1


def test_offsets_that_were_given_twice_get_the_next_free_ones(tmp_path: Path) -> None:
    """Two requests at once open a log twice."""
    day1_log(tmp_path, "t", 0, [day1_record(n, b"", b"%d" % at) for at, n in enumerate([0, 1, 2, 1, 2, 3])])
    records, findings = read("day1", tmp_path)
    assert values(records["t-0"]) == [(n, b"%d" % n) for n in range(6)]
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 3)


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
