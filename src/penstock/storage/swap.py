"""Putting cleaned segments in the place of old ones, so that a crash leaves the old log or the new one, never a mixture.

    1. the child has written and synced the new files as `<base>.log.cleaned` and so on
    2. `swap` is written: which new files, which old ones (from here on the swap will be finished, crash or not)
    3. new files get their names, old ones that are not replaced by name go
    4. `swap` goes

`finish` does 3 and 4 at start when `swap` is there; `.cleaned` files without it are left-overs and go.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.storage.cleaner import CLEANED, CleaningResult
from penstock.storage.files import Disk, read_checked, write_checked

FILE_NAME = "swap"
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


class Swap(msgspec.Struct, frozen=True):
    new: tuple[int, ...]
    old: tuple[int, ...]


def decide(disk: Disk, directory: Path, result: CleaningResult) -> Swap:
    """Step 2; waits for the disk."""
    swap = Swap(tuple(segment.base_offset for segment in result.new_segments), result.old_base_offsets)
    write_checked(disk, directory / FILE_NAME, msgspec.json.encode(swap))
    return swap


def carry_out(disk: Disk, directory: Path, swap: Swap) -> None:
    """Step 3: every rename may have been done before."""
    for base_offset in swap.old:
        if base_offset not in swap.new:
            for suffix in _SUFFIXES:
                disk.remove(directory / f"{base_offset:020d}{suffix}")
    for base_offset in swap.new:
        for suffix in _SUFFIXES:
            path = directory / f"{base_offset:020d}{suffix}"
            cleaned = path.with_name(path.name + CLEANED)
            if disk.exists(cleaned):
                disk.rename(cleaned, path)


def forget(disk: Disk, directory: Path) -> None:
    """Step 4; waits for the disk."""
    disk.sync_directory(directory)
    disk.remove(directory / FILE_NAME)


def finish(disk: Disk, directory: Path, names: list[str]) -> bool:
    """At start: finish a swap that was decided, throw away what was not; whether files changed."""
    changed = False
    if FILE_NAME in names:
        swap = msgspec.json.decode(read_checked(disk, directory / FILE_NAME), type=Swap)
        carry_out(disk, directory, swap)
        forget(disk, directory)
        changed = True
    for name in names:
        if name.endswith(CLEANED) and disk.exists(directory / name):
            disk.remove(directory / name)
            changed = True
    return changed
