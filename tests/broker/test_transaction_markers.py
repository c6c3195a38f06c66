"""End markers: a transaction that is decided ends on every partition, though a marker may find no room at first."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import transactions
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Append, Isolation, NewTopic, Read
from penstock.coordination.transaction_commands import DescribeTransaction, EndTransaction, InitProducerId
from penstock.coordination.transaction_states import Identity, Status
from penstock.model.errors import Fault
from penstock.storage.files import Disk, DiskFull, LogFile
from tests.broker.failing_disk import WAIT_S, answer_of, batch_of, engine_on, turns, until


class FullForOnePartition(Disk):
    """Has no room in the folder `full`, and counts the writes that it refused."""

    def __init__(self) -> None:
        super().__init__()
        self.full: str | None = None
        self.refused = 0

    def write_at(self, file: LogFile, position: int, buffers: Sequence[Any], total: int) -> None:
        if file.path.parent.name == self.full:
            self.refused += 1
            raise DiskFull(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_at(file, position, buffers, total)


class SlowForOnePartition(Disk):
    """Syncs of files in the folder `slow` wait for `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: str | None = None
        self.released = threading.Event()
        self.syncs_waiting = 0

    def sync(self, file: LogFile) -> None:
        if file.path.parent.name == self.slow:
            self.syncs_waiting += 1
            assert self.released.wait(WAIT_S)
        super().sync(file)


def stable_end(engine: EmbeddedEngine, partition: int) -> int:
    """The last stable offset, as a consumer with read_committed learns it."""
    [found] = engine.read([Read("t", partition, 0, 1)], 1, 0, 0, Isolation.READ_COMMITTED)  # type: ignore[misc]
    assert found.fault is Fault.NONE
    return int(found.last_stable_offset)


async def begun(engine: EmbeddedEngine) -> Identity:
    """The producer of an open transaction with a record in each of two partitions."""
    await answer_of(engine.create_topics([NewTopic("t", 2, 1, {})], validate_only=False))
    made = await answer_of(engine.transactions.ask("x", InitProducerId("x", 60_000)))
    identity = Identity(made.producer_id, made.producer_epoch)
    fields: dict[str, Any] = {**identity._asdict(), "base_sequence": 0, "transactional": True}
    appends = [Append("t", partition, batch_of(b"a", **fields)) for partition in (0, 1)]
    results = await answer_of(engine.append_transactional("x", appends, Acks.ALL, adds_partitions=True))
    assert [result.fault for result in results] == [Fault.NONE, Fault.NONE]
    return identity


async def status(engine: EmbeddedEngine) -> Status:
    described = await answer_of(engine.transactions.ask("x", DescribeTransaction("x")))
    return Status(described.state.status)


async def until_status(engine: EmbeddedEngine, wanted: Status) -> None:
    async with asyncio.timeout(WAIT_S):
        while await status(engine) is not wanted:
            await turns()


@pytest.mark.parametrize("raises_epoch", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_marker_that_finds_no_room_is_retried_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool, raises_epoch: bool
) -> None:
    monkeypatch.setattr(transactions, "MARKER_RETRY_S", 0.001)
    disk = FullForOnePartition()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None) as engine:
            identity = await begun(engine)
            disk.full = "t-0"
            end = EndTransaction("x", identity, commit=commit, raises_epoch=raises_epoch)
            assert (await answer_of(engine.transactions.ask("x", end))).fault is Fault.NONE
            await until(lambda: disk.refused and stable_end(engine, 1) == 2)
            await turns()
            assert stable_end(engine, 0) == 0
            assert await status(engine) is (Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT)
            await until(lambda: disk.refused >= 3)
            disk.full = None
            await until(lambda: stable_end(engine, 0) == 2)
            await until_status(engine, Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)

    asyncio.run(run())


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_is_not_complete_before_every_marker_is_flushed(tmp_path: Path, commit: bool) -> None:
    """Or a power cut could take the marker of a transaction that nobody ends again."""
    disk = SlowForOnePartition()

    async def run() -> None:
        async with engine_on(tmp_path, disk, topic=None) as engine:
            identity = await begun(engine)
            disk.slow = "t-0"
            try:
                end = EndTransaction("x", identity, commit=commit, raises_epoch=True)
                assert (await answer_of(engine.transactions.ask("x", end))).fault is Fault.NONE
                await until(lambda: disk.syncs_waiting and stable_end(engine, 1) == 2)
                await turns()
                assert stable_end(engine, 0) == 0
                assert await status(engine) is (Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT)
            finally:
                disk.released.set()
            await until_status(engine, Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)
            assert stable_end(engine, 0) == 2

    asyncio.run(run())
