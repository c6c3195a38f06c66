from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.imports import fluxgo
from penstock.imports.source import Commit, Findings
from tests.imports.directories import flip, fluxgo_commit, fluxgo_log, read, tear, values

RECORDS = [b"hi", b"", b"x" * 300, b"last"]


def test_records_are_numbered_from_the_segments_name_on(tmp_path: Path) -> None:
    first = fluxgo_log(tmp_path / "orders_0", 0, RECORDS)
    fluxgo_log(tmp_path / "orders_0", 4, [b"next"])
    assert first.read_bytes()[:18].hex() == "0000000000000002" + "6869" + "0000000000000000"
    records, findings = read("fluxgo", tmp_path)
    assert values(records["orders-0"]) == [*enumerate(RECORDS), (4, b"next")]
    assert {record.key for record in records["orders-0"]} == {None}
    assert findings["orders-0"].count == 0


def test_names_are_split_at_the_last_underscore_and_slashes_are_folders(tmp_path: Path) -> None:
    fluxgo_log(tmp_path / "my_topic_12", 0, [b"a"])
    fluxgo_log(tmp_path / "a" / "b_0", 0, [b"b"])
    fluxgo_log(tmp_path / "__consumer_offsets", 0, [b"its own broker loads this folder as a log"])
    fluxgo_log(tmp_path / "nonumber", 0, [b"c"])
    found = fluxgo.find(tmp_path)
    assert {(one.topic, one.partition) for one in found.partitions} == {("my_topic", 12), ("a/b", 0)}
    assert [one.what for one in found.skipped] == ["nonumber"]


def test_a_torn_tail_costs_the_torn_record(tmp_path: Path) -> None:
    path = fluxgo_log(tmp_path / "t_0", 0, RECORDS)
    tear(path, 1)
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate(RECORDS[:-1]))
    assert findings["t-0"].kept[0].position == path.stat().st_size - 11
    assert findings["t-0"].bytes == 11


def test_behind_a_flipped_length_the_index_says_where_to_go_on(tmp_path: Path) -> None:
    path = fluxgo_log(tmp_path / "t_0", 0, RECORDS)
    flip(path, 10)
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == [(0, b"hi"), (2, RECORDS[2]), (3, b"last")]
    assert (findings["t-0"].count, findings["t-0"].bytes) == (1, 8)


def test_a_length_that_became_shorter_does_not_cut_a_record(tmp_path: Path) -> None:
    path = fluxgo_log(tmp_path / "t_0", 0, [b"a" * 0x41, b"b", b"c"])
    flip(path, 7)
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == [(1, b"b"), (2, b"c")]
    assert findings["t-0"].count == 1


def test_without_an_index_the_rest_of_the_segment_is_lost_and_the_next_one_is_not(tmp_path: Path) -> None:
    path = fluxgo_log(tmp_path / "t_0", 0, RECORDS, index=False)
    fluxgo_log(tmp_path / "t_0", 4, [b"next"], index=False)
    flip(path, 10)
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == [(0, b"hi"), (4, b"next")]
    assert findings["t-0"].bytes == path.stat().st_size - 10


def test_an_index_whose_first_entries_a_restart_overwrote_changes_nothing(tmp_path: Path) -> None:
    """FluxGo opens its index without append: after a, b, c, a restart and d the entry of a is d's."""
    path = fluxgo_log(tmp_path / "t_0", 0, [b"a", b"b", b"c", b"d"])
    entries = [(3, 27), (1, 9), (2, 18)]
    path.with_suffix(".index").write_bytes(b"".join(struct.pack(">QQ", *entry) for entry in entries))
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate([b"a", b"b", b"c", b"d"]))
    assert findings["t-0"].count == 0


def test_a_segment_that_begins_too_early_is_renumbered_and_counted(tmp_path: Path) -> None:
    fluxgo_log(tmp_path / "t_0", 0, [b"a", b"b", b"c", b"d"])
    fluxgo_log(tmp_path / "t_0", 3, [b"e", b"f"])
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate([b"a", b"b", b"c", b"d", b"e", b"f"]))
    assert findings["t-0"].renumbered == 2


def test_committed_offsets_come_from_their_files(tmp_path: Path) -> None:
    fluxgo_commit(tmp_path, "billing", "my_topic", 3, 17)
    fluxgo_commit(tmp_path, "billing", "short", 0, 1)
    short = tmp_path / "__consumer_offsets" / "billing" / "short_0.offset"
    tear(short, 1)
    findings = Findings()
    assert fluxgo.commits(tmp_path, findings) == [Commit("billing", "my_topic", 3, 17)]
    assert findings.kept[0].file == str(short)


@pytest.mark.parametrize("index", [True, False])
def test_zeros_left_by_a_crash_are_damage_and_not_records(tmp_path: Path, index: bool) -> None:
    path = fluxgo_log(tmp_path / "t_0", 0, RECORDS, index=index)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(8_000))
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate(RECORDS))
    assert [(one.position, one.length) for one in findings["t-0"].kept] == [(size, 8_000)]


def test_empty_records_listed_by_the_index_are_records(tmp_path: Path) -> None:
    fluxgo_log(tmp_path / "t_0", 0, [b"a"] + [b""] * 2_000)
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate([b"a"] + [b""] * 2_000))
    assert findings["t-0"].count == 0


@pytest.mark.parametrize(("start", "length"), [(512, 512), (1_024, 1_024), (512, 8_192)])
def test_zeros_between_records_are_damage_and_no_records(tmp_path: Path, start: int, length: int) -> None:
    written = [b"%d" % n + bytes([255]) * (n * 7 % 90) for n in range(400)]
    path = fluxgo_log(tmp_path / "t_0", 0, written)
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(data)
    records, findings = read("fluxgo", tmp_path)
    position, sound, beheaded = 0, [], 0
    for offset, value in enumerate(written):
        head = struct.pack(">Q", len(value))
        end = position + len(head) + len(value)
        beheaded += not data.startswith(head, position)
        if data[position:end] == head + value:
            sound.append((offset, value))
        position = end
    kept = values(records["t-0"])
    assert [one for one in kept if one in sound] == sound
    assert len(kept) == len(written) - beheaded
    assert findings["t-0"].count == beheaded > 0


def test_empty_records_whose_entries_a_restart_overwrote_are_records(tmp_path: Path) -> None:
    """After restarts new entries have taken the places of others, so the index has holes."""
    written = [b"", b"", b"c", b"", b"e", b"", b"g"]
    path = fluxgo_log(tmp_path / "t_0", 0, written)
    index = path.with_suffix(".index")
    entries = index.read_bytes()
    index.write_bytes(entries[48:64] + entries[80:])
    records, findings = read("fluxgo", tmp_path)
    assert values(records["t-0"]) == list(enumerate(written))
    assert findings["t-0"].count == 0


def test_a_committed_offset_under_a_name_with_a_slash_is_a_loss(tmp_path: Path) -> None:
    """Group `a` and topic `b/c`, or group `a/b` and topic `c`: both are the same file."""
    fluxgo_log(tmp_path / "t_0", 0, RECORDS)
    fluxgo_commit(tmp_path, "a/b", "c", 0, 1)
    fluxgo_commit(tmp_path, "group", "t", 0, 1)
    found = fluxgo.find(tmp_path)
    assert [(one.what, one.is_loss) for one in found.skipped] == [("__consumer_offsets/a/b/c_0.offset", True)]
    assert fluxgo.commits(tmp_path, Findings()) == [Commit("group", "t", 0, 1)]
