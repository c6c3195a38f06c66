"""The swap of cleaned segments for the old ones of a log.

The old files stay on disk, complete, until the new ones are in place for good. So a start never depends on new files: it
returns to the old ones as a whole unless the swap was committed. `ID` is unique for each cleaning. B stands for a base
offset; all files of a segment (.log, .index, .timeindex, .txnindex) are treated alike:

    state         files in the folder                                                     read by the broker
    1 written     B.log old, B.log.ID.cleaned new and synced                              B.log
    2 decided     the same, and `swap`: the ID, names and sizes of old and new files      B.log.ID.cleaned
    3 set aside   B.log.ID.replaced old, B.log.ID.cleaned new, `swap`                     B.log.ID.cleaned
    4 placed      B.log.ID.replaced old, B.log and B.log.ID.cleaned one new file, `swap`  B.log
    5 committed   the same without `swap`                                                 B.log
    6 swept       B.log new                                                               B.log

The folder is synced at the end of each of the states 2 to 5, before the next one begins. The broker changes from one name to
another between two steps, when both names exist: new files get their second name by a link, not by a rename.

A crash, as seen by the next start (`recover`):
    1           There is no `swap`: cleaned files are left over and removed.
    2, 3, 4     There is a `swap`: files that were set aside get their names back, replacing new ones; the folder is synced;
                `swap` is removed; the folder is synced again; left-over files are removed. All of it can be repeated.
    5, 6        There is no `swap`: replaced and cleaned files are left over and removed.
A `swap` file is rejected unless all its old files exist with their sizes, under one of their two names. Then nothing is
renamed or removed, and the partition stays offline with the reason. A `swap` file that cannot be decoded is rejected too if
files were moved, and removed otherwise. storage/legacy_swap.py handles those of the previous format.

An error in a running broker, in the step that leaves the state:
    1           Back: `swap` is removed, in case it was written (`Swap.abandon`). The broker never left the old files.
    2, 3, 4, 5  Forward: the broker reads the new files, under names that exist, and repeats the step later.
Until the swap is committed or abandoned, no segment is dropped (`PartitionLog.swapping`), because a start may need the old
ones, and no other cleaning of the log starts, so that at most one ID is undecided.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from penstock.storage import legacy_swap
from penstock.storage.cleaner import CLEANED, CleaningResult, cleaned_tag
from penstock.storage.files import ChecksumMismatch, Disk, read_checked, write_checked
from penstock.storage.legacy_swap import FILE_NAME, LegacySwap, SwapRejected
from penstock.storage.segment import file_name

logger = logging.getLogger(__name__)

REPLACED = ".replaced"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
_CACHES = (".index", ".timeindex")
_LEFT_OVER = (CLEANED, REPLACED, CLEANED + ".tmp", FILE_NAME + ".tmp")


class SwapRecord(msgspec.Struct, frozen=True):
    """The content of the swap file: sizes of the files by the names they have in the log."""

    id: str
    old: dict[str, int]
    new: dict[str, int]


class Swap:
    """The steps of one swap. All of them wait for the disk, and all but `decide` may be repeated after an error."""

    def __init__(self, disk: Disk, directory: Path, cleaning_id: str, result: CleaningResult) -> None:
        self._disk = disk
        self._directory = directory
        self._id = cleaning_id
        self._new = result.new_files
        self._old = [file_name(base, suffix) for base in result.old_base_offsets for suffix in SUFFIXES]
        self._set_aside = False

    def decide(self) -> None:
        """From state 1 to 2. Raises SwapRejected when the new files are not as they were written."""
        for name, size in self._new.items():
            _check_size(self._disk, self._cleaned(name), size)
        old = {name: self._disk.size(path) for name in self._old if self._disk.exists(path := self._directory / name)}
        record = SwapRecord(self._id, old, self._new)
        write_checked(self._disk, self._directory / FILE_NAME, msgspec.json.encode(record))

    def abandon(self) -> None:
        """Back to state 1 after `decide` failed."""
        _remove_record(self._disk, self._directory)

    def place(self) -> None:
        """From state 2 to 4."""
        disk = self._disk
        if not self._set_aside:
            for name in self._old:
                aside = self._directory / (name + _replaced_tag(self._id))
                if not disk.exists(aside) and disk.exists(self._directory / name):
                    disk.rename(self._directory / name, aside)
            disk.sync_directory(self._directory)
            self._set_aside = True
        for name in self._new:
            if not disk.exists(self._directory / name):
                disk.link(self._cleaned(name), self._directory / name)
        disk.sync_directory(self._directory)

    def commit(self) -> None:
        """From state 4 to 5."""
        _remove_record(self._disk, self._directory)

    def _cleaned(self, name: str) -> Path:
        return self._directory / (name + cleaned_tag(self._id))


def sweep(disk: Disk, directory: Path) -> None:
    """Remove left-overs of cleanings, when no swap is under way."""
    names = disk.names(directory)
    if FILE_NAME in names:
        raise SwapRejected(f"{directory / FILE_NAME} belongs to a swap that was not finished")
    for name in names:
        if name.endswith(_LEFT_OVER):
            disk.remove(directory / name)


def recover(disk: Disk, directory: Path, names: Collection[str]) -> str | None:
    """Leave one whole log behind, whatever a crash left; what was done about the log's files, if anything.

    Raises SwapRejected when the swap file does not fit the files: then nothing was changed.
    """
    done = _undo(disk, directory, names) if FILE_NAME in names else None
    if any(name.endswith(_LEFT_OVER) for name in names):
        # they only take room: the next cleaning tries again to remove them
        with contextlib.suppress(OSError):
            sweep(disk, directory)
    return done


def _undo(disk: Disk, directory: Path, names: Collection[str]) -> str:
    try:
        payload = read_checked(disk, directory / FILE_NAME)
        try:
            record = msgspec.json.decode(payload, type=SwapRecord)
        except msgspec.ValidationError:
            legacy = msgspec.json.decode(payload, type=LegacySwap)
            return legacy_swap.finish(disk, directory, legacy)
    except (ChecksumMismatch, msgspec.DecodeError) as error:
        if any(name.endswith((REPLACED, *(suffix + CLEANED for suffix in SUFFIXES))) for name in names):
            raise SwapRejected(
                f"{directory / FILE_NAME} is damaged ({error}) and files of the log were moved"
            ) from error
        logger.warning("%s is damaged and removed: no file of the log was moved (%s)", directory / FILE_NAME, error)
        _remove_record(disk, directory)
        return "a damaged swap file was removed"
    _roll_back(disk, directory, record)
    return "an unfinished swap of cleaned segments was undone"


def _roll_back(disk: Disk, directory: Path, record: SwapRecord) -> None:
    tag = _replaced_tag(record.id)
    for name, size in record.old.items():
        aside = directory / (name + tag)
        if not name.endswith(_CACHES):
            _check_size(disk, aside if disk.exists(aside) else directory / name, size)
    for name in disk.names(directory):
        if name.endswith(tag):
            disk.rename(directory / name, directory / name.removesuffix(tag))
    for name in record.new.keys() - record.old.keys():
        disk.remove(directory / name)
    disk.sync_directory(directory)
    _remove_record(disk, directory)


def _check_size(disk: Disk, path: Path, size: int) -> None:
    found = disk.size(path) if disk.exists(path) else None
    if found != size:
        there = "is missing" if found is None else f"has {found} bytes"
        raise SwapRejected(
            f"{path.parent / FILE_NAME} does not fit its files: {path.name} {there}, expected {size} bytes"
        )


def _remove_record(disk: Disk, directory: Path) -> None:
    disk.remove(directory / FILE_NAME)
    disk.sync_directory(directory)


def _replaced_tag(cleaning_id: str) -> str:
    return f".{cleaning_id}{REPLACED}"
