"""A range of offsets straight from segment files: no socket, no broker's time, the page cache alone.

For executors that see a broker's data directory. Only what is below the last stable offset is asked for here: those bytes
do not change. Aborted transactions are left out by the index that lies beside the segments. Files may go while they are
read, by retention or by log cleaning; what cannot be read here without a doubt is left to the wire, which is why `read`
returns how far it got:

- a file that is not there any more, or ends early
- a gap between two files: log cleaning leaves such gaps, and so does a file that went a moment ago
- a folder whose files are just being exchanged
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.arrow.decode import decode_batches
from penstock.records.batch import Batch
from penstock.records.visibility import visible_batches
from penstock.spark.source.errors import log
from penstock.spark.source.offsets import id_text
from penstock.spark.source.planning import Range
from penstock.storage.segment_reader import (
    Aborted,
    base_offset_of,
    position_before,
    read_segment,
    settled_segments,
    topic_id_of,
)

CHUNK_BYTES = 8 * 1024 * 1024
"""Read at once, and decoded without another copy."""


def folder_of(work: Range, data_dirs: Iterable[str], topic_id: str | None) -> Path | None:
    """Where the partition's segments are, if this machine sees them. A folder that is of another topic of the same name
    is not taken, and one that does not say is only taken if the cluster does not either."""
    for data_dir in data_dirs:
        folder = Path(data_dir) / f"{work.topic}-{work.partition}"
        found = topic_id_of(folder)
        if (found is None and topic_id is None and folder.is_dir()) or (
            found is not None and id_text(found) == topic_id
        ):
            return folder
    return None


def other_topic_in(folder: Path, topic_id: str | None) -> str | None:
    """The id of the topic that a folder now belongs to, if it is not the expected one."""
    found = topic_id_of(folder)
    return None if topic_id is None or found is None or id_text(found) == topic_id else id_text(found)


def read_segments(folder: Path, work: Range, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, int]:
    """The records of a range that ends at or before the last stable offset; returns the offset before which all is read."""
    batches = _Batches(folder, work)
    # Batches that share a buffer are decoded where they lie.
    for _, together in itertools.groupby(batches, lambda batch: id(batch.view.obj)):
        yield from decode_batches(
            visible_batches(together), work.topic, work.partition, columns=columns, start=work.start, end=work.end
        )
    return batches.reached


class _Batches:
    """The batches of a range that were not aborted; `reached` is the offset before which all were seen."""

    def __init__(self, folder: Path, work: Range) -> None:
        self._folder = folder
        self._work = work
        self.reached = work.start

    def __iter__(self) -> Iterator[Batch]:
        try:
            yield from self._read()
        except OSError as error:
            log.info(
                "%s: reading from offset %d over the network instead of from files: %s",
                self._folder.name,
                self.reached,
                error,
            )

    def _read(self) -> Iterator[Batch]:
        snapshot = settled_segments(self._folder)
        if snapshot is None:
            return
        hidden = _Hidden(snapshot.aborted)
        bases = [base_offset_of(path) for path in snapshot.segments]
        at = bisect_right(bases, self.reached) - 1
        if at < 0:
            return
        for path in snapshot.segments[at:]:
            if self.reached > self._work.start and base_offset_of(path) != self.reached:
                return
            for batch in self._of_file(path):
                if batch.base_offset >= self._work.end:
                    self.reached = self._work.end
                    return
                if batch.last_offset >= self._work.start:
                    if not hidden.has(batch):
                        yield batch
                    self.reached = batch.next_offset
            if self.reached >= self._work.end:
                return
            if self.reached == self._work.start:
                # The range begins in a gap at the end of this file.
                return

    def _of_file(self, path: Path) -> Iterator[Batch]:
        """The batches of a file, from near the start of the range on."""
        position = position_before(path, self.reached)
        if position:
            scan = iter(read_segment(path, position, CHUNK_BYTES))
            first = next(scan, None)
            if first is not None and first[1].base_offset <= self.reached:
                yield first[1]
                for _, batch in scan:
                    yield batch
                return
        for _, batch in read_segment(path, 0, CHUNK_BYTES):
            yield batch


class _Hidden:
    """Which batches belong to aborted transactions, by offset: a marker may have been cleaned out of a file meanwhile."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._by_producer: dict[int, list[Aborted]] = {}
        for one in sorted(aborted, key=lambda one: one.first_offset):
            self._by_producer.setdefault(one.producer_id, []).append(one)

    def has(self, batch: Batch) -> bool:
        if not batch.is_transactional or batch.producer_id not in self._by_producer:
            return False
        of_producer = self._by_producer[batch.producer_id]
        at = bisect_right(of_producer, batch.base_offset, key=lambda one: one.first_offset) - 1
        return at >= 0 and batch.base_offset <= of_producer[at].last_offset
