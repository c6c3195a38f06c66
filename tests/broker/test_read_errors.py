"""A sector that cannot be read: the reader gets an error, and nothing else changes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest

from penstock.broker import offsets
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Read, ReadResult
from penstock.broker.read_errors import ReadErrors
from penstock.coordination.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from penstock.model.errors import Fault
from penstock.model.ids import TopicName, TopicPartition
from penstock.model.limits import READ_ERRORS_REMEMBERED_MAX
from penstock.model.pending import Pending
from penstock.storage.files import Disk, ReadFailed
from penstock.storage.log import PartitionLog
from tests.broker.failing_disk import answer_of, batch_of, engine_on, until
from tests.storage.bad_sectors import BadSectors
from tests.storage.logs import records_of

PLENTY = 1 << 20


def values(first: int, count: int) -> list[bytes]:
    return [b"value %06d" % n for n in range(first, first + count)]


async def produce(engine: EmbeddedEngine, first: int, count: int) -> None:
    """Produce so many records in batches of ten, each acknowledged."""
    batches = [batch_of(*values(at, 10)) for at in range(first, first + count, 10)]
    for result in await answer_of(engine.append("t", 0, batches, Acks.ALL)):
        assert result.fault is Fault.NONE, result


async def fetch(engine: EmbeddedEngine, offset: int, max_bytes: int = 1, partition: int = 0) -> ReadResult:
    (found,) = await answer_of(engine.read([Read("t", partition, offset, max_bytes)], PLENTY, 0, 0, 0))
    assert isinstance(found, ReadResult)
    return found


async def all_values(engine: EmbeddedEngine) -> list[bytes | None]:
    """Every record of the partition, as a consumer reads them; offsets must have no gap."""
    log = log_of(engine)
    found: list[bytes | None] = []
    while len(found) < log.log_end_offset:
        result = await fetch(engine, len(found), PLENTY)
        assert result.fault is Fault.NONE
        assert result.records is not None
        data = engine.directory.disk.read_at(result.records.file, result.records.position, result.records.length)  # type: ignore[arg-type]
        records = records_of(data, len(found))
        assert [offset for offset, _, _ in records] == list(range(len(found), len(found) + len(records)))
        found += [value for _, _, value in records]
    return found


def log_of(engine: EmbeddedEngine) -> PartitionLog:
    partition = engine.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    return partition.log


def indexed_batch(log: PartitionLog, offset: int) -> tuple[int, int]:
    """Last offset and position of the batch that the index names for `offset`."""
    segment = log.segments[log.segment_at(offset)]
    relative, position = segment.offsets.floor(offset - segment.base_offset)
    assert position > 0
    return segment.base_offset + relative, position


def forget_index(log: PartitionLog, offset: int, damage: str) -> None:
    """Lose the indexes of a segment, in memory too."""
    segment = log.segments[log.segment_at(offset)]
    for index in (segment.offsets, segment.times):
        index.clear()
        index.forget()
        if damage == "missing":
            index.path.unlink()
        else:
            index.path.write_bytes(b"garbage")


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("index", ["intact", "missing", "damaged"])
def test_bad_sector_in_the_active_segment_costs_no_acknowledged_record(
    tmp_path: Path, index: str, cold: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = BadSectors(cold=cold)

    async def body() -> None:
        async with engine_on(tmp_path, Disk(calls)) as engine:
            await produce(engine, 0, 3000)
            log = log_of(engine)
            wanted, position = indexed_batch(log, 1500)
            if index != "intact":
                forget_index(log, wanted, index)
            before = (log.active.size, log.active.max_timestamp, log.active.max_timestamp_offset)
            calls.spoil(log.active.path, position)
            with caplog.at_level(logging.WARNING):
                for _ in range(3):
                    found = await fetch(engine, wanted)
                    assert (found.fault, found.records) == (Fault.STORAGE_ERROR, None)
            assert before == (log.active.size, log.active.max_timestamp, log.active.max_timestamp_offset)
            assert log.failure is None
            await produce(engine, 3000, 500)
            assert (await fetch(engine, 3400)).fault is Fault.NONE
            calls.heal()
            assert await all_values(engine) == values(0, 3500)
        for clean in (True, False):
            if not clean:
                (tmp_path / "clean-stop").unlink()
            async with engine_on(tmp_path, Disk()) as engine:
                assert await all_values(engine) == values(0, 3500)

    asyncio.run(body())
    assert "Input/output error" in caplog.text
    assert "t-0" in caplog.text
    assert "00000000000000000000.log" in caplog.text


@pytest.mark.parametrize("index", ["intact", "missing", "damaged"])
def test_bad_sector_in_a_closed_segment_never_skips_to_a_later_offset(tmp_path: Path, index: str) -> None:
    calls = BadSectors()

    async def body() -> None:
        async with engine_on(tmp_path, Disk(calls), configs={"segment.bytes": "40000"}) as engine:
            await produce(engine, 0, 3000)
            log = log_of(engine)
            assert len(log.segments) >= 2
            wanted, position = indexed_batch(log, 1000)
            segment = log.segments[log.segment_at(wanted)]
            assert segment is not log.active
            if index != "intact":
                forget_index(log, wanted, index)
            calls.spoil(segment.path, position)
            for _ in range(3):
                found = await fetch(engine, wanted)
                assert (found.fault, found.records) == (Fault.STORAGE_ERROR, None)
            calls.heal()
            assert await all_values(engine) == values(0, 3000)
        async with engine_on(tmp_path, Disk()) as engine:
            assert await all_values(engine) == values(0, 3000)

    asyncio.run(body())


def test_coordinator_with_unreadable_log_is_loaded_once_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = BadSectors()
    commit = CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 0, 7, -1, None),))
    fetch_offsets = FetchOffsets("g", {"t": (0,)}, require_stable=False)

    async def body() -> None:
        async with engine_on(tmp_path, Disk(), internal_partitions=1) as engine:
            assert (await answer_of(engine.groups.ask("g", commit))).fault is Fault.NONE
        calls.spoil(tmp_path / "__consumer_offsets-0" / "00000000000000000000.log", 0)
        async with engine_on(tmp_path, Disk(calls), internal_partitions=1) as engine:
            await engine.groups.loaded()
            assert engine.groups.ask("g", fetch_offsets) is Fault.COORDINATOR_NOT_AVAILABLE
            calls.heal()
            await until(lambda: isinstance(engine.groups.ask("g", fetch_offsets), Pending))
            found = await answer_of(engine.groups.ask("g", fetch_offsets))
            assert found.offsets["t"][0].value.offset == 7

    asyncio.run(body())
    assert "__consumer_offsets-0 cannot be loaded, will be retried in 0.25 s" in caplog.text


def test_each_failed_offset_is_logged_once_within_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    errors = ReadErrors()
    partition_id = TopicPartition(TopicName("t"), 0)
    failure = ReadFailed(5, "a file: reading 61 bytes at position 0 failed: Input/output error")
    for _ in range(3):
        errors.note(partition_id, 7, failure)
    assert [record.getMessage() for record in caplog.records] == [f"t-0: offset 7 cannot be read: {failure}"]
    for offset in range(3 * READ_ERRORS_REMEMBERED_MAX):
        errors.note(partition_id, offset, failure)
        assert len(errors._logged) <= READ_ERRORS_REMEMBERED_MAX


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_read_without_a_free_descriptor_names_no_other_offset(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is wrong with the records: a reader that goes on elsewhere would skip them."""
    disk = Disk()
    real_open = disk.system_calls.open

    def refuse(path: Path, flags: int, mode: int) -> int:
        raise OSError(code, os.strerror(code), str(path))

    async def run() -> None:
        async with engine_on(
            tmp_path, disk, configs={"segment.bytes": "1000", "index.interval.bytes": "100"}
        ) as engine:
            await produce(engine, 0, 300)
            log = log_of(engine)
            for segment in log.segments:
                engine.directory.files.forget(segment.paths())
            disk.system_calls.open = refuse
            for offset in (0, 57):
                found = await answer_of(engine.read_records("t", 0, offset, 10, PLENTY))
                assert (found.fault, found.next_offset) == (Fault.STORAGE_ERROR, offset)
                assert found.text == f"record at offset {offset} cannot be read now: {os.strerror(code)}; retry"
                assert (await fetch(engine, offset)).fault is Fault.STORAGE_ERROR
            disk.system_calls.open = real_open
            found = await answer_of(engine.read_records("t", 0, 57, 10, PLENTY))
            assert [record.value for record in found.records] == values(57, 10)

    asyncio.run(run())
    assert "next readable" not in caplog.text


def test_leader_epochs_that_cannot_be_read_are_a_storage_error(tmp_path: Path) -> None:
    disk = Disk()
    real_open = disk.system_calls.open

    def refuse(path: Path, flags: int, mode: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    async def run() -> None:
        async with engine_on(tmp_path, disk) as engine:
            engine.partition("t", 0).leader_epoch = 5  # type: ignore[union-attr]
            for opened, expected in ((refuse, Fault.STORAGE_ERROR), (real_open, Fault.NONE)):
                disk.system_calls.open = opened
                found = await answer_of(engine.list_offset("t", 0, offsets.EARLIEST, 0))
                assert found.fault is expected
                assert engine.epoch_end("t", 0, -1, 0).fault is expected

    asyncio.run(run())
