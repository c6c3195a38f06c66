"""Log cleaning: of all records with one key, the last one stays.

    1. map     the dirty part of the log: key -> offset of its last record, until the map is full
    2. filter  every closed segment from the start to where the map ends: a record stays if the map has no later one
    3. write   what stays, in groups of segments that fit one, beside the old files as `.<id>.cleaned`, synced

It runs in a niced child process (storage/cleaner_process.py) on files that no longer change; the broker then swaps them in
(storage/swap.py). What stays keeps its offset, its timestamp and its batch; batches are taken apart only here.

Tombstones (a key with a null value) stay for delete.retention.ms after the first cleaning that met them, so that readers who
lag see them; the batch carries that time (KIP-534). Records of aborted transactions go. A transaction's marker stays
while any of its records does, because the producer's state is made from both. A producer's last batch leaves at least its
header, so that its sequence is known.

A batch that exceeds the broker's limits for checking (written before the topic was compacted) is kept unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.model.limits import PREPARED_RECORDS_MAX
from penstock.records.batch import HEADER_BYTES, Batch, BatchTooLarge
from penstock.records.builder import placeholder_batch, rebuild_batch
from penstock.records.record import Record, read_records
from penstock.records.walk import unpacked_bytes_max
from penstock.storage.files import Disk, FileCache
from penstock.storage.segment import Segment
from penstock.storage.segment_reader import SegmentScan

KEYS_MAX = 400_000
"""Entries of the map, about 200 bytes each; a log with more dirty keys is cleaned in several rounds."""
KEY_BYTES_PLAIN_MAX = 16
"""Longer keys are known by a digest of so many bytes."""
WRITE_BYTES = 1024 * 1024
CLEANED = ".cleaned"


def cleaned_tag(cleaning_id: str) -> str:
    """What follows the usual name of a file that this cleaning wrote."""
    return f".{cleaning_id}{CLEANED}"


class SourceSegment(msgspec.Struct, frozen=True):
    base_offset: int
    size: int


class CleaningJob(msgspec.Struct, frozen=True):
    """What to clean. Paths as text: the job travels to the child as JSON."""

    id: str
    """Unique, and part of the names of the new files: no other cleaning's files can be taken for them."""
    directory: str
    segments: tuple[SourceSegment, ...]
    """Closed segments from the log's start on, in order; all are filtered."""
    first_dirty_offset: int
    end_offset: int
    """Nothing at or past it is touched."""
    segment_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    now_ms: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    """(producer id, first offset, last offset) of aborted transactions."""
    producer_last_offsets: dict[int, int] = {}
    """Last batch of each producer that the broker remembers."""
    keys_max: int = KEYS_MAX


class CleaningResult(msgspec.Struct, frozen=True):
    new_segments: tuple[SourceSegment, ...]
    new_files: dict[str, int]
    """The sizes of the files of the new segments, by the names they are to have."""
    old_base_offsets: tuple[int, ...]
    """The segments that the new ones replace: those that begin before the map ended."""
    cleaned_to_offset: int
    """The next cleaning's first dirty offset."""
    records_read: int
    records_kept: int
    bytes_before: int
    bytes_after: int


class DamagedLog(ValueError):
    """A batch that cannot be read: nothing of the log is cleaned."""


class Cleaner:
    def __init__(self, job: CleaningJob, disk: Disk | None = None) -> None:
        self._job = job
        self._disk = disk or Disk()
        self._directory = Path(job.directory)
        self._last: dict[bytes, int] = {}
        self._aborted = _AbortedRanges(job.aborted)
        self._producers_with_data: set[int] = set()
        self._new_files: dict[str, int] = {}
        self._read = 0
        self._kept = 0

    def run(self) -> CleaningResult:
        job = self._job
        cleaned_to = self._map()
        sources = [source for source in job.segments if source.base_offset < cleaned_to]
        new: list[SourceSegment] = []
        for group in _groups(sources, job.segment_bytes):
            written = self._write_group(group, cleaned_to, keeps_start=not new and group[0] is sources[0])
            if written is not None:
                new.append(written)
        return CleaningResult(
            tuple(new),
            self._new_files,
            tuple(source.base_offset for source in sources),
            cleaned_to,
            self._read,
            self._kept,
            sum(source.size for source in sources),
            sum(segment.size for segment in new),
        )

    # ------------------------------------------------------------------------------------------------ 1. map

    def _map(self) -> int:
        """Fill the map from the dirty part; the offset it covers: whole batches, as many as it has room for."""
        job = self._job
        last = self._last
        covered = job.first_dirty_offset
        for source in job.segments:
            for batch in self._batches(source):
                if batch.base_offset >= job.end_offset:
                    return job.end_offset
                if batch.last_offset < job.first_dirty_offset:
                    continue
                if not batch.is_control and not self._aborted.has(batch):
                    if len(last) + batch.count > job.keys_max and covered > job.first_dirty_offset:
                        return covered
                    try:
                        for offset, _, key, _, _ in _records(batch):
                            if key is not None and offset >= job.first_dirty_offset:
                                last[_short(key)] = offset
                    except BatchTooLarge:
                        pass  # it is kept, and so are the records that the map names
                covered = batch.next_offset
        return job.end_offset

    # ------------------------------------------------------------------------------------------------ 2. filter

    def _filtered(self, batch: Batch, cleaned_to: int) -> Batch | bytearray | None:
        """The batch as it was, what stays of it, or None when all of it goes."""
        if batch.base_offset >= cleaned_to:
            return batch
        if batch.is_control:
            return self._filtered_marker(batch)
        job = self._job
        if self._aborted.has(batch):
            self._read += batch.count
            return self._bare(batch)
        horizon_ms = batch.delete_horizon_ms
        kept: list[Record] = []
        has_tombstone = False
        self._read += batch.count
        try:
            for record in _records(batch):
                if not self._stays(record):
                    continue
                if record.value is None:
                    if horizon_ms is not None and horizon_ms < job.now_ms:
                        continue
                    has_tombstone = True
                kept.append(record)
        except BatchTooLarge:
            self._kept += batch.count
            if batch.is_transactional:
                self._producers_with_data.add(batch.producer_id)
            return batch
        self._kept += len(kept)
        if not kept:
            return self._bare(batch)
        if batch.is_transactional:
            self._producers_with_data.add(batch.producer_id)
        new_horizon = job.now_ms + job.delete_retention_ms if has_tombstone and horizon_ms is None else None
        if len(kept) == batch.count and new_horizon is None:
            return batch
        return rebuild_batch(batch, kept, new_horizon)

    def _stays(self, record: Record) -> bool:
        if record.key is None:
            return False  # came before the topic was compacted; it has no key to be the last of
        last = self._last.get(_short(record.key))
        return last is None or record.offset >= last

    def _filtered_marker(self, batch: Batch) -> Batch | bytearray | None:
        """A marker goes when nothing of its transaction is left and its own time is up."""
        horizon_ms = batch.delete_horizon_ms
        has_data = batch.producer_id in self._producers_with_data
        self._producers_with_data.discard(batch.producer_id)
        if has_data:
            return batch
        if horizon_ms is None:
            return rebuild_batch(batch, list(read_records(batch)), self._job.now_ms + self._job.delete_retention_ms)
        return self._bare(batch) if horizon_ms < self._job.now_ms else batch

    def _bare(self, batch: Batch) -> bytearray | None:
        if self._job.producer_last_offsets.get(batch.producer_id) == batch.last_offset:
            return rebuild_batch(batch, [])
        return None

    # ------------------------------------------------------------------------------------------------ 3. write

    def _write_group(self, group: list[SourceSegment], cleaned_to: int, *, keeps_start: bool) -> SourceSegment | None:
        """Filter some segments into one new one, under the first one's name; None when nothing stays.

        With `keeps_start` an empty batch stays at least. A log whose first segment is missing would start later after the
        next start of the broker, and consumers that have not come that far would have to reset their offsets.
        """
        tag = cleaned_tag(self._job.id)
        output = _Output(self._disk, self._directory, group[0].base_offset, tag, self._job.index_interval_bytes)
        removed: bytes | None = None
        for source in group:
            for batch in self._batches(source):
                stays = self._filtered(batch, cleaned_to)
                if stays is not None:
                    output.add(stays if isinstance(stays, Batch) else Batch(memoryview(stays)))
                elif keeps_start:
                    removed = bytes(batch.view[:HEADER_BYTES])
            output.add_aborted(self._directory / f"{source.base_offset:020d}.txnindex")
        if removed is not None and output.is_empty:
            output.add(Batch(memoryview(placeholder_batch(Batch.of_header(memoryview(removed))))))
        written = output.close()
        self._new_files |= output.files
        return written

    def _batches(self, source: SourceSegment) -> Iterator[Batch]:
        """The batches of a closed segment; damage stops the cleaning."""
        scan = SegmentScan(self._directory / f"{source.base_offset:020d}.log", disk=self._disk)
        for _, batch in scan:
            yield batch
        if scan.damage is not None:
            raise DamagedLog(f"{scan.path.name}: {scan.damage}")
        if scan.end_position != source.size:
            raise DamagedLog(f"{scan.path.name} has {scan.end_position} bytes, expected {source.size}")


class _AbortedRanges:
    """Which transactional batches belong to aborted transactions."""

    def __init__(self, aborted: tuple[tuple[int, int, int], ...]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in aborted:
            self._ranges.setdefault(producer_id, []).append((first_offset, last_offset))

    def has(self, batch: Batch) -> bool:
        ranges = self._ranges.get(batch.producer_id)
        if ranges is None or not batch.is_transactional:
            return False
        return any(first <= batch.base_offset <= last for first, last in ranges)


class _Output:
    """A new segment under construction: batches out in large writes, indexes with them."""

    def __init__(self, disk: Disk, directory: Path, base_offset: int, tag: str, index_interval_bytes: int) -> None:
        self._disk = disk
        self._tag = tag
        self._interval = index_interval_bytes
        self._segment = Segment(disk, FileCache(disk, 4), directory, base_offset, tag=tag)
        self._file = disk.open(self._segment.path, create=True)
        self.files: dict[str, int] = {}
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        self._aborted = b""

    def add_aborted(self, path: Path) -> None:
        """The index of aborted transactions goes along: what lies past the cleaned part still needs it."""
        if self._disk.exists(path):
            self._aborted += self._disk.read_whole(path)

    @property
    def is_empty(self) -> bool:
        return not self._waiting and self._segment.size == 0

    def add(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.size
        if self._waiting_bytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._segment.append(self._waiting, self._waiting_bytes, self._interval)
            self._waiting, self._waiting_bytes = [], 0

    def close(self) -> SourceSegment | None:
        self._write()
        segment = self._segment
        if segment.size == 0:
            self._disk.remove(segment.path)
            return None
        log, index, time_index, transactions = segment.paths()
        for path, entries in segment.index_tail(2**62, closing=True):
            self._disk.append_to(path, entries)
        for path in (log, index, time_index):
            self._disk.sync(self._disk.open(path, create=True))
        written = [log, index, time_index]
        if self._aborted:
            self._disk.replace_whole(transactions, self._aborted)
            written.append(transactions)
        self.files = {path.name.removesuffix(self._tag): self._disk.size(path) for path in written}
        return SourceSegment(segment.base_offset, segment.size)


def _records(batch: Batch) -> Iterator[Record]:
    """The records of a batch. Raises BatchTooLarge if it exceeds the broker's limits for checking."""
    if batch.count > PREPARED_RECORDS_MAX:
        raise BatchTooLarge(f"{batch.count} records")
    return read_records(batch, unpacked_bytes_max(batch.size))


def _short(key: bytes) -> bytes:
    return key if len(key) < KEY_BYTES_PLAIN_MAX else blake2b(key, digest_size=KEY_BYTES_PLAIN_MAX).digest()


def _groups(sources: list[SourceSegment], segment_bytes: int) -> list[list[SourceSegment]]:
    """Neighbours that fit one segment together, so that small ones become fewer."""
    groups: list[list[SourceSegment]] = []
    size = 0
    for source in sources:
        within = groups and source.base_offset - groups[-1][0].base_offset < 2**31 - 1
        if within and size + source.size <= segment_bytes:
            groups[-1].append(source)
            size += source.size
        else:
            groups.append([source])
            size = source.size
    return groups
