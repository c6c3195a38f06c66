"""Batches that are looked into beside the loop: the same results as at once, in order, within bounds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker import preparing
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Append, Appended, NewTopic
from penstock.broker.partition import Partition
from penstock.coordination.transaction_commands import EndTransaction, InitProducerId
from penstock.coordination.transaction_states import Identity
from penstock.model.errors import Fault
from penstock.model.limits import PREPARED_WAIT_MS_MAX, PREPARED_WALK_MS_MAX
from penstock.model.pending import Hold, Pending
from penstock.records import walk
from penstock.records.batch import CRC_OFFSET, CRC_START, Batch
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.record import read_records
from tests.broker.failing_disk import CueDisk, answer_of, engine_on, until

COMPACTED = {"cleanup.policy": "compact"}
HEAVY = 3 * preparing.LIGHT_RECORDS_MAX
MIB = 1024 * 1024
Body = Callable[[EmbeddedEngine, CueDisk], Awaitable[None]]


def batch(
    *keys: bytes | None, records: int = 0, codec: int = Codec.NONE, value: bytes = b"v", **fields: Any
) -> memoryview:
    """A batch of records with these keys, or of so many."""
    made = [NewRecord(1_000, key, value) for key in keys or [b"k"] * records]
    return memoryview(build_batch(made, compression=codec, **fields))


def heavy(codec: int = Codec.ZSTD, **fields: Any) -> memoryview:
    return batch(records=HEAVY, codec=codec, **fields)


def light(key: bytes = b"k", **fields: Any) -> memoryview:
    return batch(key, **fields)


def on_engine(path: Path, body: Body, *, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    async def run() -> None:
        disk = CueDisk()
        async with engine_on(path, disk, topic=None, flush="os") as engine:
            topic = NewTopic("t", partitions, 1, COMPACTED if configs is None else configs)
            [made] = await answer_of(engine.create_topics([topic], validate_only=False))
            assert made.fault is Fault.NONE, made.text
            await body(engine, disk)
            await until(lambda: not engine.preparing.account.bytes_taken)
            assert not engine.unpacking.account.bytes_taken

    asyncio.run(run())


def partition_of(engine: EmbeddedEngine, index: int = 0) -> Partition:
    found = engine.partition("t", index)
    assert found is not None
    return found


async def results_of(*results: Any) -> list[Appended]:
    """The answers of several appends, one after the other."""
    return [appended for result in results for appended in await answer_of(result)]


def keys_in(engine: EmbeddedEngine, index: int = 0) -> list[bytes | None]:
    """The first key of every batch in the log."""
    log = partition_of(engine, index).log
    assert log is not None
    keys = []
    for segment in log.segments:
        data = memoryview(segment.read_span(0, segment.size))
        while data:
            found = Batch(data)
            keys.append(next(iter(read_records(found))).key)
            data = data[found.size :]
    return keys


# ---- the way through -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_small_batches_are_appended_at_once(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        appended = engine.append("t", 0, [batch(b"a", b"b", codec=codec), batch(b"c", codec=codec)], Acks.LEADER)
        assert [result.base_offset for result in appended] == [0, 2]  # type: ignore[union-attr]
        assert partition_of(engine).lane is None

    on_engine(tmp_path, body)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_large_batches_are_prepared_and_appended(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        buffer = heavy(codec)
        appended = engine.append("t", 0, [buffer], Acks.ALL)
        if codec:  # plain records may be through after the first slice
            assert isinstance(appended, Hold)
            assert not appended.borrows
        buffer[:] = bytes(len(buffer))  # the receive buffer has the next request
        assert await answer_of(appended) == [Appended(Fault.NONE, 0, -1, 0)]
        assert keys_in(engine) == [b"k"]
        assert partition_of(engine).lane is None

    on_engine(tmp_path, body)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (batch(records=preparing.LIGHT_RECORDS_MAX + 1), "records"),
        (batch(b"k", codec=Codec.ZSTD, value=bytes(preparing.LIGHT_UNPACKED_BYTES_MAX)), "unpacked bytes"),
        (memoryview(build_batch([NewRecord(1, b"k", b"", (("h", b""),) * 2_000)])), "headers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_batches_that_take_long_to_check_are_prepared(tmp_path: Path, made: memoryview, why: str) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        looked = engine.preparing.look(partition_of(engine), [made], preparing.Light())
        assert looked is None
        assert (await answer_of(engine.append("t", 0, [made], Acks.LEADER)))[0].fault is Fault.NONE

    on_engine(tmp_path, body)


def test_many_small_batches_of_one_request_are_prepared(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        each = [batch(records=400, codec=Codec.ZSTD) for _ in range(3)]
        assert engine.preparing.look(partition_of(engine), each[:2], preparing.Light()) is not None
        assert engine.preparing.look(partition_of(engine), each, preparing.Light()) is None
        appends = [Append("t", index, each[index]) for index in range(3)]
        appended = engine.append_many(appends, Acks.LEADER)
        assert isinstance(appended, Pending)
        assert [result.base_offset for result in await answer_of(appended)] == [0, 0, 0]

    on_engine(tmp_path, body, partitions=3)


def test_records_of_topics_without_rules_are_not_checked(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        appended = engine.append("t", 0, [batch(None, codec=Codec.ZSTD), heavy()], Acks.LEADER)
        assert [result.base_offset for result in appended] == [0, 1]  # type: ignore[union-attr]

    on_engine(tmp_path, body, configs={})


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("count", [10, HEAVY])
def test_a_record_that_breaks_a_rule_is_named(tmp_path: Path, codec: int, count: int) -> None:
    at = count - 3

    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        keys: list[bytes | None] = [b"k"] * count
        keys[at] = None
        [result] = await answer_of(engine.append("t", 0, [batch(*keys, codec=codec)], Acks.ALL))
        assert (result.fault, result.record_index) == (Fault.INVALID_RECORD, at)
        assert result.text == "a record of a compacted topic needs a key"

    on_engine(tmp_path, body)


@pytest.mark.parametrize("count", [10, HEAVY])
def test_a_timestamp_before_the_bound_is_named(tmp_path: Path, count: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        now_ms = engine.now_ms()
        made = [NewRecord(now_ms - 50_000_000 * (at == 7), None, b"v") for at in range(count)]
        [result] = await answer_of(engine.append("t", 0, [memoryview(build_batch(made))], Acks.ALL))
        assert (result.fault, result.record_index) == (Fault.INVALID_TIMESTAMP, 7)

    on_engine(tmp_path, body, configs={"message.timestamp.before.max.ms": "3600000"})


@pytest.mark.parametrize("count", [10, HEAVY])
def test_producer_timestamps_are_not_checked_with_log_append_time(tmp_path: Path, count: int) -> None:
    configs = {"message.timestamp.before.max.ms": "3600000", "message.timestamp.type": "LogAppendTime", **COMPACTED}

    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        [result] = await answer_of(engine.append("t", 0, [batch(records=count)], Acks.ALL))
        assert result.fault is Fault.NONE
        assert result.append_time_ms > 0

    on_engine(tmp_path, body, configs=configs)


@pytest.mark.parametrize("codec", sorted(CODECS - {Codec.NONE}))
def test_a_damaged_payload_is_refused(tmp_path: Path, codec: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        damaged = heavy(codec)
        damaged[len(damaged) // 2] ^= 1
        wrong_crc, sound = await results_of(engine.append("t", 0, [damaged, heavy(codec)], Acks.ALL))
        assert (wrong_crc.fault, wrong_crc.text) == (Fault.CORRUPT_MESSAGE, "the CRC does not fit the batch")
        assert sound.base_offset == 0
        [result] = await answer_of(engine.append("t", 0, [sealed(damaged)], Acks.ALL))
        assert result.fault is Fault.CORRUPT_MESSAGE

    on_engine(tmp_path, body)


# ---- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "packed_mib"), [(Codec.GZIP, 1), (Codec.LZ4, 1), (Codec.ZSTD, 1), (Codec.SNAPPY, 2)])
def test_unpacked_size_above_the_limit_is_refused(tmp_path: Path, codec: int, packed_mib: int) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        bomb = batch(b"k", codec=codec, value=bytes(17 * MIB))
        assert len(bomb) < packed_mib * MIB
        [result] = await answer_of(engine.append("t", 0, [bomb], Acks.ALL))
        if codec == Codec.SNAPPY:  # 22 bytes of a byte at most: less than the ratio that is allowed
            assert result.fault is Fault.NONE
        else:
            assert result.fault is Fault.MESSAGE_TOO_LARGE
            assert result.text == f"the records are larger than {16 * MIB} bytes"

    on_engine(tmp_path, body, configs={**COMPACTED, "max.message.bytes": str(4 * MIB)})


def test_a_batch_of_too_many_records_is_refused(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        count = preparing.PREPARED_RECORDS_MAX + 1
        bomb = with_count(heavy_zeros(), count)
        [result] = await answer_of(engine.append("t", 0, [bomb], Acks.ALL))
        assert result.fault is Fault.MESSAGE_TOO_LARGE
        assert result.text == "a batch of 1000001 records, 1000000 are allowed in this topic"

    on_engine(tmp_path, body)


def heavy_zeros() -> bytearray:
    return build_batch([NewRecord(1, b"k", bytes(12 * MIB))], compression=Codec.ZSTD)


def sealed(data: bytearray | memoryview) -> memoryview:
    """The batch with the CRC that belongs to it."""
    data[CRC_OFFSET:CRC_START] = crc32c(data[CRC_START:]).to_bytes(4, "big")
    return memoryview(data)


def with_count(data: bytearray, count: int) -> memoryview:
    data[23:27] = (count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    return sealed(data)


def test_a_batch_of_too_many_headers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(walk.find_violation.__kwdefaults__, "headers_max", 3_000)  # type: ignore[arg-type]

    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        for headers, fault in ((1_500, Fault.NONE), (1_501, Fault.MESSAGE_TOO_LARGE)):
            made = memoryview(build_batch([NewRecord(1, b"k", b"", (("h", b""),) * headers)] * 2))
            [result] = await answer_of(engine.append("t", 0, [made], Acks.ALL))
            assert result.fault is fault

    on_engine(tmp_path, body)


def test_walk_that_exceeds_its_time_is_refused(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        used_s = 0.0

        def clock() -> float:
            nonlocal used_s
            used_s += PREPARED_WALK_MS_MAX / 1000 / 2 * 0.9
            return used_s

        engine.preparing.cpu_clock = clock
        slow, quick = engine.append("t", 0, [heavy()], Acks.ALL), engine.append("t", 0, [light()], Acks.ALL)
        [refused, accepted] = await results_of(slow, quick)
        assert refused.fault is Fault.MESSAGE_TOO_LARGE
        assert refused.text == "the records take more than 10000 ms to check"
        assert accepted.base_offset == 0

    on_engine(tmp_path, body)


def test_appends_that_waited_too_long_are_refused(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        now_s = 0.0
        engine.preparing.clock = lambda: now_s
        waiting = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(3)]
        now_s = PREPARED_WAIT_MS_MAX / 1000 + 1
        late = engine.append("t", 0, [light()], Acks.ALL)
        first, second, third, last = await results_of(*waiting, late)
        assert first.fault is Fault.NONE  # which was begun before
        assert second.fault is third.fault is Fault.REQUEST_TIMED_OUT
        assert second.text == "the batch waited 21000 ms to be checked, 20000 are allowed"
        assert last.fault is Fault.NONE

    on_engine(tmp_path, body)


def test_requests_keep_their_bytes_while_the_account_of_copies_is_full(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        account = engine.preparing.account
        account.bytes_max = len(heavy()) + 10
        first = engine.append("t", 0, [heavy()], Acks.ALL)
        buffer = heavy()
        second = engine.append("t", 1, [buffer], Acks.ALL)
        third = engine.append("t", 1, [light()], Acks.ALL)
        assert [hold.borrows for hold in (first, second, third)] == [False, True, True]  # type: ignore[union-attr]
        assert account.bytes_taken == len(buffer)
        overs: list[str] = []

        def over() -> None:
            overs.append("second")
            buffer[:] = bytes(len(buffer))

        second.over = over  # type: ignore[union-attr]
        results = await results_of(first, second, third)
        assert [(result.fault, result.base_offset) for result in results] == [
            (Fault.NONE, 0),
            (Fault.NONE, 0),
            (Fault.NONE, HEAVY),
        ]
        assert overs == ["second"]

    on_engine(tmp_path, body, partitions=2)


def test_request_for_many_partitions_gives_its_bytes_back_once(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        engine.preparing.account.bytes_max = 1
        first = engine.append("t", 0, [heavy()], Acks.ALL)
        appends = [Append("t", index, heavy()) for index in range(3)] + [Append("nowhere", 0, heavy())]
        many = engine.append_many(appends, Acks.ALL)
        assert isinstance(many, Hold)
        assert many.borrows
        overs: list[int] = []

        def over() -> None:
            overs.append(1)
            for append in appends[:3]:
                append.records[:] = bytes(len(append.records))

        many.over = over
        results = await results_of(first, many)
        assert [result.base_offset for result in results] == [0, HEAVY, 0, 0, -1]
        assert overs == [1]

    on_engine(tmp_path, body, partitions=3)


def test_records_of_other_dialects_are_refused_while_the_account_is_full(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        engine.preparing.account.bytes_max = len(heavy()) + 80
        first = engine.append("t", 0, [heavy()], Acks.ALL)
        fits = engine.append_run("t", 0, [b"v"], [b"k"], Acks.LEADER)
        refused = engine.append_run("t", 0, [b"v" * 80], [b"k"], Acks.LEADER)
        assert refused.fault is Fault.REQUEST_TIMED_OUT  # type: ignore[union-attr]
        await answer_of(first)
        assert (await answer_of(fits)).base_offset == HEAVY

    on_engine(tmp_path, body)


# ---- order ---------------------------------------------------------------------------------------------------------


def test_later_appends_stay_later(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        pending = [
            engine.append("t", 0, [heavy()], Acks.LEADER),
            engine.append("t", 0, [light(b"second")], Acks.NONE),
            engine.append_run("t", 0, [b"v"], [b"third"], Acks.LEADER),
            engine.append_new("t", 0, [NewRecord(engine.now_ms(), b"fourth", b"v")], Acks.LEADER),
            engine.append_many([Append("t", 0, light(b"fifth"))], Acks.LEADER),
        ]
        assert all(isinstance(one, Pending) for one in pending)
        other = engine.append("t", 1, [light(b"other")], Acks.ALL)
        assert not isinstance(other, Pending)
        await answer_of(pending[-1])
        assert all(one.done for one in pending)
        assert keys_in(engine) == [b"k", b"second", b"third", b"fourth", b"fifth"]

    on_engine(tmp_path, body, partitions=2)


def test_appends_gathered_in_this_turn_come_first(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        engine.gather()
        calls: list[Any] = [
            engine.append("t", 0, [light(b"first")], Acks.LEADER),
            engine.append("t", 0, [light(b"second")], Acks.LEADER),
            engine.append("t", 0, [batch(b"third", *[b"k"] * preparing.LIGHT_RECORDS_MAX)], Acks.LEADER),
            engine.append("t", 0, [light(b"fourth")], Acks.LEADER),
        ]
        engine.settle()
        await results_of(*calls)
        assert keys_in(engine) == [b"first", b"second", b"third", b"fourth"]

    on_engine(tmp_path, body)


def test_a_producer_keeps_its_sequence_over_slow_and_fast_batches(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        producer = {"producer_id": 7, "producer_epoch": 0}
        slow = heavy(base_sequence=0, **producer)
        fast = light(base_sequence=HEAVY, **producer)
        again = light(base_sequence=HEAVY, **producer)
        gap = light(base_sequence=HEAVY + 5, **producer)
        results = await results_of(*(engine.append("t", 0, [view], Acks.ALL) for view in (slow, fast, again, gap)))
        assert [(result.fault, result.base_offset) for result in results] == [
            (Fault.NONE, 0),
            (Fault.NONE, HEAVY),
            (Fault.NONE, HEAVY),
            (Fault.OUT_OF_ORDER_SEQUENCE, -1),
        ]

    on_engine(tmp_path, body)


SEQUENCES = 4


class Model:
    """Makes the same appends again and again: to an engine that prepares, and to one that looks at once."""

    def __init__(self, steps: list[tuple[str, int, int, bool]]) -> None:
        self.steps = steps

    def call(self, engine: EmbeddedEngine, step: tuple[str, int, int, bool], sequences: dict[Any, int]) -> Any:
        kind, partition, producer, broken = step
        key = None if broken else b"k"
        if kind == "run":
            return engine.append_run("t", partition, [b"v", b"w"], [b"k", key], Acks.LEADER)
        count = 40 if kind == "slow" else 2
        fields: dict[str, Any] = {}
        if producer:
            at = sequences.get((partition, producer), 0)
            sequences[partition, producer] = at + (0 if broken else count)
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": at}
        keys = [b"k"] * (count - 1) + [key]
        return engine.append("t", partition, [batch(*keys, codec=Codec.LZ4, **fields)], Acks.LEADER)

    def run(self, path: Path, records_max: int) -> tuple[list[Any], list[list[Any]]]:
        answers: list[Any] = []
        logs: list[list[Any]] = []

        async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
            sequences: dict[Any, int] = {}
            gathering = False
            for step in self.steps:
                if step[0] == "turn":
                    if gathering:
                        engine.settle()
                        gathering = False
                    await asyncio.sleep(0)
                elif step[0] == "gather":
                    if not gathering:
                        engine.gather()
                    gathering = True
                else:
                    answers.append(self.call(engine, step, sequences))
            if gathering:
                engine.settle()
            answers[:] = [await answer_of(answer) for answer in answers]
            for index in range(2):
                found = await answer_of(engine.read_records("t", index, 0, 10**6, 10**9))
                logs.append([(record.offset, record.key, record.value) for record in found.records])

        before = preparing.LIGHT_RECORDS_MAX
        preparing.LIGHT_RECORDS_MAX = records_max
        try:
            on_engine(path, body, partitions=2)
        finally:
            preparing.LIGHT_RECORDS_MAX = before
        return answers, logs


steps = st.tuples(
    st.sampled_from(["slow", "fast", "run", "slow", "fast", "turn", "gather"]),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([False] * 5 + [True]),
)


@settings(max_examples=30)
@given(st.lists(steps, max_size=25))
def test_prepared_appends_are_what_appends_at_once_would_be(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, int, bool]]
) -> None:
    # bare records that are gathered come after the batches of their turn, which no order is promised for
    ordered = [step for step in made if step[0] not in ("gather", "run")] if "gather" in {s[0] for s in made} else made
    for some in (ordered, [step for step in made if step[0] != "gather"]):
        model = Model(some)
        at_once = model.run(tmp_path_factory.mktemp("once"), 10_000)
        prepared = model.run(tmp_path_factory.mktemp("prepared"), 10)
        assert prepared == at_once


# ---- transactions --------------------------------------------------------------------------------------------------


def test_the_end_of_a_transaction_waits_for_its_batches(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        made = await answer_of(engine.transactions.ask("x", InitProducerId("x", 60_000)))
        identity = Identity(made.producer_id, made.producer_epoch)
        asked: list[str] = []
        view = heavy(
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        appended = engine.append_transactional("x", [Append("t", 0, view)], Acks.ALL, adds_partitions=True)

        def end() -> Any:
            asked.append("end")
            assert appended.done
            return engine.transactions.ask("x", EndTransaction("x", identity, commit=True, raises_epoch=True))

        ended = await answer_of(engine.behind_appends("x", end))
        assert ended.fault is Fault.NONE
        assert asked == ["end"]
        [result] = await answer_of(appended)
        assert result.base_offset == 0
        partition = partition_of(engine)
        await until(lambda: partition.last_stable_offset == HEAVY + 1)

    on_engine(tmp_path, body)


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_batches_of_a_disconnected_client_are_appended(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        engine.preparing.account.bytes_max = len(heavy())
        holds = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(3)]
        for hold in holds:
            assert isinstance(hold, Hold)
            hold.abandon()
        partition = partition_of(engine)
        await until(lambda: partition.lane is None)
        assert partition.high_watermark == 3 * HEAVY

    on_engine(tmp_path, body)


def test_batches_for_a_deleted_topic_are_refused(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        engine.preparing.account.bytes_max = 2 * len(heavy())
        pending: list[Any] = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(4)]
        pending.append(engine.append("t", 1, [heavy()], Acks.ALL))
        run = engine.append_run("t", 0, [b"v"], [b"k"], Acks.ALL)
        old = partition_of(engine)
        engine._withdraw(old.id)
        assert [result.fault for result in await results_of(*pending[1:4])] == [Fault.UNKNOWN_TOPIC_OR_PARTITION] * 3
        assert (await answer_of(run)).fault in (Fault.UNKNOWN_TOPIC_OR_PARTITION, Fault.REQUEST_TIMED_OUT)
        assert (await results_of(pending[4]))[0].fault is Fault.NONE
        await until(lambda: old.lane is None)
        assert old.log is not None
        assert old.log.log_end_offset in (0, HEAVY)

    on_engine(tmp_path, body, partitions=2)


def test_a_topic_is_deleted_while_its_batches_are_prepared(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        pending = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(3)]
        [deleted] = await answer_of(engine.delete_topics(["t"]))
        assert deleted.fault is Fault.NONE
        for result in await results_of(*pending):
            assert result.fault in (Fault.NONE, Fault.UNKNOWN_TOPIC_OR_PARTITION)

    on_engine(tmp_path, body)


def test_a_log_that_cannot_be_written_refuses_what_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "broken")

        pending = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(2)]
        monkeypatch.setattr(disk, "write_at", fail)
        for result in await results_of(*pending):
            assert result.fault is Fault.STORAGE_ERROR

    on_engine(tmp_path, body)


def test_a_broker_that_stops_refuses_what_it_has_not_prepared(tmp_path: Path) -> None:
    async def run() -> Sequence[Appended]:
        async with engine_on(tmp_path, CueDisk(), configs=COMPACTED, flush="os") as engine:
            pending = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(3)]
        return [result for one in pending for result in one.result]  # type: ignore[union-attr]

    assert {result.fault for result in asyncio.run(run())} == {Fault.NOT_LEADER}


def test_unexpected_error_fails_only_its_own_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: EmbeddedEngine, disk: CueDisk) -> None:
        sound = Partition.sound
        calls: list[int] = []

        def fail_once(partition: Partition, view: memoryview) -> Batch:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("unexpected")
            return sound(partition, view)

        monkeypatch.setattr(Partition, "sound", fail_once)
        pending = [engine.append("t", 0, [heavy()], Acks.ALL) for _ in range(2)]
        first, second = await results_of(*pending)
        assert (first.fault, second.fault) == (Fault.UNKNOWN, Fault.NONE)

    on_engine(tmp_path, body)
