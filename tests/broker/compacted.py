"""A broker with a topic that is compacted, its cleaner without a process of its own, and what a reader finds in it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Append, NewTopic, Read
from penstock.model.errors import Fault
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.record import read_records
from penstock.storage.cleaner import Cleaner, CleaningJob, CleaningResult
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.log import PartitionLog
from tests.broker.failing_disk import answer_of
from tests.storage.fault_disk import FaultDisk

TOPIC = "state"
SMALL, LARGE = 1_600, 4_096
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SMALL),
    "index.interval.bytes": "256",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}

Values = dict[bytes | None, bytes | None]


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class InlineChild:
    """Does the cleaner process's work here: what is asked for fails at a known place, or not at all."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or FaultDisk()
        self.jobs: list[CleaningJob] = []

    async def clean(self, job: CleaningJob) -> CleaningResult:
        self.jobs.append(job)
        return Cleaner(job, self._disk).run()

    async def end(self) -> None:
        return None


def open_engine(
    path: Path, disk: Disk | None = None, *, child_disk: Disk | None = None, open_files_max: int = 1024
) -> tuple[EmbeddedEngine, Clock]:
    """A started engine that cleans when the test asks for it."""
    directory = DataDirectory(path, disk=disk or FaultDisk(), open_files_max=open_files_max)
    engine = EmbeddedEngine(directory, EngineSettings(flush="acks"))
    engine.start()
    clean_on_request(engine)
    clock = Clock()
    engine.cleaning._clock = clock
    engine.cleaning.child = InlineChild(child_disk)  # type: ignore[assignment]
    return engine, clock


def clean_on_request(engine: EmbeddedEngine) -> None:
    """End the broker's own cleaning task. It would otherwise clean the same log while a test calls `clean_one`."""
    task = engine.cleaning._task
    assert task is not None
    task.cancel()


def crash(engine: EmbeddedEngine) -> None:
    """The process is gone: nothing is flushed, nothing is written; the kernel drops the lock."""
    engine.directory.close((), clean=False)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def create(engine: EmbeddedEngine, topic: str = TOPIC, partitions: int = 1) -> None:
    [made] = await answer_of(engine.create_topics([NewTopic(topic, partitions, 1, CONFIGS)], validate_only=False))
    assert made.fault is Fault.NONE, made


async def append(
    engine: EmbeddedEngine, records: list[tuple[bytes, bytes | None]], topic: str = TOPIC, partition: int = 0
) -> None:
    data = build_batch([NewRecord(1_000, key, value) for key, value in records])
    [done] = await answer_of(engine.append_many([Append(topic, partition, memoryview(data))], -1))
    assert done.fault is Fault.NONE, done


async def fill(engine: EmbeddedEngine, topic: str = TOPIC, partition: int = 0, rounds: int = 8) -> None:
    """Many values of a few keys, and each round a key that never comes again, so that most segments keep something."""
    await set_segment_bytes(engine, SMALL, topic)
    for at in range(rounds):
        await append(engine, [(b"once-%d" % at, b"%d" % at)], topic, partition)
        await append(engine, [(b"key-%d" % (n % 7), b"%d-%d." % (at, n) * 15) for n in range(14)], topic, partition)
    await set_segment_bytes(engine, LARGE, topic)


async def set_segment_bytes(engine: EmbeddedEngine, segment_bytes: int, topic: str = TOPIC) -> None:
    """SMALL segments are filled, and cleaning makes one of each; with LARGE ones it makes one of two."""
    await answer_of(engine.alter_configs({topic: {"segment.bytes": str(segment_bytes)}}, validate_only=False))


def log_of(engine: EmbeddedEngine, topic: str = TOPIC, partition: int = 0) -> PartitionLog:
    found = engine.partition(topic, partition)
    assert found is not None
    assert found.log is not None, found.reason
    return found.log


async def values(engine: EmbeddedEngine, topic: str = TOPIC, partition: int = 0) -> Values:
    """The last value of each key, as a consumer finds it that reads the partition from its start."""
    found: Values = {}
    log = log_of(engine, topic, partition)
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        [read] = await answer_of(engine.read([Read(topic, partition, offset, 2_000)], 1 << 20, 1, 0, 0))
        assert read.fault is Fault.NONE, f"{read.fault} at offset {offset}"
        assert read.records is not None, f"nothing at offset {offset}"
        data = os.pread(read.records.file.fileno(), read.records.length, read.records.position)
        part = list(whole_batches(memoryview(data)))
        assert part, f"no whole batch at offset {offset}"
        for batch in part:
            assert batch.crc_is_right()
            assert batch.last_offset >= offset
            for record in read_records(batch):
                found[record.key] = record.value
            offset = batch.next_offset
    return found


async def clean_all(engine: EmbeddedEngine) -> int:
    rounds = 0
    while await engine.cleaning.clean_one():
        rounds += 1
        assert rounds < 100, "cleaning does not come to an end"
    return rounds


def names_of_cleaning(folder: Path) -> list[str]:
    """What lies in a partition's folder and is no part of the log."""
    return [name for name in os.listdir(folder) if "cleaned" in name or "replaced" in name or "swap" in name]
