from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient, KafkaSettings
from penstock.imports import flymq
from penstock.imports.run import Import, ImportRequest
from penstock.imports.source import Commit, Findings
from tests.imports.conftest import read_all
from tests.imports.directories import (
    flip,
    flymq_commit,
    flymq_document_message,
    flymq_message,
    flymq_store,
    read,
    tear,
)

PAIRS = [(b"k", b"zero"), (b"", b"one"), (b"k2", b""), (b"", b"t" * 90), (b"k4", b"four"), (b"k5", b"five")]
LAYOUTS = [(">Q", "events/0/0.store"), (">I", "topics/events/partition-0/00000000000000000000.store")]

in_both_layouts = pytest.mark.parametrize(
    ("form", "place"), LAYOUTS, ids=["as its server writes", "as its document says"]
)


def _store(root: Path, form: str, place: str, **how: object) -> Path:
    return flymq_store(root / place, [flymq_message(*pair) for pair in PAIRS], form, **how)  # type: ignore[arg-type]


def _pairs(root: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in read("flymq", root)[0]["events-0"]]


def _expected(*without: int) -> list[tuple[int, bytes, bytes]]:
    return [(number, key, value) for number, (key, value) in enumerate(PAIRS) if number not in without]


@in_both_layouts
def test_records_of_both_layouts_are_read(tmp_path: Path, form: str, place: str) -> None:
    first = _store(tmp_path, form, place)
    flymq_store(first.with_name("00000000000000000006.store"), [flymq_message(b"", b"six")], form)
    (tmp_path / "schemas").mkdir()
    assert _pairs(tmp_path) == [*_expected(), (6, b"", b"six")]
    assert read("flymq", tmp_path)[1]["events-0"].count == 0


@in_both_layouts
def test_a_torn_tail_costs_the_torn_record(tmp_path: Path, form: str, place: str) -> None:
    tear(_store(tmp_path, form, place), 1)
    assert _pairs(tmp_path) == _expected(5)
    assert read("flymq", tmp_path)[1]["events-0"].count == 1


@in_both_layouts
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


@in_both_layouts
def test_an_index_that_a_killed_server_left_full_of_zeros_changes_nothing(
    tmp_path: Path, form: str, place: str
) -> None:
    _store(tmp_path, form, place, padded=1024 * 1024 // 12 * 12)
    assert _pairs(tmp_path) == _expected()
    assert read("flymq", tmp_path)[1]["events-0"].count == 0


@in_both_layouts
def test_committed_offsets_are_the_json_files(tmp_path: Path, form: str, place: str) -> None:
    _store(tmp_path, form, place)
    flymq_commit(tmp_path, "g", "events", {"0": 4, "1": 0})
    (tmp_path / "__consumer_offsets" / "broken.json").write_text("{")
    findings = Findings()
    assert flymq.commits(tmp_path, findings) == [Commit("g", "events", 0, 4), Commit("g", "events", 1, 0)]
    assert findings.count == 1


def test_committed_offsets_of_a_topic_with_a_slash_are_found(tmp_path: Path) -> None:
    flymq_commit(tmp_path, "g", "orders", {"0": 1})
    (tmp_path / "__consumer_offsets" / "a").mkdir()
    flymq_commit(tmp_path, "g", "a/b", {"0": 4})
    findings = Findings()
    assert sorted(flymq.commits(tmp_path, findings)) == [Commit("g", "a/b", 0, 4), Commit("g", "orders", 0, 1)]
    assert findings.count == 0


TIME = 1_650_000_000_000
DOCUMENT = [
    ((), TIME),
    ((("trace", "abc"),), TIME + 1),
    ((("a", ""), ("b", "ümlaut"), ("a", "again")), TIME + 2),
    ((), TIME + 3),
    ((("n", "x" * 300),), TIME + 4),
    ((), TIME + 5),
]


def _document_store(root: Path, form: str, place: str, **how: object) -> Path:
    messages = [flymq_document_message(*pair, *more) for pair, more in zip(PAIRS, DOCUMENT, strict=True)]
    return flymq_store(root / place, messages, form, **how)  # type: ignore[arg-type]


@in_both_layouts
def test_headers_and_times_of_the_documents_encoding_are_imported(tmp_path: Path, form: str, place: str) -> None:
    _document_store(tmp_path, form, place)
    records, findings = read("flymq", tmp_path)
    assert [(record.key, record.value) for record in records["events-0"]] == PAIRS
    assert [record.timestamp for record in records["events-0"]] == [TIME + n for n in range(6)]
    expected = [tuple((name, value.encode()) for name, value in headers) for headers, _ in DOCUMENT]
    assert [record.headers for record in records["events-0"]] == expected
    assert findings["events-0"].count == 0


@in_both_layouts
def test_a_store_that_holds_both_encodings_is_read(tmp_path: Path, form: str, place: str) -> None:
    messages = [message for pair in PAIRS for message in (flymq_message(*pair), flymq_document_message(*pair))]
    flymq_store(tmp_path / place, messages, form)
    records, findings = read("flymq", tmp_path)
    assert [(record.key, record.value) for record in records["events-0"]] == [pair for pair in PAIRS for _ in range(2)]
    assert findings["events-0"].count == 0


def test_a_length_of_the_other_width_is_recognised_in_either_layout(tmp_path: Path) -> None:
    for (form, _), (_, place) in zip(LAYOUTS, reversed(LAYOUTS), strict=True):
        _document_store(tmp_path / form[1], form, place)
        assert _pairs(tmp_path / form[1]) == _expected()
        assert read("flymq", tmp_path / form[1])[1]["events-0"].count == 0


@in_both_layouts
@pytest.mark.parametrize("index", [True, False])
def test_flipped_bit_in_the_documents_encoding_loses_at_most_that_record(
    tmp_path: Path, form: str, place: str, index: bool
) -> None:
    path = _document_store(tmp_path, form, place, index=index)
    whole = path.read_bytes()
    sizes = [
        struct.calcsize(form) + len(flymq_document_message(*pair, *more))
        for pair, more in zip(PAIRS, DOCUMENT, strict=True)
    ]
    for position in range(sum(sizes[:2]), sum(sizes[:3])):
        path.write_bytes(whole)
        flip(path, position)
        found = _pairs(tmp_path)
        assert [row for row in found if row[0] != 2] == _expected(2), position
        findings = read("flymq", tmp_path)[1]["events-0"]
        assert findings.bytes + sum(sizes[row[0]] for row in found) == len(whole)


def test_a_message_without_a_time_gets_that_of_the_file(tmp_path: Path) -> None:
    """Go's zero time is in the year 1."""
    message = flymq_document_message(b"k", b"v", (), -62_135_596_800_000)
    path = flymq_store(tmp_path / LAYOUTS[1][1], [message], ">I")
    (record,) = read("flymq", tmp_path)[0]["events-0"]
    assert record.timestamp == path.stat().st_mtime_ns // 1_000_000


def test_an_unknown_encoding_is_reported_and_not_guessed(tmp_path: Path) -> None:
    """Messages may be encrypted, or compressed, by what no document describes."""
    path = flymq_store(tmp_path / LAYOUTS[0][1], [bytes(range(100, 160))] * 20, ">Q")
    records, findings = read("flymq", tmp_path)
    assert records["events-0"] == []
    assert findings["events-0"].bytes == path.stat().st_size


@pytest.mark.parametrize("count", [-1, 2, 20_000, (1 << 31) - 1])
def test_impossible_number_of_headers_is_damage(tmp_path: Path, count: int) -> None:
    message = flymq_message(b"k", b"v") + struct.pack(">i", count) + bytes(100_000) + struct.pack(">q", TIME)
    sound = flymq_document_message(b"k", b"sound")
    flymq_store(tmp_path / LAYOUTS[1][1], [message, sound, sound, sound], ">I", index=False)
    records, findings = read("flymq", tmp_path)
    assert [record.value for record in records["events-0"]] == [b"sound"] * 3
    assert findings["events-0"].bytes == 4 + len(message)


def test_headers_reach_a_running_broker(broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    _document_store(tmp_path, *LAYOUTS[1])
    report = Import(ImportRequest("flymq", tmp_path, {"events": "fly-headers"})).into_broker(
        KafkaSettings.of(broker.bootstrap), broker.bootstrap
    )
    assert (report.records, report.is_complete) == (len(PAIRS), True)
    records = read_all(client, "fly-headers", 0, 0, len(PAIRS))
    assert records[2].headers == (("a", b""), ("b", "ümlaut".encode()), ("a", b"again"))
    assert records[2].timestamp == TIME + 2
