"""Reading records instead of batches: what a reader gets is what was written, or an error of that batch alone."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks, Isolation, RecordsRead
from penstock.broker.offsets import LATEST
from penstock.broker.partition import Partition
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker, MarkerKind
from penstock.storage.files import Cold, Disk, LogFile
from tests.broker.failing_disk import BadSectorDisk, CueDisk, answer_of, batch_of, engine_on, readers_held, turns, until


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


@pytest.mark.parametrize("into", [0, 30], ids=["from the batch's first byte", "from inside the batch"])
def test_record_that_the_disk_does_not_give_is_an_error_and_later_ones_are_not(tmp_path: Path, into: int) -> None:
    disk = BadSectorDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="os") as engine:
            batches = [batch_of(b"%05d" % at * 2_000) for at in range(6)]
            size = len(batches[0])
            engine.append("t", 0, batches, 1)
            disk.bad = range(3 * size + into, 3 * size + into + 512)
            for offset in (0, 1, 2, 4, 5):
                assert values(await read(engine, offset)) == [b"%05d" % offset * 2_000]
            assert (await read(engine, 0, 10)).next_offset == 3
            found = await read(engine, 3)
            assert (found.fault, found.records) == (Fault.STORAGE_ERROR, ())
            assert found.text == "record at offset 3 cannot be read; next readable offset is 4"
            assert disk.failed_reads < 10
            disk.bad = range(0)
            assert values(await read(engine, 3)) == [b"00003" * 2_000]

    asyncio.run(run())


def test_large_compressed_batch_is_unpacked_on_a_thread_from_an_open_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os") as engine:
            wanted = [random.Random(at).randbytes(50_000) for at in range(3)]
            engine.append("t", 0, [batch_of(*wanted, compression=Codec.LZ4)], 1)
            with readers_held(engine):
                waiting = engine.read_records("t", 0, 0, 10, 1 << 20)
                assert isinstance(waiting, Pending)
                engine.directory.files.forget([tmp_path / "t-0" / "00000000000000000000.log"])
            assert values(await answer_of(waiting)) == wanted

    asyncio.run(run())


def test_records_that_never_get_into_memory_are_an_error_not_a_hang(tmp_path: Path) -> None:
    class NeverWarm(Disk):
        def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
            raise Cold(file, position, length)

    async def run() -> None:
        async with engine_on(tmp_path, NeverWarm(), flush="os") as engine:
            engine.append("t", 0, [batch_of(b"a")], 1)
            found = await read(engine, 0)
            assert (found.fault, found.records) == (Fault.STORAGE_ERROR, ())

    asyncio.run(run())


def test_records_of_a_file_that_was_cut_off_are_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os") as engine:
            first, second = batch_of(b"a" * 20_000), batch_of(b"b" * 20_000)
            engine.append("t", 0, [first, second], 1)
            os.truncate(tmp_path / "t-0" / "00000000000000000000.log", len(first) + 1_000)
            assert values(await read(engine, 0, 10)) == [b"a" * 20_000]
            found = await read(engine, 1, 10)
            assert (found.fault, found.records) == (Fault.STORAGE_ERROR, ())
            assert "record at offset 1" in found.text

    asyncio.run(run())


def _open_transaction(partition: Partition, *values: bytes) -> None:
    records = [NewRecord(1, None, value) for value in values]
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    partition.append_own(batch, 1)


def _partition(engine: EmbeddedEngine) -> Partition:
    partition = engine.partition("t", 0)
    assert partition is not None
    return partition


async def _flushed(engine: EmbeddedEngine, *values: bytes) -> None:
    """Append and wait for the flush."""
    [appended] = await answer_of(engine.append("t", 0, [batch_of(*values)], Acks.ALL))
    assert appended.fault is Fault.NONE


@pytest.mark.parametrize("flushed_before", [[], [b"safe"]], ids=["nothing flushed", "one flushed"])
def test_multi_record_read_waits_for_the_pending_flush(tmp_path: Path, flushed_before: list[bytes]) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            if flushed_before:
                await _flushed(engine, *flushed_before)
            disk.hold()
            engine.append("t", 0, [batch_of(b"a"), batch_of(b"b")], Acks.LEADER)
            waiting = engine.read_records("t", 0, 0, 10, 1 << 20)
            assert isinstance(waiting, Pending)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert not waiting.done
            disk.release()
            found = await answer_of(waiting)
            assert values(found) == [*flushed_before, b"a", b"b"]
            assert found.next_offset == found.high_watermark == len(flushed_before) + 2

    asyncio.run(run())


@pytest.mark.parametrize(("max_records", "max_bytes"), [(2, 1 << 20), (10, 2), (1, 1 << 20), (10, 1)])
def test_read_that_reaches_its_own_limit_waits_for_no_flush(tmp_path: Path, max_records: int, max_bytes: int) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await _flushed(engine, b"a", b"b")
            disk.hold()
            engine.append("t", 0, [batch_of(b"c")], Acks.LEADER)
            for _ in range(2):  # from the file, then from the cache
                found = engine.read_records("t", 0, 0, max_records, max_bytes)
                assert isinstance(found, RecordsRead)
                assert values(found) == [b"a", b"b"][: min(max_records, max_bytes)]

    asyncio.run(run())


def test_read_does_not_wait_for_records_appended_after_it(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            partition = _partition(engine)
            assert partition.log is not None
            log = partition.log
            left = 200

            def append_more(_: Fault = Fault.NONE) -> None:
                """Keep a flush pending, as producers under load do."""
                nonlocal left
                if left:
                    left -= 1
                    engine.append("t", 0, [batch_of(b"x")], Acks.LEADER)
                    assert partition.when_flushed(log.log_end_offset, append_more)

            disk.hold()
            append_more()
            waiting = engine.read_records("t", 0, 0, 10_000, 1 << 20)
            assert isinstance(waiting, Pending)
            seen: list[tuple[int, int]] = []
            waiting.then(lambda found: seen.append((len(found.records), log.log_end_offset)))
            disk.release()
            await until(lambda: seen)
            [(count, log_end_offset)] = seen
            assert count == 1
            assert log_end_offset > count, "the load paused, so the test shows nothing"

    asyncio.run(run())


def test_read_does_not_wait_for_a_flush_behind_an_open_transaction(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await _flushed(engine, b"before")
            partition = _partition(engine)
            _open_transaction(partition, b"undecided")
            await until(lambda: partition.high_watermark == 2)
            disk.hold()
            engine.append("t", 0, [batch_of(b"behind")], Acks.LEADER)
            found = engine.read_records("t", 0, 0, 10, 1 << 20)
            assert isinstance(found, RecordsRead)
            assert (values(found), found.next_offset) == ([b"before"], 1)

    asyncio.run(run())


def test_read_waits_for_the_flush_of_a_marker_that_ends_a_transaction(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await _flushed(engine, b"before")
            partition = _partition(engine)
            _open_transaction(partition, b"decided")
            await until(lambda: partition.high_watermark == 2)
            disk.hold()
            partition.append_marker(Marker(MarkerKind.COMMIT, 0), 7, 0, 1, 1)
            waiting = engine.read_records("t", 0, 0, 10, 1 << 20)
            assert isinstance(waiting, Pending)
            disk.release()
            assert values(await answer_of(waiting)) == [b"before", b"decided"]

    asyncio.run(run())


def test_read_of_a_log_that_failed_gives_what_was_flushed(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await _flushed(engine, b"safe")
            disk.hold()
            disk.sync_error = errno.EIO
            engine.append("t", 0, [batch_of(b"lost")], Acks.LEADER)
            waiting = engine.read_records("t", 0, 0, 10, 1 << 20)
            assert isinstance(waiting, Pending)
            disk.release()
            for found in (await answer_of(waiting), await read(engine, 0, 10)):
                assert (found.fault, values(found), found.next_offset) == (Fault.NONE, [b"safe"], 1)
            assert values(await read(engine, 1, 10)) == []

    asyncio.run(run())


def test_read_of_large_values_waits_for_the_pending_flush(tmp_path: Path) -> None:
    disk = CueDisk()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            await _flushed(engine, b"x" * 300_000)
            disk.hold()
            engine.append("t", 0, [batch_of(b"y" * 300_000), batch_of(b"z" * 300_000)], Acks.LEADER)
            waiting = engine.read_records("t", 0, 0, 10, 1 << 20, large=True)
            assert isinstance(waiting, Pending)
            alone = engine.read_records("t", 0, 0, 1, 1 << 20, large=True)
            assert isinstance(alone, RecordsRead)
            disk.release()
            assert [large.offset for large in (await answer_of(waiting)).larges] == [0, 1, 2]

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
