from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import Broker
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from tests.cli.conftest import Run
from tests.clients.drivers import Confluent, Sent
from tests.clients.test_producing import create


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two partitions; the first has two segments, the second of them compressed."""
    data = tmp_path / "data"
    for name, base_offset, codec in (("t-0", 0, Codec.NONE), ("t-0", 3, Codec.ZSTD), ("u-1", 0, Codec.NONE)):
        (data / name).mkdir(parents=True, exist_ok=True)
        records = [NewRecord(1_000 + n, b"k%d" % n, b"v%d" % n, (("h", b"\xff"),)) for n in range(3)]
        batch = build_batch(records, base_offset=base_offset, leader_epoch=0, compression=codec)
        (data / name / f"{base_offset:020d}.log").write_bytes(batch)
    return data


def test_dump_lists_the_batches_of_every_partition(penstock: Run, data_dir: Path) -> None:
    ended = penstock("logs", "dump", str(data_dir), "--json")
    rows = [
        (row["partition"], row["base_offset"], row["last_offset"], row["compression"]) for row in json.loads(ended.out)
    ]
    assert rows == [("t-0", 0, 2, "none"), ("t-0", 3, 5, "zstd"), ("u-1", 0, 2, "none")]
    table = penstock("logs", "dump", str(data_dir / "t-0"), "--from-offset", "3").text.splitlines()
    assert len(table) == 2
    assert "zstd" in table[1]


def test_dump_prints_the_records_as_produce_reads_them(penstock: Run, data_dir: Path) -> None:
    ended = penstock("logs", "dump", str(data_dir / "t-0"), "--records", "--from-offset", "2", "-n", "3")
    records = [json.loads(line) for line in ended.text.splitlines()]
    assert [(record["topic"], record["partition"], record["offset"], record["value"]) for record in records] == [
        ("t", 0, 2, "v2"),
        ("t", 0, 3, "v0"),
        ("t", 0, 4, "v1"),
    ]
    assert records[0]["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert records[0]["timestamp"] == 1_002


def test_verify_finds_sound_segments_sound(penstock: Run, data_dir: Path) -> None:
    ended = penstock("logs", "verify", str(data_dir), "--deep", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["damaged"] == 0
    assert [(segment["records"], segment["next_offset"]) for segment in found["segments"]] == [(3, 3), (3, 6), (3, 3)]
    assert penstock("logs", "verify", str(data_dir / "t-0" / f"{3:020d}.log")).text.count("ok") == 1


def test_verify_names_a_flipped_bit_and_fails(penstock: Run, data_dir: Path) -> None:
    path = data_dir / "t-0" / f"{3:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ended = penstock("logs", "verify", str(data_dir))
    assert ended.code == 1
    assert "at position 0: the CRC does not match the batch" in ended.text
    assert ended.err == "penstock: 1 of 3 segments are damaged\n"
    dumped = penstock("logs", "dump", str(path))
    assert dumped.code == 1
    assert "the CRC does not match" in dumped.err


def test_verify_names_a_torn_tail_an_index_that_lies_and_segments_that_overlap(penstock: Run, data_dir: Path) -> None:
    first, second = (data_dir / "t-0" / f"{base_offset:020d}.log" for base_offset in (0, 3))
    with second.open("ab") as file:
        file.write(b"torn")
    first.with_suffix(".index").write_bytes(bytes([0, 0, 0, 9, 0, 0, 0, 9]))
    overlapping = build_batch([NewRecord(0, None, b"")] * 9, base_offset=0, leader_epoch=0)
    (data_dir / "u-1" / f"{2:020d}.log").write_bytes(build_batch([NewRecord(0, None, b"")], base_offset=2))
    (data_dir / "u-1" / f"{0:020d}.log").write_bytes(overlapping)
    ended = penstock("logs", "verify", str(data_dir), "--json")
    assert ended.code == 1
    problems = [problem for segment in json.loads(ended.out)["segments"] for problem in segment["problems"]]
    assert len(problems) == 3
    assert problems[0].endswith(".index: offset 9 is not in a batch at position 9")
    assert "4 bytes are too few for a batch" in problems[1]
    assert problems[2] == "starts at 2, but the previous segment ends at 9"


def test_verify_finds_a_base_offset_that_moved_although_the_crc_does_not_cover_it(
    penstock: Run, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with Broker(data) as broker:
        for topic, policy in (("kept", "delete"), ("cleaned", "compact")):
            create(broker, topic, cleanup_policy=policy)
            for n in range(3):
                Confluent().write(broker.bootstrap, topic, [Sent(b"%d" % n, b"k")])
    assert penstock("logs", "verify", str(data)).code == 0
    for topic in ("kept", "cleaned"):
        path = data / f"{topic}-0" / f"{0:020d}.log"
        content = bytearray(path.read_bytes())
        content[(len(content) // 3) * 2 + 7] ^= 4
        path.write_bytes(content)
    ended = penstock("logs", "verify", str(data), "--json")
    assert ended.code == 1
    problems = {report["partition"]: report["problems"] for report in json.loads(ended.out)["segments"]}
    [problem] = problems["kept-0"]
    assert problem.endswith("offsets 2 to 5 are missing, but the topic is not compacted")
    assert problems["cleaned-0"] == []
    last = data / "kept-0" / f"{0:020d}.log"
    assert penstock("logs", "verify", str(last)).code == penstock("logs", "verify", str(last.parent)).code == 1


def test_a_place_without_segments_is_one_clear_line(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = penstock("logs", "verify", str(tmp_path / "empty"))
    assert (ended.code, ended.err) == (1, f"penstock: no segments in {tmp_path / 'empty'}\n")
    (tmp_path / "x.txt").touch()
    assert penstock("logs", "dump", str(tmp_path / "x.txt")).code == 1
    assert penstock("logs", "dump", str(tmp_path / "none")).code == 2
    assert penstock("logs", "dump", "/dev/null").err == "penstock: /dev/null is not a .log file\n"
