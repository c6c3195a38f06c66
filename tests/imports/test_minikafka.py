from __future__ import annotations

from pathlib import Path

import pytest

from penstock.imports import minikafka
from penstock.imports.source import Commit, Findings
from tests.imports.directories import flip, minikafka_log, minikafka_record, read, tear, values


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


@pytest.mark.parametrize("position", [0, 3, 5, 8, 15, 24, 27, 30, 35])
def test_a_flip_in_length_checksum_id_or_payload_costs_that_record_alone(tmp_path: Path, position: int) -> None:
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
