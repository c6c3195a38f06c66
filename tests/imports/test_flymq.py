from __future__ import annotations

from pathlib import Path

import pytest

from penstock.imports import flymq
from penstock.imports.source import Commit, Findings
from tests.imports.directories import flip, flymq_commit, flymq_message, flymq_store, read, tear

PAIRS = [(b"k", b"zero"), (b"", b"one"), (b"k2", b""), (b"", b"t" * 90), (b"k4", b"four"), (b"k5", b"five")]
LAYOUTS = [(">Q", "events/0/0.store"), (">I", "topics/events/partition-0/00000000000000000000.store")]

pytestmark = pytest.mark.parametrize(("form", "place"), LAYOUTS, ids=["as its server writes", "as its document says"])


def _store(root: Path, form: str, place: str, **how: object) -> Path:
    return flymq_store(root / place, [flymq_message(*pair) for pair in PAIRS], form, **how)  # type: ignore[arg-type]


def _pairs(root: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read("flymq", root)[0]["events-0"]]


def _expected(*without: int) -> list[tuple[int, bytes, bytes]]:
    return [(number, key, value) for number, (key, value) in enumerate(PAIRS) if number not in without]


def test_records_of_both_layouts_are_read(tmp_path: Path, form: str, place: str) -> None:
    first = _store(tmp_path, form, place)
    flymq_store(first.with_name("00000000000000000006.store"), [flymq_message(b"", b"six")], form)
    (tmp_path / "schemas").mkdir()
    assert _pairs(tmp_path) == [*_expected(), (6, b"", b"six")]
    assert read("flymq", tmp_path)[1]["events-0"].count == 0


def test_a_torn_tail_costs_the_torn_record(tmp_path: Path, form: str, place: str) -> None:
    tear(_store(tmp_path, form, place), 1)
    assert _pairs(tmp_path) == _expected(5)
    assert read("flymq", tmp_path)[1]["events-0"].count == 1


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("field", ["length", "key length", "value length"])
def test_a_flipped_length_costs_that_record_alone(
    tmp_path: Path, form: str, place: str, index: bool, field: str
) -> None:
    path = _store(tmp_path, form, place, index=index)
    head = 8 if form == ">Q" else 4
    record_2 = 2 * head + 13 + 11
    at = {"length": head - 1, "key length": head + 3, "value length": head + 4 + 2 + 3}[field]
    flip(path, record_2 + at)
    assert _pairs(tmp_path) == _expected(2)
    findings = read("flymq", tmp_path)[1]["events-0"]
    assert (findings.count, findings.bytes) == (1, head + 10)


def test_an_index_that_a_killed_server_left_full_of_zeros_changes_nothing(
    tmp_path: Path, form: str, place: str
) -> None:
    _store(tmp_path, form, place, padded=1024 * 1024 // 12 * 12)
    assert _pairs(tmp_path) == _expected()
    assert read("flymq", tmp_path)[1]["events-0"].count == 0


def test_committed_offsets_are_the_json_files(tmp_path: Path, form: str, place: str) -> None:
    _store(tmp_path, form, place)
    flymq_commit(tmp_path, "g", "events", {"0": 4, "1": 0})
    (tmp_path / "__consumer_offsets" / "broken.json").write_text("{")
    findings = Findings()
    assert flymq.commits(tmp_path, findings) == [Commit("g", "events", 0, 4), Commit("g", "events", 1, 0)]
    assert findings.count == 1
