from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.files import Disk
from penstock.storage.sparse_index import IndexDamaged, OffsetIndex, TimeIndex


def offsets_at(path: Path) -> OffsetIndex:
    return OffsetIndex(Disk(), path / "00000000000000000000.index")


def times_at(path: Path) -> TimeIndex:
    return TimeIndex(Disk(), path / "00000000000000000000.timeindex")


def store(index: OffsetIndex | TimeIndex, end: int) -> None:
    Disk().append_to(index.path, index.waiting(end))
    index.stored(end)


rising_pairs = st.lists(st.tuples(st.integers(1, 50), st.integers(61, 5000)), max_size=30).map(
    lambda steps: [
        (sum(step for step, _ in steps[: at + 1]), sum(size for _, size in steps[: at + 1])) for at in range(len(steps))
    ]
)


def test_offset_index_is_kafkas_format_byte_for_byte(tmp_path: Path) -> None:
    index = offsets_at(tmp_path)
    index.add(41, 4096)
    index.add(2**31 - 1, 2**31 - 2)
    store(index, 2**31)
    assert index.path.read_bytes() == struct.pack(">iiii", 41, 4096, 2**31 - 1, 2**31 - 2)


def test_time_index_is_kafkas_format_byte_for_byte(tmp_path: Path) -> None:
    index = times_at(tmp_path)
    index.add(1_700_000_000_123, 41)
    index.add(1_700_000_000_124, 2**31 - 1)
    store(index, 2**31)
    assert index.path.read_bytes() == struct.pack(">qiqi", 1_700_000_000_123, 41, 1_700_000_000_124, 2**31 - 1)


@given(entries=rising_pairs, stored=st.integers(0, 2000), wanted=st.integers(-1, 2000), loaded=st.booleans())
def test_floor_is_the_last_entry_at_or_below_wherever_entries_wait(
    tmp_path_factory: pytest.TempPathFactory,
    entries: list[tuple[int, int]],
    stored: int,
    wanted: int,
    loaded: bool,
) -> None:
    index = offsets_at(tmp_path_factory.mktemp("index"))
    if loaded:
        assert index.floor(wanted) == (0, 0)
    for entry in entries:
        index.add(*entry)
    store(index, stored)
    below = [entry for entry in entries if entry[0] <= wanted]
    assert index.floor(wanted) == (below[-1] if below else (0, 0))
    assert index.last() == (entries[-1] if entries else None)
    fresh = offsets_at(index.path.parent)
    kept = [entry for entry in entries if entry[0] < stored]
    assert fresh.last() == (kept[-1] if kept else None)


@given(
    times=st.lists(st.integers(0, 40), max_size=30),
    stored=st.integers(0, 40),
    wanted=st.integers(-1, 45),
    loaded=st.booleans(),
)
def test_time_floor_never_passes_over_a_later_record(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[int],
    stored: int,
    wanted: int,
    loaded: bool,
) -> None:
    """An entry says: every record later than its timestamp comes after its offset."""
    index = times_at(tmp_path_factory.mktemp("index"))
    if loaded:
        assert index.floor(wanted) == (-1, 0)
    largest, largest_offset = -1, 0
    for offset, time in enumerate(times):
        if time > largest:
            largest, largest_offset = time, offset
        index.add(largest, largest_offset)
    store(index, stored)
    timestamp, offset = index.floor(wanted)
    assert timestamp <= wanted
    assert not any(time > timestamp for time in times[:offset])
    if timestamp >= 0:
        assert times[offset] == timestamp
    assert index.last() == ((largest, largest_offset) if times else None)


@given(entries=rising_pairs, stored=st.integers(0, 2000), end=st.integers(0, 2000))
def test_cut_forgets_entries_past_the_end_in_memory_and_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, int]], stored: int, end: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    offsets, times = offsets_at(folder), times_at(folder)
    for entry in entries:
        offsets.add(*entry)
        times.add(entry[1], entry[0])
    store(offsets, stored)
    store(times, stored)
    offsets.cut(end)
    times.cut(end)
    # what waits in memory was never flushed and goes with what it waits for
    kept = [entry for entry in entries if entry[0] < min(end, stored)]
    assert offsets.last() == offsets_at(folder).last() == (kept[-1] if kept else None)
    last_time = (kept[-1][1], kept[-1][0]) if kept else None
    assert times.last() == times_at(folder).last() == last_time


def test_entries_wait_until_they_are_in_the_file(tmp_path: Path) -> None:
    offsets, times = offsets_at(tmp_path), times_at(tmp_path)
    for offset in range(10, 100, 10):
        offsets.add(offset, offset * 100)
        times.add(offset, offset)
    for _ in range(2):  # as if the first write had failed
        assert len(offsets.waiting(50)) == 4 * 8
        assert len(times.waiting(50)) == 4 * 12
        assert offsets.floor(35) == (30, 3000)
        assert times.floor(35) == (30, 30)
    store(offsets, 50)
    store(times, 50)
    assert len(offsets.waiting(1000)) == 5 * 8
    store(offsets, 1000)
    store(times, 1000)
    assert offsets.floor(95) == (90, 9000)
    assert offsets_at(tmp_path).floor(60) == (60, 6000)
    assert times_at(tmp_path).floor(60) == (60, 60)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"1234567", "whole entries"),
        (struct.pack(">iiii", 5, 100, 5, 200), "do not rise"),
        (struct.pack(">iiii", 5, 100, 6, 100), "do not rise"),
        (struct.pack(">iiii", 5, 100, 0, 0), "do not rise"),
    ],
)
def test_a_damaged_offset_index_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    index = offsets_at(tmp_path)
    index.path.write_bytes(data)
    with pytest.raises(IndexDamaged, match=reason):
        index.floor(5)


def test_an_offset_index_that_points_past_its_segment_is_refused(tmp_path: Path) -> None:
    index = offsets_at(tmp_path)
    index.path.write_bytes(struct.pack(">ii", 5, 1000))
    index.check(1001)
    with pytest.raises(IndexDamaged, match="points at 1000"):
        index.check(1000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"12345678901", "whole entries"),
        (struct.pack(">qiqi", 7, 5, 6, 9), "do not rise"),
        (struct.pack(">qiqi", 7, 5, 8, 4), "do not rise"),
    ],
)
def test_a_damaged_time_index_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    index = times_at(tmp_path)
    index.path.write_bytes(data)
    with pytest.raises(IndexDamaged, match=reason):
        index.floor(5)


def test_a_time_index_that_kafka_closed_with_its_last_entry_twice_is_read(tmp_path: Path) -> None:
    index = times_at(tmp_path)
    index.path.write_bytes(struct.pack(">qiqi", 7, 5, 7, 5))
    assert index.last() == (7, 5)


def test_clear_empties_the_file_too(tmp_path: Path) -> None:
    offsets, times = offsets_at(tmp_path), times_at(tmp_path)
    offsets.add(5, 100)
    times.add(5, 100)
    store(offsets, 10)
    store(times, 10_000)
    offsets.clear()
    times.clear()
    assert offsets.last() is times.last() is None
    assert offsets.path.read_bytes() == times.path.read_bytes() == b""
