"""Transactions on a disk that waits on cue: nothing is decided before what it decides about is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock.broker.embedded import EmbeddedEngine
from penstock.coordination.transaction_states import Status
from penstock.dialects.flymq.service import FlyMQService
from penstock.dialects.flymq.session import FlyMQSession
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from penstock.storage.files import LogFile
from tests.broker.failing_disk import CueDisk, answer_of, engine_on, turns, until
from tests.dialects.flymq.broker import Fields, Metadata, b, consume, op, s


class SomeWait(CueDisk):
    """Only the files whose path has this in it wait."""

    held = "/"

    def sync(self, file: LogFile) -> None:
        if self.held in str(file.path):
            super().sync(file)


class Talk:
    """A session, its requests and their answers, one by one."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self.session = FlyMQSession(FlyMQService(engine, DEFAULTS["flymq"]))

    def perform(self, frame: bytes) -> Any:
        [request] = self.session.feed(memoryview(frame)).requests
        return self.session.perform(request)

    async def ask(self, frame: bytes) -> Any:
        return await answer_of(self.perform(frame))

    async def begin(self) -> str:
        return Fields(await self.ask(op(0x40))).s()

    def statuses(self) -> set[Status]:
        shards = self.engine.transactions.shards.values()
        return {state.status for shard in shards if shard.machine for state in shard.machine.states.values()}


def txn_produce(name: str, value: bytes) -> bytes:
    return op(0x43, s(name) + s("t") + b(value))


def commit(name: str) -> bytes:
    return op(0x41, s(name))


def run(tmp_path: Path, body: Callable[[Talk, SomeWait], Awaitable[None]]) -> None:
    disk = SomeWait()

    async def main() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await body(Talk(engine), disk)

    asyncio.run(main())


def test_a_commit_is_not_decided_before_what_it_commits_is_flushed(tmp_path: Path) -> None:
    async def body(talk: Talk, disk: SomeWait) -> None:
        name = await talk.begin()
        assert Metadata.of(await talk.ask(txn_produce(name, b"first"))).offset == 0
        disk.held = "t-0"
        disk.hold()
        produced = talk.perform(txn_produce(name, b"second"))
        committed = talk.perform(commit(name))
        await until(lambda: disk.syncs_waiting)
        await turns()
        assert not produced.done
        assert not committed.done
        assert talk.statuses() == {Status.ONGOING}
        disk.release()
        assert Metadata.of(await answer_of(produced)).offset == 1
        assert await answer_of(committed) == s(name) + b"\x01"
        await until(lambda: talk.statuses() == {Status.COMPLETE_COMMIT})

    run(tmp_path, body)


def test_a_commit_does_not_wait_for_ever_for_produces_whose_connection_went(tmp_path: Path) -> None:
    async def body(talk: Talk, disk: SomeWait) -> None:
        name = await talk.begin()
        disk.hold()
        produced = talk.perform(txn_produce(name, b"v"))
        assert isinstance(produced, Pending)
        produced.abandon()  # what the network does when a connection goes
        committed = talk.perform(commit(name))
        await turns()
        assert not committed.done
        disk.release()
        assert await answer_of(committed) == s(name) + b"\x01"
        assert await talk.ask(consume("t", 0, 0)) == b(b"") + b(b"v")

    run(tmp_path, body)


def test_a_commit_is_answered_when_its_records_can_be_read(tmp_path: Path) -> None:
    async def body(talk: Talk, disk: SomeWait) -> None:
        name = await talk.begin()
        await talk.ask(txn_produce(name, b"v"))
        disk.held = "t-0"
        disk.hold()
        committed = talk.perform(commit(name))
        await until(lambda: disk.syncs_waiting)  # the marker: the decision itself is flushed elsewhere
        await turns()
        assert not committed.done
        disk.release()
        assert await answer_of(committed) == s(name) + b"\x01"
        found = talk.perform(consume("t", 0, 0))
        assert not isinstance(found, Pending)
        assert found == b(b"") + b(b"v")

    run(tmp_path, body)


def test_a_produce_that_fails_can_be_followed_by_one_that_does_not(tmp_path: Path) -> None:
    """Its sequence number is used again: the partition knows of no gap."""

    async def body(talk: Talk, disk: SomeWait) -> None:
        name = await talk.begin()
        await talk.ask(txn_produce(name, b"first"))
        partition = talk.engine.partition("t", 0)
        assert partition is not None
        log, partition.log = partition.log, None
        failed = await talk.ask(txn_produce(name, b"lost"))
        assert "offline" in failed.text or "log" in failed.text
        partition.log = log
        assert Metadata.of(await talk.ask(txn_produce(name, b"second"))).offset == 1
        assert await talk.ask(commit(name)) == s(name) + b"\x01"

    run(tmp_path, body)
