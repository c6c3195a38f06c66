"""One flush of a log: the files that a flusher thread syncs, and the outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage.files import Disk, DiskFailed, LogFile, disk_failure, is_temporary, untraced

if TYPE_CHECKING:
    from penstock.storage.log import PartitionLog


class FlushJob:
    """The files to sync so that everything below `offset` is on disk. Passed to a flusher thread and back."""

    __slots__ = ("deleted", "directory", "error", "files", "log", "offset", "position", "refused", "segment")

    def __init__(self, log: PartitionLog, files: list[LogFile], directory: Path | None) -> None:
        self.log = log
        self.files = files
        self.directory = directory
        """Set if a file was created or renamed: its directory entry must be synced too."""
        self.offset = log.log_end_offset
        self.segment = log.active
        self.position = log.active.size
        self.error: DiskFailed | None = None
        self.refused: OSError | None = None
        """Why nothing was synced, if the disk did not fail: the flush is retried later."""
        self.deleted: list[LogFile] = []
        """Files that were synced but have been deleted."""

    def run(self, disk: Disk) -> None:
        """Sync the files. Runs on a flusher thread and makes only system calls."""
        try:
            if self.directory is not None:
                disk.sync_directory(self.directory)
            for file in self.files:
                disk.sync(file)
        except OSError as error:
            self._note(error)

    def look_for_deleted(self, disk: Disk) -> None:
        """Find deleted files after the sync, because syncing a deleted file succeeds and saves nothing. Runs on the loop in
        about a microsecond; a thread would have to wait for the interpreter lock once more."""
        try:
            self.deleted = [file for file in self.files if disk.is_deleted(file)]
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if is_temporary(error):
            self.refused = untraced(error)
        else:  # a folder that cannot be opened is a disk failure, too
            self.error = disk_failure(error)
