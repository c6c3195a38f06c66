from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import LATEST, KafkaClient, KafkaSettings
from penstock.imports import installing, online, run
from penstock.imports.engine import ImportFailed
from penstock.imports.installing import _place
from penstock.imports.progress import PartitionProgress, Step
from penstock.imports.report import Report
from penstock.imports.run import Import, ImportRequest
from penstock.imports.staging import Staged
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.files import Disk
from tests.cli.conftest import environment
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record, tear
from tests.imports.test_into_directory import opener

START_S_MAX = 60.0


class Killed(BaseException):
    """What kill -9 is to a process."""


def _source(root: Path, topic: str, count: int, size: int) -> list[bytes]:
    values = [b"%08d" % number + b"." * size for number in range(count)]
    day1_log(root, topic, 0, [day1_record(n, b"", value) for n, value in enumerate(values)])
    return values


@pytest.mark.parametrize("killed_at", [1, 2, 4])
def test_batches_that_the_broker_has_and_the_progress_does_not_know_are_not_doubled(
    broker: Broker, client: KafkaClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    topic = f"unknown-{killed_at}"
    values = _source(tmp_path / "s", topic, 2_000, 5_000)
    monkeypatch.setattr(online, "WINDOW_BATCHES", 3)
    write = PartitionProgress.write
    steps = 0

    def write_or_die(self: PartitionProgress, step: Step) -> None:
        nonlocal steps
        steps += 1
        if steps == killed_at + 1:
            raise Killed
        write(self, step)

    request = ImportRequest("day1", tmp_path / "s")
    settings = KafkaSettings.of(broker.bootstrap)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionProgress, "write", write_or_die)
        with pytest.raises(Killed):
            Import(request).into_broker(settings, broker.bootstrap)
    assert client.list_offsets({(topic, 0): LATEST}).popitem()[1].offset
    report = Import(request).into_broker(settings, broker.bootstrap)
    assert report.resumed
    assert client.list_offsets({(topic, 0): LATEST}).popitem()[1].offset == len(values)
    assert [record.value for record in read_all(client, topic, 0, 0, len(values))] == values


def test_an_import_that_is_killed_again_and_again_doubles_and_loses_nothing(
    broker: Broker, client: KafkaClient, tmp_path: Path
) -> None:
    values = _source(tmp_path / "s", "killed", 12_000, 5_000)
    # many small steps, so that the blow falls among them even if it comes late
    script = (
        "from penstock.imports import online; online.WINDOW_BATCHES = 1\nfrom penstock.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, "import", "--from", "day1", str(tmp_path / "s")]
    command += ["--bootstrap", broker.bootstrap, "--progress", str(tmp_path / "progress"), "--json"]
    steps = tmp_path / "progress" / "killed-0.steps"
    seen = 0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), cwd=tmp_path)
        deadline = time.monotonic() + START_S_MAX
        while process.poll() is None and time.monotonic() < deadline:
            if steps.exists() and steps.stat().st_size > seen + 300:
                break
            time.sleep(0.001)
        process.kill()
        process.communicate()
        seen = steps.stat().st_size
    ended = subprocess.run(command, capture_output=True, env=environment(), cwd=tmp_path, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["resumed"]
    assert client.list_offsets({("killed", 0): LATEST}).popitem()[1].offset == len(values)
    assert [record.value for record in read_all(client, "killed", 0, 0, len(values))] == values


def test_a_kill_between_the_brokers_files_and_the_folders_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data_dir = tmp_path / "s", tmp_path / "data"
    first = _source(root, "one", 50, 10)
    second = _source(root, "two", 60, 10)
    request = ImportRequest("day1", root)
    placed: list[str] = []

    def place_or_die(disk: Disk, folder: Path, log: Staged, topic_id: uuid.UUID) -> None:
        if placed:
            raise Killed
        placed.append(log.name)
        _place(disk, folder, log, topic_id)

    with monkeypatch.context() as patched:
        patched.setattr(installing, "_place", place_or_die)
        with pytest.raises(Killed):
            Import(request).into_directory(data_dir, opener(data_dir))
    report = Import(request).into_directory(data_dir, opener(data_dir))
    assert report.resumed
    assert report.verified
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert [record.value for record in read_all(client, "one", 0, 0, 50)] == first
        assert [record.value for record in read_all(client, "two", 0, 0, 60)] == second


@pytest.mark.parametrize("other", ["s", "t"])
def test_what_a_killed_run_had_made_of_another_source_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The directory was written to in between, or is another one with a topic of the same name."""
    data_dir = tmp_path / "data"
    _source(tmp_path / "s", "one", 50, 10)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(run, "install", die)
        with pytest.raises(Killed):
            Import(ImportRequest("day1", tmp_path / "s")).into_directory(data_dir, opener(data_dir))
    assert (data_dir / ".import" / "one-0" / "staged.json").exists()
    values = _source(tmp_path / other, "one", 70, 10)
    report = Import(ImportRequest("day1", tmp_path / other)).into_directory(data_dir, opener(data_dir))
    assert (report.verified, report.records) == (True, 70)
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert client.list_offsets({("one", 0): LATEST}).popitem()[1].offset == 70
        assert [record.value for record in read_all(client, "one", 0, 0, 70)] == values


def test_two_imports_at_once_with_one_progress_folder_are_refused(broker: Broker, tmp_path: Path) -> None:
    from penstock.imports.progress import Progress, ProgressError

    _source(tmp_path / "s", "locked", 1, 1)
    held = Progress(tmp_path / "p")
    request = ImportRequest("day1", tmp_path / "s", progress_folder=tmp_path / "p")
    with pytest.raises(ProgressError, match="another import is at work"):
        Import(request).into_broker(KafkaSettings.of(broker.bootstrap), broker.bootstrap)
    held.release()


@pytest.mark.parametrize("renames", [0, 1])
@pytest.mark.parametrize("how", ["kill", "error"])
def test_an_import_that_ends_between_two_renames_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, how: str
) -> None:
    """The broker's empty folder is in the trash, and the log is not in its place."""
    root, data_dir = tmp_path / "s", tmp_path / "data"
    values = _source(root, "one", 50, 10)
    done = 0

    class Ending(Disk):
        def rename(self, old: Path, new: Path) -> None:
            nonlocal done
            if done == renames:
                raise Killed if how == "kill" else OSError(errno.EIO, "on cue")
            done += 1
            super().rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(installing, "Disk", Ending)
        with pytest.raises((Killed, ImportFailed)):
            Import(ImportRequest("day1", root)).into_directory(data_dir, opener(data_dir))
    report = Import(ImportRequest("day1", root)).into_directory(data_dir, opener(data_dir))
    assert report.verified
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert [record.value for record in read_all(client, "one", 0, 0, 50)] == values
    assert not (data_dir / "one-0" / "staged.json").exists()


class _Between:
    """Does something after the source was looked at, and before it is written."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def begin(self, what: str, total_bytes: int) -> None:
        if what == "writing":
            self._act()

    def advance(self, count: int) -> None:
        return


def _write_to(target: str, broker: Broker, folder: Path, request: ImportRequest) -> Report:
    if target == "broker":
        return Import(request).into_broker(KafkaSettings.of(broker.bootstrap), broker.bootstrap)
    return Import(request).into_directory(folder, opener(folder))


@pytest.mark.parametrize("target", ["broker", "directory"])
def test_a_source_that_changes_while_it_is_imported_is_no_success(broker: Broker, tmp_path: Path, target: str) -> None:
    """It is read twice: once to look at it, once to write it."""
    _source(tmp_path / "s", f"changed-{target}", 50, 10)
    path = tmp_path / "s" / f"changed-{target}-0.log"
    request = ImportRequest("day1", tmp_path / "s", watcher=_Between(lambda: tear(path, 3)))
    with pytest.raises(ImportFailed):
        _write_to(target, broker, tmp_path / "data", request)


@pytest.mark.parametrize("reader", ["day1", "kafka"])
@pytest.mark.parametrize("target", ["broker", "directory"])
def test_records_appended_during_the_import_are_not_read(
    broker: Broker, tmp_path: Path, target: str, reader: str
) -> None:
    root, topic = tmp_path / "s", f"live-{target}-{reader}"
    if reader == "day1":
        path = day1_log(root, topic, 0, [day1_record(n, b"", b"v") for n in range(5)])
        more = day1_record(5, b"", b"v") + day1_record(6, b"", b"v")[:-3]
    else:
        path = root / f"{topic}-0" / f"{0:020d}.log"
        path.parent.mkdir(parents=True)
        path.write_bytes(build_batch([NewRecord(1, None, b"v")] * 5, leader_epoch=0))
        more = bytes(build_batch([NewRecord(1, None, b"v")], base_offset=5, leader_epoch=0)) * 2

    def append() -> None:
        with path.open("ab") as file:
            file.write(more[:-3])

    request = ImportRequest(reader, root, watcher=_Between(append))
    report = _write_to(target, broker, tmp_path / "data", request)
    assert (report.records, report.verified, report.is_complete) == (5, True, True)
