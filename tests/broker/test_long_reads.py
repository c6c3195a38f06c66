"""Reads of records that take long, or unpack much: in slices, within bounds, and the same as reads at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker import offsets, pauses, record_reads
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Isolation, RecordsRead
from penstock.broker.record_reads import READ_ON_LOOP_BYTES_MAX, UNPACKED_ON_LOOP_BYTES_MAX
from penstock.model.errors import Fault
from penstock.model.limits import READ_OBJECTS_MAX
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.control import Marker, MarkerKind
from penstock.storage import segment
from tests.broker.failing_disk import CueDisk, answer_of, engine_on, turns, until

MIB = 1024 * 1024
PACKED = sorted(CODECS - {Codec.NONE})
Body = Callable[[EmbeddedEngine], Awaitable[None]]


def on_engine(path: Path, body: Body, disk: CueDisk | None = None, **options: Any) -> None:
    async def run() -> None:
        configs = {"max.message.bytes": str(64 * MIB)}
        async with engine_on(path, disk or CueDisk(), **{"configs": configs, "flush": "os", **options}) as engine:
            await body(engine)
            await until(lambda: not engine.unpacking.account.bytes_taken)

    asyncio.run(run())


def append(engine: EmbeddedEngine, records: list[NewRecord], codec: int = Codec.NONE) -> None:
    [appended] = engine.append("t", 0, [memoryview(build_batch(records, compression=codec))], Acks.LEADER)  # type: ignore[misc]
    assert appended.fault is Fault.NONE, appended


async def read(engine: EmbeddedEngine, offset: int, max_records: int = 10**9, max_bytes: int = 10**9) -> RecordsRead:
    found = await answer_of(engine.read_records("t", 0, offset, max_records, max_bytes))
    assert isinstance(found, RecordsRead)
    return found


# ---- unpacking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", PACKED)
def test_small_batch_with_large_content_is_unpacked_on_a_thread(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        value = bytes(UNPACKED_ON_LOOP_BYTES_MAX)
        append(engine, [NewRecord(1, None, b"small")], codec)
        append(engine, [NewRecord(1, None, value)], codec)
        assert values(engine.read_records("t", 0, 0, 1, 100)) == [b"small"]
        pending = engine.read_records("t", 0, 1, 1, 100)
        assert isinstance(pending, Pending)
        assert engine.unpacking.account.bytes_taken > 0
        assert values(await answer_of(pending)) == [value]
        assert values(engine.read_records("t", 0, 1, 1, 100)) == [value]

    on_engine(tmp_path, body)


def values(found: Any) -> list[bytes | None]:
    assert isinstance(found, RecordsRead)
    return [record.value for record in found.records]


def test_small_batches_in_a_row_unpack_to_little_at_once(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        value = bytes(UNPACKED_ON_LOOP_BYTES_MAX // 3)
        for _ in range(20):
            append(engine, [NewRecord(1, None, value)], Codec.ZSTD)
        found = await read(engine, 0)
        assert values(found) == [value] * 20

    on_engine(tmp_path, body)


def test_a_large_plain_batch_is_read_on_a_thread(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        value = b"v" * (READ_ON_LOOP_BYTES_MAX // 50)
        append(engine, [NewRecord(1, None, value)] * 60)
        pending = engine.read_records("t", 0, 7, 1, 100)
        assert isinstance(pending, Pending)
        assert values(await answer_of(pending)) == [value]

    on_engine(tmp_path, body)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_unpacked_size_above_the_limit_is_a_read_error(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        append(engine, [NewRecord(5, None, bytes(17 * MIB))], codec)
        append(engine, [NewRecord(6, None, b"next")], codec)
        for _ in range(2):
            assert (await read(engine, 0)).fault is Fault.STORAGE_ERROR
            assert values(await read(engine, 1)) == [b"next"]
        found = await answer_of(engine.list_offset("t", 0, 5, Isolation.READ_COMMITTED))
        assert found.fault is Fault.STORAGE_ERROR
        found = await answer_of(engine.list_offset("t", 0, 6, Isolation.READ_COMMITTED))
        assert (found.fault, found.offset) == (Fault.NONE, 1)

    on_engine(tmp_path, body)


def test_batches_wait_for_memory_to_unpack_them(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        engine.unpacking.account.bytes_max = 20 * MIB
        for at in range(6):
            append(engine, [NewRecord(at, None, bytes([at]) * MIB)], Codec.ZSTD)
        pending: list[Any] = [engine.read_records("t", 0, at, 1, 100) for at in range(6)]
        waited = 0
        while not all(one.done for one in pending):
            await asyncio.sleep(0)
            assert engine.unpacking.account.bytes_taken <= 20 * MIB
            waited = max(waited, engine.unpacking.account.waiting)
        assert waited > 0
        for at, one in enumerate(pending):
            assert values(one.result) == [bytes([at]) * MIB]

    on_engine(tmp_path, body)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_every_record_of_a_large_batch_is_found(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        count = 30_000
        append(engine, [NewRecord(100 + at, None, b"%d" % at) for at in range(count)], codec)
        for offset in (0, count - 1, 5, count // 2, count - 2):
            found = await read(engine, offset, 1, 1)
            assert [(record.offset, record.value) for record in found.records] == [(offset, b"%d" % offset)]
            found = await answer_of(engine.list_offset("t", 0, 100 + offset, Isolation.READ_UNCOMMITTED))
            assert (found.offset, found.timestamp_ms) == (offset, 100 + offset)

    on_engine(tmp_path, body)


# ---- searches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp", [-1, 7])
@pytest.mark.parametrize("restarted", [False, True])
def test_search_for_a_timestamp_among_many_equal_ones_serves_others_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp: int, restarted: bool
) -> None:
    monkeypatch.setattr(segment, "SEARCH_HEADERS_MAX", 50)
    monkeypatch.setattr(segment, "REBUILD_HEADERS", 50)
    monkeypatch.setattr(pauses, "SLICE_S", 0.0)
    count = 1_000

    async def fill(engine: EmbeddedEngine) -> None:
        await answer_of(
            engine.alter_configs({"t": {"segment.bytes": "30000", "retention.ms": "-1"}}, validate_only=False)
        )
        for _ in range(count):
            append(engine, [NewRecord(timestamp, None, b"v")])
        append(engine, [NewRecord(9, None, b"last")])
        if not restarted:
            await search(engine)

    async def search(engine: EmbeddedEngine) -> None:
        log = engine.partition("t", 0).log  # type: ignore[union-attr]
        assert log is not None
        assert len(log.segments) > 2
        for wanted, expected in ((8, (count, 9)), (10, (-1, -1)), (offsets.MAX_TIMESTAMP, (count, 9))):
            pending: Any = engine.list_offset("t", 0, wanted, Isolation.READ_UNCOMMITTED)
            served = 0
            while not pending.done:
                await asyncio.sleep(0)
                served += 1
            assert (pending.result.fault, pending.result.offset, pending.result.timestamp_ms) == (Fault.NONE, *expected)
            assert served > len(log.segments), "one turn at least for each segment"

    on_engine(tmp_path, fill)
    if restarted:
        on_engine(tmp_path, search)


# ---- slices --------------------------------------------------------------------------------------------------------


def test_headers_in_one_answer_are_limited(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        headers = (("h", b""),) * 9_999
        append(engine, [NewRecord(1, None, b"%d" % at, headers) for at in range(25)], Codec.ZSTD)
        offset, answers = 0, []
        while offset < 25:
            found = await read(engine, offset)
            answers.append(values(found))
            offset = found.next_offset
        assert [value for answer in answers for value in answer] == [b"%d" % at for at in range(25)]
        assert max(map(len, answers)) == READ_OBJECTS_MAX // 10_000

    on_engine(tmp_path, body)


def test_long_read_lets_other_requests_run(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        for _ in range(10):
            append(engine, [NewRecord(1, None, b"v")] * 5_000)
        pending = engine.read_records("t", 0, 0, 10**9, 10**9)
        assert isinstance(pending, Pending)
        found = await answer_of(pending)
        assert len(values(found)) == found.next_offset
        assert READ_OBJECTS_MAX <= found.next_offset < READ_OBJECTS_MAX + record_reads.OBJECTS_AT_ONCE

    on_engine(tmp_path, body)


def test_long_read_ends_when_its_client_disconnects(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        for _ in range(10):
            append(engine, [NewRecord(1, None, b"v")] * 5_000)
        looks: list[int] = []
        look = engine._record_reads._look

        def counted(*args: Any) -> RecordsRead:
            looks.append(1)
            return look(*args)

        engine._record_reads._look = counted  # type: ignore[method-assign]
        pending = engine.read_records("t", 0, 0, 10**9, 10**9)
        assert isinstance(pending, Pending)
        pending.abandon()
        seen = len(looks)
        await turns()
        assert len(looks) == seen

    on_engine(tmp_path, body)


def test_a_long_read_waits_once_for_the_pending_flush(tmp_path: Path) -> None:
    disk = CueDisk()

    async def body(engine: EmbeddedEngine) -> None:
        for _ in range(2):
            await answer_of(
                engine.append("t", 0, [memoryview(build_batch([NewRecord(1, None, b"a")] * 3_000))], Acks.ALL)
            )
        disk.hold()
        engine.append("t", 0, [memoryview(build_batch([NewRecord(1, None, b"b")] * 3_000))], Acks.LEADER)
        pending = engine.read_records("t", 0, 0, 10**9, 10**9)
        engine.append("t", 0, [memoryview(build_batch([NewRecord(1, None, b"c")] * 3_000))], Acks.LEADER)
        await turns(100)
        assert not pending.done  # type: ignore[union-attr]
        disk.release()
        assert values(await answer_of(pending)) == [b"a"] * 6_000 + [b"b"] * 3_000

    on_engine(tmp_path, body, disk, flush="acks")


batches = st.lists(
    st.tuples(
        st.sampled_from(["plain", "packed", "aborted", "committed", "headers"]), st.integers(1, 90), st.integers(1, 60)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=30)
@given(batches, st.data())
def test_reads_in_slices_give_what_reads_at_once_give(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        partition = engine.partition("t", 0)
        assert partition is not None
        assert partition.log is not None
        for producer, (kind, count, size) in enumerate(made):
            headers = (("h", b"w"),) * 7 if kind == "headers" else ()
            records = [NewRecord(at, b"k" * (at % 3), bytes([producer]) * size, headers) for at in range(count)]
            if kind not in ("aborted", "committed"):
                append(engine, records, Codec.LZ4 if kind == "packed" else Codec.NONE)
                continue
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
            partition.append_own(build_batch(records, **fields), 1)  # type: ignore[arg-type]
            marker = Marker(MarkerKind.ABORT if kind == "aborted" else MarkerKind.COMMIT, 0)
            partition.append_marker(marker, producer, 0, 1, 1)
        for _ in range(4):
            offset = data.draw(st.integers(0, partition.log.log_end_offset))
            max_records = data.draw(st.sampled_from([1, 5, 100, 10**9]))
            max_bytes = data.draw(st.sampled_from([1, 300, 5_000, 10**9]))
            found = []
            for at_once in (10**9, 10):
                record_reads.OBJECTS_AT_ONCE = at_once
                answer = await read(engine, offset, max_records, max_bytes)
                found.append(answer._replace(records=list(answer.records)))
            assert found[0] == found[1]

    before = record_reads.OBJECTS_AT_ONCE
    try:
        on_engine(tmp_path_factory.mktemp("reads"), body)
    finally:
        record_reads.OBJECTS_AT_ONCE = before
