"""Reads: what they give, how much, when they wait, and who wakes them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import offsets
from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Isolation, NewTopic, Read, ReadResult
from penstock.broker.reads import PARTITIONS_AT_ONCE, Reads
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, LogFile
from tests.broker.failing_disk import BadSectorDisk, CueDisk, answer_of, batch_of, engine_on, readers_held, turns, until
from tests.storage.logs import records_of
from tests.storage.simulated_disk import SimulatedDisk

PLENTY = 1 << 20


def values(disk: Disk, result: ReadResult) -> list[bytes | None]:
    if result.records is None:
        return []
    found = result.records
    return [value for _, _, value in records_of(disk.read_at(found.file, found.position, found.length))]  # type: ignore[arg-type]


async def write(
    engine: EmbeddedEngine, partition: int, *batches: list[bytes], topic: str = "t", acks: int = -1
) -> None:
    views = [batch_of(*batch) for batch in batches]
    for done in await answer_of(engine.append(topic, partition, views, acks)):
        assert done.fault is Fault.NONE, done


def read(
    engine: EmbeddedEngine,
    *reads: Read,
    max_bytes: int = PLENTY,
    min_bytes: int = 1,
    wait_ms: int = 0,
    isolation: int = 0,
) -> list[ReadResult] | Pending[list[ReadResult]]:
    return engine.read(reads, max_bytes, min_bytes, wait_ms, isolation)


async def now(engine: EmbeddedEngine, *reads: Read, **how: Any) -> list[ReadResult]:
    found = await answer_of(read(engine, *reads, **how))
    assert isinstance(found, list)
    return found


def test_a_read_gives_at_least_one_batch_and_otherwise_keeps_to_its_limits(tmp_path: Path) -> None:
    disk = Disk()
    big = [b"x" * 1000]

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None) as engine:
            await answer_of(engine.create_topics([NewTopic("t", 3)], validate_only=False))
            for partition in range(3):
                await write(engine, partition, big, big, big)
            size = len(batch_of(*big))
            (one,) = await now(engine, Read("t", 0, 0, 10), max_bytes=10)
            assert values(disk, one) == big, "one batch, however small the limits"
            (some,) = await now(engine, Read("t", 0, 0, 2 * size + 5))
            assert some.records is not None
            assert some.records.length == 2 * size + 5, "the limit of the partition, in the middle of a batch"
            assert values(disk, some) == big * 2
            first, second, third = await now(engine, *[Read("t", n, 0, PLENTY) for n in range(3)], max_bytes=4 * size)
            assert [len(values(disk, part)) for part in (first, second, third)] == [3, 1, 0], "the limit of all"
            first, second = await now(engine, Read("t", 0, 0, 10), Read("t", 1, 0, 10))
            assert [len(values(disk, part)) for part in (first, second)] == [1, 0], "one batch in all, not one each"
            empty, full = await now(engine, Read("t", 0, 3, 10), Read("t", 1, 0, 10))
            assert [len(values(disk, part)) for part in (empty, full)] == [0, 1], "of the first that has any"

    asyncio.run(run())


def test_between_high_watermark_and_log_end_a_read_is_empty_and_past_it_out_of_range(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk) as engine:
            await write(engine, 0, [b"a", b"b"])
            disk.hold()
            engine.append("t", 0, [batch_of(b"c", b"d")], 1)
            for offset, fault in (
                (2, Fault.NONE),
                (3, Fault.NONE),
                (4, Fault.NONE),
                (5, Fault.OFFSET_OUT_OF_RANGE),
                (-1, Fault.OFFSET_OUT_OF_RANGE),
            ):
                (found,) = await now(engine, Read("t", 0, offset, PLENTY))
                assert (found.fault, found.records, found.high_watermark) == (fault, None, 2), offset
            (found,) = await now(engine, Read("t", 0, 0, PLENTY))
            assert values(disk, found) == [b"a", b"b"], "nothing that a power cut could take"
            disk.release()
            await until(lambda: engine.partition("t", 0).high_watermark == 4)  # type: ignore[union-attr]
            (found,) = await now(engine, Read("t", 0, 2, PLENTY))
            assert values(disk, found) == [b"c", b"d"]
            assert await answer_of(engine.delete_records("t", 0, 1)) == (Fault.NONE, 1)
            (found,) = await now(engine, Read("t", 0, 0, PLENTY))
            assert (found.fault, found.log_start_offset) == (Fault.OFFSET_OUT_OF_RANGE, 1)

    asyncio.run(run())


@pytest.mark.parametrize("flush", ["interval", "os"])
def test_where_nothing_is_promised_a_read_sees_the_log_end_at_once(tmp_path: Path, flush: str) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush=flush) as engine:
            disk.hold()
            await write(engine, 0, [b"a"])
            (found,) = await now(engine, Read("t", 0, 0, PLENTY))
            assert (values(disk, found), found.high_watermark) == ([b"a"], 1)

    asyncio.run(run())


def test_leader_epochs_fence_old_and_unknown_readers(tmp_path: Path) -> None:
    async def run() -> None:
        for _ in range(2):  # the second start is an unclean one
            engine = EmbeddedEngine(*_unclean(tmp_path))
            engine.start()
            if engine.topic("t") is None:
                await answer_of(engine.create_topics([NewTopic("t", 1)], validate_only=False))
            await write(engine, 0, [b"a"])
            epoch = engine.leader_epoch
            for asked, fault in ((-1, Fault.NONE), (epoch, Fault.NONE), (epoch + 1, Fault.UNKNOWN_LEADER_EPOCH)):
                (found,) = await now(engine, Read("t", 0, 0, PLENTY, asked))
                assert found.fault is fault
                assert (await answer_of(engine.list_offset("t", 0, offsets.LATEST, 0, asked))).fault is fault
            await kill(engine)
        assert epoch == 1
        engine = EmbeddedEngine(*_unclean(tmp_path))
        engine.start()
        (found,) = await now(engine, Read("t", 0, 0, PLENTY, 1))
        assert found.fault is Fault.FENCED_LEADER_EPOCH
        ends = [tuple(engine.epoch_end("t", 0, -1, asked))[1:] for asked in (0, 1, 2, 3)]
        assert ends == [(0, 1), (1, 2), (2, 2), (-1, -1)]
        await engine.stop()

    asyncio.run(run())


def _unclean(path: Path) -> tuple[Any, Any]:
    return DataDirectory(path), EngineSettings()


async def kill(engine: EmbeddedEngine) -> None:
    """Stop without a trace: the marker of the clean stop goes."""
    await engine.stop()
    (engine.directory.path / "clean-stop").unlink()


def test_unknown_partitions_and_offline_ones_are_told_apart(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            found = engine.partition("t", 0)
            assert found is not None
            unknown, other = await now(engine, Read("nope", 0, 0, 1), Read("t", 7, 0, 1))
            assert unknown.fault is other.fault is Fault.UNKNOWN_TOPIC_OR_PARTITION
            log, found.log = found.log, None
            (offline,) = await now(engine, Read("t", 0, 0, 1))
            assert offline.fault is Fault.STORAGE_ERROR
            found.log = log

    asyncio.run(run())


def test_a_file_that_cannot_be_opened_is_an_error_of_that_partition_alone(tmp_path: Path) -> None:
    class NoHandles(Disk):
        refuse = False

        def open(self, path: Path, *, create: bool = False) -> LogFile:
            if self.refuse and path.parent.name == "t-0":
                raise OSError(24, "Too many open files")
            return super().open(path, create=create)

    disk = NoHandles()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None) as engine:
            await answer_of(engine.create_topics([NewTopic("t", 2)], validate_only=False))
            await write(engine, 0, [b"a"])
            await write(engine, 1, [b"b"])
            disk.refuse = True
            engine.directory.files.forget(list(engine.directory.files._files))
            broken, whole = await now(engine, Read("t", 0, 0, PLENTY), Read("t", 1, 0, PLENTY))
            assert broken.fault is Fault.STORAGE_ERROR
            assert values(disk, whole) == [b"b"]
            disk.refuse = False

    asyncio.run(run())


# --------------------------------------------------------------------------------------------------- waiting


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks at a partition from now on."""
    looks: list[str] = []
    real = Reads.look_at

    def look_at(self: Reads, read: Read, *args: Any, **how: Any) -> ReadResult:
        looks.append(f"{read.topic}-{read.partition}")
        return real(self, read, *args, **how)

    monkeypatch.setattr(Reads, "look_at", look_at)
    return looks


def test_an_append_wakes_the_waits_of_its_partition_and_looks_at_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", 50)], validate_only=False))
            waits = [read(engine, Read("t", n, 0, PLENTY), wait_ms=60_000) for n in range(50)]
            assert all(isinstance(wait, Pending) for wait in waits)
            looks = counted(monkeypatch)
            await write(engine, 7, [b"a"])
            assert set(looks) == {"t-7"}
            assert len(looks) == 1
            (found,) = await answer_of(waits[7])
            assert values(disk, found) == [b"a"]
            assert not any(wait.done for n, wait in enumerate(waits) if n != 7)  # type: ignore[union-attr]
            for wait in waits:
                wait.abandon()  # type: ignore[union-attr]
            assert not any(partition.data_waiters for partition in engine.partitions())

    asyncio.run(run())


def test_a_wait_for_many_partitions_looks_only_where_something_came_until_there_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", 50)], validate_only=False))
            size = len(batch_of(b"x" * 100))
            wait = read(engine, *[Read("t", n, 0, PLENTY) for n in range(50)], min_bytes=4 * size, wait_ms=60_000)
            assert isinstance(wait, Pending)
            looks = counted(monkeypatch)
            for partition in (3, 3, 9):
                await write(engine, partition, [b"x" * 100])
                assert not wait.done
            assert looks == ["t-3", "t-3", "t-9"]
            await write(engine, 20, [b"x" * 100])
            assert wait.done
            assert [len(values(disk, found)) for found in wait.result if found.records] == [2, 1, 1]

    asyncio.run(run())


def test_a_wait_ends_with_what_there_is_when_its_time_is_up(tmp_path: Path) -> None:
    disk = Disk()

    async def run() -> None:
        # without a flush the record is there at once, long before the time is up
        async with engine_on(tmp_path, disk, flush="os") as engine:
            wait = read(engine, Read("t", 0, 0, PLENTY), min_bytes=PLENTY, wait_ms=30)
            await write(engine, 0, [b"a"])
            (found,) = await answer_of(wait)
            assert values(disk, found) == [b"a"]
            (none,) = await answer_of(read(engine, Read("t", 0, 1, PLENTY), wait_ms=10))
            assert (none.fault, none.records) == (Fault.NONE, None)

    asyncio.run(run())


def test_a_wait_is_answered_by_the_flush_not_by_the_append(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk) as engine:
            wait = read(engine, Read("t", 0, 0, PLENTY), wait_ms=60_000)
            assert isinstance(wait, Pending)
            disk.hold()
            engine.append("t", 0, [batch_of(b"a")], 1)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not wait.done
            disk.release()
            (found,) = await answer_of(wait)
            assert values(disk, found) == [b"a"]

    asyncio.run(run())


def test_a_wait_ends_when_its_topic_is_deleted_or_the_broker_stops(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            wait = read(engine, Read("t", 0, 0, PLENTY), wait_ms=60_000)
            await answer_of(engine.delete_topics(["t"]))
            (found,) = await answer_of(wait)
            assert found.fault is Fault.UNKNOWN_TOPIC_OR_PARTITION
            await answer_of(engine.create_topics([NewTopic("t", 1)], validate_only=False))

    asyncio.run(run())


MANY = 4 * PARTITIONS_AT_ONCE


@pytest.mark.parametrize("min_bytes", [1, 150])
def test_a_read_of_very_many_partitions_waits_and_is_woken_like_any_other(tmp_path: Path, min_bytes: int) -> None:
    disk = Disk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", MANY)], validate_only=False))
            wait = read(engine, *[Read("t", n, 0, PLENTY) for n in range(MANY)], min_bytes=min_bytes, wait_ms=60_000)
            assert isinstance(wait, Pending)
            await until(lambda: all(partition.data_waiters for partition in engine.partitions()))
            await turns()
            for partition in (3, MANY - 1):
                assert not wait.done
                await write(engine, partition, [b"x" * 20])
                if min_bytes == 1:
                    break
            results = await answer_of(wait)
            found = {n: values(disk, result) for n, result in enumerate(results) if result.records}
            assert found == {n: [b"x" * 20] for n in ((3,) if min_bytes == 1 else (3, MANY - 1))}
            assert not any(partition.data_waiters for partition in engine.partitions())

    asyncio.run(run())


def test_records_appended_while_a_large_read_parks_are_not_missed(tmp_path: Path) -> None:
    disk = Disk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", MANY)], validate_only=False))
            reads = [Read("t", n, 0, PLENTY) for n in range(MANY)]
            work = engine.read_in_slices(reads, PLENTY, 1, 60_000, 0)
            at_pauses = 0
            while not engine.partition("t", 0).data_waiters:  # type: ignore[union-attr]
                assert work.send(None) is None
                at_pauses += 1
            assert at_pauses > 10
            await write(engine, MANY - 1, [b"late"])
            wait = engine.in_slices(work, drop=True)
            results = await answer_of(wait)
            assert values(disk, results[MANY - 1]) == [b"late"]

    asyncio.run(run())


@pytest.mark.parametrize("partitions", [10, MANY])
def test_abandoned_read_leaves_no_state(tmp_path: Path, partitions: int) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", partitions)], validate_only=False))
            wait = read(engine, *[Read("t", n, 0, PLENTY) for n in range(partitions)], wait_ms=60_000)
            assert isinstance(wait, Pending)
            await until(lambda: all(partition.data_waiters for partition in engine.partitions()))
            wait.abandon()
            assert not any(partition.data_waiters for partition in engine.partitions())

    asyncio.run(run())


# --------------------------------------------------------------------------------------------------- cold data


class ThreadNamingDisk(SimulatedDisk):
    readers: set[str]

    def read_at(self, file: LogFile, position: int, length: int) -> bytes:
        self.readers.add(threading.current_thread().name)
        return super().read_at(file, position, length)


@pytest.fixture
def cold_disk(tmp_path: Path) -> ThreadNamingDisk:
    disk = ThreadNamingDisk(tmp_path)
    disk.readers = set()
    return disk


def test_cold_data_is_fetched_by_reader_threads_and_the_loop_never_waits(
    tmp_path: Path, cold_disk: ThreadNamingDisk
) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, cold_disk, topic=None) as engine:
            await answer_of(engine.create_topics([NewTopic("t", 100)], validate_only=False))
            for partition in range(100):
                await write(engine, partition, *[[b"%d" % n * 300] for n in range(5)])
            cold_disk.cold = True
            cold_disk.readers.clear()
            for partition in engine.partitions():
                assert partition.log is not None
                partition.log._places.clear()
            wait = read(engine, *[Read("t", n, 3, PLENTY) for n in range(100)], max_bytes=100 * PLENTY)
            assert isinstance(wait, Pending)
            found = await answer_of(wait)
            assert {result.fault for result in found} == {Fault.NONE}
            assert cold_disk.readers
            assert all(name.startswith("penstock-read") for name in cold_disk.readers)
            assert [values(cold_disk, result)[-2:] for result in found] == [[b"3" * 300, b"4" * 300]] * 100
            again = read(engine, Read("t", 5, 3, PLENTY))
            assert isinstance(again, list), "what was read is in memory"

    asyncio.run(run())


def test_a_timestamp_in_cold_data_is_found(tmp_path: Path, cold_disk: ThreadNamingDisk) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, cold_disk) as engine:
            await write(engine, 0, *[[b"%d" % n] for n in range(5)])
            cold_disk.cold = True
            found = await answer_of(engine.list_offset("t", 0, 0, Isolation.READ_UNCOMMITTED))
            assert (found.fault, found.offset) == (Fault.NONE, 0)

    asyncio.run(run())


def test_timestamp_is_found_on_a_thread_from_an_open_file(tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            await write(engine, 0, [b"a", b"b"], [b"c"])
            with readers_held(engine):
                waiting = engine.list_offset("t", 0, 1, 0)
                await turns()
                engine.directory.files.forget([tmp_path / "t-0" / "00000000000000000000.log"])
            found = await answer_of(waiting)
            assert (found.fault, found.offset) == (Fault.NONE, 0)

    asyncio.run(body())


def test_timestamp_in_a_corrupt_batch_is_an_error_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            await write(engine, 0, [b"first"], [b"second"])
            path = tmp_path / "t-0" / "00000000000000000000.log"
            path.write_bytes(path.read_bytes().replace(b"first", b"FIRST"))
            found = await answer_of(engine.list_offset("t", 0, 1, 0))
            assert (found.fault, found.offset) == (Fault.STORAGE_ERROR, -1)

    asyncio.run(body())
    assert "t-0: timestamp 1 cannot be looked up: the batch at offset 0 is corrupt" in caplog.text


def test_data_that_never_gets_warm_is_an_error_not_a_hang(tmp_path: Path, cold_disk: ThreadNamingDisk) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, cold_disk) as engine:
            await write(engine, 0, [b"a"], [b"b"])
            cold_disk.cold = True
            cold_disk._warm = Never()  # type: ignore[assignment]
            (found,) = await now(engine, Read("t", 0, 1, PLENTY))
            assert found.fault is Fault.STORAGE_ERROR
            cold_disk.cold = False

    asyncio.run(run())


def test_a_timestamp_in_data_that_never_gets_warm_is_an_error(
    tmp_path: Path, cold_disk: ThreadNamingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "COLD_TRIES_MAX", 5)

    async def run() -> None:
        async with engine_on(tmp_path, cold_disk) as engine:
            await write(engine, 0, [b"a"], [b"b"])
            cold_disk.cold = True
            cold_disk._warm = Never()  # type: ignore[assignment]
            found = await answer_of(engine.list_offset("t", 0, 0, Isolation.READ_UNCOMMITTED))
            assert found.fault is Fault.STORAGE_ERROR
            cold_disk.cold = False

    asyncio.run(run())


def test_a_partition_that_the_disk_does_not_give_fails_alone_and_soon(tmp_path: Path) -> None:
    disk = BadSectorDisk("/t-1/")

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            await answer_of(engine.add_partitions([("t", 3)], validate_only=False))
            for partition in range(3):
                await write(engine, partition, [b"v%d" % partition], [b"w"])
            forget_places(engine)
            disk.bad = range(512)
            reads = [Read("t", partition, 0, PLENTY) for partition in range(3)]
            good, bad, also_good = await now(engine, *reads)
            assert values(disk, good) == [b"v0", b"w"]
            assert (bad.fault, bad.records) == (Fault.STORAGE_ERROR, None)
            assert (bad.high_watermark, bad.log_start_offset) == (2, 0)
            assert values(disk, also_good) == [b"v2", b"w"]
            assert disk.failed_reads < 5

    asyncio.run(body())


def forget_places(engine: EmbeddedEngine) -> None:
    """Let the logs look positions up in their files, as they do for what was written long ago."""
    for partition in range(3):
        found = engine.partition("t", partition)
        assert found is not None
        assert found.log is not None
        found.log._places.clear()


class Never(set[Any]):
    def __contains__(self, item: object) -> bool:
        return False


# --------------------------------------------------------------------------------------------------- by time


def test_offsets_by_time_are_found_to_the_record_within_the_bounds_of_the_log(tmp_path: Path) -> None:
    def timed(*times: int) -> memoryview:
        return memoryview(build_batch([NewRecord(time, None, b"v") for time in times]))

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), configs={"segment.bytes": "200", "retention.ms": "-1"}) as engine:
            for batch in (timed(500, 100, 900), timed(200, 300), timed(800, 400), timed(850)):
                await answer_of(engine.append("t", 0, [batch], -1))

            async def at(timestamp: int) -> tuple[int, int]:
                found = await answer_of(engine.list_offset("t", 0, timestamp, 0))
                assert found.fault is Fault.NONE
                return found.offset, found.timestamp_ms

            assert [await at(time) for time in (0, 101, 501, 901)] == [(0, 500), (0, 500), (2, 900), (-1, -1)]
            assert await at(offsets.MAX_TIMESTAMP) == (2, 900)
            assert await answer_of(engine.delete_records("t", 0, 3)) == (Fault.NONE, 3)
            assert [await at(time) for time in (0, 250, 501, 801, 900)] == [
                (3, 200),
                (4, 300),
                (5, 800),
                (7, 850),
                (-1, -1),
            ]
            assert await at(offsets.EARLIEST) == (3, -1)
            assert await at(offsets.LATEST) == (8, -1)
            assert await answer_of(engine.delete_records("t", 0, 6)) == (Fault.NONE, 6)
            assert await at(501) == (7, 850), "the batch that the log starts in has its late record below the start"

    asyncio.run(run())


@pytest.mark.parametrize("flush", ["os", "acks"])
def test_a_read_that_an_abort_wakes_is_told_of_the_abort(tmp_path: Path, flush: str) -> None:
    """Or it would take the records of the transaction for committed ones."""

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush=flush) as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            partition.append_own(build_batch([NewRecord(1, None, b"taken back")], **fields), 1)
            waiting = engine.read([Read("t", 0, 0, PLENTY)], PLENTY, 1, 20_000, Isolation.READ_COMMITTED)
            assert isinstance(waiting, Pending)
            await turns()
            assert not waiting.done
            partition.append_marker(Marker(MarkerKind.ABORT, 0), 7, 0, 1, 1)
            [found] = await asyncio.wait_for(answer_of(waiting), 10)
            assert (found.last_stable_offset, found.aborted) == (2, [(7, 0)])

    asyncio.run(run())


def test_committed_records_do_not_end_before_the_log_starts(tmp_path: Path) -> None:
    """Records may be deleted under an open transaction."""

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs={"retention.ms": "-1"}) as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            partition.append_own(build_batch([NewRecord(1, None, b"undecided")] * 5, **fields), 1)
            await write(engine, 0, [b"plain"] * 5)
            assert partition.last_stable_offset == 0
            assert await answer_of(engine.delete_records("t", 0, 8)) == (Fault.NONE, 8)
            end = await answer_of(engine.list_offset("t", 0, offsets.LATEST, Isolation.READ_COMMITTED))
            assert (end.offset, partition.last_stable_offset) == (8, 8)
            [found] = await answer_of(engine.read([Read("t", 0, 8, PLENTY)], PLENTY, 0, 0, Isolation.READ_COMMITTED))
            assert (found.fault, found.records, found.last_stable_offset) == (Fault.NONE, None, 8)
            partition.append_marker(Marker(MarkerKind.COMMIT, 0), 7, 0, 1, 1)
            assert partition.last_stable_offset == 11

    asyncio.run(run())
