"""Leader epochs of a partition: which epoch began at which offset (KIP-101), in Kafka's checkpoint format.

An entry is written with the first append in a new epoch. The file is a cache too: every batch carries its epoch, so
recovery adds what the file lacks and cuts what the log lost.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from penstock.storage.files import Disk

FILE_NAME = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochsDamaged(ValueError):
    """The checkpoint is not readable or contradicts itself."""


class LeaderEpochs:
    __slots__ = ("_disk", "_entries", "_path")

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._entries: list[EpochStart] | None = None

    def load(self) -> list[EpochStart]:
        if self._entries is None:
            try:
                self._entries = _parse(self._disk.read_whole(self._path))
            except FileNotFoundError:
                self._entries = []
        return self._entries

    @property
    def latest(self) -> int:
        entries = self.load()
        return entries[-1].epoch if entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """From `start_offset` on, appends are of `epoch`. Epochs and offsets only rise."""
        entries = self.load()
        if entries and entries[-1].epoch >= epoch:
            return
        self.replace(
            [*(entry for entry in entries if entry.start_offset < start_offset), EpochStart(epoch, start_offset)]
        )

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """KIP-101: the largest known epoch at or below the asked one, and the offset where it ends; (-1, -1) if none."""
        entries = self.load()
        if not entries or epoch < 0:
            return -1, -1
        if epoch == entries[-1].epoch:
            return epoch, log_end_offset
        if epoch > entries[-1].epoch:
            return -1, -1
        at = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if at == 0:
            return epoch, entries[0].start_offset
        return entries[at - 1].epoch, entries[at].start_offset

    def epoch_at(self, offset: int) -> int:
        entries = self.load()
        at = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[at - 1].epoch if at else -1

    def cut_end(self, log_end_offset: int) -> None:
        entries = self.load()
        if entries and entries[-1].start_offset >= log_end_offset:
            self.replace([entry for entry in entries if entry.start_offset < log_end_offset])

    def cut_start(self, log_start_offset: int) -> None:
        """Forget epochs that ended before the log starts; the one it starts in now starts there."""
        entries = self.load()
        at = bisect_right(entries, log_start_offset, key=lambda entry: entry.start_offset) - 1
        if at >= 0 and (at > 0 or entries[0].start_offset < log_start_offset):
            self.replace([EpochStart(entries[at].epoch, log_start_offset), *entries[at + 1 :]])

    def replace(self, entries: list[EpochStart]) -> None:
        """Write the file, then update the state: entries that could not be stored do not count, unless the file is owed."""
        lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries), ""]
        self._disk.replace_or_owe(self._path, "\n".join(lines).encode(), durable=False)
        self._entries = entries


def _parse(data: bytes) -> list[EpochStart]:
    try:
        version, count, *rows = data.decode("ascii").splitlines()
        entries = [EpochStart(*map(int, row.split())) for row in rows if row]
        if version != "0" or int(count) != len(entries):
            raise ValueError("wrong version or count")
    except (ValueError, TypeError) as error:
        raise EpochsDamaged(f"leader epoch checkpoint: {error}") from None
    for before, after in itertools.pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            raise EpochsDamaged("leader epoch checkpoint: entries do not rise")
    return entries
