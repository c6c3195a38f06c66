"""Reading records instead of batches: what a reader gets is what was written, or an error of that batch alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Isolation, RecordsRead
from penstock.broker.offsets import LATEST
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.files import Disk, LogFile
from tests.broker.failing_disk import CueDisk, answer_of, batch_of, engine_on, turns, until


class CountingDisk(Disk):
    """Counts the reads that fetch records."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
        self.reads += 1
        return super().read_now(file, position, length)


async def read(engine: EmbeddedEngine, offset: int, max_records: int = 1, max_bytes: int = 1 << 20) -> RecordsRead:
    found = await answer_of(engine.read_records("t", 0, offset, max_records, max_bytes))
    assert isinstance(found, RecordsRead)
    return found


def values(found: RecordsRead) -> Sequence[bytes | None]:
    return [record.value for record in found.records]


def test_single_reads_in_any_order_give_the_record_of_their_offset(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os", configs={"segment.bytes": "20000"}) as engine:
            written: list[bytes] = []
            chance = random.Random(7)
            while len(written) < 2_000:
                some = [
                    b"%d" % (len(written) + at) * chance.choice((1, 1, 40)) for at in range(chance.choice((1, 10, 100)))
                ]
                engine.append("t", 0, [batch_of(*some)], 1)
                written += some
            offsets = list(range(len(written)))
            chance.shuffle(offsets)
            for offset in [*range(len(written)), *offsets]:
                found = await read(engine, offset)
                assert (values(found), found.next_offset) == ([written[offset]], offset + 1)
                several = await read(engine, offset, 10_000, 200)
                assert several.records[0].offset == offset
                assert values(several) == written[offset : several.next_offset]

    asyncio.run(run())


def test_who_walks_the_log_causes_few_reads_of_files(tmp_path: Path) -> None:
    disk = CountingDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="os") as engine:
            for _ in range(300):
                engine.append("t", 0, [batch_of(*[b"x" * 10] * 10)], 1)
            disk.reads = 0
            for offset in range(3_000):
                assert (await read(engine, offset)).fault is Fault.NONE
            assert disk.reads < 300 / 5

    asyncio.run(run())


def test_a_record_that_the_disk_changed_is_an_error_and_its_neighbours_are_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os") as engine:
            sizes = []
            for first in range(0, 50, 5):
                batch = batch_of(*(b"value %d" % offset for offset in range(first, first + 5)))
                sizes.append(len(batch))
                engine.append("t", 0, [batch], 1)
            _flip_bit(
                tmp_path / "t-0" / "00000000000000000000.log", sum(sizes[:4]) - 4
            )  # in the fourth batch's last value
            for offset in [*range(50), *range(50)]:
                found = await read(engine, offset)
                if offset // 5 == 3:
                    assert (found.fault, values(found)) == (Fault.STORAGE_ERROR, [])
                else:
                    assert values(found) == [b"value %d" % offset]

    asyncio.run(run())


def _flip_bit(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_a_record_behind_an_open_transaction_is_waited_for_until_its_flush_and_no_longer(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks", configs={"retention.ms": "-1"}) as engine:
            opened = build_batch(
                [NewRecord(1, None, b"undecided")],
                producer_id=7,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            partition = engine.partition("t", 0)
            assert partition is not None
            partition.append_own(opened, 1)
            await until(lambda: partition.high_watermark == 1)
            disk.hold()
            engine.append("t", 0, [batch_of(b"plain")], Acks.LEADER)
            waiting = engine.read_records("t", 0, 1, 10, 1 << 20)
            assert isinstance(waiting, Pending)
            await turns()
            assert not waiting.done
            disk.release()
            found = await asyncio.wait_for(answer_of(waiting), 10)
            assert (found.fault, values(found), found.high_watermark) == (Fault.NONE, [], 0)

    asyncio.run(run())


def test_records_are_readable_once_their_topic_stops_waiting_for_flushes(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            disk.hold()
            engine.append("t", 0, [batch_of(b"a")], Acks.LEADER)
            await until(lambda: disk.syncs_waiting)
            altering = engine.alter_configs({"t": {"penstock.flush": "os"}}, validate_only=False)
            [altered] = await answer_of(altering)
            assert altered.fault is Fault.NONE
            found = engine.read_records("t", 0, 0, 10, 1 << 20)
            assert isinstance(found, RecordsRead)
            assert values(found) == [b"a"]

    asyncio.run(run())


def test_the_end_that_one_is_told_has_what_was_acknowledged_before(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            disk.hold()
            [appended] = await answer_of(engine.append("t", 0, [batch_of(b"a", b"b")], Acks.LEADER))
            assert appended.base_offset == 0
            asked = [engine.list_offset("t", 0, LATEST, isolation) for isolation in Isolation]
            await turns()
            assert all(isinstance(one, Pending) and not one.done for one in asked)
            disk.release()
            assert [(await answer_of(one)).offset for one in asked] == [2, 2]

    asyncio.run(run())


def test_keys_count_only_for_those_who_get_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os") as engine:
            batch = build_batch([NewRecord(1, b"k" * 100, b"value") for _ in range(6)])
            engine.append("t", 0, [memoryview(batch)], Acks.LEADER)
            for max_bytes, with_keys, without in ((5, 1, 1), (10, 1, 2), (29, 1, 5), (210, 2, 6), (3_000, 6, 6)):
                for _ in range(2):  # from the file, then from the cache
                    found = await answer_of(engine.read_records("t", 0, 0, 100, max_bytes))
                    assert len(found.records) == with_keys, max_bytes
                    found = await answer_of(engine.read_records("t", 0, 0, 100, max_bytes, keys=False))
                    assert len(found.records) == without, max_bytes

    asyncio.run(run())
