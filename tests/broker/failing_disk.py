"""A disk that waits or fails on cue, and an engine on it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from penstock.broker.clock import Clock
from penstock.broker.embedded import READER_THREADS, EmbeddedEngine, EngineSettings
from penstock.broker.engine import NewTopic
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.records.builder import NewRecord, build_batch
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk, DiskFailed, LogFile

WAIT_S = 30.0


class CueDisk(Disk):
    """Files are real. `hold` makes syncs wait for `release`, `sync_error` makes them fail, `synced` names what was synced,
    and `refuse` may raise before an operation on a path."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.sync_error: int | None = None
        self.refuse: Callable[[str, Path], None] | None = None
        self.syncs_waiting = 0
        self._gate = threading.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    def sync(self, file: LogFile) -> None:
        self.syncs_waiting += 1
        try:
            assert self._gate.wait(WAIT_S), "nobody released the disk"
        finally:
            self.syncs_waiting -= 1
        if self.sync_error is not None:
            raise DiskFailed(self.sync_error, f"{file.path}: sync failed: {os.strerror(self.sync_error)}")
        super().sync(file)
        self.synced.append(str(file.path))

    def replace_whole(self, path: Path, data: Any, *, durable: bool = True) -> None:
        if self.refuse is not None:
            self.refuse("replace_whole", path)
        super().replace_whole(path, data, durable=durable)

    def rename(self, old: Path, new: Path) -> None:
        if self.refuse is not None:
            self.refuse("rename", old)
        super().rename(old, new)

    def append_to(self, path: Path, data: Any) -> None:
        if self.refuse is not None:
            self.refuse("append_to", path)
        super().append_to(path, data)

    def open(self, path: Path, *, create: bool = False) -> LogFile:
        if self.refuse is not None and create:
            self.refuse("create", path)
        return super().open(path, create=create)


class BadSectorDisk(Disk):
    """Bytes in `bad` of a file whose path has `where` in it cannot be read: they never get into the page cache, a read
    that begins before them ends there, and one that begins in them fails."""

    def __init__(self, where: str = "/t-0/") -> None:
        super().__init__()
        self.where = where
        self.bad = range(0)
        self.failed_reads = 0
        self._real_read = self.system_calls.read
        self._real_read_now = self.system_calls.read_now
        self.system_calls.read = self._read
        self.system_calls.read_now = self._read_now

    def _read(self, fd: int, length: int, position: int) -> bytes:
        if self._meets(fd, position, length):
            if position < self.bad.start:
                return self._real_read(fd, self.bad.start - position, position)
            self.failed_reads += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._real_read(fd, length, position)

    def _read_now(self, fd: int, buffer: bytearray, position: int) -> int:
        if self._meets(fd, position, len(buffer)):
            raise BlockingIOError
        return self._real_read_now(fd, buffer, position)

    def _meets(self, fd: int, position: int, length: int) -> bool:
        path = os.readlink(f"/proc/self/fd/{fd}")
        is_log = path.endswith(".log") and self.where in path
        return is_log and position < self.bad.stop and self.bad.start < position + length


def full_for(*operations: str) -> Callable[[str, Path], None]:
    """A `refuse` that has no room for these operations."""

    def refuse(operation: str, path: Path) -> None:
        if operation in operations:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return refuse


@asynccontextmanager
async def engine_on(
    path: Path,
    disk: Disk,
    *,
    topic: str | None = "t",
    configs: dict[str, str] | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[EmbeddedEngine]:
    """A started engine with one topic, made when it is not there; stopped cleanly at the end."""
    engine = EmbeddedEngine(DataDirectory(path, disk=disk), EngineSettings(**settings), clock)
    engine.start()
    try:
        if topic is not None and engine.topic(topic) is None:
            [made] = await answer_of(engine.create_topics([NewTopic(topic, 1, 1, configs or {})], validate_only=False))
            assert made.fault is Fault.NONE, made.text
        yield engine
    finally:
        if isinstance(disk, CueDisk):
            disk.release()
        await engine.stop()


@contextmanager
def readers_held(engine: EmbeddedEngine) -> Iterator[None]:
    """No reader thread does anything meanwhile."""
    released = threading.Event()
    held = [engine._readers.submit(released.wait, WAIT_S) for _ in range(READER_THREADS)]
    try:
        yield
    finally:
        released.set()
        for one in held:
            one.result()


async def answer_of(result: Any) -> Any:
    """The answer, waited for."""
    if isinstance(result, Pending):
        await until(lambda: result.done)
        return result.result
    return result


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came"
        await asyncio.sleep(0.001)


async def turns(count: int = 20) -> None:
    """Let the loop do all that it could do now."""
    for _ in range(count):
        await asyncio.sleep(0)


def batch_of(*values: bytes, **fields: Any) -> memoryview:
    records = [NewRecord(time.time_ns() // 1_000_000, None, value, ()) for value in values]
    return memoryview(build_batch(records, **fields))
