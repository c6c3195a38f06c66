"""What to archive next: ranges of offsets, cut so that every worker has one and files get a useful size.

Pure planning. A plan is written down beside the table before the first file is: whoever comes after a crash carries out
the same plan, with the same file names, and so replaces what was left half done instead of adding to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.lake.lock import FOLDER

PLAN = f"{FOLDER}/plan.json"
FILE_BYTES = 256 * 1024 * 1024
"""Of the log; Parquet is smaller."""
RANGE_BYTES_MIN = 8 * 1024 * 1024
"""Less is not worth a task of its own."""
RANGES_A_WORKER_MAX = 4
"""In one commit: a large backlog is committed in pieces, each of which a crash can take back."""


class OffsetRange(msgspec.Struct, frozen=True):
    """Of one partition, `end` not included."""

    partition: int
    start: int
    end: int

    @property
    def stem(self) -> str:
        """The name of its files, which sorts by partition and offset."""
        return f"part-{self.partition:05d}-{self.start:020d}-{self.end:020d}"


class Plan(msgspec.Struct, frozen=True):
    """The next commit."""

    offsets: dict[int, int]
    """What each partition had been archived to when this was planned."""
    starts: dict[int, int]
    """Where each partition of the topic begins that had not been seen before."""
    ranges: list[OffsetRange]

    def after(self) -> dict[int, int]:
        """What each partition is archived to once this is committed."""
        ends = {**self.starts, **self.offsets}
        for one in self.ranges:
            ends[one.partition] = max(ends.get(one.partition, one.end), one.end)
        return ends


class Backlog(NamedTuple):
    """What a partition has to offer."""

    partition: int
    start: int
    end: int
    bytes_an_offset: float

    @property
    def offsets(self) -> int:
        return self.end - self.start

    @property
    def bytes(self) -> float:
        return self.offsets * self.bytes_an_offset


def plan(
    offsets: Mapping[int, int],
    backlogs: Sequence[Backlog],
    workers: int,
    *,
    starts: Mapping[int, int] | None = None,
    file_bytes: int = FILE_BYTES,
    records_max: int | None = None,
) -> Plan:
    """Ranges of all partitions with a backlog, at most `records_max` offsets in all and a few a worker."""
    backlogs = _capped([one for one in backlogs if one.offsets > 0], records_max)
    share = sum(one.bytes for one in backlogs) / max(workers, 1)
    target = min(float(file_bytes), max(share, RANGE_BYTES_MIN))
    ranges_max = max(workers * RANGES_A_WORKER_MAX, len(backlogs))
    ranges: list[OffsetRange] = []
    # Partitions take turns, so that a commit that is full brings all of them forward.
    cut = [_cut(one, target) for one in backlogs]
    for turn in range(max(map(len, cut), default=0)):
        ranges += [pieces[turn] for pieces in cut if turn < len(pieces)]
        if len(ranges) >= ranges_max:
            break
    unseen = {partition: start for partition, start in (starts or {}).items() if partition not in offsets}
    return Plan(dict(offsets), unseen, sorted(ranges[:ranges_max], key=lambda one: (one.partition, one.start)))


def _cut(backlog: Backlog, target: float) -> list[OffsetRange]:
    step = max(int(target / max(backlog.bytes_an_offset, 1e-6)), 1)
    pieces = max(round(backlog.offsets / step), 1)
    step = -(-backlog.offsets // pieces)
    return [
        OffsetRange(backlog.partition, start, min(start + step, backlog.end))
        for start in range(backlog.start, backlog.end, step)
    ]


def _capped(backlogs: list[Backlog], records_max: int | None) -> list[Backlog]:
    """In proportion, at least one each."""
    total = sum(one.offsets for one in backlogs)
    if records_max is None or total <= records_max:
        return backlogs
    return [one._replace(end=one.start + max(one.offsets * records_max // total, 1)) for one in backlogs]
