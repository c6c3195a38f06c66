"""How far an import came, kept beside it, so that a second run goes on where a killed one ended.

A folder: `plan.json` says which import it is and what was made for it; one file a partition has a line for every step that
a broker acknowledged. A line that a crash cut off does not count, which is safe: what it would have said is done again, and
the broker recognises it. One run at a time holds the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Self

import msgspec

from penstock.imports.tally import Tally

PLAN = "plan.json"


class ProgressError(Exception):
    """The progress folder cannot be used: one line for the user."""


class Step(msgspec.Struct):
    """Where a partition stands after what was acknowledged."""

    source_offset: int
    """The first offset of the source that is not sent."""
    target_offset: int
    """Where the next batch will land."""
    sequence: int
    tally: Tally
    breaks: list[tuple[int, int]] = []
    """New points from which on source and target offsets rise together."""


class PartitionProgress:
    """The steps of one partition. Made where the partition is written, which may be another process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.breaks: list[tuple[int, int]] = []
        self.last: Step | None = None
        self._sound_bytes = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    step = msgspec.json.decode(line, type=Step)
                except msgspec.DecodeError:
                    break
                if not line.endswith(b"\n"):
                    break
                self._sound_bytes += len(line)
                self.breaks += step.breaks
                self.last = step

    def __enter__(self) -> Self:
        self._file = open(self._path, "ab")
        self._file.truncate(self._sound_bytes)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, step: Step) -> None:
        """In the page cache when it returns: safe from kill -9; a power cut costs nothing but sending again."""
        self._file.write(msgspec.json.encode(step) + b"\n")
        self._file.flush()
        self.breaks += step.breaks
        self.last = step


class RunState(msgspec.Struct):
    """What a second run has to know of the first."""

    reader: str
    source: str
    target: str
    names: dict[str, str]
    producer_id: int = -1
    producer_epoch: int = -1
    topics_made: list[str] = []
    """Ours: records in them are this import's."""


class Progress:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ProgressError(f"progress cannot be kept in {folder}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise ProgressError(f"another import is at work with {folder}") from None

    def open_state(self, fresh: RunState) -> tuple[RunState, bool]:
        """The state of the run before, and True; or `fresh`, and False."""
        path = self.folder / PLAN
        if not path.exists():
            self.save(fresh)
            return fresh, False
        try:
            state = msgspec.json.decode(path.read_bytes(), type=RunState)
        except msgspec.DecodeError as error:
            raise ProgressError(f"{path} is damaged ({error}); remove {self.folder} to begin anew") from None
        if not state.topics_made:  # it came to nothing, and may have been asked for with other names
            self.save(fresh)
            return fresh, False
        known = (state.reader, state.source, state.target, state.names)
        if known != (fresh.reader, fresh.source, fresh.target, fresh.names):
            raise ProgressError(f"{self.folder} belongs to another import; name another with --progress")
        return state, True

    def save(self, state: RunState) -> None:
        path = self.folder / PLAN
        aside = path.with_suffix(".tmp")
        aside.write_bytes(msgspec.json.encode(state))
        aside.replace(path)

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.folder / f"{topic}-{partition}.steps"

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """The import is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def default_folder(reader: str, source: str, target: str) -> Path:
    """In the working directory: the source may be read-only."""
    name = hashlib.sha256(f"{reader}\0{source}\0{target}".encode()).hexdigest()[:8]
    return Path(f"penstock-import-{reader}-{name}")
