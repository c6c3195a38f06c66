"""Replaying an internal topic: every batch once, though log cleaning replaces segments meanwhile, and on open files only."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import internal_log
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.internal_log import LOAD_READ_BYTES, InternalLog
from penstock.broker.partition import Partition
from penstock.coordination.group_commands import NO_GENERATION, NO_MEMBER, CommitOffsets, OffsetToCommit
from penstock.model.errors import Fault
from penstock.records.batch import Batch, BatchError
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from penstock.storage.files import Disk, DiskFailed, LogFile
from tests.broker.compacted import clean_on_request
from tests.broker.failing_disk import answer_of, engine_on, until

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
    "max.message.bytes": "5000000",
}


class HeldExecutor(Executor):
    """Does one piece of work, and the rest after `release`."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1)
        self._released = threading.Event()
        self._taken = 0

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self._taken += 1
        if self._taken > 1:
            self._threads.submit(self._released.wait, 30)
        return self._threads.submit(work, *given, **named)

    def release(self) -> None:
        self._released.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._released.set()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def partition_of(engine: EmbeddedEngine) -> Partition:
    partition = engine.partition("t", 0)
    assert partition is not None
    return partition


def write(partition: Partition, key: bytes, value: bytes) -> None:
    partition.append_own(build_batch([NewRecord(1, key, value)]), 1)


def forget_files(engine: EmbeddedEngine) -> None:
    log = partition_of(engine).log
    assert log is not None
    for segment in log.segments:
        engine.directory.files.forget(segment.paths())


def test_replay_gives_every_batch_once_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs=CONFIGS) as engine:
            partition = partition_of(engine)
            sizes = [10, 3_000, LOAD_READ_BYTES + 500_000, 20, 5_000, 2 * LOAD_READ_BYTES, 1]
            for at, size in enumerate(sizes):
                write(partition, b"%d" % at, b"x" * size)
            forget_files(engine)
            taken: list[tuple[int, int]] = []

            def take(batch: Batch) -> None:
                [record] = read_records(batch)
                taken.append((record.offset, len(record.value or b"")))

            with ThreadPoolExecutor(1) as readers:
                await InternalLog(partition).replay(take, readers)
            assert taken == list(enumerate(sizes))

    asyncio.run(run())


def test_replay_of_many_records_in_one_batch_lets_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_log, "LOAD_SLICE_S", -1.0)

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs=CONFIGS) as engine:
            partition = partition_of(engine)
            partition.append_own(build_batch([NewRecord(1, b"%d" % at, b"v") for at in range(50)]), 1)
            steps: list[str] = []

            def take(batch: Batch) -> Iterator[None]:
                for _ in read_records(batch):
                    steps.append("record")
                    asyncio.get_running_loop().call_soon(steps.append, "other")
                    yield

            with ThreadPoolExecutor(1) as readers:
                await InternalLog(partition).replay(take, readers)
            assert steps == ["record", "other"] * 50

    asyncio.run(run())


def test_log_cleaning_waits_for_a_replay(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="acks", configs=CONFIGS) as engine:
            clean_on_request(engine)
            partition = partition_of(engine)
            wanted: dict[bytes, bytes] = {}
            for at in range(600):
                key, value = b"key %d" % (at % 7), b"value %d " % at * 10
                write(partition, key, value)
                wanted[key] = value
            assert partition.log is not None
            assert len(partition.log.segments) > 10
            await until(lambda: partition.log and not partition.log.dirty)
            found: dict[bytes | None, bytes | None] = {}
            offsets: list[int] = []

            def take(batch: Batch) -> None:
                for record in read_records(batch):
                    found[record.key] = record.value
                    offsets.append(record.offset)

            with HeldExecutor() as readers:
                replaying = asyncio.create_task(InternalLog(partition).replay(take, readers))
                await until(lambda: offsets)
                before = list(partition.log.segments)
                while await engine.cleaning.clean_one():
                    pass
                assert partition.log.segments == before
                readers.release()
                await replaying
            while await engine.cleaning.clean_one():
                pass
            assert len(partition.log.segments) < 5
            assert found == wanted
            assert offsets == sorted(set(offsets))

    asyncio.run(run())


def test_replay_of_a_corrupt_batch_fails_and_names_its_offset(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs=CONFIGS) as engine:
            partition = partition_of(engine)
            for at in range(3):
                write(partition, b"k", b"value %d" % at)
            path = tmp_path / "t-0" / "00000000000000000000.log"
            path.write_bytes(path.read_bytes().replace(b"value 1", b"value 9"))
            taken: list[int] = []
            with ThreadPoolExecutor(1) as readers, pytest.raises(BatchError, match="offset 1 is corrupt"):
                await InternalLog(partition).replay(lambda batch: taken.append(batch.base_offset), readers)
            assert taken == [0]

    asyncio.run(run())


def test_coordinator_whose_log_cannot_be_opened_is_not_available(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoHandles(Disk):
        refuses = False

        def open(self, path: Path, *, create: bool = False) -> LogFile:
            if self.refuses and "__consumer_offsets" in str(path):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
            return super().open(path, create=create)

    disk = NoHandles()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="os") as engine:
            await answer_of(engine.groups.ensure())
            command = CommitOffsets("g", NO_MEMBER, None, NO_GENERATION, (OffsetToCommit("t", 0, 1, -1, ""),))
            assert (await answer_of(engine.groups.commit(command, -1))).fault is Fault.NONE
        disk.refuses = True
        async with engine_on(tmp_path, disk, flush="os") as engine:
            await asyncio.wait_for(engine.groups.loaded(), 30)
            shard = engine.groups.shards[engine.groups.index_of("g")]
            assert shard.fault is Fault.COORDINATOR_NOT_AVAILABLE
            disk.refuses = False

    asyncio.run(run())
    assert "cannot be loaded" in caplog.text


def test_replay_of_a_file_that_was_cut_off_fails(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs=CONFIGS) as engine:
            partition = partition_of(engine)
            write(partition, b"k", b"value")
            path = tmp_path / "t-0" / "00000000000000000000.log"
            path.write_bytes(path.read_bytes()[:-10])
            with ThreadPoolExecutor(1) as readers, pytest.raises(DiskFailed):
                await InternalLog(partition).replay(lambda _: None, readers)

    asyncio.run(run())
