from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage import shared_sync as subject
from penstock.storage import system
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, DiskFailed
from penstock.storage.flusher import Flusher
from penstock.storage.log import PartitionLog
from penstock.storage.shared_sync import UNWRITTEN_BYTES_MAX, SharedSync, shared_sync
from tests.storage.logs import append, new_log
from tests.storage.test_flusher import WAIT_S, GatedDisk, Loop

linux = pytest.mark.skipif(sys.platform != "linux", reason="syncfs is Linux's")


class FileSystem:
    """Stands for the system under a SharedSync: it counts, waits for permits and fails on cue."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.error: OSError | None = None
        self.unwritten = 0

    def sync_all(self, fd: int) -> None:
        self.begun.put(fd)
        assert self.permits.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error


class Parts:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk, self.loop, self.system = GatedDisk(), Loop(), FileSystem()
        self.shared = SharedSync(directory, self.system.sync_all, lambda: self.system.unwritten)
        self.flusher = Flusher(
            self.disk, 4, self.loop.calls.put, lambda log: self.loop.flushed.append(log.name), self.shared
        )

    def logs(self, count: int) -> list[PartitionLog]:
        logs = [new_log(self.directory / f"t-{n}", self.disk) for n in range(count)]
        for log in logs:  # the first flush, which also makes the folder safe, is behind them
            append(log, [b"first"])
            job = log.begin_flush()
            assert job is not None
            log.end_flush(job)
        return logs

    def request(self, *logs: PartitionLog) -> None:
        for log in logs:
            append(log, [b"a"])
            self.flusher.request(log)

    def files_begun(self, count: int) -> set[str]:
        return {self.disk.begun.get(timeout=WAIT_S) for _ in range(count)}


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(tmp_path)
    yield parts
    parts.disk.permits.release(1000)
    parts.system.permits.release(1000)
    parts.flusher.stop()
    parts.shared.close()


def test_logs_that_wait_are_made_safe_by_one_sync(parts: Parts) -> None:
    logs = parts.logs(10)
    parts.request(*logs)
    assert parts.files_begun(2) == {"t-0", "t-1"}
    parts.disk.permits.release(1)
    parts.loop.turn_until(lambda: parts.loop.flushed)
    parts.system.begun.get(timeout=WAIT_S)
    assert [log.flushed_offset for log in logs[2:]] == [1] * 8, "not before the sync has ended"
    parts.system.permits.release()
    parts.loop.turn_until(lambda: len(parts.loop.flushed) >= 9)
    assert [log.flushed_offset for log in logs[2:]] == [2] * 8
    assert parts.system.begun.empty()
    assert parts.disk.begun.empty()


def test_what_comes_during_a_shared_sync_waits_for_the_next(parts: Parts) -> None:
    logs = parts.logs(9)
    parts.request(*logs[:5])
    parts.files_begun(2)
    parts.disk.permits.release(2)
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 2)
    parts.system.begun.get(timeout=WAIT_S)
    parts.request(*logs[5:])
    append(logs[2], [b"b"])
    parts.flusher.request(logs[2])
    assert parts.disk.begun.empty()
    parts.system.permits.release()
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 5)
    parts.files_begun(1)  # the log that became dirty again went at once, beside the shared sync of the four others
    parts.system.begun.get(timeout=WAIT_S)
    parts.system.permits.release()
    parts.disk.permits.release()
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 10)
    assert logs[2].flushed_offset == 3
    assert [log.flushed_offset for log in logs[5:]] == [2] * 4


def test_few_waiting_logs_are_synced_by_themselves(parts: Parts) -> None:
    parts.request(*parts.logs(4))
    parts.files_begun(2)
    parts.disk.permits.release(4)
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 4)
    assert parts.files_begun(2) == {"t-2", "t-3"}
    assert parts.system.begun.empty()


def test_a_failed_shared_sync_is_the_last_and_every_log_asks_for_itself(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel tells an error once: a log that was not among the waiting must hear of it by its own file."""
    logs = parts.logs(10)
    parts.system.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with caplog.at_level(logging.WARNING):
        parts.request(*logs)
        parts.files_begun(2)
        parts.disk.permits.release(2)
        parts.loop.turn_until(lambda: len(parts.loop.flushed) == 2)
        parts.disk.error = DiskFailed(errno.EIO, "sync failed")
        parts.disk.permits.release(100)
        parts.system.permits.release(100)
        parts.loop.turn_until(lambda: len(parts.loop.flushed) == 10)
    assert [str(log.failure) for log in logs[2:]] == [str(parts.disk.error)] * 8
    assert [log.flushed_offset for log in logs[2:]] == [1] * 8
    assert "every log is synced by itself" in caplog.text
    parts.system.error = parts.disk.error = None
    parts.files_begun(8)
    parts.request(*logs[:2], *(new := [new_log(parts.directory / f"u-{n}", parts.disk) for n in range(8)]))
    assert len(parts.files_begun(10)) == 10
    parts.loop.turn_until(lambda: all(log.flushed_offset for log in new))
    parts.system.begun.get(timeout=WAIT_S)
    assert parts.system.begun.empty()


def test_much_unwritten_data_of_others_is_not_waited_for(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LOOK_INTERVAL_S", 0.0)
    logs = parts.logs(6)
    parts.system.unwritten = UNWRITTEN_BYTES_MAX + 1
    parts.disk.permits.release(100)
    parts.request(*logs)
    assert len(parts.files_begun(6)) == 6
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 6)
    parts.system.unwritten = UNWRITTEN_BYTES_MAX
    assert parts.shared.worthwhile()
    assert parts.system.begun.empty()


def test_how_much_is_unwritten_is_looked_at_now_and_then(tmp_path: Path) -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(0)
        return 0

    shared = SharedSync(tmp_path, lambda fd: None, look)
    assert all(shared.worthwhile() for _ in range(1000))
    assert len(looks) < 10
    shared.close()


def test_a_log_with_new_names_is_synced_by_itself(parts: Parts) -> None:
    logs = parts.logs(2)
    parts.request(*logs)
    parts.files_begun(2)
    found = new_log(parts.directory / "found-0", parts.disk)
    append(found, [b"a"])
    found.mark_unflushed(0)
    parts.flusher.request(found)
    assert parts.files_begun(1) == {"found-0"}


def test_files_of_another_file_system_are_synced_by_themselves(parts: Parts) -> None:
    parts.shared._device += 1
    logs = parts.logs(8)
    parts.disk.permits.release(100)
    parts.request(*logs)
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 8)
    assert len(parts.files_begun(8)) == 8
    assert parts.system.begun.empty()


def test_shared_sync_of_a_deleted_file_fails_that_log_alone(parts: Parts) -> None:
    logs = parts.logs(10)
    parts.request(*logs)
    parts.files_begun(2)
    shutil.rmtree(logs[5].directory)
    parts.disk.permits.release(2)
    parts.system.permits.release()
    parts.loop.turn_until(lambda: len(parts.loop.flushed) == 10)
    assert "was deleted while the broker was using it" in str(logs[5].failure)
    assert logs[5].flushed_offset == 1
    others = [log for log in logs if log is not logs[5]]
    assert [(log.failure, log.flushed_offset) for log in others] == [(None, 2)] * 9


def test_stop_makes_those_safe_that_wait(parts: Parts) -> None:
    logs = parts.logs(8)
    parts.request(*logs)
    parts.files_begun(2)
    parts.disk.permits.release(100)
    parts.flusher.stop()
    assert [log.flushed_offset for log in logs] == [2] * 8
    assert not any(log.flush_under_way for log in logs)


# ---------------------------------------------------------------------------------------------------- the real system


@linux
def test_the_system_syncs_a_file_system_and_tells_errors(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        (tmp_path / "file").write_bytes(b"x" * 100_000)
        system.sync_file_system(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        system.sync_file_system(fd)


@linux
def test_the_kind_of_a_file_system_is_known(tmp_path: Path) -> None:
    assert system.file_system_of(Path("/proc")) == "proc"
    assert system.file_system_of(tmp_path) not in (None, "proc")
    assert 0 <= system.unwritten_bytes() < sys.maxsize


@linux
def test_only_known_file_systems_of_known_kernels_are_synced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, wanted in (("ext4", True), ("xfs", True), ("overlay", False), ("nfs4", False), (None, False)):
        with monkeypatch.context() as patch:
            patch.setattr(system, "file_system_of", lambda path, kind=kind: kind)
            found = shared_sync(tmp_path)
            assert (found is not None) is wanted, kind
            if found is not None:
                found.close()
    for release, wanted in (
        ("5.8.0-1-amd64", True),
        ("6.1.0", True),
        ("5.7.19", False),
        ("5.7-rc1", False),
        ("4.19.0+", False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(os, "uname", lambda release=release: os.uname_result(("Linux", "h", release, "v", "m")))
            assert system.has_sync_file_system((5, 8)) is wanted, release


def test_a_disk_of_the_callers_own_is_never_passed_by(tmp_path: Path) -> None:
    class Own(Disk):
        pass

    directory = DataDirectory(tmp_path / "data", Own())
    assert directory.shared_sync is None
    directory.close((), clean=False)


def test_a_system_that_does_not_say_how_much_is_unwritten_syncs_every_file_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", hidden)
    shared = SharedSync(tmp_path)
    assert not shared.worthwhile()
    shared.close()
