"""CRC checks of batches whose values leave the broker undecoded, and what is known of batches that cannot be served.

A batch that is decoded is checked when it is decoded. A large value leaves by sendfile, so its batch is checked here before
the first value leaves, once per open file: a file that replaces another is checked again. A few hot batches are checked on
the loop; large or cold ones are read and checked on a reader thread, in pieces, without the GIL.

Good batches are remembered, within a bound. A corrupt one is checked again by the next read, and logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from crc32c import crc32c

from penstock.model.limits import CHECKED_BATCHES_MAX
from penstock.records.batch import CRC_START, HEADER_BYTES, MAGIC, Batch
from penstock.storage.files import Cold, Disk, LogFile
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment
from penstock.storage.sparse_index import IndexDamaged

logger = logging.getLogger(__name__)

CHECK_ON_LOOP_BYTES_MAX = 1024 * 1024
"""Per read: about 0.3 ms to read and check when it is in the page cache."""
PIECE_BYTES = 1024 * 1024
"""What a reader thread holds of a batch at a time."""
INDEX_ENTRIES_TRIED = 8
"""Entries that are looked up to find a readable batch behind a stretch that the disk does not give."""
WARNINGS_REMEMBERED = 10_000


class Verdict(NamedTuple):
    """What a check found. It is wrong when there is a reason."""

    reason: str = ""
    is_corrupt: bool = True
    """Rather than not to be had from the disk."""


_GOOD = Verdict()


class Stretch(NamedTuple):
    """A batch in an open file, and the CRC its header promises: all that a thread needs."""

    file: LogFile
    position: int
    size: int
    crc: int


class Unchecked(Exception):
    """These batches have to be checked on a reader thread (`examine`, then `BatchChecks.note`)."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.stretches = stretches


class Unreadable(Exception):
    """A batch that is not what was written (`is_corrupt`), or that the disk does not give."""

    def __init__(self, segment: Segment, verdict: Verdict, header: Batch | None = None, position: int = -1) -> None:
        self.segment = segment
        self.reason, self.is_corrupt = verdict
        self.header = header
        """None when not even that can be read."""
        self.position = position
        """Of the batch; -1 when its header can be trusted and its position is not known."""

    @property
    def problem(self) -> str:
        return "is corrupt" if self.is_corrupt else "cannot be read"


class BatchChecks:
    def __init__(self, disk: Disk, batches_max: int = CHECKED_BATCHES_MAX) -> None:
        self._disk = disk
        self._batches_max = batches_max
        self._verdicts: WeakKeyDictionary[LogFile, dict[int, Verdict]] = WeakKeyDictionary()
        """By position. A file that closes takes its own with it."""
        self._count = 0
        self._warned: set[tuple[Path, int]] = set()

    def require(self, stretches: Sequence[Stretch]) -> dict[Stretch, Verdict]:
        """Those that are not good, after a check of those that were not checked yet. They are checked again next time.
        Raises Unchecked when that takes a thread."""
        bad: dict[Stretch, Verdict] = {}
        unchecked = []
        for one in stretches:
            verdict = self._verdict(one)
            if verdict is None:
                unchecked.append(one)
            elif verdict is not _GOOD:
                bad[one] = verdict
        if unchecked:
            if sum(one.size for one in unchecked) > CHECK_ON_LOOP_BYTES_MAX:
                raise Unchecked(unchecked)
            for at, one in enumerate(unchecked):
                try:
                    verdict = _judged(one, self._disk.read_now(one.file, one.position, one.size))
                except Cold:
                    raise Unchecked(unchecked[at:]) from None
                except OSError as error:
                    verdict = Verdict(str(error), is_corrupt=False)
                if verdict is _GOOD:
                    self._note(one, verdict)
                else:
                    bad[one] = verdict
        for one in bad:
            self._verdicts.get(one.file, {}).pop(one.position, None)
        return bad

    def note(self, stretches: Sequence[Stretch], verdicts: Sequence[Verdict]) -> None:
        """Take in what a thread found."""
        for one, verdict in zip(stretches, verdicts, strict=True):
            self._note(one, verdict)

    def __len__(self) -> int:
        return sum(map(len, self._verdicts.values()))

    def _verdict(self, stretch: Stretch) -> Verdict | None:
        known = self._verdicts.get(stretch.file)
        return None if known is None else known.get(stretch.position)

    def _note(self, stretch: Stretch, verdict: Verdict) -> None:
        if self._count >= self._batches_max:
            self._verdicts.clear()
            self._count = 0
        self._count += 1
        self._verdicts.setdefault(stretch.file, {})[stretch.position] = verdict

    def warn(self, log: PartitionLog, damage: Unreadable, offset: int, next_offset: int) -> None:
        """One line per batch."""
        first = offset if damage.header is None else damage.header.base_offset
        key = damage.segment.path, first
        if key in self._warned:
            return
        if len(self._warned) >= WARNINGS_REMEMBERED:
            self._warned.clear()
        self._warned.add(key)
        logger.warning(
            "%s: the batch at offset %d in %s %s: %s; reads of it fail, the next readable offset is %d",
            log.name,
            first,
            damage.segment.path.name,
            damage.problem,
            damage.reason,
            next_offset,
        )


def examine(disk: Disk, stretches: Sequence[Stretch]) -> list[Verdict]:
    """The verdict on each; waits for the disk."""
    return [_examined(disk, one) for one in stretches]


def _examined(disk: Disk, stretch: Stretch) -> Verdict:
    file, position, size, expected = stretch
    at, end = position + CRC_START, position + size
    crc = 0
    try:
        while at < end:
            piece = disk.read_at(file, at, min(PIECE_BYTES, end - at))
            if not piece:
                return _cut_off(at, end)
            crc = crc32c(piece, crc)
            at += len(piece)
    except OSError as error:
        return Verdict(str(error), is_corrupt=False)
    return _GOOD if crc == expected else _mismatch(expected, crc)


def _judged(stretch: Stretch, data: memoryview) -> Verdict:
    if len(data) < stretch.size:
        return _cut_off(stretch.position + len(data), stretch.position + stretch.size)
    crc = crc32c(data[CRC_START:])
    return _GOOD if crc == stretch.crc else _mismatch(stretch.crc, crc)


def _mismatch(expected: int, actual: int) -> Verdict:
    return Verdict(f"its CRC is {expected:08x}, its content has {actual:08x}")


def _cut_off(file_end: int, end: int) -> Verdict:
    return Verdict(f"the file ends at {file_end}, the batch at {end}")


def next_readable(log: PartitionLog, damage: Unreadable, offset: int) -> int:
    """Where a reader goes on that cannot have the record at `offset`: the batch after it, as far as that can be known.
    Nothing is waited for."""
    segment, header = damage.segment, damage.header
    found: int | None = None
    if header is None:
        found = _next_indexed(segment, offset)
    elif damage.position < 0:
        return header.next_offset
    else:
        position = damage.position + header.size
        if position + HEADER_BYTES <= segment.size:
            found = _base_offset_at(segment, position)
            if found is None:
                found = header.next_offset  # it may be wrong too, and then the next read says so
    if found is None or not offset < found <= log.log_end_offset:
        at = log.segments.index(segment) + 1 if segment in log.segments else len(log.segments)
        found = log.segments[at].base_offset if at < len(log.segments) else log.log_end_offset
    return found


def _base_offset_at(segment: Segment, position: int) -> int | None:
    try:
        header = Batch.of_header(segment.read_span_now(position, HEADER_BYTES))
    except (Cold, OSError):
        return None
    return header.base_offset if header.magic == MAGIC else None


def _next_indexed(segment: Segment, offset: int) -> int | None:
    """The base offset of the first batch behind `offset` that the index knows and that can be read."""
    try:
        entries = segment.offsets.above(offset - segment.base_offset, INDEX_ENTRIES_TRIED)
    except (IndexDamaged, OSError):
        return None
    for _, position in entries:
        found = _base_offset_at(segment, position)
        if found is not None and found > offset:
            return found
    return None
