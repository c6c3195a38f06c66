"""Topics are created, grown, changed and deleted so that a crash at any step leaves the old state or the new one."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.broker import catalogue
from penstock.broker.catalogue import TopicEntry
from penstock.broker.embedded import EngineSettings
from penstock.broker.engine import NewTopic, TopicResult
from penstock.broker.opening import open_partitions
from penstock.broker.topics import MAKERS, Topics
from penstock.model import limits
from penstock.model.errors import Fault, StartError
from penstock.model.ids import TopicName, TopicPartition
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk
from penstock.storage.log import PartitionLog
from tests.broker.failing_disk import answer_of, batch_of, engine_on
from tests.storage.logs import NOW_MS, append, crash, flush, values_of
from tests.storage.simulated_disk import PowerCut, SimulatedDisk

VALUES = [b"one", b"two", b"three"]
Change = Callable[[Topics], Coroutine[Any, Any, list[TopicResult]]]
State = dict[str, tuple[int, dict[str, str]]]
"""Topic to partitions and configs."""


class Broker:
    """A data directory with its topics, and no more of a broker than those need."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.logs: dict[str, PartitionLog] = {}
        self.directory = DataDirectory(disk.root, disk=disk)
        try:
            self.topics = Topics(self.directory, EngineSettings(), self._publish, self._withdraw, lambda _: None)
            opened = open_partitions(
                self.directory,
                self.topics.entries(),
                self.topics.config_of,
                "acks",
                self.directory.leader_epoch,
                lambda _: None,
                NOW_MS,
            )
            for partition in opened.partitions:
                assert partition.log is not None, f"{partition.id}: {partition.reason}"
                self.logs[str(partition.id)] = partition.log
        except BaseException:
            crash(self.directory)
            raise

    def _publish(self, partition_id: TopicPartition, log: PartitionLog) -> None:
        self.logs[str(partition_id)] = log

    def _withdraw(self, partition_id: TopicPartition) -> None:
        log = self.logs.pop(str(partition_id))
        self.directory.files.forget(path for segment in log.segments for path in segment.paths())

    def state(self) -> State:
        return {entry.name: (entry.partitions, dict(entry.configs)) for entry in self.topics.entries()}

    def write(self, folder: str) -> None:
        append(self.logs[folder], VALUES, epoch=self.directory.leader_epoch)
        flush(self.logs[folder], self.disk)


def prepared(root: Path) -> SimulatedDisk:
    """Two topics with records, and one that was deleted by half: its folder is there, but no catalogue names it."""
    disk = SimulatedDisk(root)
    broker = Broker(disk)
    topics = [NewTopic("old", 2), NewTopic("other", 1), NewTopic("half", 1)]
    asyncio.run(broker.topics.create(topics, validate_only=False))
    for folder in ("old-0", "old-1", "other-0", "half-0"):
        broker.write(folder)
    entries = {entry.name: entry for entry in broker.topics.entries() if entry.name != "half"}
    broker.directory.write_state(catalogue.FILE_NAME, catalogue.encode(entries))
    crash(broker.directory)
    return disk


CHANGES: dict[str, tuple[Change, Callable[[State], State]]] = {
    "create": (
        lambda topics: topics.create([NewTopic("new", 2), NewTopic("half", 1)], validate_only=False),
        lambda state: {**state, "new": (2, {}), "half": (1, {})},
    ),
    "delete": (
        lambda topics: topics.delete(["old"]),
        lambda state: {name: row for name, row in state.items() if name != "old"},
    ),
    "grow": (
        lambda topics: topics.add_partitions([("old", 4)], validate_only=False),
        lambda state: {**state, "old": (4, {})},
    ),
    "alter": (
        lambda topics: topics.alter_configs({"old": {"retention.ms": "5000"}}, validate_only=False),
        lambda state: {**state, "old": (2, {"retention.ms": "5000"})},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one(tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    disk = prepared(tmp_path)
    steps = 0
    done = False
    while not done:
        broker = Broker(disk.copy())
        before = broker.state()
        broker.disk.changes_left = steps
        try:
            results = asyncio.run(change(broker.topics))
            done = True
            assert all(result.fault is Fault.NONE for result in results), results
            assert broker.state() == expected(before)
        except PowerCut:
            pass
        crash(broker.directory)
        broker.disk.changes_left = None
        for seed in range(6):
            found = broker.disk.copy() if seed == 0 else broker.disk.after_cut(Random(seed))
            check(found, before, expected(before), done=done)
        steps += 1
    assert steps > 4


def check(disk: SimulatedDisk, before: State, after: State, *, done: bool) -> None:
    """A start on what a crash left, and the same change once more."""
    broker = Broker(disk)
    state = broker.state()
    assert state == after if done else state in (before, after)
    for folder, log in broker.logs.items():
        old = folder in ("old-0", "old-1", "other-0")
        assert values_of(log, disk) == (VALUES if old else []), folder
        if not old:
            broker.write(folder)
            assert values_of(log, disk) == VALUES
    for entry in broker.topics.entries():
        for at in range(entry.partitions):
            metadata = disk.read_whole(disk.root / f"{entry.name}-{at}" / "partition.metadata")
            assert metadata.startswith(b"version: 0\ntopic_id: ")
    crash(broker.directory)


class RoomOfATopic(SimulatedDisk):
    """A disk that the records of one topic fill: no file can be written before they are deleted."""

    def replace_whole(self, path: Path, data: Any, *, durable: bool = True) -> None:
        records = [found for found in self.files() if found.suffix == ".log" and found.parent.name != "other-0"]
        if path.name == catalogue.FILE_NAME and records:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().replace_whole(path, data, durable=durable)
        self.owed.pop(path, None)


def test_crash_of_a_deletion_without_room_leaves_the_topic_or_none_of_it(tmp_path: Path) -> None:
    disk = prepared(tmp_path)
    disk.remove_directory(tmp_path / "half-0")
    outcomes = set()
    steps = 0
    done = False
    while not done:
        broker = Broker(full(disk.copy()))
        before = broker.state()
        broker.disk.changes_left = steps
        try:
            [result] = asyncio.run(broker.topics.delete(["old"]))
            done = True
            assert result.fault is Fault.NONE, result.text
            assert "old" not in broker.state()
            assert not [path for path in broker.disk.files() if path.parent.name.startswith(".deleted")]
        except PowerCut:
            pass
        crash(broker.directory)
        broker.disk.changes_left = None
        for seed in range(6):
            found = broker.disk.copy() if seed == 0 else broker.disk.after_cut(Random(seed))
            again = Broker(full(found))
            outcomes.add("old" in again.state())
            assert again.state() == (before if "old" in again.state() else {"other": before["other"]})
            assert not (done and "old" in again.state())
            assert values_of(again.logs["other-0"], again.disk) == VALUES
            for folder in set(again.logs) - {"other-0"}:
                assert values_of(again.logs[folder], again.disk) == VALUES
            crash(again.directory)
        steps += 1
    assert outcomes == {True, False}
    assert steps > 4


def full(disk: SimulatedDisk) -> SimulatedDisk:
    disk.__class__ = RoomOfATopic
    disk.may_owe = True
    return disk


def test_a_topic_made_again_under_its_old_name_has_another_id_and_no_old_records(tmp_path: Path) -> None:
    broker = Broker(prepared(tmp_path))
    old = broker.topics.get("old")
    assert old is not None

    async def delete_and_create() -> TopicResult:
        await broker.topics.delete(["old"])
        (made,) = await broker.topics.create([NewTopic("old", 1)], validate_only=False)
        return made

    made = asyncio.run(delete_and_create())
    assert made.topic_id != old.id
    assert broker.topics.name_of(old.id.bytes) is None
    assert values_of(broker.logs["old-0"], broker.disk) == []
    broker.write("old-0")
    crash(broker.directory)
    again = Broker(broker.disk)
    assert values_of(again.logs["old-0"], again.disk) == VALUES
    crash(again.directory)


def test_a_change_that_finds_no_room_changes_nothing(tmp_path: Path) -> None:
    class FullDisk(SimulatedDisk):
        def replace_whole(self, path: Path, data: Any, *, durable: bool = True) -> None:
            raise OSError(28, "No space left on device")

    disk = prepared(tmp_path)
    broker = Broker(disk)
    before = broker.state()
    disk.__class__ = FullDisk
    for change, _ in CHANGES.values():
        results = asyncio.run(change(broker.topics))
        assert {result.fault for result in results} == {Fault.STORAGE_ERROR}
        assert "No space left" in str(results[0].text)
        assert broker.state() == before
    disk.__class__ = SimulatedDisk
    crash(broker.directory)
    again = Broker(disk)
    assert again.state() == before
    crash(again.directory)


def test_validate_only_changes_nothing(tmp_path: Path) -> None:
    broker = Broker(prepared(tmp_path))
    before, files = broker.state(), broker.disk.files()

    async def ask() -> list[TopicResult]:
        return [
            *await broker.topics.create([NewTopic("new", 2)], validate_only=True),
            *await broker.topics.add_partitions([("old", 4)], validate_only=True),
            *await broker.topics.alter_configs({"old": {"retention.ms": "5"}}, validate_only=True),
        ]

    assert {result.fault for result in asyncio.run(ask())} == {Fault.NONE}
    assert (broker.state(), broker.disk.files()) == (before, files)
    crash(broker.directory)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "x" * 250, "a\0b", "ü", "a b"])
def test_a_name_that_is_not_valid_makes_no_file(tmp_path: Path, name: str) -> None:
    broker = Broker(SimulatedDisk(tmp_path))
    files = broker.disk.files()
    (result,) = asyncio.run(broker.topics.create([NewTopic(name, 1)], validate_only=False))
    assert result.fault is Fault.INVALID_TOPIC
    assert broker.disk.files() == files
    crash(broker.directory)


def test_a_name_of_249_characters_is_a_topic(tmp_path: Path) -> None:
    name = "x" * 249

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), topic=name) as engine:
            (done,) = await answer_of(engine.append(name, 0, [batch_of(b"v")], -1))
            assert done.fault is Fault.NONE
            (gone,) = await answer_of(engine.delete_topics([name]))
            assert gone.fault is Fault.NONE

    asyncio.run(run())
    assert not list(tmp_path.glob("x*"))


def test_each_topic_of_a_request_has_its_own_answer(tmp_path: Path) -> None:
    broker = Broker(prepared(tmp_path))
    asked = [
        (NewTopic("old", 1), Fault.TOPIC_EXISTS),
        (NewTopic("fine", 1), Fault.NONE),
        (NewTopic("twice", 1), Fault.INVALID_REQUEST),
        (NewTopic("twice", 1), Fault.INVALID_REQUEST),
        (NewTopic("none", 0), Fault.INVALID_PARTITIONS),
        (NewTopic("copies", 1, 3), Fault.INVALID_REPLICATION_FACTOR),
        (NewTopic("config", 1, 1, {"retention.ms": "soon"}), Fault.INVALID_CONFIG),
    ]
    results = asyncio.run(broker.topics.create([topic for topic, _ in asked], validate_only=False))
    assert [(result.name, result.fault) for result in results] == [(topic.name, fault) for topic, fault in asked]
    assert broker.topics.get("fine") is not None
    crash(broker.directory)


# ---- limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("too_many", [0, 1])
@pytest.mark.parametrize("how", ["create", "grow"])
def test_partitions_of_a_topic_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, too_many: int
) -> None:
    broker = Broker(prepared(tmp_path))
    monkeypatch.setattr(limits, "PARTITIONS_PER_TOPIC_MAX", 5)
    if how == "create":
        change = broker.topics.create([NewTopic("new", 5 + too_many)], validate_only=False)
    else:
        change = broker.topics.add_partitions([("old", 5 + too_many)], validate_only=False)
    (result,) = asyncio.run(change)
    assert result.fault is (Fault.INVALID_PARTITIONS if too_many else Fault.NONE)
    assert broker.topics.partition_count == (3 if too_many else 8 if how == "create" else 6)
    crash(broker.directory)


@pytest.mark.parametrize("too_many", [0, 1])
@pytest.mark.parametrize("how", ["create", "grow"])
def test_partitions_of_the_broker_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, too_many: int
) -> None:
    """The first change of a request leaves room for two more partitions."""
    broker = Broker(prepared(tmp_path))
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 8)
    if how == "create":
        topics = [NewTopic("new", 3), NewTopic("last", 2 + too_many)]
        change = broker.topics.create(topics, validate_only=False)
    else:
        change = broker.topics.add_partitions([("old", 5), ("other", 3 + too_many)], validate_only=False)
    first, second = asyncio.run(change)
    assert first.fault is Fault.NONE
    assert second.fault is (Fault.INVALID_PARTITIONS if too_many else Fault.NONE)
    assert broker.topics.partition_count == (6 if too_many else 8)
    crash(broker.directory)


def test_the_catalogue_is_read_back_as_it_was_written() -> None:
    entry = TopicEntry(TopicName("a"), uuid.uuid4(), 3, {"retention.ms": "1"})
    assert catalogue.decode(catalogue.encode({entry.name: entry})) == {entry.name: entry}
    assert catalogue.decode(None) == {}
    with pytest.raises(StartError, match="version 2"):
        catalogue.decode(b'{"version":2,"topics":[]}')
    with pytest.raises(StartError, match="not readable"):
        catalogue.decode(b'{"version":1,"topics":[{"name":"a"}]}')


# ---- many topics --------------------------------------------------------------------------------------------------------


async def _turns_during(work: Coroutine[Any, Any, Any]) -> int:
    """How often the loop turned while the work was under way."""
    turns = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    task.result()
    return turns


@pytest.mark.parametrize("what", ["create", "delete", "grow", "alter"])
def test_request_for_many_topics_lets_other_requests_run(tmp_path: Path, what: str) -> None:
    names = [f"t{number}" for number in range(20_000)]

    async def run() -> None:
        async with engine_on(tmp_path, Disk(), topic=None, flush="os") as engine:
            topics = engine._topics
            work: Coroutine[Any, Any, Any]
            if what == "create":
                work = topics.create([NewTopic(name) for name in names], validate_only=True)
            elif what == "delete":
                work = topics.delete(names)
            elif what == "grow":
                work = topics.add_partitions([(name, 2) for name in names], validate_only=True)
            else:
                work = topics.alter_configs({name: {} for name in names}, validate_only=True)
            assert await _turns_during(work) >= 3

    asyncio.run(run())


def test_partitions_are_made_a_few_at_a_time_with_the_loop_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(SimulatedDisk(tmp_path))
    begun: list[str] = []
    first, too_many = threading.Event(), threading.Event()
    create_log = broker.directory.create_log

    def counted(name: str, *args: Any) -> PartitionLog:
        begun.append(name)
        first.set()
        if len(begun) > MAKERS:
            too_many.set()
        return create_log(name, *args)

    monkeypatch.setattr(broker.directory, "create_log", counted)

    async def create() -> None:
        creating = asyncio.create_task(broker.topics.create([NewTopic("t", 5 * MAKERS)], validate_only=False))
        await asyncio.to_thread(first.wait)
        # The loop is busy: nothing more is begun before it has had its turn.
        assert not too_many.wait(0.3)
        assert (await creating)[0].fault is Fault.NONE

    asyncio.run(create())
    assert len(begun) == 5 * MAKERS
    crash(broker.directory)


def test_topic_named_twice_is_refused_each_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), topic=None, flush="os") as engine:
            asked = [NewTopic(name) for name in ("a", "b", "a", "c", "a")]
            results = await answer_of(engine.create_topics(asked, validate_only=False))
            refused = Fault.INVALID_REQUEST
            assert [result.fault for result in results] == [refused, Fault.NONE, refused, Fault.NONE, refused]
            assert list(engine.topic_names()) == ["b", "c"]

    asyncio.run(run())


def test_names_and_counts_follow_every_change(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_on(tmp_path, Disk(), topic=None, flush="os") as engine:
            topics = engine._topics
            dice = Random(3)
            expected: dict[str, int] = {}
            for number in range(12):
                name = f"t{dice.randrange(100)}-{number}"
                expected[name] = 1 + number % 3
                await answer_of(engine.create_topics([NewTopic(name, expected[name])], validate_only=False))
                if number % 4 == 3:
                    gone = dice.choice(sorted(expected))
                    del expected[gone]
                    await answer_of(engine.delete_topics([gone]))
                if number % 5 == 4:
                    grown = dice.choice(sorted(expected))
                    expected[grown] += 2
                    await answer_of(engine.add_partitions([(grown, expected[grown])], validate_only=False))
                assert list(topics.names()) == sorted(expected)
                assert topics.partition_count == sum(expected.values())
                infos = {info.name: len(info.partitions) for info in engine.topics()}
                assert infos == expected
                ids = {name: info.topic_id for name in expected if (info := engine.topic(name)) is not None}
                assert {topics.name_of(topic_id.bytes) for topic_id in ids.values()} == set(expected)

    asyncio.run(run())


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1_200])
def test_the_catalogue_in_parts_is_the_catalogue(count: int) -> None:
    entries = {
        TopicName(f"t{n}"): TopicEntry(TopicName(f"t{n}"), uuid.UUID(int=n), n, {"retention.ms": "5"} if n % 3 else {})
        for n in range(count)
    }
    whole = msgspec.json.format(msgspec.json.encode({"version": 1, "topics": list(entries.values())}), indent=1)
    assert b"".join(catalogue.encode_in_parts(entries)) == whole
    assert catalogue.decode(catalogue.encode(entries)) == entries
