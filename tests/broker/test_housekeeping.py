"""What topic configs make the broker do by itself: segments, retention, flushes, checkpoints."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import housekeeping
from penstock.broker.clock import Clock, passed_ms, wall_ms
from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import NewTopic
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.partition import Partition
from penstock.model.errors import Fault
from penstock.model.topic_config import KEYS
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.log import PartitionLog
from tests.broker.failing_disk import CueDisk, answer_of, batch_of, engine_on, turns, until
from tests.storage.logs import read_all

HOUR_MS = 3_600_000


class MovedClock(Clock):
    """The real clocks, moved by the test."""

    __slots__ = ("passed_step_ms", "wall_step_ms")

    def __init__(self) -> None:
        self.wall_step_ms = self.passed_step_ms = 0
        super().__init__(lambda: wall_ms() + self.wall_step_ms, lambda: passed_ms() + self.passed_step_ms)


class QuickDisk(Disk):
    """Real files, without waiting for the platter."""

    def sync_directory(self, path: Path) -> None:
        pass

    def replace_whole(self, path: Path, data: object, *, durable: bool = True) -> None:
        super().replace_whole(path, data, durable=False)  # type: ignore[arg-type]


def log_of(engine: EmbeddedEngine, topic: str = "t", partition: int = 0) -> PartitionLog:
    found = engine.partition(topic, partition)
    assert found is not None
    assert found.log is not None
    return found.log


async def write(engine: EmbeddedEngine, *values: bytes) -> None:
    for value in values:
        (done,) = await answer_of(engine.append("t", 0, [batch_of(value)], -1))
        assert done.fault is Fault.NONE, done


async def alter(engine: EmbeddedEngine, **configs: str) -> None:
    changes = {name.replace("_", "."): value for name, value in configs.items()}
    (done,) = await answer_of(engine.alter_configs({"t": changes}, validate_only=False))
    assert done.fault is Fault.NONE, done.text


def test_altered_configs_act_on_the_next_append(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, QuickDisk()) as engine:
            await write(engine, b"x" * 100, b"x" * 100)
            assert len(log_of(engine).segments) == 1
            await alter(engine, segment_bytes="200")
            await write(engine, b"x" * 100, b"x" * 100)
            assert len(log_of(engine).segments) == 3
            await alter(engine, max_message_bytes="150")
            (refused,) = await answer_of(engine.append("t", 0, [batch_of(b"x" * 100)], -1))
            assert refused.fault is Fault.MESSAGE_TOO_LARGE

    asyncio.run(run())


def test_retention_by_size_acts_at_every_roll_and_deletes_files_once_the_start_is_safe(tmp_path: Path) -> None:
    configs = {"segment.bytes": "200", "retention.bytes": "500", "file.delete.delay.ms": "0"}

    async def run() -> None:
        disk = QuickDisk()
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            await write(engine, *[b"%d" % n * 50 for n in range(9)], b"last")
            log = log_of(engine)
            assert log.log_start_offset > 0
            assert 500 <= log.size_bytes <= 500 + 2 * 200
            await engine.housekeeping.retain()  # what was not flushed yet when its segment was closed
            await engine.housekeeping.checkpoint()
            await engine.housekeeping.retain()
            kept = {f"{segment.base_offset:020d}.log" for segment in log.segments}
            assert {path.name for path in (tmp_path / "t-0").glob("*.log*")} == kept
            assert read_all(log, disk)[-1][2] == b"last"
            start = log.log_start_offset
        async with engine_on(tmp_path, disk) as engine:
            assert log_of(engine).log_start_offset == start

    asyncio.run(run())


def test_retention_counts_what_it_deleted_and_runs_that_deleted_nothing(tmp_path: Path) -> None:
    configs = {"segment.bytes": "200", "retention.ms": str(HOUR_MS)}

    async def run() -> None:
        async with engine_on(tmp_path, QuickDisk(), configs=configs) as engine:
            await write(engine, *[b"%d" % n * 50 for n in range(6)])
            totals = engine.housekeeping.totals
            await engine.housekeeping.retain()
            assert totals == housekeeping.RetentionTotals(idle_runs=1)
            old = log_of(engine).segments[:2]
            for segment in old:
                segment.max_timestamp -= 2 * HOUR_MS
            await engine.housekeeping.retain()
            assert totals == housekeeping.RetentionTotals(2, sum(segment.size for segment in old), 1)

    asyncio.run(run())


def test_retention_by_time_acts_in_the_background(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(
            tmp_path,
            QuickDisk(),
            configs={"segment.bytes": "200", "retention.ms": str(HOUR_MS)},
            retention_check_interval_ms=20,
        ) as engine:
            await write(engine, *[b"%d" % n * 50 for n in range(6)])
            log = log_of(engine)
            assert log.log_start_offset == 0
            for segment in log.segments[:2]:
                segment.max_timestamp -= 2 * HOUR_MS
            third = log.segments[2].base_offset
            await until(lambda: log.log_start_offset == third)

    asyncio.run(run())


def test_nothing_is_deleted_by_age_after_a_clock_jump(tmp_path: Path) -> None:
    async def run() -> None:
        configs = {"segment.bytes": "200", "retention.ms": str(HOUR_MS)}
        clock = MovedClock()
        async with engine_on(tmp_path, QuickDisk(), configs=configs, clock=clock) as engine:
            await write(engine, *[b"%d" % n * 50 for n in range(6)])
            clock.wall_step_ms = 10 * 365 * 24 * HOUR_MS
            await engine.housekeeping.retain()
            assert log_of(engine).log_start_offset == 0
            clock.wall_step_ms = 0
            clock.passed_step_ms = 2 * HOUR_MS
            await engine.housekeeping.retain()
            assert log_of(engine).log_start_offset == 0

    asyncio.run(run())


@pytest.mark.parametrize("too_long", [0, 1])
def test_idle_producers_are_forgotten_after_seven_days(tmp_path: Path, too_long: int) -> None:
    async def run() -> None:
        clock = MovedClock()
        async with engine_on(tmp_path, QuickDisk(), clock=clock) as engine:
            batch = build_batch([NewRecord(1, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
            (done,) = await answer_of(engine.append("t", 0, [memoryview(batch)], -1))
            assert done.fault is Fault.NONE, done
            partition = engine.partition("t", 0)
            assert partition is not None
            clock.wall_step_ms = clock.passed_step_ms = 7 * 24 * HOUR_MS + (1 if too_long else -1) * HOUR_MS
            await engine.housekeeping._expire_producers()
            assert list(partition.producers.ids()) == ([] if too_long else [7])

    asyncio.run(run())


def test_retention_by_size_continues_after_a_clock_jump(tmp_path: Path) -> None:
    async def run() -> None:
        configs = {"segment.bytes": "200", "retention.bytes": "250"}
        clock = MovedClock()
        async with engine_on(tmp_path, QuickDisk(), configs=configs, clock=clock) as engine:
            clock.wall_step_ms = 10 * 365 * 24 * HOUR_MS
            await engine.housekeeping.retain()
            await write(engine, *[b"%d" % n * 50 for n in range(6)])
            await engine.housekeeping.retain()
            assert log_of(engine).log_start_offset > 0

    asyncio.run(run())


def test_background_task_runs_again_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.housekeeping.RETRY_S", 0.0)
    runs = []

    async def retain_badly(housekeeping: Housekeeping) -> None:
        runs.append(housekeeping)
        raise LookupError("unexpected")

    retain_badly.__name__ = "retain"
    monkeypatch.setattr(Housekeeping, "retain", retain_badly)

    async def run() -> None:
        async with engine_on(tmp_path, QuickDisk(), retention_check_interval_ms=1):
            await until(lambda: len(runs) >= 3)

    asyncio.run(run())
    assert "retain failed, will be retried" in caplog.text
    assert "unexpected" in caplog.text


def test_a_compacted_topic_keeps_its_segments(tmp_path: Path) -> None:
    async def run() -> None:
        configs = {"segment.bytes": "200", "retention.ms": "0", "retention.bytes": "0", "cleanup.policy": "compact"}
        async with engine_on(tmp_path, QuickDisk(), configs=configs) as engine:
            for n in range(6):
                view = memoryview(build_batch([NewRecord(time.time_ns() // 10**6, b"key%d" % n, b"v" * 50)]))
                (done,) = await answer_of(engine.append("t", 0, [view], -1))
                assert done.fault is Fault.NONE
            await engine.housekeeping.retain()
            assert log_of(engine).log_start_offset == 0

    asyncio.run(run())


def test_flush_messages_flushes_after_so_many_records(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        configs = {"penstock.flush": "os", "flush.messages": "3"}
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            disk.synced.clear()
            await write(engine, b"a", b"b")
            assert log_of(engine).flushed_offset == 0
            await write(engine, b"c")
            await until(lambda: log_of(engine).flushed_offset == 3)

    asyncio.run(run())


def test_flush_messages_counts_transaction_markers(tmp_path: Path) -> None:
    async def run() -> None:
        configs = {"penstock.flush": "os", "flush.messages": "3"}
        async with engine_on(tmp_path, CueDisk(), configs=configs) as engine:
            await write(engine, b"a", b"b")
            partition = engine.partition("t", 0)
            assert partition is not None
            partition.append_marker(Marker(MarkerKind.COMMIT, 0), 7, 0, 1, engine.now_ms())
            await until(lambda: log_of(engine).flushed_offset == 3)

    asyncio.run(run())


@pytest.mark.parametrize(("policy", "extra"), [("interval", {}), ("os", {"flush.ms": "10"})])
def test_timed_flushes_come_by_themselves(tmp_path: Path, policy: str, extra: dict[str, str]) -> None:
    async def run() -> None:
        configs = {"penstock.flush": policy, **extra}
        async with engine_on(tmp_path, CueDisk(), configs=configs, flush_interval_ms=10) as engine:
            await write(engine, b"a")
            await until(lambda: log_of(engine).flushed_offset == 1)

    asyncio.run(run())


def test_a_flush_ms_below_the_brokers_interval_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with engine_on(
            tmp_path, CueDisk(), configs={"penstock.flush": "os"}, flush_interval_ms=3_600_000
        ) as engine:
            await write(engine, b"a")
            await alter(engine, flush_ms="20")
            await until(lambda: log_of(engine).flushed_offset == 1)
            # from here on only the topic's own setting makes the broker look again within the hour
            monkeypatch.setattr(housekeeping, "FLUSH_LOOK_MS_MAX", 3_600_000)
            for value in (b"b", b"c"):
                await write(engine, value)
                await until(lambda: not log_of(engine).dirty)

    asyncio.run(run())


@given(st.integers(1, 2_000), st.integers(1, 2_000), st.lists(st.integers(0, 5_000), min_size=1, max_size=20))
def test_no_append_waits_longer_than_its_topic_allows(within_ms: int, look_ms: int, waits_ms: list[int]) -> None:
    """Looks come every `look_ms` at the latest, which is at most what the topic allows."""
    look_ms = min(look_ms, within_ms)

    class Log:
        dirty = False

    partition = Partition.__new__(Partition)
    partition.log = Log()  # type: ignore[assignment]
    partition.durable = False
    partition.flushes_by_interval = False
    partition.flush_within_ms = within_ms
    partition._flush_seen_ms = 0
    now_ms = 0
    for wait_ms in waits_ms:
        appended_ms = now_ms + wait_ms
        while True:
            now_ms += look_ms
            Log.dirty = now_ms >= appended_ms
            if partition.flush_is_due(now_ms, now_ms + look_ms, 1_000_000):
                break
        assert Log.dirty
        assert now_ms - appended_ms <= within_ms


def test_the_flush_policy_of_a_topic_goes_before_the_brokers(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, CueDisk(), configs={"penstock.flush": "os"}, flush="always") as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            assert (partition.durable, partition.waits_always) == (False, False)
            await alter(engine, penstock_flush="always")
            assert (partition.durable, partition.waits_always) == (True, True)

    asyncio.run(run())


def test_every_config_is_read_somewhere() -> None:
    """A config that nothing reads would be a promise that nothing keeps."""
    source = Path(housekeeping.__file__).parents[1]
    code = "".join(
        path.read_text() for path in source.rglob("*.py") if path.name not in ("topic_config.py", "configs.py")
    )
    only_one_value = {"compression_type", "min_insync_replicas", "preallocate", "unclean_leader_election_enable"}
    read_by_name = {"cleanup_policy", "message_timestamp_type"}
    unread = {key.field for key in KEYS.values() if f".{key.field}" not in code}
    assert unread <= only_one_value | read_by_name


def test_a_checkpoint_stores_indexes_snapshots_and_recovery_points(tmp_path: Path) -> None:
    async def run() -> None:
        disk = QuickDisk()
        async with engine_on(tmp_path, disk, configs={"index.interval.bytes": "100"}) as engine:
            for n in range(10):
                view = batch_of(b"x" * 100, producer_id=5, producer_epoch=0, base_sequence=n)
                (done,) = await answer_of(engine.append("t", 0, [view], -1))
                assert done.fault is Fault.NONE
            await engine.housekeeping.checkpoint()
            log = log_of(engine)
            assert len(log.active.offsets.path.read_bytes()) >= 8 * 5
            assert (log.directory / "00000000000000000010.snapshot").exists(), "though there were index entries too"
            for _ in range(3):
                view = batch_of(b"x" * 100, producer_id=5, producer_epoch=0, base_sequence=log.log_end_offset)
                await answer_of(engine.append("t", 0, [view], -1))
                await engine.housekeeping.checkpoint()
            names = sorted(path.name for path in log.directory.glob("*.snapshot"))
            assert names == ["00000000000000000012.snapshot", "00000000000000000013.snapshot"]
        (tmp_path / "clean-stop").unlink()
        directory = DataDirectory(tmp_path)
        assert directory._bounds is not None
        assert directory._bounds["t-0"].recovery_point == 13
        directory.close([], clean=False)

    asyncio.run(run())


def test_a_thousand_partitions_live_on_64_open_files(tmp_path: Path) -> None:
    partitions = 1_000

    async def run(start: int) -> None:
        disk = QuickDisk()
        engine = EmbeddedEngine(DataDirectory(tmp_path, disk=disk, open_files_max=64), EngineSettings(flush="os"))
        engine.start()
        if start == 0:
            (made,) = await answer_of(engine.create_topics([NewTopic("many", partitions)], validate_only=False))
            assert made.fault is Fault.NONE
        before = len(os.listdir("/proc/self/fd"))
        for partition in range(partitions):
            (done,) = await answer_of(engine.append("many", partition, [batch_of(b"%d" % partition)], 1))
            assert (done.fault, done.base_offset) == (Fault.NONE, start)
        assert len(os.listdir("/proc/self/fd")) <= before + 64 + 16
        assert len(engine.directory.files) <= 64
        for partition in range(0, partitions, 7):
            rows = read_all(log_of(engine, "many", partition), disk)
            assert [value for _, _, value in rows] == [b"%d" % partition] * (start + 1)
        await engine.stop()

    asyncio.run(run(0))
    asyncio.run(run(1))


def test_a_partition_that_cannot_be_checkpointed_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        disk = CueDisk()
        async with engine_on(tmp_path, disk) as engine:
            await answer_of(engine.create_topics([NewTopic("u", 1, 1, {})], validate_only=False))
            for topic in ("t", "u"):
                fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
                (done,) = await answer_of(engine.append(topic, 0, [batch_of(b"x", **fields)], -1))
                assert done.fault is Fault.NONE, done

            def refuse(operation: str, path: Path) -> None:
                if path.parent.name == "t-0":
                    raise OSError(errno.EIO, "on cue", str(path))

            disk.refuse = refuse
            await engine.housekeeping.checkpoint()
            disk.refuse = None
            assert list((tmp_path / "u-0").glob("*.snapshot"))
            assert b'"u-0":[1,' in (tmp_path / "checkpoint").read_bytes()
            [warning] = [record for record in caplog.records if "t-0" in record.getMessage()]
            assert warning.levelname == "WARNING"
            await engine.housekeeping.checkpoint()
            assert list((tmp_path / "t-0").glob("*.snapshot"))

    asyncio.run(run())


def test_a_partition_whose_segments_cannot_be_deleted_does_not_keep_the_others(tmp_path: Path) -> None:
    async def run() -> None:
        disk = CueDisk()
        configs = {"segment.bytes": "200"}
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            await answer_of(engine.create_topics([NewTopic("u", 1, 1, configs)], validate_only=False))
            for topic in ("t", "u"):
                for number in range(4):
                    (done,) = await answer_of(engine.append(topic, 0, [batch_of(b"%d" % number * 100)], -1))
                    assert done.fault is Fault.NONE, done
                log_of(engine, topic).drop_segments(2)

            def refuse(operation: str, path: Path) -> None:
                if operation == "rename" and path.parent.name == "t-0":
                    raise OSError(errno.EIO, "on cue", str(path))

            disk.refuse = refuse
            await engine.housekeeping.checkpoint()
            disk.refuse = None
            assert not (tmp_path / "u-0" / "00000000000000000000.log").exists()
            assert (tmp_path / "t-0" / "00000000000000000000.log").exists()
            await engine.housekeeping.checkpoint()
            assert not (tmp_path / "t-0" / "00000000000000000000.log").exists()

    asyncio.run(run())


def test_retention_drops_segments_though_an_old_file_cannot_be_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        disk = CueDisk()
        configs = {"segment.bytes": "200", "file.delete.delay.ms": "0"}
        async with engine_on(tmp_path, disk, configs=configs) as engine:
            for number in range(6):
                (done,) = await answer_of(engine.append("t", 0, [batch_of(b"%d" % number * 100)], -1))
                assert done.fault is Fault.NONE, done
            log = log_of(engine)
            log.drop_segments(1)
            await engine.housekeeping.checkpoint()
            assert log.doomed
            real_unlink = disk.system_calls.unlink

            def unlink(path: Path) -> None:
                if path.name.endswith(".deleted"):
                    raise OSError(errno.EPERM, "on cue", str(path))
                real_unlink(path)

            disk.system_calls.unlink = unlink
            await alter(engine, **{"retention.bytes": "200"})
            await engine.housekeeping.retain()
            assert log.size_bytes <= 400, "the newer segments went"
            disk.system_calls.unlink = real_unlink
            await engine.housekeeping.checkpoint()
            await engine.housekeeping.retain()
            assert not list((tmp_path / "t-0").glob("*.deleted"))

    asyncio.run(run())


def test_a_stop_waits_for_the_checkpoint_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    released = threading.Event()

    async def run() -> None:
        engine = EmbeddedEngine(DataDirectory(tmp_path), EngineSettings())
        engine.start()
        write_checkpoint = engine.directory.write_checkpoint

        def written_slowly(payload: bytes) -> None:
            steps.append("begin")
            if len(steps) == 1:
                assert released.wait(30)
            write_checkpoint(payload)
            steps.append("end")

        monkeypatch.setattr(engine.directory, "write_checkpoint", written_slowly)
        by_client = engine.spawn(engine.housekeeping.checkpoint(), lambda _: None)
        await until(lambda: steps)
        stopping = asyncio.create_task(engine.stop())
        await until(lambda: stopping.done() or not engine._work)
        await turns(100)
        assert steps == ["begin"], "the stop writes none meanwhile"
        released.set()
        await stopping
        assert not by_client.done
        assert steps == ["begin", "end", "begin", "end"]

    try:
        asyncio.run(run())
    finally:
        released.set()
