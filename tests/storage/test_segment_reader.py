from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from penstock.storage import segment_reader
from penstock.storage.segment_reader import (
    Damage,
    DamageKind,
    base_offset_of,
    check_indexes,
    list_partitions,
    list_segments,
    read_segment,
)


def batch(base_offset: int, values: list[bytes]) -> bytes:
    return bytes(
        build_batch([NewRecord(1_000, None, value) for value in values], base_offset=base_offset, leader_epoch=0)
    )


def segment(folder: Path, values: list[list[bytes]], base_offset: int = 0) -> tuple[Path, list[bytes]]:
    parts = []
    offset = base_offset
    for group in values:
        parts.append(batch(offset, group))
        offset += len(group)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(parts))
    return path, parts


def values_of(path: Path, start_position: int = 0) -> tuple[list[bytes | None], Damage | None]:
    scan = read_segment(path, start_position)
    values = [record.value for _, found in scan for record in read_records(found)]
    return values, scan.damage


def test_every_record_is_read_back_with_its_position(tmp_path: Path) -> None:
    path, parts = segment(tmp_path, [[b"a", b"b"], [b"c"], [b"d" * 100]], base_offset=7)
    scan = read_segment(path)
    found = [(position, view.base_offset, bytes(view.view)) for position, view in scan]
    assert found == [(0, 7, parts[0]), (len(parts[0]), 9, parts[1]), (len(parts[0] + parts[1]), 10, parts[2])]
    assert scan.damage is None
    assert scan.end_position == path.stat().st_size
    assert values_of(path, len(parts[0]))[0] == [b"c", b"d" * 100]


@pytest.mark.parametrize("chunk_bytes", [1, 61, 62, 100, 1000, 4096])
def test_batches_across_and_beyond_chunks_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    values = [[bytes([n]) * (n * 37 % 900)] for n in range(60)]
    path, _ = segment(tmp_path, values)
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", max(chunk_bytes, 61))
    assert values_of(path) == ([group[0] for group in values], None)


def test_a_torn_tail_at_every_byte_ends_the_scan_where_the_last_whole_batch_ends(tmp_path: Path) -> None:
    path, parts = segment(tmp_path, [[b"kept"], [b"torn", b"off"]])
    whole = path.read_bytes()
    for length in range(len(parts[0]) + 1, len(whole)):
        path.write_bytes(whole[:length])
        values, damage = values_of(path)
        assert values == [b"kept"]
        assert damage is not None
        assert (damage.position, damage.bytes_left) == (len(parts[0]), length - len(parts[0]))


def test_a_flipped_bit_anywhere_in_a_batch_is_found(tmp_path: Path) -> None:
    path, parts = segment(tmp_path, [[b"first"], [b"second"]])
    whole = path.read_bytes()
    for place in range(len(parts[0]), len(whole)):
        in_batch = place - len(parts[0])
        if 12 <= in_batch < 16:
            continue  # the leader epoch: the broker writes it, the CRC does not cover it
        flipped = bytearray(whole)
        flipped[place] ^= 0x80
        path.write_bytes(flipped)
        values, damage = values_of(path)
        if in_batch < 8 and damage is None:
            continue  # a base offset further up is a gap, which compaction leaves too
        assert values == [b"first"], place
        assert damage is not None
        assert damage.position == len(parts[0])


@pytest.mark.parametrize(
    ("tail", "kind", "reason"),
    [
        (bytes(200), DamageKind.NO_BATCH, "magic 0"),
        (bytes(8) + struct.pack(">i", 2**31 - 1) + bytes(4) + b"\x02" + bytes(60), DamageKind.TORN, "is truncated"),
        (
            bytes(8) + struct.pack(">i", -5) + bytes(4) + b"\x02" + bytes(60),
            DamageKind.NO_BATCH,
            "length -5 is too small",
        ),
        (bytes(60), DamageKind.TORN, "60 bytes are too few"),
    ],
)
def test_invalid_batch_is_reported_with_its_kind(tmp_path: Path, tail: bytes, kind: DamageKind, reason: str) -> None:
    path, _ = segment(tmp_path, [[b"a"]])
    with path.open("ab") as file:
        file.write(tail)
    values, damage = values_of(path)
    assert values == [b"a"]
    assert damage is not None
    assert damage.kind is kind
    assert reason in str(damage)


def test_offsets_that_go_back_are_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020d}.log"
    path.write_bytes(batch(5, [b"a", b"b"]) + batch(6, [b"c"]))
    values, damage = values_of(path)
    assert values == [b"a", b"b"]
    assert damage is not None
    assert damage.kind is DamageKind.ORDER
    assert "base offset 6 is below the expected 7" in damage.reason
    path.write_bytes(batch(4, [b"a"]))
    assert values_of(path)[0] == []


def test_an_empty_file_has_no_batches_and_no_damage(tmp_path: Path) -> None:
    path, _ = segment(tmp_path, [])
    assert values_of(path) == ([], None)


@given(st.binary(max_size=400))
def test_any_bytes_are_batches_or_damage(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("segment") / f"{0:020d}.log"
    path.write_bytes(data)
    scan = read_segment(path)
    assert sum(found.size for _, found in scan) == scan.end_position
    assert (scan.damage is None) == (scan.end_position == len(data))


def test_folders_and_segments_are_found_in_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("t-10", "t-2", "a-b-0", ".trash", "no_number", "empty-0"):
        (tmp_path / name).mkdir()
        if name != "empty-0":
            segment(tmp_path / name, [[b"x"]], base_offset=20)
            segment(tmp_path / name, [[b"x"]], base_offset=3)
    for name in ("x.log", f"{4:020d}.index", f"{4:020d}.log.deleted"):
        (tmp_path / "t-2" / name).touch()
    assert [folder.name for folder in list_partitions(tmp_path)] == ["a-b-0", "t-2", "t-10"]
    assert [base_offset_of(path) for path in list_segments(tmp_path / "t-2")] == [3, 20]


def test_indexes_that_fit_have_no_problems_and_others_are_named(tmp_path: Path) -> None:
    path, parts = segment(tmp_path, [[b"a", b"b"], [b"c"]], base_offset=100)
    places = [(position, found.base_offset, found.last_offset) for position, found in read_segment(path)]
    index, times = path.with_suffix(".index"), path.with_suffix(".timeindex")
    assert check_indexes(path, places) == []
    index.write_bytes(struct.pack(">ii", 2, len(parts[0])) + bytes(8))
    times.write_bytes(struct.pack(">qi", 1_000, 2))
    assert check_indexes(path, places) == []
    index.write_bytes(struct.pack(">ii", 2, 7))
    assert check_indexes(path, places) == [f"{path.stem}.index: offset 102 is not in a batch at position 7"]
    index.write_bytes(struct.pack(">ii", 0, len(parts[0])))
    assert len(check_indexes(path, places)) == 1
    index.write_bytes(bytes(9))
    assert check_indexes(path, places) == [f"{path.stem}.index: 9 bytes are not whole entries of 8"]
    index.unlink()
    times.write_bytes(struct.pack(">qiqi", 1_000, 2, 999, 3))
    assert check_indexes(path, places) == [
        f"{path.stem}.timeindex: timestamp 999 after 1000",
        f"{path.stem}.timeindex: offset 103 is not in the segment",
    ]
