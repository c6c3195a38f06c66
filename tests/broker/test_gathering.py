"""Appends that are gathered over a turn of the loop are the same as appends one by one, in fewer writes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Appended, RunAppended
from penstock.broker.partition import Partition
from penstock.broker.transactions import MarkerWriter
from penstock.coordination.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit, Producer
from penstock.coordination.transaction_commands import Identity, WriteMarkers
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.batch import batches
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


def test_bare_records_of_a_turn_keep_their_own_times(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        before = disk.writes
        now_ms = engine.now_ms()
        stamps = [now_ms - 50, 0, now_ms + 7, now_ms + 2**60, now_ms - 50]
        results = gathered(
            engine, *(partial(engine.append_run, "t", 0, [b"v"], None, Acks.LEADER, stamp) for stamp in stamps)
        )
        assert disk.writes == before + 1
        assert [result.fault for result in results] == [*[Fault.NONE] * 3, Fault.INVALID_TIMESTAMP, Fault.NONE]
        found = await answer_of(engine.read_records("t", 0, 0, 10, 1 << 20))
        first, unnamed, third, last = (record.timestamp for record in found.records)
        assert (first, third, last) == (now_ms - 50, now_ms + 7, now_ms - 50)
        assert now_ms <= unnamed <= engine.now_ms()

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
        for appended in waiting[:2]:
            assert (await answer_of(appended))[0].fault is Fault.STORAGE_ERROR
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


# ---- groups ------------------------------------------------------------------------------------------------------------


def commit(engine: EmbeddedEngine, offset: int, partition: int = 0) -> Any:
    offsets = (OffsetToCommit("t", partition, offset, -1, None),)
    return engine.groups.ask("g", CommitOffsets("g", "", None, -1, offsets))


async def committed(engine: EmbeddedEngine) -> dict[int, int | None]:
    found = await answer_of(engine.groups.ask("g", FetchOffsets("g", {"t": (0, 1, 2)}, require_stable=False)))
    return {at: one.value.offset for at, one in found.offsets["t"].items() if one.value is not None}


async def coordinated(engine: EmbeddedEngine) -> Partition:
    """The partition of the group's records, once its coordinator serves."""
    assert await answer_of(engine.groups.ensure()) is Fault.NONE
    await engine.groups.loaded()
    place = engine.groups.partition_of("g")
    partition = engine.partition(place.topic, place.partition)
    assert partition is not None
    return partition


def test_commits_of_a_turn_are_one_write_and_hold_after_a_restart(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        partition = await coordinated(engine)
        before = disk.writes
        results = gathered(
            engine, lambda: commit(engine, 5), lambda: commit(engine, 7, 1), lambda: commit(engine, 6), lambda: None
        )
        assert [result.fault for result in results[:3]] == [Fault.NONE] * 3
        assert disk.writes == before + 1
        assert partition.log is not None
        assert partition.log.log_end_offset == 3
        assert await committed(engine) == {0: 6, 1: 7}

    on_engine(tmp_path, body)

    async def again(engine: EmbeddedEngine, _disk: CountingDisk) -> None:
        await coordinated(engine)
        assert await committed(engine) == {0: 6, 1: 7}

    on_engine(tmp_path, again)


def test_commits_that_found_no_room_are_refused_and_forgotten(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        await coordinated(engine)
        assert (await answer_of(commit(engine, 1))).fault is Fault.NONE
        disk.writes_max = disk.writes
        results = gathered(engine, lambda: commit(engine, 5), lambda: commit(engine, 7, 1))
        assert results == [Fault.COORDINATOR_NOT_AVAILABLE] * 2
        disk.writes_max = None
        await engine.groups.loaded()
        assert await committed(engine) == {0: 1}

    on_engine(tmp_path, body)


def test_a_marker_comes_after_the_commits_that_were_there_before_it(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CountingDisk) -> None:
        partition = await coordinated(engine)
        offsets = (OffsetToCommit("t", 0, 9, -1, None),)
        inside = CommitOffsets("g", "", None, -1, offsets, Producer(7, 0))
        assert (await answer_of(engine.groups.ask("g", inside))).fault is Fault.NONE
        place = engine.groups.partition_of("g")
        markers = WriteMarkers("x", Identity(7, 0), 0, True, frozenset({place}), 1)
        engine.gather()
        plain = commit(engine, 5)
        MarkerWriter(engine.partition, engine.groups, engine.now_ms).write(markers, place)
        engine.settle()
        assert (await answer_of(plain)).fault is Fault.NONE
        assert partition.log is not None
        written = batches(memoryview(partition.log.active.path.read_bytes()))
        assert [batch.is_control for batch in written] == [False, False, True]
        assert await committed(engine) == {0: 5}

    on_engine(tmp_path, body)


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
