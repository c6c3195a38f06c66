"""Durability, with a disk that waits or fails on cue: what is answered when, and what a failure leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks, Append, Appended, NewTopic, Read, ReadResult, RunAppended
from penstock.broker.partition import Partition
from penstock.coordination.group_commands import CommitOffsets, OffsetToCommit
from penstock.coordination.transaction_commands import InitProducerId
from penstock.model.errors import BrokerError, Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage import files, system
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.log import PartitionLog
from tests.broker.failing_disk import CueDisk, answer_of, batch_of, engine_on, full_for, turns, until

MEGABYTE = 1 << 20


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def partition_of(engine: EmbeddedEngine) -> tuple[Partition, PartitionLog]:
    partition = engine.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    return partition, partition.log


def look(engine: EmbeddedEngine, offset: int = 0) -> ReadResult:
    [result] = engine.read([Read("t", 0, offset, MEGABYTE)], MEGABYTE, 0, 0, 0)  # type: ignore[misc]
    assert isinstance(result, ReadResult)
    return result


async def appended(engine: EmbeddedEngine, *batches: memoryview, acks: int = Acks.ALL) -> list[Appended]:
    return list(await answer_of(engine.append("t", 0, batches, acks)))


async def faults(engine: EmbeddedEngine, *batches: memoryview, acks: int = Acks.ALL) -> list[Fault]:
    return [result.fault for result in await appended(engine, *batches, acks=acks)]


# ---- when an answer may leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["acks", "always"])
def test_acks_all_is_not_answered_before_its_fdatasync_ended(tmp_path: Path, flush: str) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush=flush) as engine:
            partition, log = partition_of(engine)
            disk.hold()
            disk.synced.clear()
            waiting = engine.append("t", 0, [batch_of(b"a", b"b")], Acks.ALL)
            assert isinstance(waiting, Pending)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not waiting.done
            assert (partition.high_watermark, log.log_end_offset) == (0, 2)
            disk.release()
            assert (await answer_of(waiting))[0] == Appended(Fault.NONE, 0, -1, 0)
            assert disk.synced == [str(log.active.path)]
            assert partition.high_watermark == 2

    run(body)


@pytest.mark.parametrize("flush", ["acks", "always"])
@pytest.mark.parametrize("way", ["run", "new", "made"])
def test_bare_records_are_not_answered_before_their_fdatasync_ended(tmp_path: Path, way: str, flush: str) -> None:
    disk = CueDisk()

    def append(engine: EmbeddedEngine, acks: int) -> RunAppended | Pending[RunAppended]:
        if way == "run":
            return engine.append_run("t", 0, [b"a", b"b"], None, acks)
        records = [NewRecord(1, None, b"a"), NewRecord(1, None, b"b")]
        if way == "new":
            return engine.append_new("t", 0, records, acks)
        return engine.append_made(partition_of(engine)[0], [build_batch(records)], acks)

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush=flush) as engine:
            disk.hold()
            early = append(engine, Acks.LEADER)
            assert isinstance(early, Pending) == (flush == "always")
            waiting = append(engine, Acks.ALL)
            assert isinstance(waiting, Pending)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not waiting.done
            disk.release()
            assert await answer_of(early) == RunAppended(Fault.NONE, 0, 2)
            assert await answer_of(waiting) == RunAppended(Fault.NONE, 2, 2)
            disk.sync_error = errno.EIO
            assert (await answer_of(append(engine, Acks.ALL))).fault is Fault.STORAGE_ERROR

    run(body)


def test_coordinators_answer_after_their_records_are_flushed(tmp_path: Path) -> None:
    disk = CueDisk()
    offsets = (OffsetToCommit("t", 0, 5, -1, None),)

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            for ready in (engine.groups.ensure(), engine.transactions.ensure()):
                assert await answer_of(ready) is Fault.NONE
            await engine.groups.loaded()
            await engine.transactions.loaded()
            disk.hold()
            waiting = [
                engine.groups.ask("g", CommitOffsets("g", "", None, -1, offsets)),
                engine.transactions.ask("x", InitProducerId("x", 60_000)),
            ]
            await until(lambda: disk.syncs_waiting == len(waiting))
            await turns()
            assert [isinstance(one, Pending) and one.done for one in waiting] == [False, False]
            disk.release()
            assert [(await answer_of(one)).fault for one in waiting] == [Fault.NONE, Fault.NONE]

    run(body)


def test_acks_one_is_answered_before_the_fdatasync_and_the_high_watermark_waits_for_it(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            partition, log = partition_of(engine)
            disk.hold()
            [result] = engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)  # type: ignore[misc]
            assert result.fault is Fault.NONE
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert (partition.high_watermark, log.log_end_offset) == (0, 1)
            found = look(engine)
            assert (found.fault, found.high_watermark, found.records) == (Fault.NONE, 0, None)
            disk.release()
            await until(lambda: partition.high_watermark == 1)
            assert look(engine).records is not None

    run(body)


def test_a_waiting_fetch_is_woken_by_the_flush_and_not_by_the_append(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            fetch = engine.read([Read("t", 0, 0, MEGABYTE)], MEGABYTE, 1, 60_000, 0)
            assert isinstance(fetch, Pending)
            engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not fetch.done
            disk.release()
            [found] = await answer_of(fetch)
            assert found.records is not None

    run(body)


def test_with_flush_always_every_acks_waits(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush="always") as engine:
            disk.hold()
            waiting = engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)
            assert isinstance(waiting, Pending)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not waiting.done
            disk.release()
            assert (await answer_of(waiting))[0].fault is Fault.NONE

    run(body)


@pytest.mark.parametrize("flush", ["os", "interval"])
def test_without_a_promise_nobody_waits_for_the_disk(tmp_path: Path, flush: str) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush=flush, flush_interval_ms=60_000) as engine:
            disk.hold()
            [result] = engine.append("t", 0, [batch_of(b"a")], Acks.ALL)  # type: ignore[misc]
            assert result.fault is Fault.NONE
            assert partition_of(engine)[0].high_watermark == 1
            assert not disk.syncs_waiting

    run(body)


def test_the_interval_policy_flushes_by_itself(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush="interval", flush_interval_ms=10) as engine:
            _, log = partition_of(engine)
            disk.synced.clear()
            engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)
            await until(lambda: log.flushed_offset == 1)
            assert disk.synced == [str(log.active.path)]

    run(body)


def test_a_topic_may_ask_for_more_than_the_broker(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush="os", configs={"penstock.flush": "acks"}) as engine:
            disk.hold()
            waiting = engine.append("t", 0, [batch_of(b"a")], Acks.ALL)
            assert isinstance(waiting, Pending)
            disk.release()
            assert (await answer_of(waiting))[0].fault is Fault.NONE

    run(body)


def test_appends_during_a_flush_share_the_next_one(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            disk.synced.clear()
            waiting = [engine.append("t", 0, [batch_of(b"first")], Acks.ALL)]
            await until(lambda: disk.syncs_waiting)
            waiting += [engine.append("t", 0, [batch_of(b"%d" % n)], Acks.ALL) for n in range(10)]
            disk.release()
            offsets = [(await answer_of(answer))[0].base_offset for answer in waiting]
            assert offsets == list(range(11))
            assert len(disk.synced) == 2

    run(body)


def test_what_came_during_a_flush_is_not_safe_when_that_flush_ends(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            partition, _ = partition_of(engine)
            disk.hold()
            first = engine.append("t", 0, [batch_of(b"first")], Acks.ALL)
            await until(lambda: disk.syncs_waiting)
            second = engine.append("t", 0, [batch_of(b"second")], Acks.ALL)
            assert isinstance(first, Pending)
            assert isinstance(second, Pending)
            at_first = []
            first.then(lambda _: at_first.append((second.done, partition.high_watermark)))
            disk.release()
            await answer_of(second)
            assert at_first == [(False, 1)]

    run(body)


def test_a_duplicate_is_answered_when_its_original_is_safe(tmp_path: Path) -> None:
    disk = CueDisk()
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            original = engine.append("t", 0, [batch_of(b"a", **producer)], Acks.ALL)
            again = engine.append("t", 0, [batch_of(b"a", **producer)], Acks.ALL)
            assert isinstance(again, Pending)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not again.done
            disk.release()
            assert [(await answer_of(answer))[0].base_offset for answer in (original, again)] == [0, 0]
            assert partition_of(engine)[1].log_end_offset == 1

    run(body)


def test_a_request_for_several_partitions_waits_for_all_of_them(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            await answer_of(engine.add_partitions([("t", 3)], validate_only=False))
            disk.hold()
            disk.synced.clear()
            appends = [Append("t", at, batch_of(b"x")) for at in (0, 1, 2)] + [Append("t", 9, batch_of(b"x"))]
            waiting = engine.append_many(appends, Acks.ALL)
            assert isinstance(waiting, Pending)
            await until(lambda: disk.syncs_waiting == 3)
            assert not waiting.done
            disk.release()
            results = await answer_of(waiting)
            assert [result.fault for result in results] == [Fault.NONE] * 3 + [Fault.UNKNOWN_TOPIC_OR_PARTITION]
            assert len(disk.synced) == 3

    run(body)


def test_segments_that_were_closed_are_synced_before_what_follows_them_is_safe(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, configs={"segment.bytes": "200"}) as engine:
            _, log = partition_of(engine)
            disk.synced.clear()
            batches = [batch_of(b"x" * 100) for _ in range(3)]
            assert await faults(engine, *batches) == [Fault.NONE] * 3
            assert {str(segment.path) for segment in log.segments} <= set(disk.synced)
            assert len(log.segments) == 3

    run(body)


def test_a_recovery_point_never_passes_what_was_flushed(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)
            await engine.housekeeping.checkpoint()
            assert b'"t-0":[0,0' in (tmp_path / "checkpoint").read_bytes()
            disk.release()
            await until(lambda: partition_of(engine)[1].flushed_offset == 1)
            await engine.housekeeping.checkpoint()
            assert b'"t-0":[1,0' in (tmp_path / "checkpoint").read_bytes()

    run(body)


def test_deleting_a_topic_answers_those_who_wait_for_its_flush(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            waiting = engine.append("t", 0, [batch_of(b"a")], Acks.ALL)
            await until(lambda: disk.syncs_waiting)
            deleted = engine.delete_topics(["t"])
            assert (await answer_of(waiting))[0].fault is Fault.UNKNOWN_TOPIC_OR_PARTITION
            disk.release()
            assert (await answer_of(deleted))[0].fault is Fault.NONE

    run(body)


# ---- a disk that fails -------------------------------------------------------------------------------------------------


def test_a_failed_sync_is_told_to_all_who_wait_and_never_tried_again(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            partition, log = partition_of(engine)
            assert await faults(engine, batch_of(b"safe")) == [Fault.NONE]
            disk.hold()
            waiting = [engine.append("t", 0, [batch_of(b"lost")], Acks.ALL)]
            await until(lambda: disk.syncs_waiting)
            waiting += [engine.append("t", 0, [batch_of(b"lost")], Acks.ALL)]
            disk.sync_error = errno.EIO
            disk.synced.clear()
            disk.release()
            for answer in waiting:
                assert (await answer_of(answer))[0].fault is Fault.STORAGE_ERROR
            assert log.failure is not None
            # the disk would work again: a second sync could say yes to bytes that the kernel has dropped
            disk.sync_error = None
            end = log.log_end_offset
            assert await faults(engine, batch_of(b"more")) == [Fault.STORAGE_ERROR]
            assert await faults(engine, batch_of(b"more"), acks=Acks.LEADER) == [Fault.STORAGE_ERROR]
            await engine.housekeeping.checkpoint()
            await turns()
            assert disk.synced == []
            assert (log.log_end_offset, partition.high_watermark) == (end, 1)
            found = look(engine)
            assert found.records is not None
            assert found.high_watermark == 1
        assert disk.synced == []
        assert not (tmp_path / "clean-stop").exists()
        async with engine_on(tmp_path, CueDisk()) as engine:
            assert look(engine).records is not None
            assert await faults(engine, batch_of(b"works again")) == [Fault.NONE]

    run(body)


def test_one_log_that_failed_leaves_the_others_alone(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            await answer_of(engine.add_partitions([("t", 2)], validate_only=False))
            disk.sync_error = errno.EIO
            assert await faults(engine, batch_of(b"lost")) == [Fault.STORAGE_ERROR]
            disk.sync_error = None
            [other] = await answer_of(engine.append("t", 1, [batch_of(b"fine")], Acks.ALL))
            assert other.fault is Fault.NONE
            assert await faults(engine, batch_of(b"lost")) == [Fault.STORAGE_ERROR]

    run(body)


def test_a_sync_that_fails_at_the_stop_leaves_no_marker_of_a_clean_one(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, flush="os") as engine:
            assert await faults(engine, batch_of(b"a")) == [Fault.NONE]
            disk.sync_error = errno.EIO
        assert not (tmp_path / "clean-stop").exists()

    run(body)


@pytest.mark.parametrize("what", ["data directory", "folder of the partition"])
def test_nothing_is_acknowledged_after_the_files_were_deleted(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "data"

    async def body() -> None:
        async with engine_on(place, Disk()) as engine:
            assert await faults(engine, batch_of(b"a")) == [Fault.NONE]
            shutil.rmtree(place if what == "data directory" else place / "t-0")
            for _ in range(20):
                assert await faults(engine, batch_of(b"b")) == [Fault.STORAGE_ERROR]
            assert partition_of(engine)[0].high_watermark == 1

    run(body)
    assert "00000000000000000000.log: the file was deleted while the broker was using it" in caplog.text


def test_no_topic_is_created_in_a_data_directory_that_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "data"

    async def body() -> None:
        async with engine_on(place, Disk()) as engine:
            for again in (False, True):
                shutil.rmtree(place)
                if again:  # somebody creates it: another broker could lock it
                    place.mkdir()
                [made] = await answer_of(engine.create_topics([NewTopic("u", 1, 1, {})], validate_only=False))
                assert made.fault is Fault.STORAGE_ERROR
                assert engine.topic("u") is None
                assert place.exists() == again
                assert not place.exists() or not os.listdir(place)
                place.mkdir(exist_ok=True)

    run(body)
    assert ".lock was deleted while the broker was using it" in caplog.text


def test_topic_deleted_during_its_flush_is_no_storage_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.hold()
            waiting = engine.append("t", 0, [batch_of(b"a")], Acks.ALL)
            await until(lambda: disk.syncs_waiting)
            [deleted] = await answer_of(engine.delete_topics(["t"]))
            assert deleted.fault is Fault.NONE
            assert not (tmp_path / "t-0").exists()
            disk.release()
            assert (await answer_of(waiting))[0].fault is Fault.UNKNOWN_TOPIC_OR_PARTITION
            await answer_of(engine.create_topics([NewTopic("t", 1, 1)], validate_only=False))
            assert await faults(engine, batch_of(b"b")) == [Fault.NONE]

    run(body)
    assert "read-only" not in caplog.text


def test_flush_without_a_free_descriptor_is_retried_until_it_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """EMFILE is no failure of the disk: producers wait, and the log stays writable."""
    disk = Disk()
    real = disk.system_calls.open
    refusals = []

    def no_descriptor(path: Path, flags: int, mode: int) -> int:
        if path.name == "t-0":
            refusals.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path, flags, mode)

    async def body() -> None:
        async with engine_on(tmp_path, disk, configs={"segment.bytes": "300"}, flush_interval_ms=10) as engine:
            assert await faults(engine, batch_of(b"a" * 200)) == [Fault.NONE]
            disk.system_calls.open = no_descriptor
            waiting = engine.append(
                "t", 0, [batch_of(b"b" * 200)], Acks.ALL
            )  # in a new segment, so the folder is synced
            await until(lambda: len(refusals) >= 3)
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.system_calls.open = real
            assert (await answer_of(waiting))[0].fault is Fault.NONE
            assert partition_of(engine)[1].failure is None
            assert look(engine, 1).records is not None

    run(body)
    assert "could not be flushed" in caplog.text
    assert "t-0" in caplog.text


class WriteFault:
    """Stands for writes to a file: the next call writes `keep` bytes, then fails or just says how many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pwrite, self._pwritev = os.pwrite, os.pwritev
        self.keep: int | None = None
        self.error: int | None = None
        monkeypatch.setattr(system, "write_at", lambda fd, data, at: self._write(fd, [data], at))
        monkeypatch.setattr(system, "write_all_at", self._write)

    def arm(self, keep: int, error: int | None) -> None:
        self.keep, self.error = keep, error

    def _write(self, fd: int, buffers: Any, at: int) -> int:
        if self.keep is None:
            return self._pwritev(fd, buffers, at)
        keep, self.keep = self.keep, None
        written = self._pwrite(fd, b"".join(buffers)[:keep], at)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return written


NO_ROOM = [(100, None), (0, errno.ENOSPC), (100, errno.ENOSPC), (70, errno.EDQUOT), (70, errno.EFBIG)]


@pytest.mark.parametrize(("keep", "error"), NO_ROOM)
@pytest.mark.parametrize("count", [1, 3])
def test_a_write_without_room_changes_nothing_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, error: int | None, count: int
) -> None:
    fault = WriteFault(monkeypatch)

    def batches(first: int) -> list[memoryview]:
        numbers = range(first, first + count)
        return [batch_of(b"x" * 100, producer_id=7, producer_epoch=0, base_sequence=n) for n in numbers]

    async def body() -> None:
        async with engine_on(tmp_path, CueDisk()) as engine:
            partition, log = partition_of(engine)
            assert await faults(engine, *batches(0)) == [Fault.NONE] * count
            before = (log.log_end_offset, log.active.size, log.active.path.read_bytes(), partition.high_watermark)
            fault.arm(keep, error)
            results = await appended(engine, *batches(count))
            assert [result.fault for result in results] == [Fault.STORAGE_ERROR] * count
            assert all(result.text and "no room" in result.text for result in results)
            assert before == (
                log.log_end_offset, log.active.size, log.active.path.read_bytes(), partition.high_watermark
            )  # fmt: skip
            assert log.failure is None
            assert look(engine).records is not None
            # the producer tries the same batches again: they are neither duplicates nor out of order
            again = await appended(engine, *batches(count))
            assert [(r.fault, r.base_offset) for r in again] == [(Fault.NONE, n) for n in range(count, 2 * count)]

    run(body)


def test_a_failed_write_that_cannot_be_cut_back_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = WriteFault(monkeypatch)
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            assert await faults(engine, batch_of(b"safe")) == [Fault.NONE]
            with monkeypatch.context() as patch:
                patch.setattr(disk.system_calls, "truncate", _no_truncate)
                fault.arm(50, errno.ENOSPC)
                assert await faults(engine, batch_of(b"x" * 100)) == [Fault.STORAGE_ERROR]
            assert partition_of(engine)[1].failure is not None
            assert await faults(engine, batch_of(b"x")) == [Fault.STORAGE_ERROR]
            assert look(engine).records is not None
        async with engine_on(tmp_path, CueDisk()) as engine:
            assert partition_of(engine)[1].log_end_offset == 1
            assert await faults(engine, batch_of(b"works again")) == [Fault.NONE]

    run(body)


def _no_truncate(fd: int, size: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_write_error_ends_the_log_until_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = WriteFault(monkeypatch)

    async def body() -> None:
        async with engine_on(tmp_path, CueDisk()) as engine:
            assert await faults(engine, batch_of(b"safe")) == [Fault.NONE]
            fault.arm(10, errno.EIO)
            assert await faults(engine, batch_of(b"x" * 100)) == [Fault.STORAGE_ERROR]
            assert await faults(engine, batch_of(b"x")) == [Fault.STORAGE_ERROR]
            assert look(engine).records is not None

    run(body)


def test_no_room_for_the_leader_epoch_is_an_error_of_that_append_alone(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.refuse = full_for("replace_whole")
            assert await faults(engine, batch_of(b"a")) == [Fault.STORAGE_ERROR]
            assert partition_of(engine)[1].log_end_offset == 0
            disk.refuse = None
            assert await faults(engine, batch_of(b"a")) == [Fault.NONE]
            assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"

    run(body)


@pytest.mark.parametrize("operation", ["create", "append_to"])
def test_no_room_for_a_new_segment_is_an_error_of_that_append_alone(tmp_path: Path, operation: str) -> None:
    disk = CueDisk()
    configs = {"segment.bytes": "1000", "index.interval.bytes": "100"}

    async def body() -> None:
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            partition, log = partition_of(engine)
            for n in range(5):
                assert await faults(engine, batch_of(b"%d" % n * 100)) == [Fault.NONE]
            disk.refuse = full_for(operation)
            assert await faults(engine, batch_of(b"x" * 900)) == [Fault.STORAGE_ERROR]
            assert (log.log_end_offset, partition.high_watermark, len(log.segments)) == (5, 5, 1)
            disk.refuse = None
            for n in range(5, 8):
                assert await faults(engine, batch_of(b"%d" % n * 900)) == [Fault.NONE]
            for offset in range(8):
                assert look(engine, offset).records is not None
            assert log.failure is None
        async with engine_on(tmp_path, CueDisk(), configs=configs) as engine:
            for offset in range(8):
                assert look(engine, offset).records is not None

    run(body)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_abort_marker_without_room_for_its_index_entry_is_refused_and_can_be_retried(tmp_path: Path, code: int) -> None:
    disk = CueDisk()

    def refuse(operation: str, path: Path) -> None:
        if operation == "create" and path.suffix == ".txnindex":
            raise OSError(code, os.strerror(code))

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            partition, log = partition_of(engine)
            fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            partition.append_own(build_batch([NewRecord(1, None, b"taken back")], **fields), 1)
            disk.refuse = refuse
            with pytest.raises(BrokerError, match="cannot store an aborted transaction"):
                partition.append_marker(Marker(MarkerKind.ABORT, 0), 7, 0, 1, 1)
            assert (log.log_end_offset, log.failure, len(partition.aborted)) == (1, None, 0)
            disk.refuse = None
            partition.append_marker(Marker(MarkerKind.ABORT, 0), 7, 0, 1, 1)
            assert (log.log_end_offset, partition.aborted.ranges()) == (2, ((7, 0, 1),))

    run(body)


def test_no_room_for_a_checkpoint_stops_nothing(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk, checkpoint_interval_ms=10) as engine:

            async def append(sequence: int) -> None:
                batch = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=sequence)
                assert await faults(engine, batch) == [Fault.NONE]

            await append(0)
            refused: list[Path] = []

            def refuse(operation: str, path: Path) -> None:
                refused.append(path)
                full_for("replace_whole", "append_to")(operation, path)

            disk.refuse = refuse
            await append(1)  # what the next checkpoints have to cover
            await until(lambda: len(refused) > 2)
            await append(2)
            disk.refuse = None
            await until(lambda: b'"t-0":[3,0' in (tmp_path / "checkpoint").read_bytes())

    run(body)


@pytest.mark.parametrize("operation", ["replace_whole", "rename"])
def test_retention_that_fails_does_not_cost_the_append_that_rolled(tmp_path: Path, operation: str) -> None:
    disk = CueDisk()
    configs = {"segment.bytes": "300", "retention.bytes": "300"}

    async def body() -> None:
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            _, log = partition_of(engine)
            for n in range(6):
                if n == 3:
                    disk.refuse = full_for(operation)
                assert await faults(engine, batch_of(b"x" * 200)) == [Fault.NONE]
            disk.refuse = None
            assert await faults(engine, batch_of(b"x" * 200)) == [Fault.NONE]
            assert log.log_start_offset > 0
            assert look(engine, log.log_start_offset).records is not None

    run(body)


def test_a_stop_without_room_for_its_marker_is_a_stop_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            assert await faults(engine, batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0)) == [
                Fault.NONE
            ]
            disk.refuse = full_for("replace_whole", "append_to")
        assert not (tmp_path / "clean-stop").exists()
        async with engine_on(tmp_path, CueDisk()) as engine:
            assert partition_of(engine)[1].log_end_offset == 1

    run(body)
    assert "the next start will look through the logs" in caplog.text


def test_delete_records_that_cannot_be_stored_is_a_storage_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            assert await faults(engine, batch_of(b"a", b"b")) == [Fault.NONE]
            disk.refuse = full_for("replace_whole")
            assert await answer_of(engine.delete_records("t", 0, 1)) == (Fault.STORAGE_ERROR, -1)
            disk.refuse = None
            assert await answer_of(engine.delete_records("t", 0, 1)) == (Fault.NONE, 1)

    run(body)
    assert "cannot store log start offsets" in caplog.text
    assert "Traceback" not in caplog.text


def test_no_room_for_a_topic_leaves_none_behind(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            disk.refuse = full_for("replace_whole")
            [failed] = await answer_of(engine.create_topics([NewTopic("u", 1, 1)], validate_only=False))
            assert failed.fault is Fault.STORAGE_ERROR
            assert engine.topic("u") is None
            disk.refuse = None
            [made] = await answer_of(engine.create_topics([NewTopic("u", 1, 1)], validate_only=False))
            assert made.fault is Fault.NONE

    run(body)


# ---- data that is not in memory ----------------------------------------------------------------------------------------


class ColdDisk(CueDisk):
    """Nothing is in the page cache until it was read once."""

    def __init__(self) -> None:
        super().__init__()
        self.warm: set[tuple[str, int]] = set()
        self.cold = False

    def read_at(self, file: files.LogFile, position: int, length: int) -> bytes:
        self.warm.update((str(file.path), at) for at in range(position, position + length))
        return super().read_at(file, position, length)

    def read_now(self, file: files.LogFile, position: int, length: int) -> memoryview:
        if self.cold and (str(file.path), position) not in self.warm:
            raise files.Cold(file, position, length)
        return super().read_now(file, position, length)


def test_offsets_by_time_are_found_in_a_log_that_is_not_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = ColdDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            assert await faults(engine, batch_of(b"a"), batch_of(b"b")) == [Fault.NONE] * 2
            disk.cold = True
            found = await answer_of(engine.list_offset("t", 0, 1, 0))
            assert (found.fault, found.offset) == (Fault.NONE, 0)

    run(body)
    assert "Traceback" not in caplog.text


def test_a_cold_read_comes_through_a_reader_thread(tmp_path: Path) -> None:
    disk = ColdDisk()

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            assert await faults(engine, *(batch_of(b"%d" % n) for n in range(100))) == [Fault.NONE] * 100
            disk.cold = True
            waiting = engine.read([Read("t", 0, 50, MEGABYTE)], MEGABYTE, 0, 0, 0)
            assert isinstance(waiting, Pending)
            [found] = await answer_of(waiting)
            assert found.fault is Fault.NONE
            assert found.records is not None

    run(body)


# ---- open files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["os", "interval"])
def test_closed_segments_are_flushed_by_every_policy(tmp_path: Path, policy: str) -> None:
    async def body() -> None:
        options: dict[str, Any] = {"flush": policy, "flush_interval_ms": 10**9}
        async with engine_on(tmp_path, Disk(), configs={"segment.bytes": "200"}, **options) as engine:
            log = partition_of(engine)[1]
            for _ in range(30):
                assert await faults(engine, batch_of(b"v" * 100), acks=Acks.LEADER) == [Fault.NONE]
            assert len(log.segments) > 10
            await until(lambda: not log.keeps_files_open and not log.flush_under_way)
            assert log.flushed_offset >= log.active.base_offset
            end = log.log_end_offset
            await faults(engine, batch_of(b"v"), acks=Acks.LEADER)
            await turns()
            assert log.flushed_offset <= end, "the active segment is flushed by the policy alone"

    run(body)


def test_flushes_of_many_logs_share_the_open_files(tmp_path: Path) -> None:
    async def body() -> None:
        disk = CueDisk()
        directory = DataDirectory(tmp_path, disk=disk, open_files_max=16)
        engine = EmbeddedEngine(directory, EngineSettings(flush_threads=2))
        engine.start()
        count = 60
        try:
            await answer_of(engine.create_topics([NewTopic("t", count, 1)], validate_only=False))
            disk.hold()
            answers: list[Any] = []
            for at in range(count):
                answers.append(engine.append("t", at, [batch_of(b"%d" % at)], Acks.ALL))
                assert sum(name.endswith(".log") for name in open_names(tmp_path)) <= 16 + 1
            disk.release()
            for answer in answers:
                assert [one.fault for one in await answer_of(answer)] == [Fault.NONE]
        finally:
            disk.release()
            await engine.stop()

    run(body)


@pytest.mark.parametrize("suffix", [".log", ".snapshot", "leader-epoch-checkpoint"])
def test_a_start_without_free_descriptors_takes_no_partition_offline(tmp_path: Path, suffix: str) -> None:
    disk = Disk()
    real_open = disk.system_calls.open

    def refuse(path: Path, flags: int, mode: int) -> int:
        if path.name.endswith(suffix):
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), str(path))
        return real_open(path, flags, mode)

    async def body() -> None:
        async with engine_on(tmp_path, disk) as engine:
            fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            assert await faults(engine, batch_of(b"a", **fields)) == [Fault.NONE]
        (tmp_path / "clean-stop").unlink()
        disk.system_calls.open = refuse
        directory = DataDirectory(tmp_path, disk=disk)
        engine = EmbeddedEngine(directory, EngineSettings())
        with pytest.raises(OSError, match=os.strerror(errno.ENFILE)):
            engine.start()
        engine._flusher.stop()
        directory.close((), clean=False)
        disk.system_calls.open = real_open
        async with engine_on(tmp_path, disk) as engine:
            assert partition_of(engine)[0].high_watermark == 1

    run(body)


def open_names(folder: Path) -> list[str]:
    """Files below `folder` that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the listing
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(f"{folder}/")]
