from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.imports import minikafka
from penstock.imports.source import Commit, Findings
from tests.imports.directories import flip, minikafka_log, minikafka_record, read, tear, values
from tests.imports.races import minikafka_race


def _records(count: int, first_id: int = 0, time: int = 1_000, word: str = "v") -> list[bytes]:
    ids = range(first_id, first_id + count)
    return [minikafka_record(n, time + n, b"k%d" % n, b"%s%d" % (word.encode(), n)) for n in ids]


def test_records_have_their_ids_times_keys_and_payloads(tmp_path: Path) -> None:
    path = minikafka_log(tmp_path, "t", 2, 0, [minikafka_record(0, 99, b"k1", b"hello")])
    assert path.read_bytes()[:8].hex() == "00000023" + "3610a686"
    minikafka_log(tmp_path, "t", 2, 1, _records(2, 1))
    records, findings = read("minikafka", tmp_path)
    assert [tuple(record)[:4] for record in records["t-2"]] == [
        (0, 99, b"k1", b"hello"),
        (1, 1_001, b"k1", b"v1"),
        (2, 1_002, b"k2", b"v2"),
    ]
    assert findings["t-2"].count == 0


def test_a_key_comes_over_as_the_bytes_that_were_sent(tmp_path: Path) -> None:
    minikafka_log(tmp_path, "t", 0, 0, [minikafka_record(0, 1, "café".encode(), b"")])
    assert read("minikafka", tmp_path)[0]["t-0"][0].key == "café".encode()


@pytest.mark.parametrize("count", [1, 20, 35])
def test_a_torn_tail_costs_the_torn_record(tmp_path: Path, count: int) -> None:
    tear(minikafka_log(tmp_path, "t", 0, 0, _records(4)), count)
    records, findings = read("minikafka", tmp_path)
    assert [record.offset for record in records["t-0"]] == [0, 1, 2]
    assert (findings["t-0"].count, findings["t-0"].bytes) == (1, 36 - count)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("position", range(8, 16))
def test_flipped_byte_in_an_id_loses_no_record(tmp_path: Path, number: int, position: int) -> None:
    path = minikafka_log(tmp_path, "t", 0, 0, _records(5))
    flip(path, 36 * number + position)
    records, findings = read("minikafka", tmp_path)
    assert [record.value for record in records["t-0"]] == [b"v%d" % n for n in range(5)]
    assert findings["t-0"].count == 0
    if number < 4:  # the last one may as well be a record after a gap
        assert [record.offset for record in records["t-0"]] == list(range(5))
        assert findings["t-0"].renumbered == 1


@pytest.mark.parametrize("position", [0, 3, 5, 24, 27, 30, 35])
def test_flipped_byte_in_length_checksum_or_payload_loses_only_that_record(tmp_path: Path, position: int) -> None:
    path = minikafka_log(tmp_path, "t", 0, 0, _records(5))
    flip(path, 36 * 2 + position)
    records, findings = read("minikafka", tmp_path)
    assert [record.offset for record in records["t-0"]] == [0, 1, 3, 4]
    assert (findings["t-0"].count, findings["t-0"].bytes) == (1, 36)


def test_ids_that_began_again_after_a_restart_are_renumbered_in_the_order_of_time(tmp_path: Path) -> None:
    """0.log holds the first life's beginning and all of the second life; 3.log the rest of the first."""
    second = _records(2, 0, 9_000, "second")
    minikafka_log(tmp_path, "t", 0, 0, [*_records(3, word="first"), *second])
    minikafka_log(tmp_path, "t", 0, 3, _records(2, 3, word="first"))
    records, findings = read("minikafka", tmp_path)
    assert values(records["t-0"]) == [
        (0, b"first0"),
        (1, b"first1"),
        (2, b"first2"),
        (3, b"first3"),
        (4, b"first4"),
        (5, b"second0"),
        (6, b"second1"),
    ]
    assert (findings["t-0"].count, findings["t-0"].renumbered) == (0, 2)


@pytest.mark.parametrize("pause", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("producers", [2, 4, 8, 16])
def test_every_complete_record_of_racing_producers_is_imported(tmp_path: Path, producers: int, pause: float) -> None:
    data, whole, written = minikafka_race(producers, producers, 600 // producers, pause)
    minikafka_log(tmp_path, "t", 0, 0, [data])
    records, findings = read("minikafka", tmp_path)
    found = [(record.key or b"", record.value or b"") for record in records["t-0"]]
    assert Counter(whole) - Counter(found) == Counter()
    assert set(found) <= set(written)
    assert [pair for pair in found if pair in set(whole)] == whole
    found_bytes = sum(32 + len(key) + len(value) for key, value in found)
    assert findings["t-0"].bytes == len(data) - found_bytes
    assert [record.offset for record in records["t-0"]] == sorted({record.offset for record in records["t-0"]})


def test_complete_record_between_the_pieces_of_another_is_imported(tmp_path: Path) -> None:
    torn, whole = minikafka_record(1, 1_001, b"a", b"torn" * 30), minikafka_record(2, 1_002, b"b", b"whole")
    pieces = [*_records(1), torn[:33], whole, torn[33:], *_records(1, 3)]
    minikafka_log(tmp_path, "t", 0, 0, pieces)
    records, findings = read("minikafka", tmp_path)
    assert values(records["t-0"]) == [(0, b"v0"), (2, b"whole"), (3, b"v3")]
    assert [one.length for one in findings["t-0"].kept] == [33, len(torn) - 33]


def test_ids_of_producers_that_overtook_each_other_leave_later_ids_alone(tmp_path: Path) -> None:
    ids = [0, 2, 1, 3, 3, 4, 7, 6, 5, 8, 9]
    minikafka_log(tmp_path, "t", 0, 0, [minikafka_record(n, 1_000 + at, b"", b"%d" % n) for at, n in enumerate(ids)])
    records, findings = read("minikafka", tmp_path)
    assert values(records["t-0"]) == [(at, b"%d" % n) for at, n in enumerate(ids)]
    assert findings["t-0"].count == 0
    assert findings["t-0"].renumbered == sum(at != n for at, n in enumerate(ids))


def test_files_written_before_a_clock_was_set_back_stay_in_their_order(tmp_path: Path) -> None:
    times = [5_000, 5_100, 5_200, 5_150, 5_160, 5_170]
    records_of = [minikafka_record(n, time, b"", b"v%d" % n) for n, time in enumerate(times)]
    minikafka_log(tmp_path, "t", 0, 0, records_of[:3])
    minikafka_log(tmp_path, "t", 0, 3, records_of[3:])
    records, findings = read("minikafka", tmp_path)
    assert values(records["t-0"]) == [(n, b"v%d" % n) for n in range(6)]
    assert findings["t-0"].renumbered == 0


def test_commit_between_racing_records_continues_after_the_record_read(tmp_path: Path) -> None:
    ids = [0, 1, 3, 2, 2, 4]
    minikafka_log(tmp_path, "t", 0, 0, [minikafka_record(n, 1_000 + at, b"", b"%d" % n) for at, n in enumerate(ids)])
    commits = [minikafka_record(n, 2_000, b"g%d:t:0" % n, b"%d" % n) for n in (0, 2, 3, 4, 5, 90)]
    minikafka_log(tmp_path, "__consumer_offsets", 0, 0, commits)
    found = {one.group: one.offset for one in minikafka.commits(tmp_path, Findings())}
    assert found == {"g0": 0, "g2": 2, "g3": 5, "g4": 3, "g5": 6, "g90": 90}


def test_committed_offsets_are_the_last_of_their_topic_and_mean_their_own_life(tmp_path: Path) -> None:
    minikafka_log(tmp_path, "t", 0, 0, [*_records(3), *_records(2, 0, 9_000)])
    commits = [
        minikafka_record(0, 1_500, b"old:t:0", b"2"),
        minikafka_record(1, 1_600, b"a:b:t:0", b"1"),
        minikafka_record(0, 9_500, b"a:b:t:0", b"2"),
        minikafka_record(1, 9_600, b"loader:__consumer_offsets:0", b"7"),
        minikafka_record(2, 9_700, b"not a commit", b"7"),
        minikafka_record(3, 9_800, b"g:t:0", b"many"),
    ]
    minikafka_log(tmp_path, "__consumer_offsets", 1, 0, commits)
    findings = Findings()
    assert minikafka.commits(tmp_path, findings) == [Commit("a:b", "t", 0, 5), Commit("old", "t", 0, 2)]
    assert findings.count == 2
    assert [str(one) for one in minikafka.find(tmp_path).partitions] == ["t-0"]
