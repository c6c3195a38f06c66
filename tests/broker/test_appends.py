"""Appends of one request to many partitions, or to one partition many times: in slices, in order, all answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.appends import BATCHES_AT_ONCE
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Append, Appended, NewTopic
from penstock.coordination.transaction_commands import InitProducerId
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.files import Disk
from tests.broker.failing_disk import answer_of, batch_of, engine_on

Results = list[Appended] | Pending[list[Appended]]


def on_engine(path: Path, body: Callable[[EmbeddedEngine], Awaitable[None]], partitions: int = 1) -> None:
    async def run() -> None:
        async with engine_on(path, Disk(), topic=None, flush="os") as engine:
            await answer_of(engine.create_topics([NewTopic("t", partitions)], validate_only=False))
            await body(engine)

    asyncio.run(run())


def pauses(work: Work[Results], between: Callable[[int], object] = lambda _: None) -> tuple[int, Any]:
    """Perform the work to its end, with something else at each pause; how often it paused, and its result."""
    number = 0
    while True:
        try:
            work.send(None)
        except StopIteration as stop:
            return number, stop.value
        between(number)
        number += 1


def values(engine: EmbeddedEngine, partition: int = 0) -> list[bytes | None]:
    found: Any = engine.read_records("t", partition, 0, 10**6, 10**9)
    return [record.value for record in found.records]


def test_a_partition_that_is_named_often_gets_its_batches_in_order(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        appends = [Append("t", 0, batch_of(b"%d" % number)) for number in range(200)]
        count, results = pauses(engine.append_in_slices(appends, Acks.LEADER))
        assert count >= 200 // BATCHES_AT_ONCE - 1
        assert [result.base_offset for result in results] == list(range(200))
        assert values(engine) == [b"%d" % number for number in range(200)]

    on_engine(tmp_path, body)


def test_batches_of_many_partitions_pause_between_partitions(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        appends = [Append("t", number % 50, batch_of(b"%d" % number)) for number in range(100)]
        count, results = pauses(engine.append_in_slices(appends, Acks.LEADER))
        assert count >= 100 // BATCHES_AT_ONCE - 1
        assert [result.base_offset for result in results] == [0] * 50 + [1] * 50
        assert values(engine, 7) == [b"7", b"57"]

    on_engine(tmp_path, body, partitions=50)


def test_appends_to_unknown_partitions_pause(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        appends = [Append("t", number, batch_of(b"")) for number in range(1_000, 2_000)]
        count, results = pauses(engine.append_in_slices(appends, Acks.LEADER))
        assert count >= 1_000 // BATCHES_AT_ONCE - 1
        assert {result.fault for result in results} == {Fault.UNKNOWN_TOPIC_OR_PARTITION}

    on_engine(tmp_path, body)


def test_others_may_append_at_a_pause(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        appends = [Append("t", 0, batch_of(b"%d" % number)) for number in range(3 * BATCHES_AT_ONCE)]

        def other(pause: int) -> None:
            engine.append("t", 0, [batch_of(b"other %d" % pause)], Acks.LEADER)

        _, results = pauses(engine.append_in_slices(appends, Acks.LEADER), other)
        found = values(engine)
        for append, result in zip(appends, results, strict=True):
            number = appends.index(append)
            assert found[result.base_offset] == b"%d" % number
        assert b"other 0" in found

    on_engine(tmp_path, body)


def test_a_topic_that_is_deleted_at_a_pause_refuses_the_rest(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        work = engine.append_in_slices([Append("t", 0, batch_of(b"")) for _ in range(3 * BATCHES_AT_ONCE)], Acks.LEADER)
        work.send(None)
        await answer_of(engine.delete_topics(["t"]))
        _, results = pauses(work)
        faults = [result.fault for result in results]
        assert faults[:BATCHES_AT_ONCE] == [Fault.NONE] * BATCHES_AT_ONCE
        assert set(faults[BATCHES_AT_ONCE:]) == {Fault.UNKNOWN_TOPIC_OR_PARTITION}

    on_engine(tmp_path, body)


# ---- of a transaction --------------------------------------------------------------------------------------------------


async def producer(engine: EmbeddedEngine) -> tuple[int, int]:
    await answer_of(engine.transactions.ensure())
    made: Any = await answer_of(engine.transactions.ask("x", InitProducerId("x", 60_000, None)))
    assert made.fault is Fault.NONE
    return made.producer_id, made.producer_epoch


def transactional(identity: tuple[int, int], sequence: int) -> memoryview:
    producer_id, epoch = identity
    record = NewRecord(1, None, b"%d" % sequence)
    return memoryview(
        build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    )


async def done(engine: EmbeddedEngine, work: Work[Results]) -> list[Appended]:
    found = await answer_of(engine.in_slices(work, borrows=True))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("adds_partitions", [True, False])
def test_many_appends_of_a_transaction_ask_the_coordinator_once(tmp_path: Path, adds_partitions: bool) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        identity = await producer(engine)
        appends = [Append("t", number, transactional(identity, 0)) for number in range(300)]
        asked = []
        ask = engine.transactions.ask
        engine.transactions.ask = lambda *args: asked.append(args) or ask(*args)  # type: ignore[method-assign,func-returns-value]
        work = engine.append_transactional_in_slices("x", appends, Acks.ALL, adds_partitions=adds_partitions)
        results = await done(engine, work)
        assert len(asked) == 1
        expected = Fault.NONE if adds_partitions else Fault.INVALID_TXN_STATE
        assert {result.fault for result in results} == {expected}

    on_engine(tmp_path, body, partitions=300)


def test_later_batches_of_a_producer_wait_for_its_many_appends(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        identity = await producer(engine)
        first = [Append("t", 0, transactional(identity, number)) for number in range(300)]
        second = [Append("t", 0, transactional(identity, 300))]
        third = [Append("t", 0, transactional(identity, number)) for number in range(301, 500)]
        append, in_slices = engine.append_transactional, engine.append_transactional_in_slices
        works = [
            engine.in_slices(in_slices("x", first, Acks.ALL, adds_partitions=True), borrows=True),
            append("x", second, Acks.ALL, adds_partitions=True),
            engine.in_slices(in_slices("x", third, Acks.ALL, adds_partitions=True), borrows=True),
        ]
        ended = engine.behind_appends("x", lambda: len(values_of_log(engine)))
        results = [result for work in works for result in await answer_of(work)]
        assert [result.fault for result in results] == [Fault.NONE] * 500
        assert [result.base_offset for result in results] == list(range(500))
        assert await answer_of(ended) == 500
        assert not engine._transactional._queues

    on_engine(tmp_path, body)


def values_of_log(engine: EmbeddedEngine) -> range:
    partition = engine.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    return range(partition.log.log_end_offset)
