"""The format without a library: Parquet files in folders, and commits that are files themselves.

    day=2026-11-03/part-00000-<start>-<end>.parquet      rows
    _penstock/commits/<version>.json                     files added and removed, next offsets, columns
    _penstock/checkpoints/<version>.json                 all commits up to there in one

A commit is the creation of the next version's file, written last and only if nobody else made it. Readers that know
nothing of this read the folder: they see the same rows, because an interrupted commit is carried out again under the
same file names. Only while a compaction or an interrupted commit is under way may such a reader see a row twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.lake.data_files import SUFFIX, DataFile
from penstock.lake.errors import ArchiveError, Conflict
from penstock.lake.lock import FOLDER
from penstock.lake.places import Place
from penstock.lake.settings import TableSettings
from penstock.lake.tables import Append, Expired, State, check_base

COMMITS = f"{FOLDER}/commits"
CHECKPOINTS = f"{FOLDER}/checkpoints"
CHECKPOINT_EVERY = 50


class Commit(msgspec.Struct, frozen=True):
    version: int
    at_ms: int
    offsets: dict[int, int]
    kinds: dict[str, str]
    with_error: bool
    added: list[DataFile] = []
    removed: list[str] = []


class Checkpoint(msgspec.Struct, frozen=True):
    version: int
    offsets: dict[int, int]
    kinds: dict[str, str]
    with_error: bool
    files: list[DataFile]


class ParquetTable:
    def __init__(self, place: Place, settings: TableSettings) -> None:
        self.place = place
        self.settings = settings
        self._version = 0
        self._state = State({}, {}, with_error=False)
        self._files: dict[str, DataFile] = {}

    # ------------------------------------------------------------------------------------------------ reading

    def state(self) -> State:
        self._load()
        return self._state

    def files(self) -> list[DataFile]:
        self._load()
        return sorted(self._files.values(), key=lambda file: (file.partition, file.first_offset))

    def _load(self) -> None:
        """What was committed since the last look."""
        if not self._version:
            self._load_checkpoint()
        for commit in self._commits_after(self._version):
            self._apply(commit)
        # Commits that came meanwhile may have been forgotten meanwhile, too.
        if self._load_checkpoint():
            self._load()

    def _load_checkpoint(self) -> bool:
        """Whether there was one that is ahead."""
        names = [found.name for found in self.place.found(CHECKPOINTS) if found.name.endswith(".json")]
        is_ahead = bool(names) and names[-1] > _checkpoint_name(self._version)
        if is_ahead:
            checkpoint: Checkpoint = self._document(names[-1], Checkpoint)
            self._version = checkpoint.version
            self._state = State(checkpoint.offsets, checkpoint.kinds, checkpoint.with_error)
            self._files = {file.name: file for file in checkpoint.files}
        return is_ahead

    def _commits_after(self, version: int) -> Iterator[Commit]:
        while True:
            version += 1
            name = _commit_name(version)
            if self.place.read(name) is None:
                return
            yield self._document(name, Commit)

    def _document(self, name: str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(self.place.read(name) or b"", type=kind)
        except msgspec.DecodeError as error:
            raise ArchiveError(f"{self.place.url}/{name} is corrupt: {error}") from None

    def _apply(self, commit: Commit) -> None:
        for name in commit.removed:
            self._files.pop(name, None)
        self._files.update({file.name: file for file in commit.added})
        self._state = State(commit.offsets, commit.kinds, commit.with_error)
        self._version = commit.version

    # ------------------------------------------------------------------------------------------------ writing

    def append(self, commit: Append) -> None:
        check_base(self, commit.base, self.state().offsets)
        self._commit(commit.offsets, commit.kinds, commit.with_error, list(commit.files), [])

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
        state = self.state()
        if any(file.name not in self._files for file in old):
            raise Conflict(f"{self.place.url}: a file to be replaced no longer exists; run the command again")
        removed = [file.name for file in old]
        self._commit(state.offsets, state.kinds, state.with_error, list(new), removed)
        # Readers of the folder would see those rows twice; who opened them before reads on where files can be read
        # after they were deleted.
        self.place.delete(removed)

    def _commit(
        self,
        offsets: dict[int, int],
        kinds: dict[str, str],
        with_error: bool,
        added: list[DataFile],
        removed: list[str],
    ) -> None:
        commit = Commit(
            self._version + 1, int(time.time() * 1000), offsets, kinds, with_error, added=added, removed=removed
        )
        if not self.place.create(_commit_name(commit.version), msgspec.json.encode(commit)):
            raise Conflict(f"{self.place.url} changed during this run: another archiver writes to it")
        self._apply(commit)
        if commit.version % CHECKPOINT_EVERY == 0:
            self._checkpoint()

    def _checkpoint(self) -> None:
        checkpoint = Checkpoint(self._version, *self._state, files=list(self._files.values()))
        self.place.write(_checkpoint_name(self._version), msgspec.json.encode(checkpoint))

    # ------------------------------------------------------------------------------------------------ forgetting

    def expire(self, before_s: int | None, unused_before_s: float) -> Expired:
        state = self.state()
        old = [file for file in self.files() if before_s is not None and file.last_us < before_s * 1_000_000]
        if old:
            self._commit(state.offsets, state.kinds, state.with_error, [], [file.name for file in old])
            self.place.delete(file.name for file in old)
        self._checkpoint()
        found = self.place.found()
        unused = [
            one
            for one in found
            if one.name.endswith(SUFFIX)
            and not one.name.startswith(FOLDER)
            and one.name not in self._files
            and one.changed_at_s < unused_before_s
        ]
        self.place.delete(one.name for one in unused)
        self._forget_commits([one.name for one in found])
        return Expired(
            sum(file.rows for file in old),
            len(old),
            len(unused),
            sum(file.bytes for file in old) + sum(one.bytes for one in unused),
        )

    def _forget_commits(self, names: list[str]) -> None:
        """Those that the checkpoint holds; it was written before."""
        current = _checkpoint_name(self._version)
        self.place.delete(name for name in names if name.startswith(CHECKPOINTS) and name < current)
        self.place.delete(name for name in names if name.startswith(COMMITS) and name < _commit_name(self._version))


def _checkpoint_name(version: int) -> str:
    return f"{CHECKPOINTS}/{version:020d}.json"


def _commit_name(version: int) -> str:
    return f"{COMMITS}/{version:020d}.json"
