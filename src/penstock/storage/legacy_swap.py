"""Swap files of the format before storage/swap.py: base offsets of new and old segments, and neither sizes nor an id.

That format removed old segments that have no new one of the same name, then renamed `B.log.cleaned` to `B.log`, and reused
the names. So after an error a stale swap file may lie beside cleaned files that a later cleaning had only begun. Whether to
go back or forward is read from the files:

    1. Every old segment is there, and none reaches into the next: the log is whole. The swap file and the cleaned files
       go. Some segments may have their new content already; without merged segments that is the same log, cleaned in part.
    2. Otherwise the swap goes on, if each new segment is either whole beside its place or in its place already. Old segments
       that a new one covers go, others stay.
    3. Otherwise the swap file is rejected, and nothing is changed.

A cleaned segment is whole when its time index was written, which happened after its last batch, and fits its batches.
"""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import msgspec

from penstock.storage.cleaner import CLEANED
from penstock.storage.files import Disk
from penstock.storage.segment import file_name
from penstock.storage.segment_reader import SegmentScan

FILE_NAME = "swap"
_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
_TIME_ENTRY = struct.Struct(">qi")


class SwapRejected(Exception):
    """The swap file does not fit the files beside it."""


class LegacySwap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    new: tuple[int, ...]
    old: tuple[int, ...]


def finish(disk: Disk, directory: Path, swap: LegacySwap) -> str:
    """Go back or forward; what was done. Raises SwapRejected."""
    names = set(disk.names(directory))
    bases = sorted(
        int(name[:20]) for name in names if name.endswith(".log") and name[:20].isdigit() and len(name) == 24
    )
    if set(swap.old) <= set(bases) and not _overlaps(directory, bases):
        disk.remove(directory / FILE_NAME)
        disk.sync_directory(directory)
        return "a swap of cleaned segments by an earlier version was not begun, and dropped"
    ends = {}
    for base in swap.new:
        path = directory / file_name(base, ".log")
        if path.name + CLEANED in names:
            path = path.with_name(path.name + CLEANED)
            _check_whole(path, names)
        elif path.name not in names:
            raise SwapRejected(f"{directory / FILE_NAME} does not fit its files: {path.name} is missing")
        ends[base] = _last_offset(path)
    covered = [base for base in swap.old if base not in swap.new and any(new < base <= ends[new] for new in swap.new)]
    after = sorted((set(bases) | set(swap.new)) - set(covered))
    for base, following in itertools.pairwise(after):
        if base in ends and ends[base] >= following:
            raise SwapRejected(
                f"{directory / FILE_NAME} does not fit its files: segment {base} ends at offset {ends[base]}, "
                f"the next one begins at {following}"
            )
    for base in swap.new:
        for suffix in _SUFFIXES:
            name = file_name(base, suffix)
            if name + CLEANED in names:
                disk.rename(directory / (name + CLEANED), directory / name)
    disk.sync_directory(directory)
    for base in covered:
        for suffix in _SUFFIXES:
            disk.remove(directory / file_name(base, suffix))
    disk.remove(directory / FILE_NAME)
    disk.sync_directory(directory)
    return "a swap of cleaned segments by an earlier version was finished"


def _overlaps(directory: Path, bases: list[int]) -> bool:
    ends = [_last_offset(directory / file_name(base, ".log")) for base in bases[:-1]]
    return any(end >= following for end, following in zip(ends, bases[1:], strict=True))


def _last_offset(path: Path) -> int:
    last = -1
    for _, batch in SegmentScan(path):
        last = batch.last_offset
    return last


def _check_whole(path: Path, names: set[str]) -> None:
    """Raise SwapRejected unless a `.log.cleaned` file was written to its end."""
    largest = -1
    scan = SegmentScan(path)
    for _, batch in scan:
        largest = max(largest, batch.max_timestamp)
    time_index = path.with_name(path.name.replace(".log", ".timeindex"))
    if scan.damage is not None or time_index.name not in names:
        raise SwapRejected(f"{path.parent / FILE_NAME} does not fit its files: {path.name} is not whole")
    entries = time_index.read_bytes()
    if len(entries) % _TIME_ENTRY.size or (largest >= 0 and not entries):
        raise SwapRejected(f"{path.parent / FILE_NAME} does not fit its files: {time_index.name} is not whole")
    if entries and _TIME_ENTRY.unpack_from(entries, len(entries) - _TIME_ENTRY.size)[0] != largest:
        raise SwapRejected(f"{path.parent / FILE_NAME} does not fit its files: {time_index.name} is of another segment")
