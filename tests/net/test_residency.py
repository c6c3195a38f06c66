"""Is it in the page cache? Every way to ask gives the same answer, and none waits for the disk."""

from __future__ import annotations

import os

import pytest

from penstock.net import residency
from penstock.net.residency import read_range, read_resident

SIZE = 4 * 1024 * 1024

pytestmark = pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot be asked")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        yield opened


def drop_cache(file) -> None:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ways():
    counted = residency._cachestat()
    return [way for way in (counted, residency._probed) if way is not None]


def test_a_file_just_written_is_resident(file):
    for resident in ways():
        assert resident(file.fileno(), 0, SIZE)
        assert resident(file.fileno(), 12_345, 1)


def test_a_dropped_file_is_not_resident(file):
    for resident in ways():
        # A probe starts a read-ahead, and a fast disk may have it done at once: not every time.
        assert any(drop_cache(file) or not resident(file.fileno(), 0, SIZE) for _ in range(100))


def test_a_range_half_of_which_was_dropped_is_not_resident(file):
    half = SIZE // 2
    for resident in ways():

        def drop_half(resident=resident) -> bool:
            os.pread(file.fileno(), SIZE, 0)
            os.posix_fadvise(file.fileno(), half, half, os.POSIX_FADV_DONTNEED)
            return resident(file.fileno(), 0, 4_096) and not resident(file.fileno(), 0, SIZE)

        assert any(drop_half() for _ in range(100))


def test_the_best_way_of_this_system_has_a_name():
    resident, name = residency.residency()
    assert name in ("cachestat", "preadv")
    assert callable(resident)


def test_without_a_way_to_ask_the_answer_is_yes(file, monkeypatch):
    monkeypatch.setattr(residency, "_RWF_NOWAIT", 0)
    resident, name = residency.residency()
    assert name == "none"
    drop_cache(file)
    assert resident(file.fileno(), 0, SIZE)
    assert read_resident(file, 5, 100) == read_range(file, 5, 100)


def test_without_cachestat_probes_are_used(monkeypatch):
    monkeypatch.setattr(residency, "_cachestat", lambda: None)
    assert residency.residency() == (residency._probed, "preadv")


def test_a_small_resident_range_is_read_at_once(file):
    whole = read_range(file, 0, SIZE)
    assert bytes(read_resident(file, 1_000, 5_000)) == whole[1_000:6_000]


def test_a_range_past_the_end_is_short_for_the_reader_and_none_for_the_loop(file):
    assert len(read_range(file, SIZE - 10, 20)) == 10
    assert read_resident(file, SIZE - 10, 20) is None
    assert read_range(file, SIZE + 10, 20) == b""
