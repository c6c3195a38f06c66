"""Appends that are gathered over a turn of the loop are the same as appends one by one, in fewer writes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Appended, RunAppended
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.storage.files import Disk, DiskFull, LogFile
from tests.broker.failing_disk import CueDisk, answer_of, batch_of, engine_on, turns, until


class CountingDisk(CueDisk):
    """Counts the writes to logs, and has room for so many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.writes_max: int | None = None

    def write_at(self, file: LogFile, position: int, pieces: Sequence[Any], size: int) -> None:
        if file.path.suffix == ".log":
            if self.writes == self.writes_max:
                raise DiskFull(errno.ENOSPC, "no room")
            self.writes += 1
        super().write_at(file, position, pieces, size)


def on_engine(tmp_path: Path, body: Callable[[EmbeddedEngine, CountingDisk], Any], **options: Any) -> None:
    disk = CountingDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, **{"flush": "os", **options}) as engine:
            await body(engine, disk)

    asyncio.run(run())


def gathered(engine: EmbeddedEngine, *calls: Callable[[], Any]) -> list[Any]:
    engine.gather()
    results = [call() for call in calls]
    engine.settle()
    return [result.result if isinstance(result, Pending) and result.done else result for result in results]


async def values(engine: EmbeddedEngine) -> list[tuple[bytes | None, bytes | None]]:
    partition = engine.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    await until(lambda: partition.high_watermark == partition.log.log_end_offset)
    found = await answer_of(engine.read_records("t", 0, 0, 10_000, 1 << 24))
    assert found.fault in (Fault.NONE, Fault.OFFSET_OUT_OF_RANGE)
    return [
        (None if r.key is None else bytes(r.key), None if r.value is None else bytes(r.value)) for r in found.records
    ]


def test_batches_of_a_turn_are_one_write_with_a_result_each(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        before = disk.writes
        first, second, third = gathered(
            engine,
            lambda: engine.append("t", 0, [batch_of(b"a", b"b")], Acks.LEADER),
            lambda: engine.append("t", 0, [batch_of(b"c"), batch_of(b"d")], Acks.LEADER),
            lambda: engine.append("t", 0, [batch_of(b"e")], Acks.NONE),
        )
        assert disk.writes == before + 1
        assert [result.base_offset for result in (*first, *second, *third)] == [0, 2, 3, 4]
        assert [value for _, value in await values(engine)] == [b"a", b"b", b"c", b"d", b"e"]

    on_engine(tmp_path, body)


def test_bare_records_of_a_turn_become_one_batch_with_a_result_each(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        before = disk.writes
        results = gathered(
            engine,
            lambda: engine.append_run("t", 0, [b"a"], None, Acks.LEADER),
            lambda: engine.append_run("t", 0, [b"b", b"c"], [b"k", None], Acks.LEADER),
            lambda: engine.append_run("t", 0, [b"d"], None, Acks.LEADER),
        )
        assert disk.writes == before + 1
        assert results == [
            RunAppended(Fault.NONE, 0, 1),
            RunAppended(Fault.NONE, 1, 2),
            RunAppended(Fault.NONE, 3, 1),
        ]
        assert await values(engine) == [(None, b"a"), (b"k", b"b"), (None, b"c"), (None, b"d")]

    on_engine(tmp_path, body)


def test_a_bad_batch_of_one_is_refused_alone(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        damaged = batch_of(b"b")
        damaged[-1] ^= 1
        first, second, third = gathered(
            engine,
            lambda: engine.append("t", 0, [batch_of(b"a")], Acks.LEADER),
            lambda: engine.append("t", 0, [damaged], Acks.LEADER),
            lambda: engine.append("t", 0, [batch_of(b"c")], Acks.LEADER),
        )
        assert second[0].fault is Fault.CORRUPT_MESSAGE
        assert (first[0].base_offset, third[0].base_offset) == (0, 1)

    on_engine(tmp_path, body)


def test_a_record_without_a_key_spoils_no_other_run_of_a_compacted_topic(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        first, second = gathered(
            engine,
            lambda: engine.append_run("t", 0, [b"a"], None, Acks.LEADER),
            lambda: engine.append_run("t", 0, [b"b"], [b"k"], Acks.LEADER),
        )
        assert first.fault is Fault.INVALID_RECORD
        assert second == RunAppended(Fault.NONE, 0, 1)

    on_engine(tmp_path, body, configs={"cleanup.policy": "compact"})


def test_a_duplicate_in_the_same_turn_has_the_offset_of_its_original(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        def batch() -> memoryview:
            return batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)

        first, second = gathered(
            engine,
            lambda: engine.append("t", 0, [batch()], Acks.LEADER),
            lambda: engine.append("t", 0, [batch()], Acks.LEADER),
        )
        # the second is checked before the first is written: it is refused or seen as the same, never appended again
        assert first[0].base_offset == 0
        assert second[0].fault is not Fault.NONE or second[0].base_offset == 0
        assert len(await values(engine)) == 1

    on_engine(tmp_path, body)


def test_acks_all_waits_for_the_flush_and_acks_one_does_not(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        disk.hold()
        all_batches, one, all_run, none_run = gathered(
            engine,
            lambda: engine.append("t", 0, [batch_of(b"a")], Acks.ALL),
            lambda: engine.append("t", 0, [batch_of(b"b")], Acks.LEADER),
            lambda: engine.append_run("t", 0, [b"c"], None, Acks.ALL),
            lambda: engine.append_run("t", 0, [b"d"], None, Acks.LEADER),
        )
        assert one[0].base_offset == 1
        assert none_run == RunAppended(Fault.NONE, 3, 1)
        await until(lambda: disk.syncs_waiting)
        await turns()
        assert not all_batches.done
        assert not all_run.done
        disk.release()
        assert (await answer_of(all_batches))[0] == Appended(Fault.NONE, 0, -1, 0)
        assert await answer_of(all_run) == RunAppended(Fault.NONE, 2, 1)

    on_engine(tmp_path, body, flush="acks")


def test_a_failed_flush_is_told_to_all_who_waited(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        disk.sync_error = 5
        waiting = gathered(
            engine,
            lambda: engine.append("t", 0, [batch_of(b"a")], Acks.ALL),
            lambda: engine.append("t", 0, [batch_of(b"b")], Acks.ALL),
            lambda: engine.append_run("t", 0, [b"c"], None, Acks.ALL),
            lambda: engine.append_run("t", 0, [b"d"], None, Acks.ALL),
        )
        for batches in waiting[:2]:
            assert (await answer_of(batches))[0].fault is Fault.STORAGE_ERROR
        for run in waiting[2:]:
            assert (await answer_of(run)).fault is Fault.STORAGE_ERROR

    on_engine(tmp_path, body, flush="acks")


@pytest.mark.parametrize("segments_fit", [0, 1, 2])
def test_what_the_disk_did_not_take_is_told_to_those_whose_it_was(tmp_path: Path, segments_fit: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        disk.writes_max = disk.writes + segments_fit
        results = gathered(engine, *[lambda: engine.append_run("t", 0, [bytes(700)], None, Acks.LEADER)] * 3)
        assert [result.fault is Fault.NONE for result in results] == [at < segments_fit for at in range(3)]
        assert [result.base_offset for result in results if result.written] == list(range(segments_fit))
        assert len(await values(engine)) == segments_fit

    # a record a batch, and a batch a segment
    on_engine(tmp_path, body, configs={"max.message.bytes": "1000", "segment.bytes": "1000"})


append_calls = st.lists(
    st.tuples(
        st.sampled_from(["batch", "run", "keyed"]),
        st.lists(st.binary(max_size=300), min_size=1, max_size=4),
        st.sampled_from([Acks.ALL, Acks.LEADER]),
    ),
    min_size=1,
    max_size=8,
)


@given(append_calls, st.integers(300, 3_000))
@settings(max_examples=25)
def test_gathered_and_single_appends_lead_to_the_same_log(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, list[bytes], int]], batch_bytes_max: int
) -> None:
    async def appended(engine: EmbeddedEngine, gathers: bool) -> tuple[list[Any], Any]:
        def call(kind: str, payload: list[bytes], acks: int) -> Any:
            if kind == "batch":
                return engine.append("t", 0, [batch_of(*payload[:1])], acks)
            keys = [value[:1] or None for value in payload] if kind == "keyed" else None
            return engine.append_run("t", 0, payload, keys, acks)

        if gathers:
            engine.gather()
        # batches of producers go before bare records
        ordered = sorted(calls, key=lambda one: one[0] != "batch")
        results = [call(*one) for one in ordered]
        if gathers:
            engine.settle()
        answers = [await answer_of(result) for result in results]
        told = [
            [one.base_offset for one in answer] if isinstance(answer, list) else (answer.base_offset, answer.written)
            for answer in answers
        ]
        return told, await values(engine)

    async def run() -> None:
        found = []
        for gathers in (False, True):
            place = tmp_path_factory.mktemp("log")
            configs = {"max.message.bytes": str(batch_bytes_max + 200)}
            async with engine_on(place, Disk(), configs=configs, flush="acks") as engine:
                found.append(await appended(engine, gathers))
        assert found[0] == found[1]

    asyncio.run(run())
