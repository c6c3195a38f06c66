"""What recovery cuts, what it refuses to cut, and what it says about it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from penstock.broker.engine import Acks
from penstock.model.errors import Fault
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from tests.broker.failing_disk import answer_of, batch_of, engine_on
from tests.storage.bad_sectors import BadSectors
from tests.storage.logs import (
    NOW_MS,
    TOPIC_ID,
    append,
    checkpoint,
    config,
    crash,
    flush,
    offline_reason,
    open_log,
    values_of,
)

SETTINGS = {"segment_bytes": 400, "index_interval_bytes": 100}


def crashed(root: Path) -> tuple[list[Path], dict[Path, list[int]]]:
    """A log of several segments as a crash leaves it, with its recovery point at offset 4; its `.log` files, and where the
    batches of each begin."""
    disk = Disk()
    directory = DataDirectory(root, disk=disk)
    log = directory.create_log("t-0", TOPIC_ID, config(**SETTINGS))
    directory.sync()
    append(log, *[[b"%d" % n * 40] for n in range(4)])
    flush(log, disk)
    checkpoint(directory, log)
    assert log.flushed_offset == 4
    append(log, *[[b"%d" % n * 40] for n in range(4, 10)])
    flush(log, disk)
    places = {s.path: [place.position for place in s.walk_slowly(0, s.size)] for s in log.segments}
    crash(directory)
    assert len(places) >= 3
    return list(places), places


def test_cut_tail_is_a_warning_with_partition_offset_and_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            for result in await answer_of(engine.append("t", 0, [batch_of(b"a", b"b")], Acks.ALL)):
                assert result.fault is Fault.NONE
        (tmp_path / "clean-stop").unlink()
        with (tmp_path / "t-0" / "00000000000000000000.log").open("ab") as file:
            file.write(b"half a batch")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with engine_on(tmp_path, Disk()) as engine:
                pass

    asyncio.run(body())
    (line,) = [record for record in caplog.records if "torn tail" in record.getMessage()]
    assert line.levelno == logging.WARNING
    text = line.getMessage()
    assert "t-0" in text
    assert "cut a torn tail of 12 bytes: nothing from offset 2 on is left" in text
    assert "of 00000000000000000000.log" in text


def test_start_without_a_torn_tail_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        for _ in range(2):
            async with engine_on(tmp_path, Disk()) as engine:
                await answer_of(engine.append("t", 0, [batch_of(b"a")], Acks.ALL))
            (tmp_path / "clean-stop").unlink()

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
    assert not caplog.records


def test_log_shorter_than_its_recovery_point_stays_offline_and_whole(tmp_path: Path) -> None:
    paths, places = crashed(tmp_path)
    first = next(path for path in reversed(paths) if int(path.stem) <= 4)
    later = paths[paths.index(first) + 1 :]
    assert later
    with first.open("r+b") as file:  # at the end of a batch: nothing of it looks torn
        file.truncate(places[first][1] if int(first.stem) < 3 else 0)
    before = {path: path.read_bytes() for path in paths}
    for _ in range(2):
        directory = DataDirectory(tmp_path)
        assert "offsets up to 4 were safely written" in offline_reason(directory, **SETTINGS)
        checkpoint(directory)
        crash(directory)
    assert {path: path.read_bytes() for path in paths} == before


def test_read_error_during_the_scan_cuts_nothing(tmp_path: Path) -> None:
    paths, _ = crashed(tmp_path)
    before = {path: path.read_bytes() for path in paths}
    calls = BadSectors()
    calls.spoil(paths[-1], 0)
    directory = DataDirectory(tmp_path, disk=Disk(calls))
    assert "Input/output error" in offline_reason(directory, **SETTINGS)
    crash(directory)
    assert {path: path.read_bytes() for path in paths} == before
    directory = DataDirectory(tmp_path)
    log = open_log(directory, **SETTINGS)
    assert values_of(log, Disk()) == [b"%d" % n * 40 for n in range(10)]
    crash(directory)


def test_short_read_during_the_scan_is_no_torn_tail(tmp_path: Path) -> None:
    disk = Disk()
    directory = DataDirectory(tmp_path, disk=disk)
    log = directory.create_log("t-0", TOPIC_ID, config())
    directory.sync()
    append(log, [b"a" * 2_000_000], [b"b" * 2_000_000])
    flush(log, disk)
    crash(directory)
    real = disk.system_calls.read
    disk.system_calls.read = lambda fd, length, position: real(fd, min(length, 65_536), position)
    directory = DataDirectory(tmp_path, disk=disk)
    log, report = directory.open_log("t-0", TOPIC_ID, config(), NOW_MS)  # type: ignore[assignment]
    assert (log.log_end_offset, report.has_cut) == (2, False)
    crash(directory)
