"""What clients are told of a failing disk names the partition and the reason, never a path of the machine."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks, NewTopic
from penstock.model.errors import Fault
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from tests.broker.failing_disk import answer_of, batch_of, engine_on

REASONS = {
    errno.ENOSPC: "No space left on device",
    errno.EFBIG: "File too large",
    errno.EMFILE: "Too many open files",
    errno.EIO: "Input/output error",
}


def failing(code: int) -> Callable[..., Any]:
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code), str(args[0]))

    return fail


def check(text: str | None, root: Path, code: int) -> None:
    assert text is not None
    assert REASONS[code] in text
    assert str(root) not in text
    assert "/" not in text.replace("Input/output", "")


@pytest.mark.parametrize("code", REASONS)
@pytest.mark.parametrize("call", ["write", "open"])
def test_text_of_a_refused_append_has_the_reason_but_no_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, call: str
) -> None:
    async def body() -> None:
        disk = Disk()
        async with engine_on(tmp_path, disk, configs={"segment.bytes": "1000"}) as engine:
            await answer_of(engine.append("t", 0, [batch_of(b"a" * 800)], Acks.ALL))
            setattr(disk.system_calls, call, failing(code))
            try:
                for _ in range(2):  # after a disk error the log is read-only
                    [appended] = await answer_of(engine.append("t", 0, [batch_of(b"b" * 800)], Acks.ALL))
                    assert appended.fault is Fault.STORAGE_ERROR
                    check(appended.text, tmp_path, code)
                    run = await answer_of(engine.append_run("t", 0, [b"b" * 800], None, Acks.ALL))
                    assert run.fault is Fault.STORAGE_ERROR
                    check(run.text, tmp_path, code)
            finally:
                disk.system_calls = Disk().system_calls
        assert str(tmp_path) in caplog.text

    asyncio.run(body())


@pytest.mark.parametrize("code", REASONS)
def test_text_of_a_failed_topic_change_has_the_reason_but_no_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    async def body() -> None:
        disk = Disk()
        async with engine_on(tmp_path, disk) as engine:
            disk.system_calls.open = failing(code)
            try:
                for change in (
                    lambda: engine.create_topics([NewTopic("u", 2)], validate_only=False),
                    lambda: engine.add_partitions([("t", 2)], validate_only=False),
                    lambda: engine.alter_configs({"t": {"retention.ms": "1"}}, validate_only=False),
                    lambda: engine.delete_topics(["t"]),
                ):
                    [result] = await answer_of(change())
                    assert result.fault is Fault.STORAGE_ERROR
                    check(result.text, tmp_path, code)
                assert str(tmp_path) in caplog.text
            finally:
                disk.system_calls = Disk().system_calls

    asyncio.run(body())


def unreadable_folder(disk: Disk, folder: Path) -> None:
    real = disk.system_calls.sizes

    def sizes(path: Path) -> dict[str, int]:
        if path == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    disk.system_calls.sizes = sizes


def damaged_swap(disk: Disk, folder: Path) -> None:
    (folder / "swap").write_bytes(b"crc32c 00000000\nnot what was written")
    (folder / "00000000000000000000.log.cleaned").touch()


def missing_folder(disk: Disk, folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def shorter_log(disk: Disk, folder: Path) -> None:
    os.truncate(folder / "00000000000000000000.log", 10)


@pytest.mark.parametrize("damage", [unreadable_folder, damaged_swap, missing_folder, shorter_log])
def test_text_of_an_offline_partition_has_no_path(tmp_path: Path, damage: Callable[[Disk, Path], None]) -> None:
    async def body() -> None:
        async with engine_on(tmp_path, Disk()) as engine:
            await answer_of(engine.append("t", 0, [batch_of(b"a" * 800)], Acks.ALL))
        disk = Disk()
        damage(disk, tmp_path / "t-0")
        engine = EmbeddedEngine(DataDirectory(tmp_path, disk=disk), EngineSettings())
        engine.start()
        try:
            [appended] = await answer_of(engine.append("t", 0, [batch_of(b"b")], Acks.ALL))
            assert appended.fault is Fault.STORAGE_ERROR
            assert appended.text.startswith("t-0 is offline: ")
            assert str(tmp_path) not in appended.text
        finally:
            await engine.stop()

    asyncio.run(body())
