"""A reserve of disk space that lets a broker with a full disk continue to serve reads, commits and deletions.

The data directory has one preallocated file, `reserve`. The state is how much of it is left:

    ample      all of it       everything is written
    tight      one eighth      records from clients and new topics are refused. The broker's own writes continue: commits,
                               groups, transactions and their markers, and all small files
    critical   nothing         writes to internal topics are refused, too. Small files are written: the catalogue, which
                               deleting a topic requires, the leader epoch, the checkpoint

A write that fails because the disk is full (ENOSPC, EDQUOT) moves the state down by one and frees that part of the reserve.
It is retried if it may use the freed space (`Disk.with_room`, `PartitionLog.append`). A file size limit (EFBIG) is not a
full disk.

The state moves up when that part can be allocated again and the same amount is still free. Without this margin the next
large batch would move it down at once. A new file is allocated next to the old one, so that writes in the meantime have no
less space than before. The broker retries after each deletion of a topic and twice per second until the state is ample.

Each change of the state is one line in the log. Other programs can take the freed space. Then the state is critical, and
the broker still starts, serves reads and deletes topics (`broker.topics`): small files that a start must write are owed
(`Disk.owe`), and the state moves up only after they have been written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.storage import system
from penstock.storage.files import Disk, LogFile
from penstock.storage.room import FULL, Room, no_reserve

logger = logging.getLogger("penstock.storage")

FILE_NAME = "reserve"
CRITICAL_SHARE = 8
"""Divisor of the reserve: the share kept for small files."""
FILE_SYSTEM_SHARE = 16
"""Divisor of the file system: the maximum share of the reserve."""
BYTES_MIN = 64 * 1024
_BLOCK_BYTES = 4_096
_SECTOR_BYTES = 512
"""The unit of st_blocks."""


_WORSE = {
    Room.TIGHT: "records from clients and new topics are refused",
    Room.CRITICAL: "commits and transactions are refused too",
}
_BETTER = {
    Room.AMPLE: "everything is written",
    Room.TIGHT: "commits and transactions are written, records from clients are refused",
}


class Reserve:
    """The reserve of one data directory. It sets `room` of its disk, which every append checks."""

    def __init__(
        self, disk: Disk, directory: Path, bytes_max: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / FILE_NAME
        self._aside = directory / f"{FILE_NAME}.tmp"
        self._clock = clock
        file_system_bytes = disk.system_calls.room(directory)[0] or bytes_max * FILE_SYSTEM_SHARE
        whole = _rounded(max(BYTES_MIN, min(bytes_max, file_system_bytes // FILE_SYSTEM_SHARE)))
        self._sizes = {Room.AMPLE: whole, Room.TIGHT: _rounded(whole // CRITICAL_SHARE), Room.CRITICAL: 0}
        self._lock = threading.Lock()
        """Held during a change of the state, which any thread may make. Never held for long."""
        self._restoring = threading.Lock()
        self._full_since = 0.0
        self._error_logged: int | None = None
        self._file: LogFile | None = None
        self._open()
        disk.make_room = self.release
        disk.may_owe = True

    def close(self) -> None:
        """Close the file. The disk has no reserve from here on."""
        self._disk.make_room = no_reserve
        self._disk.may_owe = False
        self._file = None

    # ------------------------------------------------------------------------------------------------ start

    def _open(self) -> None:
        """Determine what the last broker left, and allocate the missing part if the disk has space. Only a new directory
        needs no margin: its disk has not been full yet."""
        disk = self._disk
        with contextlib.suppress(OSError):
            disk.remove(self._aside)
        left = self._allocated_bytes()
        if left is not None:
            self._file = disk.open(self._path)
        for room, size in self._sizes.items():
            if self._file is not None and left is not None and left >= size:
                disk.truncate(self._file, size)
                disk.room = room
                break
            if size and self._allocate(room, size if left is None else 2 * size):
                break
        else:
            disk.room = Room.CRITICAL
        if disk.room is not Room.AMPLE:
            self._full_since = self._clock()
            self._warn(disk.room, self._free_bytes())

    def _allocated_bytes(self) -> int | None:
        """Allocated size of the file, if it exists; a copied file may have holes, which reserve nothing."""
        try:
            found = self._disk.system_calls.stat(self._path)
        except FileNotFoundError:
            return None
        blocks: int | None = getattr(found, "st_blocks", None)
        return found.st_size if blocks is None else min(found.st_size, blocks * _SECTOR_BYTES)

    # ------------------------------------------------------------------------------------------------ down

    def release(self, seen: Room) -> bool:
        """Move the state down after a write failed in state `seen`. Returns whether to retry: the state has changed."""
        disk = self._disk
        with self._lock:
            if disk.room is not seen:
                return True
            if disk.room is Room.CRITICAL:
                return False
            if disk.room is Room.AMPLE:
                self._full_since = self._clock()
            room = Room(disk.room + 1)
            free_bytes = self._free_bytes()
            if self._file is not None:
                try:
                    disk.truncate(self._file, self._sizes[room])
                except OSError as error:
                    logger.error("%s: cannot free the reserve: %s", self._path, error)
            disk.room = room
            self._warn(room, free_bytes)
        return True

    def _warn(self, room: Room, free_bytes: int) -> None:
        logger.warning(
            "no room on the disk of %s, %s bytes are free: %s until %s bytes are free; delete topics or records, or make "
            "the disk larger",
            self._directory,
            f"{free_bytes:,}",
            _WORSE[room],
            f"{2 * self._sizes[Room(room - 1)]:,}",
        )

    def _free_bytes(self) -> int:
        try:
            return self._disk.system_calls.room(self._directory)[1]
        except OSError:
            return 0

    # ------------------------------------------------------------------------------------------------ up

    def restore(self) -> None:
        """Move the state up if the disk has space again. Waits for the disk."""
        with self._restoring:
            try:
                self._disk.settle()
            except OSError:
                return
            for room in (Room.AMPLE, Room.TIGHT):
                if room >= self._disk.room:
                    return
                needed = 2 * self._sizes[room]
                if self._free_bytes() >= needed and self._allocate(room, needed):
                    return

    def _allocate(self, room: Room, probe_bytes: int) -> bool:
        """Replace the reserve with a new one for that state, if all of its bytes can be allocated."""
        disk = self._disk
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | system.OPEN_FLAGS
        try:
            # not by `Disk.open`, which would free the reserve to make room for this file
            file = LogFile(disk.system_calls.open(self._aside, flags, 0o640), self._aside)
            disk.system_calls.allocate(file.fd, probe_bytes)
            disk.truncate(file, self._sizes[room])
            with self._lock:
                disk.system_calls.rename(self._aside, self._path)
                was, disk.room = disk.room, room
                self._file = file
        except OSError as error:
            if error.errno not in FULL and error.errno != self._error_logged:
                logger.warning("%s: cannot allocate the reserve, will be retried: %s", self._path, error)
                self._error_logged = error.errno
            with contextlib.suppress(OSError):
                disk.remove(self._aside)
            return False
        if was > room:
            logger.info(
                "room on the disk of %s again: %s; the disk was full for %.0f s",
                self._directory,
                _BETTER[room],
                self._clock() - self._full_since,
            )
        return True


def _rounded(size: int) -> int:
    return max(_BLOCK_BYTES, size // _BLOCK_BYTES * _BLOCK_BYTES)
