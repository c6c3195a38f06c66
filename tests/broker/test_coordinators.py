"""Deadlines and background work of a coordinator: any error is logged, and the work is done later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker import coordinators
from penstock.broker.groups import GroupShard
from penstock.coordination.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from penstock.coordination.group_coordinator import GroupCoordinator
from penstock.model.errors import Fault
from penstock.storage.files import Disk
from tests.broker.failing_disk import answer_of, engine_on, until

COMMIT = CommitOffsets("g", "", None, -1, (OffsetToCommit("t", 0, 7, -1, None),))
FETCH = FetchOffsets("g", {"t": (0,)}, require_stable=False)


@asynccontextmanager
async def shard_with_an_offset(path: Path) -> AsyncIterator[GroupShard]:
    async with engine_on(path, Disk(), internal_partitions=1) as engine:
        assert (await answer_of(engine.groups.ask("g", COMMIT))).fault is Fault.NONE
        yield engine.groups.shards[0]


def test_deadline_is_handled_again_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinators, "RETRY_S", 0.0)
    ticks = []

    def tick_badly(shard: GroupShard, machine: GroupCoordinator) -> None:
        ticks.append(machine)
        raise LookupError("unexpected")

    async def body() -> None:
        async with shard_with_an_offset(tmp_path) as shard:
            monkeypatch.setattr(GroupShard, "tick", tick_badly)
            shard._tick()
            await until(lambda: len(ticks) >= 3)

    asyncio.run(body())
    assert "__consumer_offsets-0: handling a deadline failed" in caplog.text


def test_state_is_loaded_again_after_background_work_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinators, "RETRY_S", 0.0)

    async def fail() -> None:
        raise LookupError("unexpected")

    async def body() -> None:
        async with shard_with_an_offset(tmp_path) as shard:
            before = shard.machine
            shard.begin(fail())
            await until(lambda: shard.machine is not None and shard.machine is not before)
            found = await answer_of(shard.ask(FETCH))
            assert found.offsets["t"][0].value.offset == 7

    asyncio.run(body())
    assert "__consumer_offsets-0: background work failed" in caplog.text
