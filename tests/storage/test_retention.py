from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage import segment as segment_module
from penstock.storage.files import Disk, FileCache, ReadFailed
from penstock.storage.log import PartitionLog
from penstock.storage.retention import expired_segments
from penstock.storage.segment import Rebuilding, Segment
from tests.storage.bad_sectors import BadSectors
from tests.storage.logs import NOW_MS, append, batch, config, new_log

HOUR_MS = 3_600_000


def log_of(folder: Path, ages_ms: list[int]) -> PartitionLog:
    """A segment for each age: how old its newest record is."""
    log = new_log(folder, segment_bytes=14)
    for n, age_ms in enumerate(ages_ms):
        log.append([batch([b"%d" % n, b"x"], [NOW_MS - age_ms, NOW_MS - age_ms - 50], offset=2 * n)], NOW_MS)
    assert len(log.segments) == len(ages_ms)
    return log


def test_segments_older_than_retention_ms_go_oldest_first(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [5 * HOUR_MS, 4 * HOUR_MS, HOUR_MS, 0])
    assert expired_segments(log, config(retention_ms=2 * HOUR_MS), 8, NOW_MS) == 2
    assert expired_segments(log, config(retention_ms=HOUR_MS), 8, NOW_MS) == 2, "as old as that is not older"
    assert expired_segments(log, config(retention_ms=-1), 8, NOW_MS) == 0


def test_a_young_segment_keeps_older_ones_behind_it(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [0, 5 * HOUR_MS, 5 * HOUR_MS, 0])
    assert expired_segments(log, config(retention_ms=HOUR_MS), 8, NOW_MS) == 0


def test_the_active_segment_stays_however_old_and_large(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [5 * HOUR_MS] * 3)
    assert expired_segments(log, config(retention_ms=0, retention_bytes=0), 6, NOW_MS) == 2


def test_nothing_above_the_high_watermark_goes(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [5 * HOUR_MS] * 4)
    for high_watermark, count in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (8, 3)):
        assert expired_segments(log, config(retention_ms=HOUR_MS), high_watermark, NOW_MS) == count
        assert expired_segments(log, config(retention_bytes=0, retention_ms=-1), high_watermark, NOW_MS) == count


def test_segments_below_the_log_start_go_whatever_the_config(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [0] * 4)
    log.log_start_offset = 5
    assert expired_segments(log, config(retention_ms=-1), 8, NOW_MS) == 2


def test_a_segment_without_timestamps_ages_by_its_file(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0", segment_bytes=14)
    for n in range(2):
        log.append([batch([b"x"], [-1], offset=n)], NOW_MS)
    os.utime(log.segments[0].path, (0, (NOW_MS - 2 * HOUR_MS) / 1000))
    assert expired_segments(log, config(retention_ms=3 * HOUR_MS), 2, NOW_MS) == 0
    assert expired_segments(log, config(retention_ms=HOUR_MS), 2, NOW_MS) == 1


@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8), keep_bytes=st.integers(0, 2500))
def test_retention_by_size_never_keeps_less_than_it_says(
    tmp_path_factory: object, sizes: list[int], keep_bytes: int
) -> None:
    log = new_log(tmp_path_factory.mktemp("log") / "t-0", segment_bytes=14)  # type: ignore[attr-defined]
    append(log, *[[b"x" * size] for size in sizes])
    count = expired_segments(log, config(retention_ms=-1, retention_bytes=keep_bytes), len(sizes), NOW_MS)
    kept = [segment.size for segment in log.segments[count:]]
    if count:
        assert sum(kept) >= keep_bytes
    if len(kept) > 1:
        assert sum(kept[1:]) < keep_bytes, "one more would have been too many"


def test_retention_by_size_does_not_read_the_segments(tmp_path: Path) -> None:
    log = log_of(tmp_path / "t-0", [0] * 4)
    calls = BadSectors()
    disk = Disk(calls)
    again = [Segment(disk, FileCache(disk, 8), log.directory, s.base_offset, s.size) for s in log.segments]
    for segment in again:
        calls.spoil(segment.path, 0)
    log.segments[:] = again
    assert expired_segments(log, config(retention_bytes=0), 8, NOW_MS) == 3
    with pytest.raises(ReadFailed):
        expired_segments(log, config(retention_ms=0, retention_bytes=-1), 8, NOW_MS)


def test_age_of_a_segment_without_timestamps_is_found_in_slices(tmp_path: Path) -> None:
    log = new_log(tmp_path / "t-0", segment_bytes=20_000)
    for n in range(400):
        log.append([batch([b"x"], [-1], offset=n)], NOW_MS)
    assert len(log.segments) == 2
    closed = log.segments[0]
    disk = Disk()
    log.segments[0] = Segment(disk, FileCache(disk, 4), closed.path.parent, 0, closed.size)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_module, "REBUILD_HEADERS", 100)
        for _ in range(2):
            with pytest.raises(Rebuilding):
                expired_segments(log, config(retention_ms=0), 400, NOW_MS)
    os.utime(closed.path, (NOW_MS / 1000 - 10, NOW_MS / 1000 - 10))
    assert expired_segments(log, config(retention_ms=9_000), 400, NOW_MS) == 1
    assert expired_segments(log, config(retention_ms=11_000), 400, NOW_MS) == 0
