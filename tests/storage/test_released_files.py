"""No error keeps a file open: the space of a deleted log is free at once, without the garbage collector.

The broker rarely collects, because requests make hardly any reference cycles. An exception that is kept, or that a local
variable of its own traceback refers to, is such a cycle, and holds every file of the frames it passed through.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import BrokerError
from penstock.storage.files import Cold, Disk, LogFile
from penstock.storage.log import PartitionLog
from tests.storage.logs import append, flush, new_log


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def refused_append(disk: Disk, log: PartitionLog, write: Callable[..., int]) -> None:
    disk.system_calls.write = write
    with contextlib.suppress(BrokerError):
        append(log, [b"refused"])


def short_write(disk: Disk, log: PartitionLog) -> None:
    refused_append(disk, log, lambda fd, data, position: os.pwrite(fd, data[:5], position))


def no_room(disk: Disk, log: PartitionLog) -> None:
    refused_append(disk, log, failing(errno.ENOSPC))


def write_error(disk: Disk, log: PartitionLog) -> None:
    refused_append(disk, log, failing(errno.EIO))
    assert log.failure is not None


def failed_cut_back(disk: Disk, log: PartitionLog) -> None:
    disk.system_calls.truncate = failing(errno.EIO)
    refused_append(disk, log, failing(errno.ENOSPC))
    assert log.failure is not None


def failed_flush(disk: Disk, log: PartitionLog) -> None:
    disk.system_calls.sync = failing(errno.EIO)
    flush(log, disk)
    assert log.failure is not None


def refused_flush(disk: Disk, log: PartitionLog) -> None:
    append(log, [b"x" * 300])
    disk.system_calls.open = failing(errno.EMFILE)
    flush(log, disk)
    assert log.flush_refused is not None


def refused_flush_of_a_deleted_log(disk: Disk, log: PartitionLog) -> None:
    append(log, [b"x" * 300])
    job = log.begin_flush()
    assert job is not None
    log.retire()
    disk.system_calls.open = failing(errno.EMFILE)
    job.run(disk)
    log.end_flush(job)


def files_to_flush_after_a_write_error(disk: Disk, log: PartitionLog) -> None:
    for _ in range(5):
        append(log, [b"x" * 100])
    write_error(disk, log)


def unreadable_bytes(disk: Disk, log: PartitionLog) -> None:
    disk.system_calls.read = failing(errno.EIO)
    disk.system_calls.read_now = failing(errno.EAGAIN)
    for _ in range(2):
        try:
            disk.read_now(log.active.file, 0, 10)
        except Cold as cold:
            disk.read_ahead(cold, 100)
        except OSError:
            pass


@pytest.mark.parametrize(
    "provoke",
    [
        short_write,
        no_room,
        write_error,
        failed_cut_back,
        failed_flush,
        refused_flush,
        refused_flush_of_a_deleted_log,
        files_to_flush_after_a_write_error,
        unreadable_bytes,
    ],
)
def test_deleted_log_keeps_no_file_open_after_an_error(
    tmp_path: Path, provoke: Callable[[Disk, PartitionLog], None]
) -> None:
    opened: list[weakref.ref[LogFile]] = []

    class WatchedDisk(Disk):
        def open(self, path: Path, *, create: bool = False) -> LogFile:
            file = super().open(path, create=create)
            opened.append(weakref.ref(file))
            return file

    disk = WatchedDisk()
    log = new_log(tmp_path / "t-0", disk, segment_bytes=300)
    log.on_roll = [log].reverse  # a cycle, as the broker's is
    append(log, [b"first"])
    provoke(disk, log)
    log.retire()
    del log
    left = [file.path.name for found in opened if (file := found()) is not None]
    assert left == []


def test_retired_log_refuses_writes_and_opens_no_file(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path / "t-0", disk)
    append(log, [b"first"])
    log.retire()
    assert log.begin_flush() is None
    with pytest.raises(BrokerError):
        append(log, [b"second"])
    assert len(log._files) == 0
