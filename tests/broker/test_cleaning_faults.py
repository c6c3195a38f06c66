"""Log cleaning on a disk that fails: nothing is lost, readers are served, other partitions are cleaned, a retry succeeds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.cleaner_child import CleanerChild, CleaningFailed
from penstock.broker.cleaning import RETRY_S_MAX, RETRY_S_MIN
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Read
from penstock.model.errors import Fault
from penstock.storage import cleaner
from penstock.storage.files import DiskFailed
from penstock.storage.log import PartitionLog
from penstock.storage.room import Room
from tests.broker.compacted import (
    LARGE,
    SMALL,
    TOPIC,
    append,
    clean_all,
    crash,
    create,
    fill,
    log_of,
    names_of_cleaning,
    open_engine,
    set_segment_bytes,
    values,
)
from tests.broker.failing_disk import answer_of, turns, until
from tests.storage.fault_disk import Crash, FaultDisk

FOLDER = f"{TOPIC}-0"


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a partition that is due to be cleaned."""
    path = tmp_path_factory.mktemp("origin") / "data"

    async def body() -> None:
        engine, _ = open_engine(path)
        await create(engine)
        await fill(engine)
        assert len(log_of(engine).segments) > 6
        await engine.stop()

    run(body)
    return path


async def wanted(origin: Path, path: Path) -> dict[bytes | None, bytes | None]:
    """What a reader finds in a log that was never cleaned."""
    shutil.copytree(origin, path)
    engine, _ = open_engine(path)
    found = await values(engine)
    await engine.stop()
    assert len(found) == 15
    return found


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


class Watching:
    """Reads the whole partition on the loop before each change of the disk that a thread makes."""

    def __init__(self, engine: EmbeddedEngine, disk: FaultDisk, expected: dict[bytes | None, bytes | None]) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._expected = expected
        self.looks = 0
        disk.before = self._look

    def _look(self) -> None:
        assert threading.current_thread() is not threading.main_thread(), "the loop waits for the disk"
        found = asyncio.run_coroutine_threadsafe(values(self._engine), self._loop).result(60)
        assert found == self._expected
        self.looks += 1


# ---------------------------------------------------------------------------------------------------- every call in turn


@pytest.mark.parametrize(
    ("for_good", "open_files_max", "step"),
    [(False, 1, 1), (False, 1024, 3), (True, 1, 3)],
    ids=["once", "once, files open", "for good"],
)
def test_any_failing_call_of_a_swap_leaves_every_key_readable(
    tmp_path: Path, origin: Path, for_good: bool, open_files_max: int, step: int
) -> None:
    """Live, after the retry, and after a restart."""

    async def body() -> None:
        expected = await wanted(origin, tmp_path / "wanted")
        number = 0
        while True:
            place = tmp_path / str(number)
            shutil.copytree(origin, place)
            disk = FaultDisk()
            engine, clock = open_engine(place, disk, open_files_max=open_files_max)
            before = log_bytes(place / FOLDER)
            watching = Watching(engine, disk, expected)
            disk.arm(number, error=(errno.EIO, errno.ENOSPC, errno.EMFILE)[number % 3], for_good=for_good)
            await clean_all(engine)
            has_failed = disk.has_failed
            assert watching.looks == len(disk.calls)
            assert await values(engine) == expected, f"after call {number} failed: {disk.calls[-1]}"
            disk.disarm()
            if for_good:
                crash(engine)
            else:
                clock.now_s += RETRY_S_MAX
                await clean_all(engine)
                assert not names_of_cleaning(place / FOLDER)
                assert log_bytes(place / FOLDER) < before, "it was cleaned in the end"
                assert await values(engine) == expected
                assert not log_of(engine).swapping
                await engine.stop()
            again, _ = open_engine(place)
            assert await values(again) == expected, f"after call {number} failed, and a restart"
            assert not names_of_cleaning(place / FOLDER)
            await again.stop()
            shutil.rmtree(place)
            if not has_failed:
                break
            number += step
        assert number > 30

    run(body)


def test_a_crash_at_any_call_of_a_swap_leaves_every_key_readable(tmp_path: Path, origin: Path) -> None:
    """After a restart, and the log can be cleaned then."""

    async def body() -> None:
        expected = await wanted(origin, tmp_path / "wanted")
        number = 0
        finished = False
        while not finished:
            place = tmp_path / str(number)
            shutil.copytree(origin, place)
            disk = FaultDisk()
            engine, _ = open_engine(place, disk)
            disk.arm(number, crash=True)
            try:
                await clean_all(engine)
                finished = not disk.has_failed
            except Crash:
                pass
            disk.disarm()
            crash(engine)
            again, _ = open_engine(place)
            assert await values(again) == expected, f"after a crash at call {number}"
            assert not names_of_cleaning(place / FOLDER)
            if not finished:
                assert await clean_all(again) > 0 or number > 30
            assert await values(again) == expected
            await again.stop()
            shutil.rmtree(place)
            number += 1
        assert number > 30

    run(body)


@pytest.mark.parametrize("segment_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("failing", ["rename", "link", "remove", "sync_directory"])
def test_a_crash_during_the_cleaning_after_a_failed_swap_loses_nothing(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch, failing: str, segment_bytes: int
) -> None:
    """A swap that failed, more records, another cleaning that ends with the process, a restart."""
    monkeypatch.setattr(cleaner, "WRITE_BYTES", 1000)

    async def body() -> None:
        number = 1
        finished = False
        while not finished:
            place = tmp_path / str(number)
            shutil.copytree(origin, place)
            disk = FaultDisk()
            engine, clock = open_engine(place, disk, child_disk=disk)
            await set_segment_bytes(engine, segment_bytes)
            seen = 0

            def refuse() -> None:
                nonlocal seen
                name, path, _ = disk.calls[-1]  # noqa: B023
                if name == failing and FOLDER in str(path):
                    seen += 1
                    if seen == 3:
                        raise OSError(errno.EIO, "on cue")

            disk.arm(None)
            disk.before = refuse
            await clean_all(engine)
            assert seen >= 3, f"no {failing} was refused"
            disk.before = None
            disk.disarm()
            await fill(engine, rounds=6)
            await set_segment_bytes(engine, segment_bytes)
            expected = await values(engine)
            clock.now_s += RETRY_S_MAX
            disk.arm(number, crash=True)
            try:
                await clean_all(engine)
                finished = True
            except Crash:
                pass
            disk.disarm()
            crash(engine)
            again, _ = open_engine(place)
            assert await values(again) == expected, f"after a crash at call {number}"
            await again.stop()
            shutil.rmtree(place)
            number += 4 if (failing, segment_bytes) == ("rename", SMALL) else 12
        assert number > 60

    run(body)


# ---------------------------------------------------------------------------------------------------- other partitions


def test_a_partition_that_cannot_be_cleaned_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        disk = FaultDisk()
        engine, clock = open_engine(tmp_path, disk)
        await create(engine, partitions=3)
        for partition in range(3):
            await fill(engine, partition=partition)
        expected = [await values(engine, partition=partition) for partition in range(3)]
        before = [log_bytes(tmp_path / f"{TOPIC}-{partition}") for partition in range(3)]
        refused = 0

        def refuse() -> None:
            nonlocal refused
            name, path, _ = disk.calls[-1]
            if name == "rename" and path.parent.name == f"{TOPIC}-1" and path.name.endswith(".log"):
                refused += 1
                raise OSError(errno.EIO, "on cue")

        disk.arm(None)
        disk.before = refuse
        caplog.set_level(logging.WARNING, "penstock.broker.cleaning")
        assert await clean_all(engine) == 3
        after = [log_bytes(tmp_path / f"{TOPIC}-{partition}") for partition in range(3)]
        assert after[0] < before[0]
        assert after[2] < before[2]
        [warning] = caplog.records
        assert warning.levelno == logging.WARNING
        assert f"{TOPIC}-1" in warning.getMessage()
        assert refused == 1
        assert [await values(engine, partition=partition) for partition in range(3)] == expected
        # not again before its time, then later and later
        assert await clean_all(engine) == 0
        clock.now_s += RETRY_S_MIN
        assert await clean_all(engine) == 1
        clock.now_s += RETRY_S_MIN
        assert await clean_all(engine) == 0
        clock.now_s += RETRY_S_MIN
        assert await clean_all(engine) == 1
        assert refused == 3
        disk.before = None
        clock.now_s += RETRY_S_MAX
        assert await clean_all(engine) == 1
        assert log_bytes(tmp_path / f"{TOPIC}-1") < before[1]
        assert [await values(engine, partition=partition) for partition in range(3)] == expected
        await engine.stop()

    run(body)


def test_a_damaged_log_is_not_cleaned_and_the_others_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        engine, _ = open_engine(tmp_path)
        engine.cleaning.child = CleanerChild()
        await create(engine, partitions=2)
        await fill(engine, partition=0, rounds=16)
        await fill(engine, partition=1)
        damaged = log_of(engine, partition=0).segments[1]
        data = bytearray(damaged.path.read_bytes())
        data[100] ^= 1
        damaged.path.write_bytes(data)
        size = log_bytes(tmp_path / FOLDER)
        expected = await values(engine, partition=1)
        before = log_bytes(tmp_path / f"{TOPIC}-1")
        caplog.set_level(logging.WARNING, "penstock.broker.cleaning")
        await clean_all(engine)
        assert log_bytes(tmp_path / f"{TOPIC}-1") < before
        assert await values(engine, partition=1) == expected
        assert log_bytes(tmp_path / FOLDER) == size
        assert not names_of_cleaning(tmp_path / FOLDER)
        [warning] = caplog.records
        assert FOLDER in warning.getMessage()
        assert damaged.path.name in warning.getMessage()
        await engine.stop()

    run(body)


def test_a_cleaner_process_that_dies_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        engine, clock = open_engine(tmp_path)
        child = engine.cleaning.child = CleanerChild()
        await create(engine)
        await fill(engine)
        expected = await values(engine)
        before = log_bytes(tmp_path / FOLDER)
        process = await child._started()
        process.send_signal(signal.SIGSTOP)
        caplog.set_level(logging.WARNING, "penstock.broker.cleaning")
        asked = asyncio.Event()
        assert process.stdin is not None
        write = process.stdin.write

        def ask(data: bytes) -> None:
            write(data)
            asked.set()

        monkeypatch.setattr(process.stdin, "write", ask)
        cleaning = asyncio.ensure_future(clean_all(engine))
        await asked.wait()
        process.kill()
        assert await cleaning == 1
        [warning] = caplog.records
        assert FOLDER in warning.getMessage()
        assert "-9" in warning.getMessage()
        clock.now_s += RETRY_S_MAX
        assert await clean_all(engine) == 1
        assert log_bytes(tmp_path / FOLDER) < before
        assert await values(engine) == expected
        await engine.stop()

    run(body)


def test_any_error_of_one_partition_ends_that_cleaning_alone(tmp_path: Path, origin: Path) -> None:
    class Broken:
        async def clean(self, job: object) -> object:
            raise ZeroDivisionError

        async def end(self) -> None:
            return None

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        engine, clock = open_engine(tmp_path / "data")
        working = engine.cleaning.child
        engine.cleaning.child = Broken()  # type: ignore[assignment]
        assert await clean_all(engine) == 1
        engine.cleaning.child = working
        clock.now_s += RETRY_S_MAX
        assert await clean_all(engine) == 1
        await engine.stop()

    run(body)


def test_a_log_that_failed_is_not_cleaned_over_and_over(tmp_path: Path, origin: Path) -> None:
    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        engine, _ = open_engine(tmp_path / "data")
        log_of(engine).fail(DiskFailed(errno.EIO, "on cue"))
        assert await clean_all(engine) == 0
        await engine.stop()

    run(body)


# ---------------------------------------------------------------------------------------------------- meanwhile


class Held:
    """Holds the disk at the n-th change of a kind until it is let go."""

    def __init__(self, disk: FaultDisk, kind: str, number: int = 0) -> None:
        self.reached = threading.Event()
        self._let_go = threading.Event()
        self._disk, self._kind, self._left = disk, kind, number
        disk.arm(None)
        disk.before = self._hold

    def _hold(self) -> None:
        if self._disk.calls[-1][0] != self._kind or self.reached.is_set():
            return
        if self._left:
            self._left -= 1
            return
        self.reached.set()
        assert self._let_go.wait(60)

    def let_go(self) -> None:
        self._let_go.set()


@pytest.mark.parametrize("kind", ["sync", "rename", "link", "remove"])
def test_a_slow_disk_does_not_hold_up_appends_and_reads(tmp_path: Path, origin: Path, kind: str) -> None:
    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        held = Held(disk, kind)
        cleaning = asyncio.ensure_future(clean_all(engine))
        await until(held.reached.is_set)
        disk.disarm()
        await append(engine, [(b"key-1", b"while the disk was slow")])
        assert (await values(engine))[b"key-1"] == b"while the disk was slow"
        held.let_go()
        assert await cleaning == 1
        assert (await values(engine))[b"key-1"] == b"while the disk was slow"
        await engine.stop()

    run(body)


@pytest.mark.parametrize("kind", ["sync", "rename", "link", "remove"])
def test_a_stop_waits_for_the_step_of_a_swap_that_is_under_way(tmp_path: Path, origin: Path, kind: str) -> None:
    async def body() -> None:
        expected = await wanted(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        held = Held(disk, kind)
        cleaning = engine.cleaning._task = asyncio.ensure_future(clean_all(engine))  # type: ignore[assignment]
        await until(held.reached.is_set)
        stopping = asyncio.ensure_future(engine.stop())
        await turns()
        assert not stopping.done()
        held.let_go()
        await stopping
        assert cleaning.cancelled()
        calls = len(disk.calls)
        again, _ = open_engine(tmp_path / "data")
        assert await values(again) == expected
        assert len(disk.calls) == calls
        await again.stop()

    run(body)


@pytest.mark.parametrize("step", ["decide", "place", "commit", "sweep"])
def test_a_topic_made_anew_is_safe_from_the_swap_of_the_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    async def body() -> None:
        engine, _ = open_engine(tmp_path)
        await create(engine)
        await fill(engine)
        reached, go_on = asyncio.Event(), asyncio.Event()
        in_thread = engine.cleaning._in_thread
        sweeps = 0

        async def gated(log: PartitionLog, work: Callable[[], None]) -> None:
            nonlocal sweeps
            name = getattr(work, "__name__", "sweep")
            sweeps += name == "sweep"
            if name == step and sweeps == (2 if name == "sweep" else 1):
                reached.set()
                await go_on.wait()
            await in_thread(log, work)

        monkeypatch.setattr(engine.cleaning, "_in_thread", gated)
        cleaning = asyncio.ensure_future(engine.cleaning.clean_one())
        await reached.wait()
        [deleted] = await answer_of(engine.delete_topics([TOPIC]))
        assert deleted.fault is Fault.NONE
        await create(engine)
        await fill(engine)
        expected = await values(engine)
        files = sorted(os.listdir(tmp_path / FOLDER))
        caplog.set_level(logging.WARNING)
        go_on.set()
        await cleaning
        assert sorted(os.listdir(tmp_path / FOLDER)) == files
        assert await values(engine) == expected
        assert not caplog.records, "a deleted topic is no failure"
        await engine.stop()
        again, _ = open_engine(tmp_path)
        assert await values(again) == expected
        await again.stop()

    run(body)


def test_a_folder_is_not_thrown_away_in_the_middle_of_a_step(tmp_path: Path, origin: Path) -> None:
    class Seen:
        """A lock that tells how often it was asked for."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.asked = 0

        def __enter__(self) -> None:
            self.asked += 1
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        held = Held(disk, "link")
        cleaning = asyncio.ensure_future(engine.cleaning.clean_one())
        await until(held.reached.is_set)
        lock = engine.directory.folder_lock
        seen = engine.directory.folder_lock = Seen()  # type: ignore[assignment]
        seen._lock = lock
        deleting = asyncio.ensure_future(answer_of(engine.delete_topics([TOPIC])))
        await until(lambda: seen.asked)
        assert (tmp_path / "data" / FOLDER).exists()
        held.let_go()
        [deleted] = await deleting
        assert deleted.fault is Fault.NONE
        assert not (tmp_path / "data" / FOLDER).exists()
        await cleaning
        await engine.stop()

    run(body)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_replaced_files_do_not_stay_open(tmp_path: Path, origin: Path) -> None:
    """Their room on the disk is free when they are closed, and not before."""

    def open_files() -> list[str]:
        found = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{number}"))
        return [name for name in found if str(tmp_path) in name and (FOLDER in name or ".trash" in name)]

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        watching = Watching(engine, disk, await values(engine))
        disk.arm(None)
        assert await clean_all(engine) == 1
        assert watching.looks > 10
        disk.disarm()
        await values(engine)
        assert open_files()
        assert not [name for name in open_files() if "deleted" in name]
        await answer_of(engine.delete_topics([TOPIC]))
        assert not open_files()
        await engine.stop()

    run(body)


def test_a_swap_that_could_not_be_decided_is_given_up_at_once(tmp_path: Path, origin: Path) -> None:
    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        disk.arm(0)
        assert await clean_all(engine) == 1
        assert disk.has_failed
        assert not log_of(engine).swapping
        assert not names_of_cleaning(tmp_path / "data" / FOLDER)
        await engine.stop()

    run(body)


def test_records_deleted_during_a_swap_are_dropped_when_it_ends(tmp_path: Path) -> None:
    async def body() -> None:
        disk = FaultDisk()
        engine, clock = open_engine(tmp_path, disk)
        await create(engine)
        policy = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
        await answer_of(engine.alter_configs({TOPIC: policy}, validate_only=False))
        await fill(engine)
        log = log_of(engine)
        start = log.active.base_offset
        disk.arm(None)

        def refuse() -> None:
            if disk.calls[-1][0] == "link":
                raise OSError(errno.EIO, "on cue")

        disk.before = refuse
        await clean_all(engine)
        disk.disarm()
        assert log.swapping
        assert await answer_of(engine.delete_records(TOPIC, 0, start)) == (Fault.NONE, start)
        assert len(log.segments) > 1
        clock.now_s += RETRY_S_MAX
        await clean_all(engine)
        assert log.segments == [log.active]
        await engine.stop()

    run(body)


def test_a_log_is_not_swapped_while_it_is_replayed(tmp_path: Path, origin: Path) -> None:
    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        log = log_of(engine)
        log.replays += 1
        assert await clean_all(engine) == 0
        log.replays -= 1
        held = Held(disk, "create")
        cleaning = asyncio.ensure_future(engine.cleaning.clean_one())
        await until(held.reached.is_set)
        log.replays += 1
        old = list(log.segments)
        held.let_go()
        await cleaning
        assert log.segments == old
        assert not log.swapping
        assert not names_of_cleaning(tmp_path / "data" / FOLDER)
        log.replays -= 1
        assert await clean_all(engine) == 1
        assert log.segments != old
        await engine.stop()

    run(body)


def test_a_replaced_segment_never_reads_the_file_that_took_its_name(tmp_path: Path, origin: Path) -> None:
    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        engine, _ = open_engine(tmp_path / "data", open_files_max=1)
        log = log_of(engine)
        first, other = log.segments[:2]
        held = first.range(0, first.size)
        before = first.read_span(0, first.size)
        assert await clean_all(engine) == 1
        assert log.segments[0] is not first
        assert log.segments[0].path == first.path
        # who holds the open file reads on, who does not is told
        assert engine.directory.disk.read_at(held.file, 0, held.length) == before  # type: ignore[arg-type]
        with pytest.raises(DiskFailed, match="replaced"):
            other.read_span(0, other.size)
        await engine.stop()

    run(body)


def test_a_failed_cleaning_leaves_no_files_behind(tmp_path: Path, origin: Path) -> None:
    """A full disk must not get fuller."""

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        child_disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", child_disk=child_disk)
        child_disk.arm(4, error=errno.ENOSPC)
        assert await clean_all(engine) == 1
        assert child_disk.has_failed
        assert not names_of_cleaning(tmp_path / "data" / FOLDER)
        await engine.stop()

    run(body)


def test_the_reason_of_a_failed_job_is_told() -> None:
    async def body() -> None:
        child = CleanerChild()
        job = cleaner.CleaningJob("id", "/nowhere", (cleaner.SourceSegment(0, 1),), 0, 1, 1, 1, 1, 1)
        with pytest.raises(CleaningFailed, match="No such file"):
            await child.clean(job)
        await child.end()

    run(body)


def test_full_disk_pauses_cleaning_but_not_a_swap_that_failed(tmp_path: Path, origin: Path) -> None:
    """The last step of a swap deletes the old segments, and until then retention cannot delete any."""

    async def body() -> None:
        expected = await wanted(origin, tmp_path / "wanted")
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, clock = open_engine(tmp_path / "data", disk)
        before = log_bytes(tmp_path / "data" / FOLDER)
        disk.room = Room.TIGHT
        assert not await engine.cleaning.clean_one()
        disk.room = Room.AMPLE

        def refuse() -> None:
            if disk.calls[-1][0] == "link":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        disk.arm(None)
        disk.before = refuse
        assert await engine.cleaning.clean_one()
        assert log_of(engine).swapping
        disk.disarm()
        disk.room = Room.TIGHT
        clock.now_s += RETRY_S_MAX
        assert await engine.cleaning.clean_one()
        assert not log_of(engine).swapping
        assert not names_of_cleaning(tmp_path / "data" / FOLDER)
        assert log_bytes(tmp_path / "data" / FOLDER) < before
        assert await values(engine) == expected
        assert not await engine.cleaning.clean_one()
        await engine.stop()

    run(body)


@pytest.mark.parametrize("ends", ["stop", "crash"])
def test_log_start_stays_when_cleaning_empties_the_first_segments(tmp_path: Path, ends: str) -> None:
    """A consumer that has not come further than the emptied segments must not have to reset its offset."""

    async def body() -> None:
        engine, _ = open_engine(tmp_path)
        await create(engine)
        for n in range(40):
            await append(engine, [(b"key", b"%d." % n * 60)])
        assert len(log_of(engine).segments) > 3
        assert await clean_all(engine) == 1
        assert log_of(engine).segments[1].base_offset > 30, "nothing else of the first segments is left"
        expected = await values(engine)
        if ends == "stop":
            await engine.stop()
        else:
            crash(engine)
        again, _ = open_engine(tmp_path)
        assert log_of(again).log_start_offset == 0
        [read] = await answer_of(again.read([Read(TOPIC, 0, 0, 2_000)], 1 << 20, 1, 0, 0))
        assert read.fault is Fault.NONE
        assert await values(again) == expected
        await again.stop()

    run(body)
