"""One flush of a log: what a flusher thread syncs, and how that ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage.files import Disk, DiskFailed, LogFile, disk_failure, is_temporary, untraced

if TYPE_CHECKING:
    from penstock.storage.log import PartitionLog


class FlushJob:
    """What has to reach the disk so that everything below `offset` is safe. Carried to a flusher thread and back."""

    __slots__ = ("deleted", "directory", "error", "files", "log", "offset", "position", "refused", "segment")

    def __init__(self, log: PartitionLog, files: list[LogFile], directory: Path | None) -> None:
        self.log = log
        self.files = files
        self.directory = directory
        """Set when a file was created or renamed: its entry must survive too."""
        self.offset = log.log_end_offset
        self.segment = log.active
        self.position = log.active.size
        self.error: DiskFailed | None = None
        self.refused: OSError | None = None
        """Why nothing was synced, when that is no failure of the disk: the flush is tried again later."""
        self.deleted: list[LogFile] = []
        """Files that were synced but have no name any more."""

    def run(self, disk: Disk) -> None:
        """On a flusher thread: only system calls."""
        try:
            if self.directory is not None:
                disk.sync_directory(self.directory)
            for file in self.files:
                disk.sync(file)
        except OSError as error:
            self._note(error)

    def look_for_deleted(self, disk: Disk) -> None:
        """After the sync: a sync of a deleted file succeeds and makes nothing safe. On the loop, where this takes a
        microsecond; a thread would have to wait for the interpreter once more."""
        try:
            self.deleted = [file for file in self.files if disk.is_deleted(file)]
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if is_temporary(error):
            self.refused = untraced(error)
        else:  # a folder that cannot even be opened is no less of a failure
            self.error = disk_failure(error)
