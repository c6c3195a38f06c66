"""A broker on a disk without room: what it refuses, what it goes on with, and how it gets out of it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks, NewTopic, Read
from penstock.coordination.group_commands import CommitOffsets, CommitResult, FetchOffsets, OffsetToCommit
from penstock.model.errors import Fault
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, DiskFailed
from penstock.storage.reserve import FILE_NAME
from penstock.storage.room import Room
from tests.broker.compacted import clean_on_request
from tests.broker.failing_disk import answer_of, batch_of, until
from tests.storage.small_disk import PLENTY, Quota

RESERVE = 1 << 20
SMALL = RESERVE // 8


class FullDisk:
    """An engine on a disk that the test fills and empties."""

    def __init__(self, path: Path, *, free: int = PLENTY, **settings: Any) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.disk = Disk()
        self.quota = Quota(self.disk, path, free)
        self.engine = EmbeddedEngine(
            DataDirectory(path, disk=self.disk, reserve_bytes=RESERVE),
            EngineSettings(**{"retention_check_interval_ms": 3_600_000, **settings}),
        )
        self.engine.start()

    def fill(self) -> None:
        """Leave no room besides the reserve."""
        self.quota.free = (self.path / FILE_NAME).stat().st_size

    def empty(self) -> None:
        self.quota.free = PLENTY

    async def make_tight(self) -> None:
        self.fill()
        assert await self.append(b"x" * 100) is Fault.STORAGE_ERROR
        assert self.disk.room is Room.TIGHT

    async def make_critical(self) -> None:
        await self.make_tight()
        self.fill()
        self.engine.directory.reserve.release(Room.TIGHT)  # type: ignore[union-attr]

    async def append(self, value: bytes, topic: str = "t") -> Fault:
        [appended] = await answer_of(self.engine.append(topic, 0, [batch_of(value)], Acks.ALL))
        return appended.fault  # type: ignore[no-any-return]

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> Fault:
        new = NewTopic(topic, partitions, 1, {name.replace("_", "."): value for name, value in configs.items()})
        [made] = await answer_of(self.engine.create_topics([new], validate_only=False))
        return made.fault  # type: ignore[no-any-return]

    async def delete(self, topic: str) -> Fault:
        [deleted] = await answer_of(self.engine.delete_topics([topic]))
        return deleted.fault  # type: ignore[no-any-return]

    async def commit(self, offset: int) -> Any:
        command = CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 0, offset, -1, ""),))
        return await answer_of(self.engine.groups.ask("g", command))

    async def committed(self) -> int:
        found = await answer_of(self.engine.groups.ask("g", FetchOffsets("g", {"t": (0,)})))
        return found.offsets["t"][0].value.offset  # type: ignore[no-any-return]

    def has_offsets_of(self, topic: str) -> bool:
        """Whether some group has committed offsets of the topic."""
        machines = [shard.machine for shard in self.engine.groups.shards.values()]
        return any(machine is not None and machine.has_offsets_of([topic]) for machine in machines)


@asynccontextmanager
async def full_disk(path: Path, **settings: Any) -> AsyncIterator[FullDisk]:
    found = FullDisk(path, **settings)
    try:
        assert await found.create("t") in (Fault.NONE, Fault.TOPIC_EXISTS)
        yield found
    finally:
        found.empty()
        await found.engine.stop()


def run(path: Path, body: Callable[[FullDisk], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with full_disk(path, **settings) as found:
            await body(found)

    asyncio.run(main())


def test_full_disk_refuses_records_and_serves_reads_commits_and_deletion(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        assert await found.append(b"before") is Fault.NONE
        await found.make_tight()
        for _ in range(3):
            assert await found.append(b"x") is Fault.STORAGE_ERROR
        results = await answer_of(found.engine.read([Read("t", 0, 0, 1 << 20)], 1 << 20, 1, 0, 0))
        assert results[0].records.length > 0
        assert await found.commit(1) == CommitResult(Fault.NONE)
        assert found.disk.room is Room.TIGHT
        assert await found.delete("t") is Fault.NONE
        assert found.engine.topic("t") is None

    run(tmp_path, body)


def test_own_topics_are_created_on_a_full_disk_and_those_of_clients_are_not(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        await found.make_tight()
        assert await found.create("u", partitions=3) is Fault.STORAGE_ERROR
        [grown] = await answer_of(found.engine.add_partitions([("t", 4)], validate_only=False))
        assert grown.fault is Fault.STORAGE_ERROR
        assert await found.commit(1) == CommitResult(Fault.NONE)
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        assert await found.create("u", partitions=3) is Fault.NONE
        assert await found.append(b"x") is Fault.NONE

    run(tmp_path, body)


def test_topics_that_run_out_of_disk_space_leave_no_folders(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        found.quota.free = RESERVE + 500
        assert await found.create("u", partitions=50) is Fault.STORAGE_ERROR
        assert found.disk.room is Room.TIGHT
        assert not [name for name in os.listdir(tmp_path) if name.startswith("u-")]
        assert not os.listdir(tmp_path / ".trash")
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        found.quota.free = RESERVE + 500
        [grown] = await answer_of(found.engine.add_partitions([("t", 50)], validate_only=False))
        assert grown.fault is Fault.STORAGE_ERROR
        assert [name for name in os.listdir(tmp_path) if name.startswith("t-")] == ["t-0"]

    run(tmp_path, body)


def test_stray_folder_with_records_survives_a_failed_creation(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        stray = tmp_path / "u-1"
        stray.mkdir()
        (stray / "00000000000000000000.log").write_bytes(b"records of no topic")
        await found.make_tight()
        assert await found.create("u", partitions=3) is Fault.STORAGE_ERROR
        assert (stray / "00000000000000000000.log").read_bytes() == b"records of no topic"

    run(tmp_path, body)


def test_critical_disk_refuses_commits_without_loading_the_groups_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(found: FullDisk) -> None:
        assert await found.commit(7) == CommitResult(Fault.NONE)
        await found.make_critical()
        machines = [shard.machine for shard in found.engine.groups.shards.values()]
        for _ in range(3):
            assert await found.commit(8) is Fault.COORDINATOR_NOT_AVAILABLE
        assert [shard.machine for shard in found.engine.groups.shards.values()] == machines
        assert "no room" in (found.engine.coordination_problem or "")
        assert await found.committed() == 7
        assert await found.delete("t") is Fault.NONE
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        assert found.engine.coordination_problem is None
        await until(lambda: not found.has_offsets_of("t"))
        assert await found.commit(9) == CommitResult(Fault.NONE)
        assert "loaded again" not in caplog.text

    run(tmp_path, body)


def test_change_without_room_is_refused_and_not_reported_as_perhaps_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(found: FullDisk) -> None:
        await found.make_critical()
        found.quota.free = 0
        for _ in range(3):
            [altered] = await answer_of(
                found.engine.alter_configs({"t": {"retention.ms": "5000"}}, validate_only=False)
            )
            assert altered.fault is Fault.STORAGE_ERROR
        assert found.engine.topic_configs("t") == {}
        assert "may hold a change" not in caplog.text

    run(tmp_path, body)


def test_records_are_accepted_again_before_a_topic_deletion_is_answered(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        assert await found.create("u") is Fault.NONE
        await found.make_tight()
        found.empty()
        assert await found.delete("u") is Fault.NONE
        assert found.disk.room is Room.AMPLE
        assert await found.append(b"x") is Fault.NONE

    run(tmp_path, body)


def test_deleted_records_free_their_files_at_once_on_a_full_disk(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        assert await found.create("r", segment_bytes="1000", file_delete_delay_ms="60000") is Fault.NONE
        for _ in range(5):
            assert await found.append(b"x" * 900, "r") is Fault.NONE
        await found.make_tight()
        assert len(list((tmp_path / "r-0").glob("*.log"))) == 5
        assert (await answer_of(found.engine.delete_records("r", 0, 4)))[0] is Fault.NONE
        assert [path.name for path in (tmp_path / "r-0").glob("*.log*")] == ["00000000000000000004.log"]

    run(tmp_path, body)


def test_full_disk_stores_recovery_points_but_no_caches(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        await answer_of(found.engine.append("t", 0, [batch_of(b"x", **fields)], Acks.ALL))
        await found.make_tight()
        await found.engine.housekeeping.checkpoint()
        assert b'"t-0":[1,' in (tmp_path / "checkpoint").read_bytes()
        assert not list((tmp_path / "t-0").glob("*.snapshot"))
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        await found.engine.housekeeping.checkpoint()
        assert list((tmp_path / "t-0").glob("*.snapshot"))

    run(tmp_path, body, checkpoint_interval_ms=3_600_000)


def test_full_disk_pauses_log_cleaning(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        clean_on_request(found.engine)
        compacting = {"cleanup_policy": "compact", "segment_bytes": "500", "min_cleanable_dirty_ratio": "0.01"}
        assert await found.create("c", **compacting) is Fault.NONE
        for _ in range(6):
            results = await answer_of(found.engine.append_run("c", 0, [b"v" * 200], [b"k"], Acks.ALL))
            assert results.fault is Fault.NONE
        await found.make_tight()
        assert not await found.engine.cleaning.clean_one()
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        assert await found.engine.cleaning.clean_one()

    run(tmp_path, body)


# ---------------------------------------------------------------------------------------------------- without any room


def crash(found: FullDisk) -> None:
    """The process is gone; the kernel drops the lock."""
    found.engine.directory.close((), clean=False)


async def prepared(path: Path) -> None:
    """A broker with records, an open and an aborted transaction and a commit, that crashed; its reserve is gone."""
    found = FullDisk(path)
    for topic in ("t", "u"):
        assert await found.create(topic) is Fault.NONE
        for n in range(3):
            assert await found.append(b"%d" % n, topic) is Fault.NONE
    partition = found.engine.partition("t", 0)
    assert partition is not None
    fields: Any = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    partition.append_own(build_batch([NewRecord(1, None, b"taken back")], **fields), 1)
    partition.append_marker(Marker(MarkerKind.ABORT, 0), 7, 0, 1, 1)
    assert await found.commit(2) == CommitResult(Fault.NONE)
    crash(found)
    (path / FILE_NAME).unlink()
    (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n9 3\n")  # of a tail that was lost
    (path / "t-0" / "00000000000000000000.txnindex").write_bytes(b"")


async def committed_values(engine: EmbeddedEngine, topic: str) -> list[bytes]:
    found = await answer_of(engine.read_records(topic, 0, 0, 100, 1 << 20))
    assert found.fault is Fault.NONE
    return [record.value for record in found.records]


def test_broker_starts_and_serves_reads_on_a_completely_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        await prepared(tmp_path)
        caplog.clear()
        for start in range(3):  # nothing is stored of a start without room, so the epoch is the same each time
            found = FullDisk(tmp_path, free=0)
            assert found.disk.room is Room.CRITICAL
            assert found.engine.leader_epoch == 1
            assert await committed_values(found.engine, "t") == [b"0", b"1", b"2"]
            assert await found.append(b"x") is Fault.STORAGE_ERROR
            await answer_of(found.engine.spawn(found.engine.groups.loaded(), lambda _: None))
            assert await found.committed() == 2
            assert await found.commit(3) is Fault.COORDINATOR_NOT_AVAILABLE
            if start == 1:
                await found.engine.stop()
                assert not (tmp_path / "clean-stop").exists()
            else:
                with pytest.raises(OSError, match="No space left"):
                    await found.engine.housekeeping.checkpoint()
                crash(found)
        assert "Traceback" not in caplog.text
        assert [r.getMessage() for r in caplog.records if "kept in memory" in r.getMessage()]
        found = FullDisk(tmp_path, free=0)
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        assert (tmp_path / "leader-epoch").read_bytes().endswith(b"\n1\n")
        assert (tmp_path / "t-0" / "00000000000000000000.txnindex").stat().st_size > 0
        assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
        assert await found.append(b"3") is Fault.NONE
        await found.engine.stop()
        again = FullDisk(tmp_path)
        assert again.engine.leader_epoch == 1
        assert await committed_values(again.engine, "t") == [b"0", b"1", b"2", b"3"]
        await again.engine.stop()

    asyncio.run(body())


def test_start_without_room_keeps_the_recovery_point_until_its_files_are_stored(tmp_path: Path) -> None:
    """The index of aborted transactions is mended from the part of the log after the recovery point."""

    async def body() -> None:
        await prepared(tmp_path)
        before = (tmp_path / "checkpoint").read_bytes()
        found = FullDisk(tmp_path, free=0)
        found.quota.free = 300  # room for a checkpoint, not for what is owed
        real = found.disk.settle

        def no_room() -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        found.disk.settle = no_room  # type: ignore[method-assign]
        with pytest.raises(OSError, match="No space left"):
            await found.engine.housekeeping.checkpoint()
        assert (tmp_path / "checkpoint").read_bytes() == before
        found.disk.settle = real  # type: ignore[method-assign]
        found.empty()
        await found.engine.stop()

    asyncio.run(body())


def test_topic_is_deleted_even_if_the_catalogue_cannot_be_written(tmp_path: Path) -> None:
    async def body() -> None:
        await prepared(tmp_path)
        found = FullDisk(tmp_path, free=0)
        assert await found.delete("t") is Fault.NONE
        assert found.engine.topic("t") is None
        assert not [name for name in os.listdir(tmp_path) if name.startswith(("t-", ".deleted"))]
        assert b'"t"' not in (tmp_path / "topics").read_bytes()
        assert await committed_values(found.engine, "u") == [b"0", b"1", b"2"]
        found.empty()
        await until(lambda: found.disk.room is Room.AMPLE)
        assert await found.create("t") is Fault.NONE
        assert await committed_values(found.engine, "t") == []
        await found.engine.stop()

    asyncio.run(body())


def test_deletion_whose_freed_space_is_lost_is_completed_by_the_next_start(tmp_path: Path) -> None:
    async def body() -> None:
        await prepared(tmp_path)
        found = FullDisk(tmp_path, free=-(1 << 30))
        assert await found.delete("t") is Fault.NONE
        assert found.engine.topic("t") is None
        assert b'"t"' in (tmp_path / "topics").read_bytes()
        crash(found)
        again = FullDisk(tmp_path, free=-(1 << 30))
        assert again.engine.topic("t") is None
        assert [info.name for info in again.engine.topics()] == ["__consumer_offsets", "u"]
        crash(again)
        last = FullDisk(tmp_path)
        assert last.engine.topic("t") is None
        assert b'"t"' not in (tmp_path / "topics").read_bytes()
        assert not [name for name in os.listdir(tmp_path) if name.startswith((".deleted", "t-"))]
        await last.engine.stop()

    asyncio.run(body())


# ---------------------------------------------------------------------------------------------------------- every call


WRITING = ("open", "write", "write_many", "make_directory", "rename", "truncate")


class OneWithoutRoom:
    """One call of a run finds no room: the n-th of those that may."""

    def __init__(self, disk: Disk, fail_at: int) -> None:
        self.count = 0
        self._fail_at = fail_at
        for name in WRITING:
            setattr(disk.system_calls, name, self._failing(name, getattr(disk.system_calls, name)))

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            reads = name == "open" and not args[1] & os.O_CREAT
            frees = name == "truncate"
            if not reads and not frees:
                self.count += 1
                if self.count == self._fail_at:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
            return real(*args)

        return call


async def script(path: Path, fail_at: int) -> int:
    """A life of a broker in which one call finds no room, and how many calls could have. All of it succeeds, except that
    the request of a client that met the full disk may be refused and is then repeated."""
    disk = Disk()
    disk.system_calls.sync = disk.system_calls.sync_full = lambda fd: None
    directory = DataDirectory(path, disk=disk, reserve_bytes=RESERVE)
    calls = OneWithoutRoom(disk, fail_at)
    engine = EmbeddedEngine(directory, EngineSettings(retention_check_interval_ms=3_600_000))
    engine.start()

    async def room() -> None:
        assert directory.reserve is not None
        await asyncio.get_running_loop().run_in_executor(None, directory.reserve.restore)
        assert disk.room is Room.AMPLE

    async def created(topic: str) -> None:
        new = NewTopic(topic, 1, 1, {"segment.bytes": "400", "index.interval.bytes": "1"})
        [made] = await answer_of(engine.create_topics([new], validate_only=False))
        if made.fault is not Fault.NONE:
            assert made.fault is Fault.STORAGE_ERROR
            await room()
            [made] = await answer_of(engine.create_topics([new], validate_only=False))
        assert made.fault is Fault.NONE, made.text

    async def appended(value: bytes) -> None:
        [result] = await answer_of(engine.append("t", 0, [batch_of(value)], Acks.ALL))
        if result.fault is not Fault.NONE:
            assert result.fault is Fault.STORAGE_ERROR
            await room()
            [result] = await answer_of(engine.append("t", 0, [batch_of(value)], Acks.ALL))
        assert result.fault is Fault.NONE, result.text

    await created("t")
    for n in range(4):
        await appended(b"%d" % n * 150)
    command = CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 0, 3, -1, ""),))
    committed = await answer_of(engine.groups.ask("g", command))
    assert committed == CommitResult(Fault.NONE)
    assert await engine.new_producer_id() >= 0
    await engine.housekeeping.checkpoint()
    await created("u")
    [altered] = await answer_of(engine.alter_configs({"t": {"retention.ms": "1000000"}}, validate_only=False))
    assert altered.fault is Fault.NONE
    [deleted] = await answer_of(engine.delete_topics(["u"]))
    assert deleted.fault is Fault.NONE
    await room()
    await engine.stop()
    assert (path / "clean-stop").exists()
    return calls.count


async def check_after(path: Path) -> None:
    engine = EmbeddedEngine(DataDirectory(path, disk=Disk(), reserve_bytes=RESERVE), EngineSettings())
    engine.start()
    try:
        assert sorted(info.name for info in engine.topics()) == ["__consumer_offsets", "t"]
        found = await answer_of(engine.read_records("t", 0, 0, 10, 1 << 20))
        assert [record.value for record in found.records] == [b"%d" % n * 150 for n in range(4)]
        offsets = await answer_of(engine.once_loaded(lambda: engine.groups.ask("g", FetchOffsets("g", {"t": (0,)}))))
        assert offsets.offsets["t"][0].value.offset == 3
    finally:
        await engine.stop()


def test_each_write_in_turn_fails_on_a_full_disk_and_service_continues(tmp_path: Path) -> None:
    count = asyncio.run(script(tmp_path / "none", 0))
    assert count > 60
    for fail_at in range(1, count + 1):
        path = tmp_path / str(fail_at)
        asyncio.run(script(path, fail_at))
        asyncio.run(check_after(path))


def test_groups_whose_log_is_read_only_have_no_coordinator(tmp_path: Path) -> None:
    async def body(found: FullDisk) -> None:
        assert await found.commit(7) == CommitResult(Fault.NONE)
        for shard in found.engine.groups.shards.values():
            assert shard.partition.log is not None
            shard.partition.log.fail(DiskFailed(errno.EIO, "sync failed"))
        assert await found.commit(8) is Fault.COORDINATOR_NOT_AVAILABLE
        assert await found.committed() == 7
        assert "read-only after a disk error" in (found.engine.groups.problem_of("g") or "")

    run(tmp_path, body)
