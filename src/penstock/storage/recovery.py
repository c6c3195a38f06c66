"""Opening a partition's log: at once after a clean stop, by numbered passes after a crash.

After a clean stop the marker says where each log ended; sizes are compared and nothing is read.

After a crash:
  1. list     the segments; left-overs of replaced and deleted files go
  2. start    the log start offset from the checkpoint, at least the first segment's base offset
  3. resume   find the recovery point through the index, cutting index entries past it
  4. scan     every batch from there on, with CRC: what is whole stays, the first that is not ends the log (a torn tail)
  5. cut      the torn tail, and segments after it, go; what stays is synced, because page cache is not disk
  6. epochs   the leader-epoch checkpoint is made to agree with the batches

A batch that is damaged *before* the recovery point was once on disk in full: that is corruption, not a torn write. It is
never cut; the partition stays offline with the reason, and so does one that is shorter than its recovery point. With
no recovery point at hand (checkpoint lost or damaged) a bad batch is a torn tail only if no sound batch follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.topic_config import TopicConfig
from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, Batch, BatchError
from penstock.storage import swap
from penstock.storage.epochs import EpochsDamaged, EpochStart, LeaderEpochs
from penstock.storage.files import Disk, DiskFailed, FileCache
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Place, Segment
from penstock.storage.sparse_index import IndexDamaged

SCAN_BYTES = 4 * 1024 * 1024
UNKNOWN = -1


@dataclass(slots=True)
class LogState:
    """What a clean stop knows of a log, as kept in the marker."""

    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    active_size: int
    max_timestamp: int
    max_timestamp_offset: int
    created_ms: int


@dataclass(slots=True)
class RecoveryReport:
    """What recovery saw and did to one log; `offline` is the reason why it must not be used."""

    name: str
    scanned_bytes: int = 0
    scanned_batches: int = 0
    cut_bytes: int = 0
    cut_segments: int = 0
    notes: list[str] = field(default_factory=list)
    offline: str | None = None

    def __str__(self) -> str:
        if self.offline:
            return f"{self.name}: offline: {self.offline}"
        text = f"{self.name}: scanned {self.scanned_batches} batches, {self.scanned_bytes} bytes"
        if self.cut_bytes or self.cut_segments:
            text += f"; cut a torn tail of {self.cut_bytes} bytes"
        return "; ".join([text, *self.notes])


class Damaged(Exception):
    """Damage before the recovery point."""


def segments_in(disk: Disk, files: FileCache, directory: Path) -> list[Segment]:
    """Pass 1: the segments by base offset; a swap of cleaned segments is finished, left-overs are removed."""
    bases = []
    names = disk.names(directory)
    if swap.finish(disk, directory, names):
        names = disk.names(directory)
    for name in names:
        if name.endswith((".tmp", ".deleted")):
            disk.remove(directory / name)
        elif name.endswith(".log") and len(name) == 24 and name[:20].isdigit():
            bases.append(int(name[:20]))
    return [Segment(disk, files, directory, base, disk.size(directory / f"{base:020d}.log")) for base in sorted(bases)]


def open_clean(
    disk: Disk, files: FileCache, directory: Path, config: TopicConfig, state: LogState
) -> PartitionLog | None:
    """The log as the marker says it is; None when the files do not agree and it must be recovered."""
    segments = segments_in(disk, files, directory)
    if not segments or segments[-1].size != state.active_size or segments[-1].base_offset > state.log_end_offset:
        return None
    active = segments[-1]
    active.max_timestamp = state.max_timestamp
    active.max_timestamp_offset = state.max_timestamp_offset
    active.created_ms = state.created_ms
    return PartitionLog(
        disk, files, directory, config, segments, state.log_start_offset, state.log_end_offset, state.leader_epoch
    )


def recover(
    disk: Disk,
    files: FileCache,
    directory: Path,
    config: TopicConfig,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> tuple[PartitionLog | None, RecoveryReport]:
    """Run the passes; the log, or None with the reason in the report."""
    report = RecoveryReport(directory.name)
    try:
        log = _Recovery(disk, files, directory, config, report).run(recovery_point, log_start_offset, now_ms)
    except (Damaged, DiskFailed) as error:
        report.offline = str(error)
        return None, report
    return log, report


class _Recovery:
    def __init__(
        self, disk: Disk, files: FileCache, directory: Path, config: TopicConfig, report: RecoveryReport
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self._config = config
        self._report = report
        self._epochs: list[EpochStart] = []

    def run(self, recovery_point: int, log_start_offset: int, now_ms: int) -> PartitionLog:
        segments = segments_in(self._disk, self._files, self._directory)
        if not segments:
            if recovery_point > 0:
                raise Damaged(f"no segment is left, but offsets up to {recovery_point} were written")
            segments = [self._new_segment(0)]
        start = max(log_start_offset, segments[0].base_offset)
        end = self._scan(segments, recovery_point)
        if end < recovery_point:
            raise Damaged(f"the log ends at offset {end}, but offsets up to {recovery_point} were safely written")
        for segment in segments:
            if segment.size and segment is segments[-1]:
                segment.created_ms = self._first_timestamp(segment, now_ms)
        if end < start:
            # delete-records went up to the end and the tail after it was lost: begin anew where the log starts
            segments = [*segments, self._new_segment(start)]
            end = start
        log = PartitionLog(self._disk, self._files, self._directory, self._config, segments, start, end, -1)
        self._mend_epochs(log)
        log.leader_epoch = log.epochs.latest
        return log

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self._files, self._directory, base_offset)
        self._files.create(segment.path)
        return segment

    # pass 3: resume

    def _scan(self, segments: list[Segment], recovery_point: int) -> int:
        """Passes 3 to 5; the log end offset."""
        first = 0
        if recovery_point > 0:
            first = max(i for i, s in enumerate(segments) if i == 0 or s.base_offset <= recovery_point)
        end = segments[first].base_offset
        for at in range(first, len(segments)):
            segment = segments[at]
            if segment.base_offset < end:
                raise Damaged(f"segment {segment.path.name} begins before the one before it ends, at {end}")
            file_size = segment.size
            position, end = self._resume(segment, recovery_point if at == first else UNKNOWN)
            end, torn = self._scan_segment(segment, position, file_size, max(end, segment.base_offset), recovery_point)
            self._disk.sync(segment.file)
            if torn and recovery_point == UNKNOWN and at + 1 < len(segments):
                raise Damaged(f"{segment.path.name} is damaged at position {segment.size}, and segments follow it")
            if torn:
                self._cut(segments, at, file_size)
                break
        return end

    def _resume(self, segment: Segment, recovery_point: int) -> tuple[int, int]:
        """Position and offset to scan from: the indexed batch at or before the recovery point, if there is one."""
        if recovery_point <= segment.base_offset:
            segment.offsets.clear()
            segment.times.clear()
            return 0, segment.base_offset
        try:
            segment.offsets.check(segment.size)
            segment.offsets.cut(recovery_point - segment.base_offset)
            segment.times.cut(recovery_point - segment.base_offset)
            last = segment.offsets.last()
            if last is not None:
                place = next(segment.walk_slowly(last[1], segment.size))
                if place.last_offset - segment.base_offset == last[0]:
                    latest = segment.times.last()
                    if latest is not None:
                        segment.max_timestamp = latest[0]
                        segment.max_timestamp_offset = segment.base_offset + latest[1]
                    return place.position, place.base_offset
        except (IndexDamaged, DiskFailed, StopIteration) as error:
            self._report.notes.append(f"index of {segment.path.name} made again ({error!r})")
        segment.offsets.clear()
        segment.times.clear()
        segment.max_timestamp = -1
        return 0, segment.base_offset

    # pass 4: scan

    def _scan_segment(
        self, segment: Segment, position: int, file_size: int, end: int, recovery_point: int
    ) -> tuple[int, bool]:
        """Take in every sound batch from `position`; the offset after the last, and whether the tail is torn."""
        segment.size = position
        for batch, at in self._sound_batches(segment, position, file_size, end):
            segment.note_recovered(
                Place(at, batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp, batch.leader_epoch),
                self._config.index_interval_bytes,
            )
            if not self._epochs or batch.leader_epoch > self._epochs[-1].epoch:
                self._epochs.append(EpochStart(batch.leader_epoch, batch.base_offset))
            end = batch.next_offset
            self._report.scanned_batches += 1
            self._report.scanned_bytes += batch.size
        if segment.size == file_size:
            return end, False
        if end < recovery_point:
            raise Damaged(
                f"{segment.path.name} is damaged at position {segment.size} (offset {end}), "
                f"before the recovery point {recovery_point}"
            )
        if recovery_point == UNKNOWN and self._sound_batch_follows(segment, file_size, end):
            raise Damaged(f"{segment.path.name} is damaged at position {segment.size} (offset {end})")
        return end, True

    def _sound_batches(self, segment: Segment, position: int, file_size: int, end: int) -> Iterator[tuple[Batch, int]]:
        file = segment.file
        while position < file_size:
            window = memoryview(self._disk.read_at(file, position, min(SCAN_BYTES, file_size - position)))
            at = 0
            while len(window) - at >= HEADER_BYTES:
                size = int.from_bytes(window[at + 8 : at + 12], "big", signed=True) + LENGTH_PREFIX_BYTES
                if size < HEADER_BYTES or position + at + size > file_size:
                    return
                if at + size > len(window):
                    if at:
                        break
                    window = memoryview(self._disk.read_at(file, position, size))
                    if len(window) < size:
                        return
                batch = Batch(window[at : at + size])
                if batch.magic != MAGIC or batch.base_offset < end or batch.last_offset_delta < 0:
                    return
                if not batch.crc_is_right():
                    return
                yield batch, position + at
                end = batch.next_offset
                at += size
            if at == 0:
                return
            position += at

    def _sound_batch_follows(self, segment: Segment, file_size: int, end: int) -> bool:
        """Whether a whole batch with a right CRC lies anywhere past the damage. Only asked when nothing else tells."""
        data = memoryview(self._disk.read_at(segment.file, segment.size, min(SCAN_BYTES, file_size - segment.size)))
        for at in range(1, len(data) - HEADER_BYTES):
            if data[at + 16] != MAGIC or data[at] != 0:
                continue
            try:
                batch = Batch(data[at:])
            except BatchError:
                continue
            if end <= batch.base_offset and batch.last_offset_delta >= 0 and batch.crc_is_right():
                return True
        return False

    # pass 5: cut

    def _cut(self, segments: list[Segment], at: int, file_size: int) -> None:
        segment = segments[at]
        self._disk.truncate(segment.file, segment.size)
        self._disk.sync(segment.file)
        self._report.cut_bytes += file_size - segment.size
        for later in segments[at + 1 :]:
            self._report.cut_bytes += later.size
            self._report.cut_segments += 1
            self._files.forget(later.paths())
            for path in later.paths():
                self._disk.remove(path)
        del segments[at + 1 :]
        self._disk.sync_directory(self._directory)

    # pass 6: epochs

    def _mend_epochs(self, log: PartitionLog) -> None:
        epochs = LeaderEpochs(self._disk, self._directory)
        log.epochs = epochs
        try:
            epochs.cut_end(log.log_end_offset)
            known = list(epochs.load())
        except EpochsDamaged as error:
            self._report.notes.append(str(error))
            known = []
            epochs.replace([])
        scanned = self._epochs
        if scanned and (not known or known[-1].epoch < scanned[0].epoch):
            first = known[-1].start_offset if known else log.segments[0].base_offset
            for _, _, batch in log.headers(first):
                if batch.base_offset > scanned[0].start_offset:
                    break
                if not known or batch.leader_epoch > known[-1].epoch:
                    known.append(EpochStart(batch.leader_epoch, batch.base_offset))
            epochs.replace(known)
        for entry in scanned:
            epochs.assign(entry.epoch, entry.start_offset)

    @staticmethod
    def _first_timestamp(segment: Segment, now_ms: int) -> int:
        """When the active segment began, as far as its first batch tells."""
        first = next(segment.walk_slowly(0, segment.size), None)
        if first is None or first.max_timestamp < 0:
            return now_ms
        return min(first.max_timestamp, now_ms)
