"""A crash in the middle of a write: every byte of the last batches is where the write may have ended."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.storage.data_directory import DataDirectory
from tests.storage.logs import (
    NOW_MS,
    TOPIC_ID,
    append,
    checkpoint,
    config,
    crash,
    flush,
    read_all,
    records_of,
    values_of,
)
from tests.storage.simulated_disk import SimulatedDisk

VALUES = [[b"one", b"two"], [b"three"], [b"four" * 10, b"five", b"six"], [b"seven"], [b"eight", b"nine"]]
FLUSHED_BATCHES = 2


def written(root: Path, segment_bytes: int) -> tuple[SimulatedDisk, list[tuple[Path, int, int, int]]]:
    """A disk with a log as a crash leaves it, the first two batches below the recovery point; path, position, size and
    next offset of every batch."""
    disk = SimulatedDisk(root)
    directory = DataDirectory(root, disk=disk)
    log = directory.create_log("t-0", TOPIC_ID, config(segment_bytes=segment_bytes, index_interval_bytes=0))
    directory.sync()
    append(log, *VALUES[:FLUSHED_BATCHES])
    flush(log, disk)
    checkpoint(directory, log)
    for values in VALUES[FLUSHED_BATCHES:]:
        append(log, values)
    crash(directory)
    batches = [
        (segment.path, place.position, place.size, place.last_offset + 1)
        for segment in log.segments
        for place in segment.walk(0, segment.size)
    ]
    return disk, batches


@pytest.mark.parametrize("segment_bytes", [10_000, 250])
@pytest.mark.parametrize("rest", ["nothing", "zeros", "garbage"])
def test_after_a_write_that_ended_anywhere_whole_batches_stay_and_the_rest_is_cut(
    tmp_path: Path, rest: str, segment_bytes: int
) -> None:
    random = Random(1)
    disk, batches = written(tmp_path, segment_bytes)
    files = disk.files()
    everything = [record for path in sorted(files) if path.suffix == ".log" for record in records_of(files[path])]
    cuts = 0
    for at, (path, position, size, _) in list(enumerate(batches))[FLUSHED_BATCHES:]:
        for length in range(size):
            torn = disk.copy()
            data = files[path]
            tail = len(data) - position - length
            filler = {"nothing": b"", "zeros": bytes(tail), "garbage": random.randbytes(tail)}[rest]
            torn.put(path, data[: position + length] + filler)
            for later in {later for later, *_ in batches[at:]} - {path}:
                torn.remove(later)
            whole = torn.files()[path][position : position + size] == data[position : position + size]
            kept = [record for record in everything if record[0] < batches[at if whole else at - 1][3]]
            check_goes_on(torn, kept, segment_bytes, twice=length % 5 == 0)
            cuts += 1
    assert cuts == sum(size for _, _, size, _ in batches[FLUSHED_BATCHES:])


def check_goes_on(
    disk: SimulatedDisk, kept: list[tuple[int, int, bytes | None]], segment_bytes: int, *, twice: bool
) -> None:
    """The log holds exactly `kept`, goes on at the right offset, and does so again after the next crash."""
    settings = {"segment_bytes": segment_bytes, "index_interval_bytes": 0}
    directory = DataDirectory(disk.root, disk=disk)
    log, report = directory.open_log("t-0", TOPIC_ID, config(**settings), NOW_MS)
    assert log is not None, report.offline
    directory.flush([log])
    assert (log.log_end_offset, log.flushed_offset) == (len(kept), len(kept))
    assert read_all(log, disk) == kept
    append(log, [b"next"], [b"after"], epoch=directory.leader_epoch)
    expected = [*(value for _, _, value in kept), b"next", b"after"]
    assert values_of(log, disk) == expected
    crash(directory)
    if not twice:
        return
    directory = DataDirectory(disk.root, disk=disk)
    log, report = directory.open_log("t-0", TOPIC_ID, config(**settings), NOW_MS)
    assert log is not None, report.offline
    assert values_of(log, disk) == expected
    assert log.epochs.epoch_at(len(kept)) == 1
    crash(directory)


def test_a_tail_torn_below_the_recovery_point_is_damage_at_every_byte(tmp_path: Path) -> None:
    disk, batches = written(tmp_path, 10_000)
    path, _, _, _ = batches[0]
    end = batches[FLUSHED_BATCHES][1]
    data = disk.files()[path]
    for length in range(end):
        torn = disk.copy()
        torn.put(path, data[:length])
        for _ in range(2):
            directory = DataDirectory(tmp_path, disk=torn)
            log, report = directory.open_log("t-0", TOPIC_ID, config(index_interval_bytes=0), NOW_MS)
            assert log is None
            assert "before the recovery point 3" in str(report.offline) or "up to 3 were safely" in str(report.offline)
            checkpoint(directory)
            crash(directory)
        assert torn.files()[path] == data[:length], "nothing is cut"
