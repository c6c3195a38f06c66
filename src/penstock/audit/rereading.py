"""Doubtful pieces of a partition, read again from table and topic and compared row by row.

A task holds the digests of the table's rows for some pieces at a time, 8 bytes per offset, and streams the topic's rows past
them. Only offsets that both sides have are compared: `comparing` reports what one side lacks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.audit.brokers import BrokerTask, broker_rows
from penstock.audit.facts import Found, Runs, add_run
from penstock.audit.row_facts import PIECE_BITS, PIECE_OFFSETS, row_digests
from penstock.audit.segments import SegmentsTask, segment_rows
from penstock.audit.table_files import UNREADABLE, TableTask, table_rows
from penstock.imports.engine import JobFailed
from penstock.imports.survey import Advance
from penstock.records.batch import Batch

PIECES_HELD_MAX = 1024
"""Offsets held at a time: 32 MiB of digests."""
_ABSENT = 0
_DIFFERENT = 1
"""In place of a digest: the table has several rows for the offset, and they differ."""


class RereadTask(NamedTuple):
    partition: int
    pieces: tuple[int, ...]
    """Rising."""
    files: tuple[TableTask, ...]
    """The files of the table that have rows of the partition."""
    source: BrokerTask | SegmentsTask


def compare_rows(task: RereadTask, advance: Advance) -> Found:
    """Findings about content. Raises JobFailed if a side can no longer be read."""
    differing: Runs = []
    held: _TableDigests | None = None
    slots = {piece: at for at, piece in enumerate(task.pieces)}
    for rows in _topic_rows(task, slots):
        for offset, digest in row_digests(rows):
            at = slots.get(offset >> PIECE_BITS)
            if at is None:
                continue
            group = at // PIECES_HELD_MAX
            if held is None or held.group != group:
                held = _TableDigests(task, group)
            if held.differs(offset, digest):
                add_run(differing, offset, offset)
        advance(rows.nbytes)
    found = Found()
    for first, last in differing:
        found.add_offsets("content", f"{task.source.topic}-{task.partition}", first, last, "differ from the topic's")
    return found


def _topic_rows(task: RereadTask, slots: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    if isinstance(task.source, BrokerTask):
        yield from broker_rows(task.source, _ranges(task.pieces))
        return

    def wanted(batch: Batch) -> bool:
        return any(
            piece in slots for piece in range(batch.base_offset >> PIECE_BITS, (batch.last_offset >> PIECE_BITS) + 1)
        )

    try:
        yield from segment_rows(task.source, wanted)
    except OSError as error:
        raise JobFailed(f"cannot read {task.source.topic}-{task.partition} again: {error}") from None


def _ranges(pieces: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of offsets with exclusive ends; adjacent pieces are merged."""
    runs: Runs = []
    for piece in pieces:
        add_run(runs, piece, piece)
    for first, last in runs:
        yield first << PIECE_BITS, last + 1 << PIECE_BITS


class _TableDigests:
    """The table's digests of one group of pieces."""

    def __init__(self, task: RereadTask, group: int) -> None:
        self.group = group
        pieces = task.pieces[group * PIECES_HELD_MAX : (group + 1) * PIECES_HELD_MAX]
        self._starts = {piece: at * PIECE_OFFSETS for at, piece in enumerate(pieces)}
        self._digests = array("Q", bytes(8 * PIECE_OFFSETS * len(pieces)))
        first, last = pieces[0] << PIECE_BITS, (pieces[-1] + 1 << PIECE_BITS) - 1
        for file in task.files:
            try:
                for rows in table_rows(file):
                    self._take(rows, task.partition, first, last)
            except UNREADABLE as error:
                reason = str(error).splitlines()[0]
                raise JobFailed(
                    f"{file.name} cannot be read again, the table changed during the audit: {reason}"
                ) from None

    def _take(self, rows: pa.RecordBatch, partition: int, first: int, last: int) -> None:
        offsets = rows.column("offset")
        inside = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
        for offset, digest in row_digests(rows.filter(pc.and_(pc.equal(rows.column("partition"), partition), inside))):
            start = self._starts.get(offset >> PIECE_BITS)
            if start is not None:
                slot = start + (offset & PIECE_OFFSETS - 1)
                there = self._digests[slot]
                own = _own(digest)
                self._digests[slot] = own if there in (_ABSENT, own) else _DIFFERENT

    def differs(self, offset: int, digest: int) -> bool:
        there = self._digests[self._starts[offset >> PIECE_BITS] + (offset & PIECE_OFFSETS - 1)]
        return there not in (_ABSENT, _own(digest))


def _own(digest: int) -> int:
    """Digests, changed where they equal one of the two reserved values."""
    return max(digest, _DIFFERENT + 1)
