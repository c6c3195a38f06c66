"""The rows of one partition in the order of their offsets, out of files whose ranges overlap.

Records of two days may lie between each other in the log and are in two files of the table. Files are opened when their
first offset comes near and closed when they are read out, so that a table of any size takes the memory of the few that
overlap at one place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lake.columns import RECORD
from penstock.lake.data_files import DataFile, read_file
from penstock.lake.places import Place
from penstock.lake.tasks import conformed

ROWS_MAX = 20_000
BYTES_MAX = 4 * 1024 * 1024
_ENDLESS = 1 << 63


class Bounds(msgspec.Struct, frozen=True):
    """Which rows: offsets from `first_offset` to before `end_offset` of each partition, times likewise."""

    first_offset: int | None = None
    end_offset: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None

    def may_hold(self, file: DataFile) -> bool:
        return (
            (self.first_offset is None or file.last_offset >= self.first_offset)
            and (self.end_offset is None or file.first_offset < self.end_offset)
            and (self.first_ms is None or file.last_us >= self.first_ms * 1_000)
            and (self.end_ms is None or file.first_us < self.end_ms * 1_000)
        )

    def within(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        offsets, microseconds = rows.column("offset"), rows.column("timestamp").cast(pa.int64())
        first_us = None if self.first_ms is None else self.first_ms * 1_000
        end_us = None if self.end_ms is None else self.end_ms * 1_000
        mask = None
        for column, bound, keeps in (
            (offsets, self.first_offset, pc.greater_equal),
            (offsets, self.end_offset, pc.less),
            (microseconds, first_us, pc.greater_equal),
            (microseconds, end_us, pc.less),
        ):
            if bound is not None:
                kept = keeps(column, bound)
                mask = kept if mask is None else pc.and_(mask, kept)
        return rows if mask is None else rows.filter(mask)


class _Head(NamedTuple):
    """Where the reading of a file stands; ordered by the next offset."""

    offset: int
    number: int
    at: int
    rows: pa.RecordBatch
    offsets: NDArray[np.int64]
    more: Iterator[pa.RecordBatch]


def ordered_rows(place: Place, files: Sequence[DataFile], bounds: Bounds, partition: int) -> Iterator[pa.RecordBatch]:
    """The record's own columns of one partition's rows, in batches of some size."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for rows in _pieces(place, [file for file in files if bounds.may_hold(file)], partition):
        rows = bounds.within(rows)
        if not rows.num_rows:
            continue
        held.append(rows)
        count, size = count + rows.num_rows, size + rows.nbytes
        if count >= ROWS_MAX or size >= BYTES_MAX:
            yield _joined(held)
            held, count, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _pieces(place: Place, files: Sequence[DataFile], partition: int) -> Iterator[pa.RecordBatch]:
    closed = sorted(files, key=lambda file: file.first_offset, reverse=True)
    heads: list[_Head] = []
    numbers = iter(range(len(files)))
    while closed or heads:
        while closed and (not heads or closed[-1].first_offset <= heads[0].offset):
            _push(heads, next(numbers), _in_order(place, closed.pop(), partition))
        if not heads:
            continue
        head = heapq.heappop(heads)
        limit = min(heads[0].offset if heads else _ENDLESS, closed[-1].first_offset if closed else _ENDLESS)
        end = int(np.searchsorted(head.offsets, limit)) if limit < _ENDLESS else len(head.offsets)
        # At least one row: two files that hold the same offset must not wait for each other.
        end = max(end, head.at + 1)
        yield head.rows.slice(head.at, end - head.at)
        if end < len(head.offsets):
            heapq.heappush(heads, head._replace(offset=int(head.offsets[end]), at=end))
        else:
            _push(heads, head.number, head.more)


def _push(heads: list[_Head], number: int, more: Iterator[pa.RecordBatch]) -> None:
    rows = next(more, None)
    if rows is not None:
        offsets = rows.column("offset").to_numpy()
        heapq.heappush(heads, _Head(int(offsets[0]), number, 0, rows, offsets, more))


def _in_order(place: Place, file: DataFile, partition: int) -> Iterator[pa.RecordBatch]:
    """Tools that rewrite tables may leave another order in a file than it was written in, and several partitions."""
    if file.partition == partition and _is_ascending(place, file):
        for rows in read_file(place, file.name, RECORD.names):
            if rows.num_rows:
                yield conformed(rows, RECORD)
        return
    batches = [conformed(rows, RECORD) for rows in read_file(place, file.name, RECORD.names)]
    own = pa.Table.from_batches(batches, RECORD).filter(pc.field("partition") == partition)
    yield from (rows for rows in own.sort_by("offset").combine_chunks().to_batches() if rows.num_rows)


def _is_ascending(place: Place, file: DataFile) -> bool:
    last = -1
    for rows in read_file(place, file.name, ["offset"]):
        offsets = rows.column("offset").to_numpy()
        if len(offsets) and (offsets[0] <= last or (np.diff(offsets) <= 0).any()):
            return False
        last = int(offsets[-1]) if len(offsets) else last
    return True
