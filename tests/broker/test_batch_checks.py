"""Batches of large values are checked once per open file before anything leaves them, and never long on the loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import batch_checks
from penstock.broker.batch_checks import CHECK_ON_LOOP_BYTES_MAX, BatchChecks, Stretch, examine
from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import LargeRecord, RecordsRead
from penstock.broker.large_values import LARGE_BYTES_MIN
from penstock.model.errors import Fault
from penstock.records.batch import CRC_OFFSET, CRC_START, Batch
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import Codec
from penstock.storage.files import Cold, Disk, DiskFailed, LogFile
from tests.broker.failing_disk import answer_of, engine_on

LARGE = 300_000
PLENTY = 1 << 30
LOG = Path("t-0") / "00000000000000000000.log"


class RecordingDisk(Disk):
    """Notes every read by thread and length. Reads fail where `bad` says so, and are cold until a thread has read them
    once when `cold` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.on_loop: list[int] = []
        self.on_threads: list[int] = []
        self.bad: range = range(0)
        self.cold = False
        self._warm: set[int] = set()
        self._loop_thread = threading.get_ident()

    def clear(self) -> None:
        self.on_loop.clear()
        self.on_threads.clear()

    def _check(self, file: LogFile, position: int, length: int) -> None:
        if position < self.bad.stop and self.bad.start < position + length and file.path.suffix == ".log":
            raise DiskFailed(errno.EIO, f"{file.path}: read failed: {os.strerror(errno.EIO)}")

    def read_at(self, file: LogFile, position: int, length: int) -> bytes:
        (self.on_loop if threading.get_ident() == self._loop_thread else self.on_threads).append(length)
        self._check(file, position, length)
        self._warm.update(range(position // 4096, (position + length) // 4096 + 1))
        return super().read_at(file, position, length)

    def read_now(self, file: LogFile, position: int, length: int) -> memoryview:
        if self.cold and not self._warm.issuperset(range(position // 4096, (position + length - 1) // 4096 + 1)):
            raise Cold(file, position, length)
        self.on_loop.append(length)
        self._check(file, position, length)
        return super().read_now(file, position, length)


def batch(*values: bytes, **fields: Any) -> memoryview:
    return memoryview(build_batch([NewRecord(1, None, value) for value in values], **fields))


def value(at: int, size: int = LARGE) -> bytes:
    return (b"%d." % at * size)[:size]


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


async def read(engine: EmbeddedEngine, offset: int, max_records: int = 1, *, large: bool = True) -> RecordsRead:
    found = await answer_of(engine.read_records("t", 0, offset, max_records, PLENTY, large=large))
    assert isinstance(found, RecordsRead)
    return found


def contents(found: RecordsRead) -> list[bytes | None]:
    assert found.fault is Fault.NONE, found.text
    return [_value_of(one) if isinstance(one, LargeRecord) else one.value for one in found.larges or found.records]


def _value_of(one: LargeRecord) -> bytes:
    return os.pread(one.value.file.fileno(), one.value.length, one.value.position)


def on_engine(
    tmp_path: Path,
    disk: Disk,
    batches: list[memoryview],
    body: Callable[[EmbeddedEngine], Coroutine[Any, Any, None]],
    **configs: str,
) -> None:
    async def run() -> None:
        limits = {"max.message.bytes": "50000000", "retention.ms": "-1", **configs}
        async with engine_on(tmp_path, disk, flush="os", configs=limits) as engine:
            for one in batches:
                [appended] = await answer_of(engine.append("t", 0, [one], 1))
                assert appended.fault is Fault.NONE, appended
            await body(engine)

    asyncio.run(run())


def forget_files(engine: EmbeddedEngine) -> None:
    partition = engine.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    for segment in partition.log.segments:
        engine.directory.files.forget(segment.paths())


# ---- once, and where ----------------------------------------------------------------------------------------------------


def test_large_batch_is_checked_once_per_open_file(tmp_path: Path) -> None:
    disk = RecordingDisk()

    async def body(engine: EmbeddedEngine) -> None:
        disk.clear()
        assert contents(await read(engine, 0)) == [value(0)]
        assert max(disk.on_loop) > LARGE
        disk.clear()
        for _ in range(3):
            assert contents(await read(engine, 0)) == [value(0)]
        assert max(disk.on_loop) < LARGE
        assert not disk.on_threads
        forget_files(engine)
        assert contents(await read(engine, 0)) == [value(0)]
        assert max(disk.on_loop) > LARGE

    on_engine(tmp_path, disk, [batch(value(0))], body)


def test_file_that_is_opened_again_is_checked_again(tmp_path: Path) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        assert contents(await read(engine, 0)) == [value(0)]
        flip(tmp_path / LOG, 1_000)
        forget_files(engine)
        found = await read(engine, 0)
        assert (found.fault, found.larges) == (Fault.STORAGE_ERROR, ())

    on_engine(tmp_path, Disk(), [batch(value(0))], body)


def test_large_batches_of_one_read_come_together_and_are_checked_on_a_thread(tmp_path: Path) -> None:
    disk = RecordingDisk()
    count = 3 * CHECK_ON_LOOP_BYTES_MAX // LARGE

    async def body(engine: EmbeddedEngine) -> None:
        disk.clear()
        assert contents(await read(engine, 0, 100)) == [value(at) for at in range(count)]
        assert sum(disk.on_threads) > count * LARGE - 100 * count
        assert max(disk.on_loop) < LARGE

    on_engine(tmp_path, disk, [batch(value(at)) for at in range(count)], body)


@pytest.mark.parametrize("size", [CHECK_ON_LOOP_BYTES_MAX, 20_000_000])
@pytest.mark.parametrize("large", [True, False], ids=["by range", "decoded"])
def test_batch_above_the_bound_is_never_read_on_the_loop(tmp_path: Path, size: int, large: bool) -> None:
    disk = RecordingDisk()

    async def body(engine: EmbeddedEngine) -> None:
        disk.clear()
        for _ in range(2):
            assert contents(await read(engine, 0, large=large)) == [value(0, size)]
        assert max(disk.on_loop) < LARGE
        assert sum(disk.on_threads) in range(size, size + 1_000)  # once

    on_engine(tmp_path, disk, [batch(value(0, size))], body)


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.LZ4])
def test_batches_that_are_decoded_on_a_thread_come_together(tmp_path: Path, compression: Codec) -> None:
    wanted = [bytes([at]) * 10 + os.urandom(CHECK_ON_LOOP_BYTES_MAX) for at in range(4)]
    batches = [batch(one, compression=compression) for one in wanted]
    between = [batch(b"small"), *batches[:2], batch(b"also small"), *batches[2:]]

    async def body(engine: EmbeddedEngine) -> None:
        found = await read(engine, 0, 100, large=False)
        assert contents(found) == [b"small", *wanted[:2], b"also small", *wanted[2:]]
        assert found.next_offset == 6

    on_engine(tmp_path, Disk(), between, body)


def test_records_before_a_batch_that_a_thread_finds_corrupt_come_first(tmp_path: Path) -> None:
    batches = [batch(b"small"), batch(value(0, 2_000_000)), batch(value(1, 2_000_000))]

    async def body(engine: EmbeddedEngine) -> None:
        flip(tmp_path / LOG, len(batches[0]) + len(batches[1]) + 1_000)
        found = await read(engine, 0, 100, large=False)
        assert contents(found) == [b"small", value(0, 2_000_000)]
        assert found.next_offset == 2
        found = await read(engine, 2, 100, large=False)
        assert found.text == "record at offset 2 is corrupt; next readable offset is 3"

    on_engine(tmp_path, Disk(), batches, body)


def test_cold_large_batch_is_read_by_a_thread(tmp_path: Path) -> None:
    disk = RecordingDisk()

    async def body(engine: EmbeddedEngine) -> None:
        disk.clear()
        disk.cold = True
        for offset in range(2):
            assert contents(await read(engine, offset, 100)) == [value(offset)]  # the next header is cold too
        assert sum(disk.on_threads) > 2 * LARGE - 1_000
        assert max(disk.on_loop, default=0) < LARGE

    on_engine(tmp_path, disk, [batch(value(0)), batch(value(1))], body)


def test_number_of_remembered_checks_is_bounded(tmp_path: Path) -> None:
    disk = RecordingDisk()
    path = tmp_path / "file"
    one = batch(value(0))
    path.write_bytes(bytes(one) * 10)
    file = disk.open(path)
    header = Batch(one)
    checks = BatchChecks(disk, batches_max=4)
    for at in range(10):
        stretch = Stretch(file, at * header.size, header.size, header.crc)
        assert not checks.require([stretch])
        assert len(checks) <= 4
    del file, stretch
    assert len(checks) == 0


def test_number_of_remembered_warnings_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_checks, "WARNINGS_REMEMBERED", 2)
    batches = [batch(b"%d" % at * 100) for at in range(3)]

    async def body(engine: EmbeddedEngine) -> None:
        for at, one in enumerate(batches):
            flip(tmp_path / LOG, sum(map(len, batches[:at])) + len(one) - 3)

        async def warnings(*offsets: int) -> list[int]:
            caplog.clear()
            for offset in offsets:
                assert (await read(engine, offset)).fault is Fault.STORAGE_ERROR
            texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
            return [int(text.split("the batch at offset ")[1].split()[0]) for text in texts]

        assert await warnings(0, 1, 0, 1) == [0, 1]
        assert await warnings(2) == [2], "the others are forgotten"
        assert await warnings(2, 0, 0) == [0]

    on_engine(tmp_path, Disk(), batches, body)


def test_check_on_a_thread_finds_every_flipped_bit_and_a_cut_off_end(tmp_path: Path) -> None:
    disk = Disk()
    path = tmp_path / "file"
    one = bytes(batch(value(0, 2_100_000)))
    header = Batch(memoryview(one))
    for position in [CRC_OFFSET, CRC_START, 1_000, 1 << 20, (1 << 20) + CRC_START, len(one) - 1]:
        path.write_bytes(one)
        flip(path, position)
        crc = int.from_bytes(path.read_bytes()[CRC_OFFSET:CRC_START], "big")
        [verdict] = examine(disk, [Stretch(disk.open(path), 0, header.size, crc)])
        assert "CRC" in verdict.reason, position
    path.write_bytes(one[:-1])
    [verdict] = examine(disk, [Stretch(disk.open(path), 0, header.size, header.crc)])
    assert "ends at" in verdict.reason
    path.write_bytes(one)
    [verdict] = examine(disk, [Stretch(disk.open(path), 0, header.size, header.crc)])
    assert not verdict.reason


# ---- what a reader is told ------------------------------------------------------------------------------------------------


def test_records_before_a_corrupt_batch_come_and_the_next_read_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [batch(value(at)) for at in range(6)]
    size = len(batches[0])

    async def body(engine: EmbeddedEngine) -> None:
        flip(tmp_path / LOG, 3 * size + 1_000)
        flip(tmp_path / LOG, 4 * size + 1_000)
        for large in (True, False, True):
            found = await read(engine, 0, 100, large=large)
            assert contents(found) == [value(at) for at in range(3)]
            assert found.next_offset == 3
            for offset in (3, 4):
                found = await read(engine, offset, 100, large=large)
                assert (found.fault, found.first, found.next_offset) == (Fault.STORAGE_ERROR, None, offset + 1)
                assert found.text == f"record at offset {offset} is corrupt; next readable offset is {offset + 1}"
            assert contents(await read(engine, 5, 100, large=large)) == [value(5)]

    on_engine(tmp_path, Disk(), batches, body)
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 2


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "a segment each"])
def test_next_readable_offset_behind_the_last_batch_of_a_segment(tmp_path: Path, size: int, rolls: bool) -> None:
    batches = [batch(value(0, size), value(1, size)), batch(value(2, size), value(3, size))]
    length = len(batches[0])

    async def body(engine: EmbeddedEngine) -> None:
        for name in sorted((tmp_path / "t-0").glob("*.log")):
            flip(name, length - 5)
        if not rolls:
            flip(tmp_path / LOG, 2 * length - 5)
        for offset, following in ((0, 2), (1, 2), (2, 4), (3, 4)):
            found = await read(engine, offset)
            assert found.text == f"record at offset {offset} is corrupt; next readable offset is {following}"
            assert found.next_offset == following

    on_engine(tmp_path, Disk(), batches, body, **{"segment.bytes": str(length if rolls else 10 * length)})


def test_corrupt_compressed_batch_is_an_error_in_either_size(tmp_path: Path) -> None:
    small = batch(b"a" * 100, compression=Codec.ZSTD)
    big = batch(os.urandom(100_000), compression=Codec.ZSTD)

    async def body(engine: EmbeddedEngine) -> None:
        flip(tmp_path / LOG, len(small) - 3)
        flip(tmp_path / LOG, len(small) + len(big) - 3)
        for offset in (0, 1):
            found = await read(engine, offset)
            assert found.fault is Fault.STORAGE_ERROR
            assert found.text == f"record at offset {offset} is corrupt; next readable offset is {offset + 1}"
        assert contents(await read(engine, 2)) == [b"behind"]

    on_engine(tmp_path, Disk(), [small, big, batch(b"behind")], body)


@pytest.mark.parametrize("count", [3, 100])
def test_records_that_cannot_be_decoded_are_an_error_though_the_crc_is_right(tmp_path: Path, count: int) -> None:
    broken = bytearray(batch(*(b"%04d" % at for at in range(count))))
    broken[-6] = 0x7F  # the length of the last value
    Batch(memoryview(broken)).stamp(1)  # a new CRC

    async def body(engine: EmbeddedEngine) -> None:
        offset = 0
        while (found := await read(engine, offset, 10_000)).fault is Fault.NONE:
            assert found.next_offset > offset
            offset = found.next_offset
        assert found.text == f"record at offset {offset} is corrupt; next readable offset is {count}"
        assert contents(await read(engine, count)) == [b"behind"]

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), flush="os") as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            partition.append_made([broken, bytearray(batch(b"behind"))], 1)
            await body(engine)

    asyncio.run(run())


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("size", [LARGE_BYTES_MIN, CHECK_ON_LOOP_BYTES_MAX])
def test_large_batch_that_the_disk_does_not_give_is_an_error_naming_it(tmp_path: Path, size: int, cold: bool) -> None:
    disk = RecordingDisk()
    batches = [batch(value(at, size)) for at in range(3)]
    length = len(batches[0])

    async def body(engine: EmbeddedEngine) -> None:
        disk.cold = cold
        disk.bad = range(length + 200_000, length + 200_512)
        found = await read(engine, 0, 100)
        assert contents(found) == [value(0, size)]
        found = await read(engine, 1, 100)
        assert found.fault is Fault.STORAGE_ERROR
        assert found.text == "record at offset 1 cannot be read; next readable offset is 2"
        assert contents(await read(engine, 2, 100)) == [value(2, size)]
        disk.bad = range(0)
        assert contents(await read(engine, 1)) == [value(1, size)]

    on_engine(tmp_path, disk, batches, body)
