"""Large values of plain batches are found where they lie; all others are read as before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import LargeRecord, RecordsRead
from penstock.broker.large_values import LARGE_BYTES_MIN, LEAD_BYTES
from penstock.model.errors import Fault
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.storage.files import Disk
from tests.broker.failing_disk import answer_of, engine_on

PLENTY = 1 << 30
LARGE = LARGE_BYTES_MIN


def record(size: int, at: int = 0, key: bytes | None = None, headers: Any = ()) -> NewRecord:
    return NewRecord(1_700_000_000_000 + at, key, (b"%d." % at * size)[:size], headers)


async def read(
    engine: EmbeddedEngine, offset: int, max_records: int = 1, max_bytes: int = PLENTY, large: bool = True
) -> RecordsRead:
    found = await answer_of(engine.read_records("t", 0, offset, max_records, max_bytes, large=large))
    assert isinstance(found, RecordsRead)
    assert found.fault is Fault.NONE
    return found


def contents(records: Sequence[Record | LargeRecord]) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(one.offset, one.timestamp, one.key, value_of(one)) for one in records]


def value_of(one: Record | LargeRecord) -> bytes | None:
    if isinstance(one, Record):
        return one.value
    return os.pread(one.value.file.fileno(), one.value.length, one.value.position)


def on_engine(tmp_path: Path, batches: list[bytearray], body: Any, **configs: str) -> None:
    async def run() -> None:
        limits = {"max.message.bytes": "20000000", **configs}
        async with engine_on(tmp_path, Disk(), flush="os", configs=limits) as engine:
            for batch in batches:
                [appended] = await answer_of(engine.append("t", 0, [memoryview(batch)], 1))
                assert appended.fault is Fault.NONE, appended
            await body(engine)

    asyncio.run(run())


@pytest.mark.parametrize("key", [None, b"", b"key", b"k" * (LEAD_BYTES - 100)], ids=["none", "empty", "short", "long"])
@pytest.mark.parametrize("size", [LARGE, LARGE + 1, 1_000_000, 2_200_000])
def test_a_large_value_is_given_as_a_range_that_holds_it(tmp_path: Path, key: bytes | None, size: int) -> None:
    batches = [build_batch([record(size, at, key)]) for at in range(3)]

    async def body(engine: EmbeddedEngine) -> None:
        for offset in (1, 0, 2):
            found = await read(engine, offset)
            assert found.records == ()
            assert found.next_offset == offset + 1
            wanted = record(size, offset, key)
            assert contents(found.larges) == [(offset, wanted.timestamp, key, wanted.value)]

    on_engine(tmp_path, batches, body)


def test_each_large_value_of_a_batch_is_found_and_several_are_read_at_once(tmp_path: Path) -> None:
    rows = [record(LARGE + 1_000 * at, at, b"%d" % at) for at in range(10)]

    async def body(engine: EmbeddedEngine) -> None:
        everything = contents((await read(engine, 0, 100)).larges)
        assert everything == [(at, row.timestamp, row.key, row.value) for at, row in enumerate(rows)]
        for offset in range(10):
            assert contents((await read(engine, offset)).larges) == everything[offset : offset + 1]
            assert contents((await read(engine, offset, 3)).larges) == everything[offset : offset + 3]
            few = await read(engine, offset, 100, 3 * LARGE)
            assert contents(few.larges) == everything[offset : few.next_offset]
            assert 1 <= len(few.larges) <= 3

    on_engine(tmp_path, [build_batch(rows[:4]), build_batch(rows[4:])], body)


@pytest.mark.parametrize(
    ("batch", "configs"),
    [
        (build_batch([record(LARGE - 1)]), {}),
        (build_batch([record(500_000)], compression=Codec.ZSTD), {}),
        (build_batch([record(500_000, headers=(("name", b"value"),))]), {}),
        (build_batch([record(500_000, key=b"k" * LEAD_BYTES)]), {}),
        (build_batch([record(10), record(500_000)]), {}),
    ],
    ids=["just smaller", "compressed", "headers", "long key", "a small one first"],
)
def test_what_is_not_large_or_not_plain_is_read_as_before(
    tmp_path: Path, batch: bytearray, configs: dict[str, str]
) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        found = await read(engine, 0)
        plain = await read(engine, 0, large=False)
        assert found.larges == ()
        assert len(found.records) == 1
        assert list(found.records) == list(plain.records)

    on_engine(tmp_path, [batch], body, **configs)


def test_a_small_value_between_large_ones_ends_one_read_and_begins_the_next(tmp_path: Path) -> None:
    rows = [record(LARGE * 3, 0), record(5, 1), record(LARGE * 3, 2), record(LARGE * 3, 3)]

    async def body(engine: EmbeddedEngine) -> None:
        offset, found = 0, []
        while offset < 4:
            some = await read(engine, offset, 100)
            found += contents(some.larges or some.records)
            assert some.next_offset > offset
            offset = some.next_offset
        assert [value for *_, value in found] == [row.value for row in rows]

    on_engine(tmp_path, [build_batch(rows[:1]), build_batch(rows[1:2]), build_batch(rows[2:])], body)
    on_engine(tmp_path / "one", [build_batch(rows)], body)


def test_the_time_of_a_large_value_is_the_appends_where_the_topic_says_so(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        [large] = (await read(engine, 0)).larges
        [plain] = (await read(engine, 0, large=False)).records
        assert large.timestamp == plain.timestamp > record(1).timestamp

    on_engine(tmp_path, [build_batch([record(LARGE)])], body, **{"message.timestamp.type": "LogAppendTime"})


def test_what_is_asked_without_large_ones_never_has_any(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        found = await read(engine, 0, large=False)
        assert (len(found.records), found.larges) == (1, ())

    on_engine(tmp_path, [build_batch([record(LARGE)])], body)
