"""The data directory: who may use it, what it holds, and where each log stood.

    .lock           one broker at a time
    identity        cluster id and node id
    leader-epoch    rises at every unclean start, before anything is written in it
    checkpoint      recovery point and log start offset of every log, every few seconds
    clean-stop      where each log ended; exists only between a clean stop and the next start
    topics          the broker's catalogue (kept for it as opaque bytes)
    .trash/         folders of deleted partitions on their way out
    <topic>-<n>/    the partitions, in Kafka's layout

The small files are replaced whole and carry a checksum. A damaged identity, epoch or catalogue stops the start with a
clear line; a damaged checkpoint or marker only makes recovery look at more.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.model.errors import StartError
from penstock.model.topic_config import TopicConfig
from penstock.storage.files import ChecksumMismatch, DirectoryLock, Disk, FileCache, read_checked, write_checked
from penstock.storage.log import PartitionLog
from penstock.storage.recovery import UNKNOWN, LogState, RecoveryReport, open_clean, recover
from penstock.storage.segment import Segment

_TRASH = ".trash"


class Identity(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: int


class _Bounds(msgspec.Struct, array_like=True):
    recovery_point: int
    log_start_offset: int


class DataDirectory:
    def __init__(self, path: Path, disk: Disk | None = None, open_files_max: int = 1024) -> None:
        self.path = path
        self.disk = disk or Disk()
        self.files = FileCache(self.disk, open_files_max)
        try:
            self.disk.make_directory(path)
            self.disk.make_directory(path / _TRASH)
            self._lock = DirectoryLock(path / ".lock")
        except OSError as error:
            raise StartError(f"data directory {path} cannot be used: {error.strerror or error}") from error
        self._states: dict[str, LogState] | None = self._read_marker()
        self._bounds: dict[str, _Bounds] | None = self._read_checkpoint()
        self.clean = self._states is not None
        """Whether the last broker here stopped cleanly."""
        self.leader_epoch = self._read_epoch()
        self.disk.remove(path / "clean-stop")
        self.disk.sync_directory(path)

    # ------------------------------------------------------------------------------------------------ identity

    def identity(self, wanted: Identity) -> Identity:
        """The directory's identity; made of `wanted` the first time."""
        payload = self.read_state("identity")
        if payload is None:
            self.write_state("identity", msgspec.json.encode(wanted))
            return wanted
        return msgspec.json.decode(payload, type=Identity)

    def _read_epoch(self) -> int:
        payload = self.read_state("leader-epoch")
        if payload is None:
            epoch = 0
        elif self.clean:
            return int(payload)
        else:
            epoch = int(payload) + 1
        self.write_state("leader-epoch", b"%d\n" % epoch)
        return epoch

    # ------------------------------------------------------------------------------------------------ small files

    def read_state(self, name: str) -> bytes | None:
        """A small file that must be right: None when there is none, StartError when it is damaged."""
        try:
            return read_checked(self.disk, self.path / name)
        except FileNotFoundError:
            return None
        except (ChecksumMismatch, OSError) as error:
            raise StartError(f"{self.path / name} is damaged: {error}; restore it from a backup") from error

    def write_state(self, name: str, payload: bytes) -> None:
        write_checked(self.disk, self.path / name, payload)

    def _read_marker(self) -> dict[str, LogState] | None:
        try:
            return msgspec.json.decode(read_checked(self.disk, self.path / "clean-stop"), type=dict[str, LogState])
        except (FileNotFoundError, ChecksumMismatch, msgspec.DecodeError):
            return None

    def _read_checkpoint(self) -> dict[str, _Bounds] | None:
        try:
            return msgspec.json.decode(read_checked(self.disk, self.path / "checkpoint"), type=dict[str, _Bounds])
        except FileNotFoundError:
            return {}
        except (ChecksumMismatch, msgspec.DecodeError):
            return None

    @staticmethod
    def checkpoint_payload(logs: Iterable[PartitionLog]) -> bytes:
        return msgspec.json.encode({log.name: _Bounds(log.flushed_offset, log.log_start_offset) for log in logs})

    def write_checkpoint(self, payload: bytes) -> None:
        write_checked(self.disk, self.path / "checkpoint", payload)

    def close(self, logs: Iterable[PartitionLog], *, clean: bool) -> None:
        """Flush and say where every log ended; without `clean` only the lock is given back."""
        states = {}
        for log in logs if clean else ():
            job = log.begin_flush()
            if job is not None:
                job.run(self.disk)
                log.end_flush(job)
            if log.failure is not None:
                clean = False
                continue
            for segment in log.segments[-1:]:
                for path, entries in segment.index_tail(log.log_end_offset, closing=True):
                    self.disk.append_to(path, entries)
            active = log.active
            states[log.name] = LogState(
                log.log_start_offset,
                log.log_end_offset,
                log.leader_epoch,
                active.size,
                active.max_timestamp,
                active.max_timestamp_offset,
                active.created_ms,
            )
        if clean:
            write_checked(self.disk, self.path / "clean-stop", msgspec.json.encode(states))
        self._lock.release()

    # ------------------------------------------------------------------------------------------------ logs

    def open_log(self, name: str, config: TopicConfig, now_ms: int) -> tuple[PartitionLog | None, RecoveryReport]:
        """The log of a partition that the catalogue knows; None with a reason when it must stay offline."""
        directory = self.path / name
        if not self.disk.exists(directory):
            return None, RecoveryReport(name, offline="its folder is missing")
        state = (self._states or {}).get(name)
        if state is not None:
            log = open_clean(self.disk, self.files, directory, config, state)
            if log is not None:
                return log, RecoveryReport(name)
        if self._bounds is None:
            recovery_point, log_start_offset = UNKNOWN, 0
        else:
            bounds = self._bounds.get(name, _Bounds(0, 0))
            recovery_point, log_start_offset = bounds.recovery_point, bounds.log_start_offset
        if state is not None:
            # a clean stop wrote the marker, but the files have changed since: what it knew counts
            recovery_point, log_start_offset = state.log_end_offset, state.log_start_offset
        return recover(self.disk, self.files, directory, config, recovery_point, log_start_offset, now_ms)

    def create_log(self, name: str, topic_id: uuid.UUID, config: TopicConfig) -> PartitionLog:
        """A new, empty log; safe on disk when it returns. Called off the loop: it waits for the disk."""
        directory = self.path / name
        if self.disk.exists(directory):
            self.trash(name)
        self.disk.make_directory(directory)
        segment = Segment(self.disk, self.files, directory, 0)
        self.disk.open(segment.path, create=True)
        encoded = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
        self.disk.replace_whole(directory / "partition.metadata", f"version: 0\ntopic_id: {encoded}".encode())
        return PartitionLog(self.disk, self.files, directory, config, [segment], 0, 0, -1)

    def sync(self) -> None:
        self.disk.sync_directory(self.path)

    def trash(self, name: str) -> None:
        """Take a partition's folder out of sight; `empty_trash` deletes it."""
        self.disk.rename(self.path / name, self.path / _TRASH / uuid.uuid4().hex)

    def empty_trash(self) -> None:
        for name in self.disk.names(self.path / _TRASH):
            self.disk.remove_directory(self.path / _TRASH / name)

    def strays(self, known: Iterable[str]) -> list[str]:
        """Folders that look like partitions but that the catalogue does not know."""
        names = set(known)
        return [
            name
            for name in self.disk.names(self.path)
            if not name.startswith(".") and (self.path / name).is_dir() and name not in names
        ]
