"""Reading records instead of batches: what a reader gets is what was written, or an error of that batch alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import RecordsRead
from penstock.model.errors import Fault
from penstock.storage.files import Disk, LogFile
from tests.broker.failing_disk import answer_of, batch_of, engine_on


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
