"""One sync for many logs: Linux's `syncfs` makes a whole file system safe for about the price of two files.

What makes it trustworthy, and where it is not used:

- The kernel reports a failed write to every descriptor that was open before, once. So one descriptor, opened before the
  broker writes and kept, is the only one that asks; and after its first error no shared sync is tried again: the error may
  be of a log that was not among the waiting ones, and that log learns of it by the sync of its own file.
- Only Linux from 5.8 on reports such errors, and only ext4 and XFS are known here to commit and flush the disk's own memory
  on it; anywhere else every file is synced by itself. So are files of another file system that was mounted below.
- It also writes what others left unwritten. When that is much, a shared sync would wait for data that nobody asked for, and
  every file is synced by itself until it is less.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.storage import system
from penstock.storage.files import Disk, LogFile
from penstock.storage.flush_job import FlushJob

FILE_SYSTEMS = frozenset({"ext4", "xfs"})
KERNEL_MIN = (5, 8)
UNWRITTEN_BYTES_MAX = 64 * 1024 * 1024
"""More unwritten data than this on the machine, and files are synced by themselves."""
LOOK_INTERVAL_S = 0.1

logger = logging.getLogger(__name__)


class SharedSync:
    def __init__(
        self,
        directory: Path,
        sync_all: Callable[[int], None] = system.sync_file_system,
        unwritten_bytes: Callable[[], int] = system.unwritten_bytes,
    ) -> None:
        self._sync_all = sync_all
        self._unwritten_bytes = unwritten_bytes
        self._fd = os.open(directory, os.O_RDONLY | system.OPEN_FLAGS)
        self._device = os.fstat(self._fd).st_dev
        self._trusted = True
        self._worthwhile = False
        self._look_again_at = 0.0

    def worthwhile(self) -> bool:
        """Whether many logs should rather be synced together, as far as was seen in the last tenth of a second."""
        now = time.monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + LOOK_INTERVAL_S
            self._worthwhile = self._trusted and self._unwritten_bytes() <= UNWRITTEN_BYTES_MAX
        return self._worthwhile and self._trusted

    def run(self, jobs: Sequence[FlushJob], disk: Disk) -> None:
        """On a flusher thread: make all of `jobs` safe, together when that can be trusted."""
        if not (self._trusted and self._all_on_one_file_system(jobs) and self._succeeds()):
            for job in jobs:
                job.run(disk)

    def _all_on_one_file_system(self, jobs: Sequence[FlushJob]) -> bool:
        try:
            return all(_device_of(file) == self._device for job in jobs for file in job.files)
        except OSError:
            return False

    def _succeeds(self) -> bool:
        try:
            self._sync_all(self._fd)
        except OSError as error:
            self._trusted = False
            logger.warning("syncing the file system failed, from now on every log is synced by itself: %s", error)
        return self._trusted

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _device_of(file: LogFile) -> int:
    if file.device is None:
        file.device = os.fstat(file.fd).st_dev
    return file.device


def shared_sync(directory: Path) -> SharedSync | None:
    """For the logs below `directory`; None where the system or the file system is not one to trust with it."""
    if not system.has_sync_file_system(KERNEL_MIN):
        return None
    return SharedSync(directory) if system.file_system_of(directory) in FILE_SYSTEMS else None
