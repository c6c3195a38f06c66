from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.storage.files import Disk, DiskFailed, LogFile
from penstock.storage.flusher import Flusher
from penstock.storage.log import PartitionLog
from tests.storage.logs import append, new_log

WAIT_S = 20.0


class GatedDisk(Disk):
    """Syncs wait for a permit each."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.error: DiskFailed | None = None

    def sync(self, file: LogFile) -> None:
        self.begun.put(file.path.parent.name)
        assert self.permits.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error


class Loop:
    """The part of an event loop that a flusher needs, turned by hand."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.flushed: list[str] = []

    def turn_until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.calls.get(timeout=WAIT_S)()


@pytest.fixture
def parts() -> Iterator[tuple[GatedDisk, Loop, Flusher]]:
    disk, loop = GatedDisk(), Loop()
    flusher = Flusher(disk, 2, loop.calls.put, lambda log: loop.flushed.append(log.name))
    yield disk, loop, flusher
    disk.permits.release(1000)
    flusher.stop()


def test_everything_appended_during_a_flush_is_flushed_by_one_more(
    tmp_path: Path, parts: tuple[GatedDisk, Loop, Flusher]
) -> None:
    disk, loop, flusher = parts
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    flusher.request(log)
    assert disk.begun.get(timeout=WAIT_S) == "t-0"
    for n in range(20):
        append(log, [b"%d" % n])
        flusher.request(log)
    disk.permits.release()
    loop.turn_until(lambda: loop.flushed)
    assert log.flushed_offset == 1
    assert disk.begun.get(timeout=WAIT_S) == "t-0"
    disk.permits.release()
    loop.turn_until(lambda: len(loop.flushed) == 2)
    assert (log.flushed_offset, log.dirty) == (21, False)
    assert disk.begun.empty()


def test_a_slow_log_does_not_hold_up_another(tmp_path: Path, parts: tuple[GatedDisk, Loop, Flusher]) -> None:
    disk, loop, flusher = parts
    logs = [new_log(tmp_path / f"t-{n}", disk) for n in range(2)]
    for log in logs:
        append(log, [b"a"])
        flusher.request(log)
    assert {disk.begun.get(timeout=WAIT_S), disk.begun.get(timeout=WAIT_S)} == {"t-0", "t-1"}
    disk.permits.release()
    loop.turn_until(lambda: len(loop.flushed) == 1)
    disk.permits.release()
    loop.turn_until(lambda: len(loop.flushed) == 2)
    assert sorted(loop.flushed) == ["t-0", "t-1"]


def test_a_failed_flush_is_told_once_and_not_tried_again(
    tmp_path: Path, parts: tuple[GatedDisk, Loop, Flusher]
) -> None:
    disk, loop, flusher = parts
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    disk.error = DiskFailed(errno.EIO, "sync failed")
    flusher.request(log)
    disk.begun.get(timeout=WAIT_S)
    append(log, [b"b"])
    disk.permits.release(10)
    loop.turn_until(lambda: loop.flushed)
    assert loop.flushed == ["t-0"]
    assert str(log.failure) == str(disk.error)
    assert disk.begun.empty()


def test_a_log_whose_folder_went_away_fails_alone(tmp_path: Path, parts: tuple[GatedDisk, Loop, Flusher]) -> None:
    """A topic may be deleted while its flush is queued; the threads must live on."""
    disk, loop, flusher = parts
    disk.permits.release(1000)
    for n in range(5):
        gone = new_log(tmp_path / f"gone-{n}", disk, segment_bytes=100)
        append(gone, [b"a" * 50], [b"b" * 50])
        gone.directory.rename(tmp_path / f"trash-{n}")
        gone._files.forget([gone.active.path])
        flusher.request(gone)
        assert gone.failure is not None or gone.flush_under_way
        loop.turn_until(lambda wanted=n + 1: len(loop.flushed) >= wanted)  # type: ignore[misc]
        assert gone.failure is not None
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    flusher.request(log)
    loop.turn_until(lambda: "t-0" in loop.flushed)
    assert log.flushed_offset == 1


def test_stop_leaves_no_flush_half_begun(tmp_path: Path) -> None:
    """What is appended while the last flush runs is for the closing of the directory to flush, so it must be able to."""
    disk, loop = GatedDisk(), Loop()
    flushed: list[PartitionLog] = []
    flusher = Flusher(disk, 1, loop.calls.put, flushed.append)
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"a"])
    flusher.request(log)
    disk.begun.get(timeout=WAIT_S)
    append(log, [b"b"])
    disk.permits.release(10)
    flusher.stop()
    assert flushed == [log]
    assert (log.flushed_offset, log.flush_under_way) == (1, False)
    job = log.begin_flush()
    assert job is not None
    assert job.offset == 2
