from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES, Batch
from penstock.storage import segment as subject
from penstock.storage.files import Cold, Disk, DiskFailed, DiskFull, FileCache, ReadFailed
from penstock.storage.segment import Place, Rebuilding, Segment, Unfinished
from penstock.storage.sparse_index import IndexDamaged
from penstock.storage.system import Buffer
from tests.storage.bad_sectors import SECTOR_BYTES, BadSectors
from tests.storage.logs import NOW_MS, batch

T = TypeVar("T")

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
    segment.store_indexes(2**60, closing=True)


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


def on_bad_sectors(segment: Segment, calls: BadSectors) -> Segment:
    disk = Disk(calls)
    return Segment(disk, FileCache(disk, 8), segment.path.parent, BASE, segment.path.stat().st_size)


def settled(segment: Segment, look: Callable[..., T], *args: object, **how: object) -> T:
    """What a look finds, after a reader thread has brought what it needs."""
    for _ in range(100):
        try:
            return look(*args, **how)
        except Cold as cold:
            segment._disk.read_ahead(cold, 8192)
    raise AssertionError("the bytes never came")


def state_of(segment: Segment) -> tuple[object, ...]:
    kept = (segment.size, segment.max_timestamp, segment.max_timestamp_offset, segment._bytes_since_index)
    return (*kept, segment.offsets.last(), segment.times.last(), *index_entries(segment))


def test_failed_rebuild_changes_nothing_and_continues_when_the_disk_can_be_read(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    store_indexes(segment)
    for place in places_of(batches):
        calls = BadSectors()
        again = on_bad_sectors(segment, calls)
        assert again.locate(BASE, again.size) is not None
        again.largest_timestamp()
        before = state_of(again)
        calls.spoil(segment.path, place.position)
        for wait in (True, False, True):
            with pytest.raises(ReadFailed, match="Input/output error"):
                settled(again, again.rebuild_indexes, again.size, 1000, wait=wait)
            assert state_of(again) == before
        calls.heal()
        again.rebuild_indexes(again.size, 1000)
        assert state_of(again)[:3] == before[:3]
        assert index_entries(again) == index_entries(segment)


def test_read_error_is_no_reason_to_distrust_the_index(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    store_indexes(segment)
    calls = BadSectors()
    again = on_bad_sectors(segment, calls)
    relative, position = again.offsets.floor(60)
    calls.spoil(segment.path, position)
    spoiled = range(position // SECTOR_BYTES * SECTOR_BYTES, position // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES)
    before = index_entries(segment)
    with pytest.raises(ReadFailed):
        settled(again, again.locate, BASE + relative, again.size)
    assert index_entries(segment) == before
    readable = [place for place in places_of(batches) if place.position + HEADER_BYTES <= spoiled.start]
    assert len(readable) > 5
    for place in readable:  # up to the sector, though a read of headers brings more than one
        assert settled(again, again.locate, place.last_offset, again.size) == place
    assert again.locate(batches[-1].last_offset, again.size) == places_of(batches)[-1]


def test_unreadable_index_file_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    store_indexes(segment)
    calls = BadSectors()
    calls.spoil(segment.offsets.path, 0)
    calls.spoil(segment.times.path, 0)
    again = on_bad_sectors(segment, calls)
    for place in places_of(batches):
        assert again.locate(place.last_offset, again.size) == place
        assert again.first_batch_at_or_after(place.max_timestamp, again.size) == place
    assert reopened(segment).offsets.last() is not None, "in a new file"


def test_rebuild_that_must_not_wait_is_done_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, batches = filled(tmp_path, SHAPE, 4096)
    store_indexes(segment)
    good = index_entries(segment)
    monkeypatch.setattr(subject, "REBUILD_HEADERS", 7)
    segment.offsets.path.write_bytes(b"garbage")
    again = reopened(segment)
    slices = 0
    while True:
        try:
            found = again.locate(batches[-1].last_offset, again.size)
            break
        except Rebuilding:
            slices += 1
            assert segment.offsets.path.read_bytes() == b"garbage"
    assert found == places_of(batches)[-1]
    assert slices == len(batches) // 7
    assert index_entries(segment) == good


def test_appends_during_a_rebuild_are_in_the_rebuilt_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    monkeypatch.setattr(subject, "REBUILD_HEADERS", 50)
    with pytest.raises(Rebuilding):
        segment.rebuild_indexes(segment.size, 1000, wait=False)
    more = batch([b"v" * 3000], [NOW_MS + 10**6], offset=batches[-1].next_offset, epoch=3)
    last = batch([b"w"], [NOW_MS], offset=more.next_offset, epoch=3)
    segment.append([more, last], more.size + last.size, 1000)
    segment.rebuild_indexes(segment.size, 1000, wait=False)
    assert segment.max_timestamp == NOW_MS + 10**6
    assert segment.offsets.last() == (last.last_offset - BASE, segment.size - last.size)
    for place in places_of([*batches, more, last]):
        assert segment.locate(place.last_offset, segment.size) == place


def test_offset_after_a_cut_off_last_batch_is_an_error_not_an_absence(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 4096)
    for cut in (10, batches[-1].size - 30):
        with segment.path.open("r+b") as file:
            file.truncate(segment.size - cut)
        again = reopened(segment)
        with pytest.raises(DiskFailed, match=r"no batch ends at|cut off"):
            again.locate(batches[-1].next_offset, again.size)


def test_index_entries_that_find_no_room_wait_for_the_next_try(tmp_path: Path) -> None:
    segment, _ = filled(tmp_path, SHAPE, 1000)
    disk = segment._disk
    real = disk.system_calls.write
    segment.index_tail(2**60, closing=True)
    last = segment.offsets.last(), segment.times.last()
    for writes in range(2):
        left = [writes]

        def full(fd: int, data: Buffer, position: int, left: list[int] = left) -> int:
            left[0] -= 1
            return real(fd, data, position) if left[0] >= 0 else real(fd, data[:5], position)

        disk.system_calls.write = full
        with pytest.raises(DiskFull):
            segment.store_indexes(2**60, closing=True)
        assert (segment.offsets.last(), segment.times.last()) == last
    disk.system_calls.write = real
    assert segment.store_indexes(2**60, closing=True)
    assert not segment.store_indexes(2**60, closing=True)
    again = reopened(segment)
    assert (again.offsets.last(), again.times.last()) == last


def test_largest_timestamp_is_not_taken_from_half_a_segment(tmp_path: Path) -> None:
    segment, batches = filled(tmp_path, SHAPE, 10**6)
    calls = BadSectors()
    again = on_bad_sectors(segment, calls)
    calls.spoil(segment.path, places_of(batches)[40].position)
    for _ in range(2):
        with pytest.raises(ReadFailed):
            again.largest_timestamp()
    calls.heal()
    assert again.largest_timestamp() == batches[-1].max_timestamp


def test_locate_pauses_where_the_index_lacks_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment, batches = filled(tmp_path, [(1, 0, 0)] * 300, 10**6)
    store_indexes(segment)
    again = reopened(segment)
    monkeypatch.setattr(subject, "SEARCH_HEADERS_MAX", 100)
    monkeypatch.setattr(subject, "REBUILD_HEADERS", 100)
    pauses = 0
    while True:
        try:
            found = again.locate(batches[250].base_offset, again.size)
            break
        except Rebuilding:
            pauses += 1
    assert found == places_of(batches)[250]
    assert pauses == 3, "as many as a walk over the segment needs"
    for place in places_of(batches):
        assert again.locate(place.base_offset, again.size) == place, "the rebuilt index is dense"


@pytest.mark.parametrize("late", [0, None])
def test_search_for_a_timestamp_pauses_after_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int | None
) -> None:
    shape = [(1, 0, -NOW_MS - 1 if late is None else late)] * 300
    segment, batches = filled(tmp_path, [*shape, (1, 0, 50)], 100)
    monkeypatch.setattr(subject, "SEARCH_HEADERS_MAX", 100)
    offset = BASE
    pauses = 0
    while True:
        try:
            found = segment.first_batch_at_or_after(NOW_MS + 20, segment.size, offset)
            break
        except Unfinished as unfinished:
            assert unfinished.offset > offset
            offset = unfinished.offset
            pauses += 1
    assert found == places_of(batches)[-1]
    assert pauses in (2, 3)


def test_largest_timestamp_of_records_without_timestamps_is_found_in_slices_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, _ = filled(tmp_path, [(1, 0, -NOW_MS - 1)] * 300, 100)
    store_indexes(segment)
    monkeypatch.setattr(subject, "REBUILD_HEADERS", 100)
    again = reopened(segment)
    for _ in range(3):
        with pytest.raises(Rebuilding):
            again.largest_timestamp(wait=False)
    assert again.largest_timestamp(wait=False) == -1
    for known in (again, segment):
        monkeypatch.setattr(known._disk, "read_now", lambda *_: pytest.fail("the segment is read again"))
        monkeypatch.setattr(known._disk, "read_at", lambda *_: pytest.fail("the segment is read again"))
        assert known.largest_timestamp() == known.largest_timestamp(wait=False) == -1


@pytest.mark.parametrize("wait", [False, True])
def test_batches_before_a_bad_sector_are_located_without_an_index(tmp_path: Path, wait: bool) -> None:
    segment, batches = filled(tmp_path, SHAPE, 1000)
    store_indexes(segment)
    segment.offsets.path.write_bytes(b"garbage")
    calls = BadSectors()
    again = on_bad_sectors(segment, calls)
    places = places_of(batches)
    calls.spoil(segment.path, places[40].position)
    bad = places[40].position // SECTOR_BYTES * SECTOR_BYTES
    before = [place for place in places if place.position + HEADER_BYTES <= bad]
    assert before
    for place in before:
        assert settled(again, again.locate, place.base_offset, again.size, wait=wait) == place
    with pytest.raises(ReadFailed):
        settled(again, again.locate, places[-1].base_offset, again.size, wait=wait)
    assert segment.offsets.path.read_bytes() == b"garbage", "the rebuild is not complete"
    calls.heal()
    again = on_bad_sectors(segment, calls)
    for place in places:
        assert settled(again, again.locate, place.base_offset, again.size, wait=wait) == place
