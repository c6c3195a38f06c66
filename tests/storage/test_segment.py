from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import Batch
from penstock.storage.files import Disk, DiskFailed, FileCache
from penstock.storage.segment import Place, Segment
from penstock.storage.sparse_index import IndexDamaged
from tests.storage.logs import NOW_MS, batch

BASE = 1_000
shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300), st.integers(0, 1000)), min_size=1, max_size=25)
"""Records, bytes of a value, and how late the batch is, of each batch."""


def filled(folder: Path, shape: list[tuple[int, int, int]], interval_bytes: int) -> tuple[Segment, list[Batch]]:
    disk = Disk()
    segment = Segment(disk, FileCache(disk, 8), folder, BASE)
    disk.open(segment.path, create=True)
    offset = BASE
    batches = []
    for count, size, late in shape:
        made = batch([b"v" * size] * count, [NOW_MS + late] * count, offset=offset, epoch=3)
        segment.append([made], made.size, interval_bytes)
        offset = made.next_offset
        batches.append(made)
    return segment, batches


def places_of(batches: list[Batch]) -> list[Place]:
    position = 0
    places = []
    for one in batches:
        places.append(Place(position, one.size, one.base_offset, one.last_offset, one.max_timestamp, one.leader_epoch))
        position += one.size
    return places


def store_indexes(segment: Segment) -> None:
    for path, entries in segment.index_tail(2**60, closing=True):
        Disk().append_to(path, entries)


def reopened(segment: Segment) -> Segment:
    disk = Disk()
    return Segment(disk, FileCache(disk, 8), segment.path.parent, BASE, segment.path.stat().st_size)


@given(shape=shapes, interval_bytes=st.sampled_from([0, 100, 500, 4096]), again=st.booleans())
def test_every_offset_is_located_in_its_batch(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[tuple[int, int, int]],
    interval_bytes: int,
    again: bool,
) -> None:
    segment, batches = filled(tmp_path_factory.mktemp("segment"), shape, interval_bytes)
    if again:
        store_indexes(segment)
        segment = reopened(segment)
    places = places_of(batches)
    assert segment.size == places[-1].position + places[-1].size
    for place in places:
        for offset in range(place.base_offset, place.last_offset + 1):
            assert segment.locate(offset, segment.size) == place
    assert segment.locate(places[-1].last_offset + 1, segment.size) is None
    assert segment.locate(0, segment.size) == places[0]


@given(shape=shapes, wanted=st.integers(-5, 1005), interval_bytes=st.sampled_from([0, 200, 4096]), again=st.booleans())
def test_the_first_batch_at_or_after_a_timestamp_is_found_though_timestamps_jump(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[tuple[int, int, int]],
    wanted: int,
    interval_bytes: int,
    again: bool,
) -> None:
    segment, batches = filled(tmp_path_factory.mktemp("segment"), shape, interval_bytes)
    if again:
        store_indexes(segment)
        segment = reopened(segment)
    places = places_of(batches)
    assert segment.largest_timestamp() == max(place.max_timestamp for place in places)
    for offset in (0, places[len(places) // 2].last_offset):
        late = [place for place in places if place.max_timestamp >= NOW_MS + wanted and place.last_offset >= offset]
        found = segment.first_batch_at_or_after(NOW_MS + wanted, segment.size, offset)
        assert found == (late[0] if late else None)


@given(shape=shapes)
def test_walk_and_headers_tell_the_same(
    tmp_path_factory: pytest.TempPathFactory, shape: list[tuple[int, int, int]]
) -> None:
    segment, batches = filled(tmp_path_factory.mktemp("segment"), shape, 4096)
    places = places_of(batches)
    assert list(segment.walk(0, segment.size)) == list(segment.walk_slowly(0, segment.size)) == places
    headers = list(segment.headers(0, segment.size))
    assert [(at, header.base_offset, header.size, header.crc) for at, header in headers] == [
        (place.position, one.base_offset, one.size, one.crc) for place, one in zip(places, batches, strict=True)
    ]
    assert [segment.read_batch(place) for place in places] == [bytes(one.view) for one in batches]


SHAPE = [(2, 100, at * 10) for at in range(60)]


def index_entries(segment: Segment) -> tuple[bytes, bytes]:
    return segment.offsets.path.read_bytes(), segment.times.path.read_bytes()


def test_indexes_that_are_made_again_are_what_they_were_and_are_kept(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, SHAPE, 4096)
    store_indexes(segment)
    good = index_entries(segment)
    assert len(good[0]) >= 3 * 8
    segment.offsets.path.write_bytes(struct.pack(">iiii", 1, 5000, 2, 100))
    again = reopened(segment)
    assert again.locate(BASE + 100, again.size) is not None
    assert index_entries(segment) == good


@pytest.mark.parametrize("damage", ["gone", "short", "zeros", "flipped", "of another segment"])
def test_no_index_leads_astray(tmp_path: Path, damage: str) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    store_indexes(segment)
    for path in (segment.offsets.path, segment.times.path):
        good = path.read_bytes()
        match damage:
            case "gone":
                path.unlink()
            case "short":
                path.write_bytes(good[: len(good) // 2 - 1])
            case "zeros":
                path.write_bytes(bytes(len(good)))
            case "flipped":
                path.write_bytes(good[:-1] + bytes([good[-1] ^ 0x10]))
            case _:
                path.write_bytes(good[: len(good) // 24 * 12] + good[-24:])
    again = reopened(segment)
    for place in places_of(batches):
        assert again.locate(place.last_offset, again.size) == place
        assert again.first_batch_at_or_after(place.max_timestamp, again.size) == place
    assert reopened(segment).largest_timestamp() == batches[-1].max_timestamp


def test_a_time_index_entry_that_the_log_contradicts_is_not_believed(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, SHAPE, 1000)
    segment.times.path.write_bytes(struct.pack(">qi", NOW_MS + 10**9, 3))
    again = reopened(segment)
    with pytest.raises(IndexDamaged):
        again.latest_indexed(again.size)
    assert again.largest_timestamp() == NOW_MS + 590


def test_a_batch_that_is_cut_off_is_an_error_not_an_end(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 4096)
    size = segment.path.stat().st_size - 10
    with segment.path.open("r+b") as file:
        file.truncate(size)
    again = reopened(segment)
    assert again.locate(batches[-2].last_offset, again.size) is not None
    with pytest.raises(DiskFailed, match="cut off"):
        again.locate(batches[-1].last_offset, again.size)


def test_bytes_that_are_no_header_are_an_error(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE[:3], 4096)
    with segment.path.open("r+b") as file:
        file.seek(batches[0].size)
        file.write(b"\xff" * 61)
    with pytest.raises(DiskFailed, match="no batch header"):
        segment.locate(batches[2].base_offset, segment.size)


def test_state_changes_only_when_the_write_returned_in_full(tmp_path: Path) -> None:
    class Refusing(Disk):
        def write_at(self, *_: object) -> None:
            raise DiskFailed(5, "no")

    segment, batches = filled(tmp_path, SHAPE[:3], 0)
    before = (segment.size, segment.max_timestamp, segment.max_timestamp_offset, segment.offsets.last())
    segment._disk = Refusing()
    more = batch([b"x"], [NOW_MS + 10**6], offset=batches[-1].next_offset)
    with pytest.raises(DiskFailed):
        segment.append([more], more.size, 0)
    assert (segment.size, segment.max_timestamp, segment.max_timestamp_offset, segment.offsets.last()) == before
