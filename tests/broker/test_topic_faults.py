"""Changes of topics on a disk that fails: what was refused has not happened, not even after a restart."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import NewTopic
from penstock.model.errors import Fault
from tests.broker.compacted import append, crash, create, open_engine, values
from tests.broker.failing_disk import answer_of
from tests.storage.fault_disk import FaultDisk

Change = Callable[[EmbeddedEngine], Any]
CHANGES: dict[str, Change] = {
    "create": lambda engine: engine.create_topics([NewTopic("new", 2), NewTopic("newer", 1)], validate_only=False),
    "delete": lambda engine: engine.delete_topics(["old"]),
    "grow": lambda engine: engine.add_partitions([("old", 4)], validate_only=False),
    "configure": lambda engine: engine.alter_configs({"old": {"retention.ms": "5000"}}, validate_only=False),
}


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("origin") / "data"

    async def body() -> None:
        engine, _ = open_engine(path)
        await create(engine, "old", partitions=2)
        await append(engine, [(b"a", b"1")], "old", 0)
        await append(engine, [(b"b", b"2")], "old", 1)
        await engine.stop()

    run(body)
    return path


def topics_of(engine: EmbeddedEngine) -> dict[str, object]:
    return {
        info.name: (info.topic_id, len(info.partitions), dict(engine.topic_configs(info.name) or {}))
        for info in engine.topics()
    }


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_refused_has_not_happened_after_a_restart(tmp_path: Path, origin: Path, change: str) -> None:
    """Whichever call failed. Records that were acknowledged after it are there."""

    async def body() -> None:
        number = refused = 0
        while True:
            place = tmp_path / str(number)
            shutil.copytree(origin, place)
            disk = FaultDisk()
            engine, _ = open_engine(place, disk)
            before = topics_of(engine)
            disk.arm(number)
            results = await answer_of(CHANGES[change](engine))
            has_failed = disk.has_failed
            disk.disarm()
            if results[0].fault is not Fault.NONE:
                assert topics_of(engine) == before
                refused += 1
            known = topics_of(engine)
            expected = []
            for partition in range(2 if "old" in known else 0):
                await append(engine, [(b"c", b"acknowledged")], "old", partition)
                expected.append(await values(engine, "old", partition))
            crash(engine)
            again, _ = open_engine(place)
            assert topics_of(again) == known, f"call {number} failed: {disk.calls[number : number + 1]}"
            assert [await values(again, "old", partition) for partition in range(len(expected))] == expected
            # and it can be made now
            if has_failed and results[0].fault is not Fault.NONE:
                for result in await answer_of(CHANGES[change](again)):
                    assert result.fault is Fault.NONE, result
            await again.stop()
            shutil.rmtree(place)
            if not has_failed:
                break
            number += 1
        assert refused > 4

    run(body)


def test_a_folder_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path, origin: Path) -> None:
    """The room of all others is free when a topic was deleted."""

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)

        def refuse() -> None:
            name, path, _ = disk.calls[-1]
            if name == "rename" and path.name == "old-0":
                raise OSError(errno.EIO, "on cue")

        disk.arm(None)
        disk.before = refuse
        [deleted] = await answer_of(engine.delete_topics(["old"]))
        assert deleted.fault is Fault.NONE
        assert (tmp_path / "data" / "old-0").exists()
        assert not (tmp_path / "data" / "old-1").exists()
        assert not list((tmp_path / "data" / ".trash").iterdir())
        await engine.stop()

    run(body)


@pytest.mark.parametrize("change", ["create", "grow"])
def test_partitions_of_a_catalogue_that_cannot_be_restored_keep_their_folders(
    tmp_path: Path, origin: Path, change: str
) -> None:
    """The next start finds the change that was refused, and must be able to serve it."""

    async def body() -> None:
        shutil.copytree(origin, tmp_path / "data")
        disk = FaultDisk()
        engine, _ = open_engine(tmp_path / "data", disk)
        replaced = False

        def refuse() -> None:
            nonlocal replaced
            name, path, _ = disk.calls[-1]
            if replaced and (name == "sync_directory" or path.name == "topics.tmp"):
                raise OSError(errno.EIO, "on cue")
            replaced = replaced or (name == "rename" and path.name == "topics.tmp")

        disk.arm(None)
        disk.before = refuse
        assert {result.fault for result in await answer_of(CHANGES[change](engine))} == {Fault.STORAGE_ERROR}
        disk.disarm()
        crash(engine)
        again, _ = open_engine(tmp_path / "data")
        assert len(topics_of(again)) == (3 if change == "create" else 1)
        assert all(partition.online for partition in again.partitions())
        await again.stop()

    run(body)
