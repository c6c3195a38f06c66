"""Log cleaning through the broker: the child process cleans, the parent swaps, appends and reads go on.

What happens when the disk fails is in test_cleaning_faults.py.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.broker import cleaning
from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Append, Appended, NewTopic, Read
from penstock.model.errors import Fault
from penstock.model.limits import CLEANER_MEMORY_BYTES_MAX
from penstock.model.pending import Pending
from penstock.records.batch import Batch, batches
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker, MarkerKind
from penstock.records.record import Record, read_records
from penstock.storage.data_directory import DataDirectory
from tests.broker.compacted import clean_on_request
from tests.broker.failing_disk import until

TOPIC = "state"
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


async def result_of(pending: object) -> object:
    while isinstance(pending, Pending):
        if pending.done:
            return pending.result
        await asyncio.sleep(0.001)
    return pending


async def engine_at(path: Path, **settings: object) -> EmbeddedEngine:
    engine = EmbeddedEngine(DataDirectory(path), EngineSettings(flush="acks", **settings))  # type: ignore[arg-type]
    engine.start()
    clean_on_request(engine)
    return engine


async def create(engine: EmbeddedEngine, configs: dict[str, str]) -> None:
    (made,) = await result_of(  # type: ignore[misc]
        engine.create_topics([NewTopic(TOPIC, 1, 1, configs)], validate_only=False)
    )
    assert made.fault is Fault.NONE, made


async def append(engine: EmbeddedEngine, records: list[tuple[bytes | None, bytes | None]], **how: object) -> int:
    data = build_batch([NewRecord(1_000, key, value) for key, value in records], **how)  # type: ignore[arg-type]
    (done,) = await result_of(engine.append_many([Append(TOPIC, 0, memoryview(data))], -1))  # type: ignore[misc]
    assert isinstance(done, Appended)
    assert done.fault is Fault.NONE, done
    return done.base_offset


def stored(engine: EmbeddedEngine) -> list[Record]:
    """Every record that a reader of everything would see, straight from the segment files."""
    partition = engine.partition(TOPIC, 0)
    assert partition is not None
    assert partition.log is not None
    found: list[Record] = []
    for segment in partition.log.segments:
        data = segment.read_span(0, segment.size)
        assert len(data) == segment.size
        for batch in batches(memoryview(data)):
            assert batch.crc_is_right()
            if not batch.is_control:
                found.extend(read_records(batch))
    assert [record.offset for record in found] == sorted(record.offset for record in found)
    return found


async def clean_all(engine: EmbeddedEngine) -> int:
    rounds = 0
    while await engine.cleaning.clean_one():
        rounds += 1
    return rounds


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def test_cleaning_counts_what_it_rewrote(tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, CONFIGS)
        for number in range(60):
            await append(engine, [(b"key", b"%d" % number * 100)])
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        assert partition.log is not None
        closed = partition.log.segments[:-1]
        records, size = partition.log.active.base_offset, sum(segment.size for segment in closed)
        assert await clean_all(engine) == 1
        left = sum(segment.size for segment in partition.log.segments[:-1])
        totals = engine.cleaning.totals
        assert (totals.runs, totals.segments_rewritten, totals.records_dropped) == (1, len(closed), records - 1)
        assert (totals.bytes_rewritten, totals.bytes_freed) == (left, size - left)
        await engine.stop()

    run(body)


def test_the_broker_cleans_a_log_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(cleaning, "CHECK_INTERVAL_S", 0.001)
        engine = EmbeddedEngine(DataDirectory(tmp_path), EngineSettings(flush="acks"))
        engine.start()
        await create(engine, CONFIGS)
        for number in range(60):
            await append(engine, [(b"key", b"%d" % number * 100)])
        await until(lambda: engine.cleaning.totals.runs)
        await engine.stop()

    run(body)


def test_log_cleaning_runs_again_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    async def clean_badly(cleaner: cleaning.Cleaning) -> bool:
        runs.append(cleaner)
        raise LookupError("unexpected")

    async def body() -> None:
        monkeypatch.setattr(cleaning, "CHECK_INTERVAL_S", 0.001)
        monkeypatch.setattr(cleaning.Cleaning, "clean_one", clean_badly)
        engine = EmbeddedEngine(DataDirectory(tmp_path), EngineSettings())
        engine.start()
        await until(lambda: len(runs) >= 3)
        await engine.stop()

    run(body)
    assert "log cleaning failed, retrying" in caplog.text


@pytest.mark.parametrize("seed", range(3))
def test_of_each_key_the_last_record_stays_at_its_offset(tmp_path: Path, seed: int) -> None:
    async def body() -> None:
        dice = random.Random(seed)
        engine = await engine_at(tmp_path)
        await create(engine, CONFIGS)
        written: list[tuple[int, bytes, bytes]] = []
        for _ in range(200):
            records = [(b"key-%d" % dice.randrange(20), dice.randbytes(dice.randrange(1, 60))) for _ in range(5)]
            base = await append(engine, list(records), compression=dice.choice([0, 1, 2, 3, 4]))
            written += [(base + at, key, value) for at, (key, value) in enumerate(records)]
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        assert partition.log is not None
        active_from = partition.log.active.base_offset
        assert await clean_all(engine) >= 1
        last = {key: offset for offset, key, _ in written if offset < active_from}
        wanted = [
            (offset, key, value) for offset, key, value in written if offset >= active_from or last[key] == offset
        ]
        assert [(r.offset, r.key, r.value) for r in stored(engine)] == wanted
        # offsets that are gone are skipped by a reader, and appends go on where they were
        for offset in range(0, active_from, 7):
            reads = engine.read([Read(TOPIC, 0, offset, 1 << 20)], 1 << 20, 1, 0, 0)
            (read,) = await result_of(reads)  # type: ignore[misc]
            assert read.records is not None
        assert await append(engine, [(b"key-1", b"new")]) == written[-1][0] + 1
        before = [(r.offset, r.value) for r in stored(engine)]
        await engine.stop()
        again = await engine_at(tmp_path)
        assert [(r.offset, r.value) for r in stored(again)] == before
        await again.stop()

    run(body)


def test_a_tombstone_stays_for_its_time_and_then_goes(tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, {**CONFIGS, "delete.retention.ms": "3600000"})
        await append(engine, [(b"gone", b"x" * 100)])
        await append(engine, [(b"gone", None)])
        for number in range(60):
            await append(engine, [(b"filler-%d" % (number % 3), b"y" * 200)])
        await clean_all(engine)
        gone = [record for record in stored(engine) if record.key == b"gone"]
        assert [record.value for record in gone] == [None], "the value goes, the tombstone stays"
        for number in range(60):
            await append(engine, [(b"filler-%d" % (number % 3), b"z" * 200)])
        engine.cleaning._now_ms = lambda: engine.now_ms() + 2 * 3_600_000
        await clean_all(engine)
        assert not [record for record in stored(engine) if record.key == b"gone"]
        await engine.stop()

    run(body)


def test_appends_and_reads_go_on_while_the_child_works(tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, CONFIGS)
        for number in range(400):
            await append(engine, [(b"k%d" % (number % 5), b"v" * 150)])
        cleaned = asyncio.ensure_future(clean_all(engine))
        more = 0
        while not cleaned.done():
            await append(engine, [(b"k%d" % (more % 5), b"w" * 150)])
            more += 1
        assert more > 0
        assert cleaned.result() >= 1
        values = {record.key: record.value for record in stored(engine)}
        assert values[b"k0"] is not None
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        assert partition.log is not None
        assert partition.log.log_end_offset == 400 + more
        await engine.stop()

    run(body)


def test_a_full_map_cleans_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, CONFIGS)
        for number in range(300):
            await append(engine, [(b"key-%d" % (number % 50), b"v" * 100)])
        make = engine.cleaning._job

        def small(due: object) -> object:
            return msgspec.structs.replace(make(due), keys_max=10)  # type: ignore[arg-type]

        monkeypatch.setattr(engine.cleaning, "_job", small)
        assert await clean_all(engine) > 1
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        assert partition.log is not None
        active_from = partition.log.active.base_offset
        below = [record for record in stored(engine) if record.offset < active_from]
        # a round keeps what no later record of its own map replaces: the newest of each key is always there
        newest = {record.key: record.offset for record in below}
        assert len(newest) == 50
        assert all(offset >= active_from - 50 for offset in newest.values())
        await engine.stop()

    run(body)


def test_aborted_records_go_and_markers_stay_while_data_does(tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, CONFIGS)
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        partition.producers.verified(7, 0)
        await append(engine, [(b"a", b"aborted")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        partition.append_marker(Marker(MarkerKind.ABORT, 0), 7, 0, 0, 1_000)
        partition.producers.verified(7, 0)
        await append(
            engine, [(b"a", b"committed")], producer_id=7, producer_epoch=0, base_sequence=1, transactional=True
        )
        partition.append_marker(Marker(MarkerKind.COMMIT, 0), 7, 0, 0, 1_000)
        for number in range(60):
            await append(engine, [(b"filler-%d" % (number % 3), b"y" * 200)])
        assert await clean_all(engine) >= 1
        values = [record.value for record in stored(engine) if record.key == b"a"]
        assert values == [b"committed"]
        assert partition.log is not None
        first = partition.log.segments[0]
        controls = [b for b in batches(memoryview(first.read_span(0, first.size))) if b.is_control]
        assert any(isinstance(b, Batch) and b.producer_id == 7 for b in controls)
        await engine.stop()
        again = await engine_at(tmp_path)
        reopened = again.partition(TOPIC, 0)
        assert reopened is not None
        assert reopened.last_stable_offset == reopened.high_watermark, "no transaction is left open"
        await again.stop()

    run(body)


def test_batch_too_large_to_check_is_kept_unchanged(tmp_path: Path) -> None:
    """It came before the topic was compacted. The records around it are cleaned."""

    async def body() -> None:
        engine = await engine_at(tmp_path)
        await create(engine, {"segment.bytes": "4096", "max.message.bytes": "2000000", "retention.ms": "-1"})
        await append(engine, [(b"key", b"old" * 500)])
        bomb = await append(engine, [(b"key", bytes(17_000_000))], compression=Codec.ZSTD)
        for number in range(20):
            await append(engine, [(b"key", b"%d" % number * 500)])
        changes = {TOPIC: {name: value for name, value in CONFIGS.items() if name != "segment.bytes"}}
        (altered,) = await result_of(engine.alter_configs(changes, validate_only=False))  # type: ignore[misc, arg-type]
        assert altered.fault is Fault.NONE
        partition = engine.partition(TOPIC, 0)
        assert partition is not None
        assert partition.log is not None
        assert await clean_all(engine) == 1
        records = stored(engine)
        assert records[0].offset == bomb
        assert len(records[0].value or b"") == 17_000_000
        assert records[1].offset == partition.log.active.base_offset - 1
        await engine.stop()

    run(body)


def test_the_cleaning_process_has_a_bound_of_memory() -> None:
    program = (
        "from penstock.storage import cleaner_process as child; import resource;"
        "child._limit_memory(); print(resource.getrlimit(resource.RLIMIT_DATA)[0])\n"
        "try: bytes(4 << 30)\n"
        "except MemoryError: print('refused')"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [str(CLEANER_MEMORY_BYTES_MAX), "refused"]
