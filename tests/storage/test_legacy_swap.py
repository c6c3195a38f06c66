"""Swap files of an earlier version: in every state that it can have left, no key is lost, or the partition is offline."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.storage import cleaner
from penstock.storage.cleaner import Cleaner, CleaningJob, CleaningResult, SourceSegment, cleaned_tag
from penstock.storage.files import Disk, write_checked
from penstock.storage.segment import file_name
from tests.broker.compacted import (
    LARGE,
    SMALL,
    TOPIC,
    Values,
    create,
    fill,
    log_of,
    names_of_cleaning,
    open_engine,
    set_segment_bytes,
    values,
)
from tests.storage.fault_disk import Crash, FaultDisk

FOLDER = f"{TOPIC}-0"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


class Origin:
    """A data directory whose partition was cleaned by an earlier version, up to the decision to swap."""

    def __init__(self, path: Path, segment_bytes: int) -> None:
        self.path = path
        self.segment_bytes = segment_bytes
        run(lambda: self._make(segment_bytes))

    async def _make(self, segment_bytes: int) -> None:
        engine, _ = open_engine(self.path)
        await create(engine)
        await fill(engine)
        await set_segment_bytes(engine, segment_bytes)
        self.expected: Values = await values(engine)
        due = await engine.cleaning._due()
        assert due is not None
        self.job = engine.cleaning._job(due)
        await engine.stop()

    def at(self, place: Path) -> tuple[Path, CleaningResult]:
        """A copy with the new files in place, and its partition's folder."""
        shutil.copytree(self.path, place)
        result = clean(place / FOLDER, self.job)
        swap = {"new": [segment.base_offset for segment in result.new_segments], "old": result.old_base_offsets}
        write_checked(Disk(), place / FOLDER / "swap", msgspec.json.encode(swap))
        return place / FOLDER, result


def clean(folder: Path, job: CleaningJob, disk: Disk | None = None) -> CleaningResult:
    """Write the new files under the names that the earlier version gave them, over those of another cleaning."""
    job = msgspec.structs.replace(job, directory=str(folder))
    tag = cleaned_tag(job.id)
    try:
        return Cleaner(job, disk).run()
    finally:
        for path in sorted(folder.glob("*.log" + tag)):
            base = int(path.name[:20])
            for suffix in SUFFIXES[:3]:
                (folder / (file_name(base, suffix) + ".cleaned")).unlink(missing_ok=True)
        for path in folder.glob("*" + tag):
            path.rename(folder / (path.name.removesuffix(tag) + ".cleaned"))


def carry_out(folder: Path, result: CleaningResult, steps: int) -> bool:
    """The swap as the earlier version did it, up to a number of steps; whether that was all."""
    new = [segment.base_offset for segment in result.new_segments]
    work: list[tuple[Path, Path | None]] = []
    for base in result.old_base_offsets:
        if base not in new:
            work += [(folder / file_name(base, suffix), None) for suffix in SUFFIXES]
    for base in new:
        for suffix in SUFFIXES:
            name = file_name(base, suffix)
            work.append((folder / (name + ".cleaned"), folder / name))
    for path, to in work[:steps]:
        if to is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            path.rename(to)
    return steps >= len(work)


async def found_at(place: Path) -> Values | str:
    """The values that a start finds, or why the partition is offline."""
    engine, _ = open_engine(place)
    try:
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        return await values(engine) if partition.log is not None else partition.reason
    finally:
        await engine.stop()


@pytest.fixture(scope="module", params=[SMALL, LARGE], ids=["one of each", "one of two"])
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("legacy") / "data", request.param)


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("legacy") / "data", LARGE)


def test_a_swap_that_ended_at_any_step_loses_no_key(tmp_path: Path, origin: Origin) -> None:
    async def body() -> None:
        steps = 0
        finished = False
        while not finished:
            folder, result = origin.at(tmp_path / str(steps))
            finished = carry_out(folder, result, steps)
            assert await found_at(folder.parent) == origin.expected, f"after {steps} steps"
            assert not names_of_cleaning(folder)
            steps += 1
        assert steps > 10

    run(body)


def test_a_stale_swap_file_beside_a_cleaning_that_had_begun_loses_no_key(
    tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap failed at a step, another cleaning reused the names of the new files and did not come to its end.

    Once an old segment was removed the earlier version could not clean the log again.
    """
    monkeypatch.setattr(cleaner, "WRITE_BYTES", 500)

    def size(folder: Path, base: int) -> int:
        return (folder / file_name(base, ".log")).stat().st_size

    async def body() -> None:
        for steps in (0, 1, 5, 13, 21) if origin.segment_bytes == SMALL else (0,):
            calls = 0
            finished = False
            while not finished:
                folder, result = origin.at(tmp_path / f"{steps}-{calls}")
                carry_out(folder, result, steps)
                bases = [source.base_offset for source in origin.job.segments]
                sources = tuple(SourceSegment(base, size(folder, base)) for base in bases)
                disk = FaultDisk()
                disk.arm(calls, crash=True)
                try:
                    clean(folder, msgspec.structs.replace(origin.job, id="later", segments=sources), disk)
                    finished = True
                except Crash:
                    pass
                assert await found_at(folder.parent) == origin.expected, f"after {steps} steps and {calls} calls"
                shutil.rmtree(folder.parent)
                calls += 4
            assert calls > 20

    run(body)


def test_old_segments_that_a_power_cut_brought_back_go(tmp_path: Path, merging: Origin) -> None:
    """The renames were on disk, the removals before them were not."""

    async def body() -> None:
        folder, result = merging.at(tmp_path / "data")
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        carry_out(folder, result, 1000)
        new = [segment.base_offset for segment in result.new_segments]
        gone = [base for base in result.old_base_offsets if base not in new]
        for base in gone:
            (folder / file_name(base, ".log")).write_bytes(kept[file_name(base, ".log")])
        assert gone
        assert await found_at(folder.parent) == merging.expected
        engine, _ = open_engine(folder.parent)
        bases = [segment.base_offset for segment in log_of(engine).segments]
        await engine.stop()
        assert set(gone) - set(bases), "what a new segment covers is gone"

    run(body)


def test_a_new_segment_that_is_not_whole_keeps_the_partition_offline(tmp_path: Path, merging: Origin) -> None:
    """Its old segments are gone already: nothing may be taken for the log."""

    async def body() -> None:
        folder, result = merging.at(tmp_path / "data")
        carry_out(folder, result, 4)
        first = folder / (file_name(result.new_segments[0].base_offset, ".log") + ".cleaned")
        first.write_bytes(first.read_bytes()[:-10])
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        found = await found_at(folder.parent)
        assert isinstance(found, str)
        assert first.name in found
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    run(body)


def test_old_segments_that_no_new_one_covers_stay(tmp_path: Path, merging: Origin) -> None:
    """A later cleaning may have made a new segment of fewer old ones than the swap file says."""

    async def body() -> None:
        folder, result = merging.at(tmp_path / "data")
        carry_out(folder, result, 4)
        new = [segment.base_offset for segment in result.new_segments]
        source = next(one for one in merging.job.segments if one.base_offset == new[1])
        uncovered = [base for base in result.old_base_offsets if new[1] < base < new[2]]
        clean(folder, msgspec.structs.replace(merging.job, id="later", segments=(source,)))
        assert await found_at(folder.parent) == merging.expected
        assert uncovered
        assert all((folder / file_name(base, ".log")).exists() for base in uncovered)

    run(body)
