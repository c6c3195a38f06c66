"""Opening a partition's log: at once after a clean stop, by numbered passes after a crash.

After a clean stop the marker says where each log ended; sizes are compared and nothing of the log is read.

After a crash:
  1. list     the segments; an unfinished swap of cleaned segments is undone, left-overs of replaced and deleted files go
  2. start    the log start offset from the checkpoint, at least the first segment's base offset
  3. resume   find the recovery point through the index, cutting index entries past it
  4. scan     every batch from there on, with CRC: what is whole stays, the first that is not ends the log (a torn tail)
  5. cut      the torn tail, and segments after it, go
  6. epochs   the leader-epoch checkpoint is made to agree with the batches

What the scan found past the recovery point may be in the page cache alone: the log comes out of recovery unflushed there,
and whoever opened it flushes it before anybody reads it (`DataDirectory.flush`).

A batch that is damaged *before* the recovery point was once on disk in full: that is corruption, not a torn write. It is
never cut; the partition stays offline with the reason, and so does one that is shorter than its recovery point. With
no recovery point at hand (checkpoint lost or damaged) a bad batch is a torn tail only if no sound batch follows it.

What this cannot see: damage in segments before the one with the recovery point, which are not read (it reaches the client
with its CRC), and that one of them is gone or lost whole batches at its end.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.model.ids import ZERO_ID
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, NO_TIMESTAMP, Batch, BatchError
from penstock.storage import swap
from penstock.storage.epochs import EpochsDamaged, EpochStart, LeaderEpochs
from penstock.storage.files import ChecksumMismatch, Disk, DiskFailed, FileCache, is_shortage
from penstock.storage.legacy_swap import SwapRejected
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Place, Segment
from penstock.storage.sparse_index import IndexDamaged

SCAN_BYTES = 1024 * 1024
UNKNOWN = -1
_BESIDE_LOG = (".index", ".timeindex", ".txnindex")


class LogBounds(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a log before it is opened, as kept in the checkpoint."""

    recovery_point: int
    """Everything below was safely written; UNKNOWN when nobody can tell."""
    log_start_offset: int = 0
    topic_id: uuid.UUID = ZERO_ID
    """Bounds of a deleted topic do not count for a new one of the same name."""
    producerless_offset: int = 0
    """Below it no producer is to be remembered; at most the recovery point."""
    active_base_offset: int = UNKNOWN
    max_timestamp: int = UNKNOWN
    max_timestamp_offset: int = UNKNOWN
    """The active segment, and the largest timestamp in it."""
    closed_segments: int = UNKNOWN
    closed_bytes: int = UNKNOWN
    """Of all segments but the active one, where a clean stop wrote it down."""


class LogState(msgspec.Struct, array_like=True, frozen=True):
    """What a clean stop knows of a log, as kept in the marker."""

    bounds: LogBounds
    leader_epoch: int
    active_size: int
    created_ms: int

    @property
    def log_end_offset(self) -> int:
        return self.bounds.recovery_point


@dataclass(slots=True)
class RecoveryReport:
    """What recovery saw and did to one log; `offline` is the reason why it must not be used."""

    name: str
    scanned_bytes: int = 0
    scanned_batches: int = 0
    cut_bytes: int = 0
    cut_segments: int = 0
    cut_offset: int = UNKNOWN
    """The first offset that is not there any more."""
    cut_place: str = ""
    notes: list[str] = field(default_factory=list)
    offline: str | None = None
    marker_offset: int | None = None
    """The first control batch that the scan met."""
    sizes: dict[str, int] = field(default_factory=dict, repr=False)
    """The files of the folder as they were listed."""

    @property
    def has_cut(self) -> bool:
        """Whether bytes were removed that a crash left half written."""
        return self.cut_bytes > 0 or self.cut_segments > 0

    def __str__(self) -> str:
        if self.offline:
            return f"{self.name}: offline: {self.offline}"
        text = f"{self.name}: scanned {self.scanned_batches} batches, {self.scanned_bytes} bytes"
        if self.has_cut:
            text += f"; cut a torn tail of {self.cut_bytes} bytes: nothing from offset {self.cut_offset} on is left"
            text += f" ({self.cut_place}, {self.cut_segments} later segments removed)"
        return "; ".join([text, *self.notes])


class Damaged(Exception):
    """Damage before the recovery point."""


def open_log(
    disk: Disk,
    files: FileCache,
    directory: Path,
    config: TopicConfig,
    bounds: LogBounds,
    state: LogState | None,
    now_ms: int,
) -> tuple[PartitionLog | None, RecoveryReport]:
    """The log, by the marker if there is one and the files agree, else by the passes; None with a reason in the report.

    Raises OSError if the system is short of descriptors or memory: nothing is wrong with the log then.
    """
    report = RecoveryReport(directory.name)
    try:
        segments, swapped = _segments_in(disk, files, directory, report)
        segments = _without_dropped(disk, segments, bounds.log_start_offset)
        if not swapped:
            _check_closed(segments, bounds)
        if state is not None:
            log = _open_clean(disk, files, directory, config, state, segments)
            if log is not None:
                return log, report
        return _Recovery(disk, files, directory, config, report).run(segments, bounds, now_ms), report
    except FileNotFoundError as error:
        report.offline = "its folder is missing" if not disk.exists(directory) else str(error)
    except (Damaged, SwapRejected, ChecksumMismatch, msgspec.DecodeError, OSError) as error:
        if isinstance(error, OSError) and is_shortage(error):
            raise
        report.offline = str(error)
    return None, report


def _segments_in(disk: Disk, files: FileCache, directory: Path, report: RecoveryReport) -> tuple[list[Segment], bool]:
    """Pass 1: the segments by base offset, and whether a swap had to be undone."""
    sizes = disk.sizes(directory)
    undone = swap.recover(disk, directory, sizes)
    if undone is not None:
        report.notes.append(undone)
        sizes = disk.sizes(directory)
    segments = []
    for name, size in sorted(sizes.items()):
        if name.endswith((".tmp", ".deleted")) or (
            name.endswith(_BESIDE_LOG) and name[:20].isdigit() and f"{name[:20]}.log" not in sizes
        ):
            disk.remove(directory / name)
            del sizes[name]
        elif name.endswith(".log") and len(name) == 24 and name[:20].isdigit():
            segments.append(Segment(disk, files, directory, int(name[:20]), size))
    report.sizes = sizes
    return segments, undone is not None


def _without_dropped(disk: Disk, segments: list[Segment], log_start_offset: int) -> list[Segment]:
    """Segments below the log start were on their way out, and a crash may have left any of them."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        for path in segments[count].paths():
            disk.remove(path)
        count += 1
    return segments[count:]


def _check_closed(segments: list[Segment], bounds: LogBounds) -> None:
    """Segments that a clean stop left must be there in full."""
    if bounds.closed_segments == UNKNOWN:
        return
    count, total = len(segments) - 1, sum(segment.size for segment in segments[:-1])
    if (count, total) != (bounds.closed_segments, bounds.closed_bytes):
        raise Damaged(
            f"{bounds.closed_segments} full segments of {bounds.closed_bytes} bytes in all were left at the last stop, "
            f"now there are {max(count, 0)} of {total}"
        )


def _open_clean(
    disk: Disk, files: FileCache, directory: Path, config: TopicConfig, state: LogState, segments: list[Segment]
) -> PartitionLog | None:
    """The log as the marker says it is; None when the files do not agree and it must be recovered."""
    if not segments or segments[-1].size != state.active_size or segments[-1].base_offset > state.log_end_offset:
        return None
    active = segments[-1]
    active.set_timestamps(state.bounds.max_timestamp, state.bounds.max_timestamp_offset)
    active.created_ms = state.created_ms
    start, end = state.bounds.log_start_offset, state.log_end_offset
    log = PartitionLog(disk, files, directory, config, segments, start, end, state.leader_epoch)
    try:
        if log.epochs.latest != state.leader_epoch:
            return None
    except EpochsDamaged:
        return None
    log.topic_id = state.bounds.topic_id
    log.producerless_offset = state.bounds.producerless_offset
    return log


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
        self._start = 0
        self._scan_offset = 0
        """Where the scan began."""
        self._producer_offset: int | None = None
        """The first scanned batch that has a producer."""

    def run(self, segments: list[Segment], bounds: LogBounds, now_ms: int) -> PartitionLog:
        recovery_point = bounds.recovery_point
        if not segments:
            if recovery_point > bounds.log_start_offset:
                raise Damaged(f"no segment is left, but offsets up to {recovery_point} were written")
            segments = [self._new_segment(0)]
        begins_late = segments[0].base_offset > bounds.log_start_offset
        if begins_late and recovery_point > 0 and not self._config.compacts:  # cleaning may have emptied the first ones
            segments = self._without_beginning(segments, bounds)
        start = self._start = max(bounds.log_start_offset, segments[0].base_offset)
        end = self._scan(segments, bounds)
        self._check_end(end, recovery_point)
        active = segments[-1]
        if active.size:
            active.created_ms = self._first_timestamp(active, now_ms)
        if end < start:
            # delete-records went up to the end and the tail after it was lost: begin anew where the log starts
            segments = [*segments, self._new_segment(start)]
            end = start
        log = PartitionLog(self._disk, self._files, self._directory, self._config, segments, start, end, -1)
        log.topic_id = bounds.topic_id
        log.producerless_offset = bounds.producerless_offset
        if log.producerless_offset >= self._scan_offset:
            log.producerless_offset = end if self._producer_offset is None else self._producer_offset
        self._mend_epochs(log)
        log.leader_epoch = log.epochs.latest
        if end > recovery_point:
            log.mark_unflushed(max(recovery_point, 0))
        return log

    def _check_end(self, end: int, recovery_point: int) -> None:
        """A log that ends below its recovery point lost what was safe: nothing of it may be cut, or served."""
        if end < recovery_point and self._start < recovery_point:
            raise Damaged(f"the log ends at offset {end}, but offsets up to {recovery_point} were safely written")

    def _without_beginning(self, segments: list[Segment], bounds: LogBounds) -> list[Segment]:
        """The segment that the log starts in is gone: a crash can only take what was not safe."""
        if bounds.log_start_offset < bounds.recovery_point:
            raise Damaged(
                f"the log begins at offset {segments[0].base_offset}, "
                f"but offsets from {bounds.log_start_offset} on were safely written"
            )
        self._report.cut_offset = bounds.log_start_offset
        self._report.cut_place = f"the segment of offset {bounds.log_start_offset} is missing"
        self._remove(segments)
        return [self._new_segment(bounds.log_start_offset)]

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._disk, self._files, self._directory, base_offset)
        self._files.create(segment.path)
        self._disk.sync_directory(self._directory)
        return segment

    # pass 3: resume

    def _scan(self, segments: list[Segment], bounds: LogBounds) -> int:
        """Passes 3 to 5; the log end offset."""
        recovery_point = bounds.recovery_point
        first = 0
        if recovery_point > 0:
            first = max(i for i, s in enumerate(segments) if i == 0 or s.base_offset <= recovery_point)
        end = segments[first].base_offset
        for at in range(first, len(segments)):
            segment = segments[at]
            if segment.base_offset < end:
                raise Damaged(f"segment {segment.path.name} begins before the one before it ends, at {end}")
            if segment.base_offset > end and at > first and recovery_point != UNKNOWN and not self._config.compacts:
                # the segment before lost its tail to a crash that left this one; only cleaning makes gaps that are none
                self._check_end(end, recovery_point)
                self._cut(segments, at - 1, segments[at - 1].size, end)
                break
            file_size = segment.size
            is_last = at + 1 == len(segments)
            position, end = self._resume(segment, bounds) if at == first else self._begin(segment)
            if at == first:
                self._scan_offset = end
            # only cleaning leaves gaps between offsets, and it leaves the active segment alone
            dense = is_last and not self._config.compacts
            end, torn = self._scan_segment(segment, position, file_size, end, recovery_point, dense=dense)
            if torn and recovery_point == UNKNOWN and not is_last:
                raise Damaged(f"{segment.path.name} is damaged at position {segment.size}, and segments follow it")
            if torn:
                self._cut(segments, at, file_size, end)
                break
            if not is_last and end > recovery_point:
                self._disk.sync(segment.file)
        return end

    def _resume(self, segment: Segment, bounds: LogBounds) -> tuple[int, int]:
        """Position and offset to scan from: the indexed batch at or before the recovery point, if there is one."""
        recovery_point = bounds.recovery_point
        if recovery_point > segment.base_offset:
            try:
                segment.offsets.check(segment.size)
                segment.offsets.cut(recovery_point - segment.base_offset)
                segment.times.cut(recovery_point - segment.base_offset)
                last = segment.offsets.last()
                if last is not None:
                    place = next(segment.walk_slowly(last[1], segment.size))
                    if place.last_offset - segment.base_offset == last[0]:
                        self._restore_timestamps(segment, place, bounds)
                        return place.position, place.base_offset
            except (IndexDamaged, DiskFailed, StopIteration) as error:
                self._report.notes.append(f"index of {segment.path.name} made again ({error!r})")
        return self._begin(segment)

    @staticmethod
    def _begin(segment: Segment) -> tuple[int, int]:
        """Scan the segment from its start, and make its indexes on the way."""
        segment.offsets.clear()
        segment.times.clear()
        segment.set_timestamps(NO_TIMESTAMP, segment.base_offset)
        return 0, segment.base_offset

    @staticmethod
    def _restore_timestamps(segment: Segment, end: Place, bounds: LogBounds) -> None:
        """The largest timestamp before `end`: by the checkpoint, or by the time index and the batches after its last
        entry, because a crash may have taken entries from its end."""
        if bounds.active_base_offset == segment.base_offset and bounds.max_timestamp_offset < end.base_offset:
            segment.set_timestamps(bounds.max_timestamp, bounds.max_timestamp_offset)
            return
        segment.set_timestamps(NO_TIMESTAMP, segment.base_offset)
        position = 0
        latest = segment.latest_indexed(end.position)
        if latest is not None:
            segment.note_timestamp(latest)
            position = latest.position
        for place in segment.walk_slowly(position, end.position):
            segment.note_timestamp(place)

    # pass 4: scan

    def _scan_segment(
        self, segment: Segment, position: int, file_size: int, end: int, recovery_point: int, *, dense: bool
    ) -> tuple[int, bool]:
        """Take in every sound batch from `position`; the offset after the last, and whether the tail is torn."""
        segment.size = position
        report = self._report
        interval = self._config.index_interval_bytes
        epoch = self._epochs[-1].epoch if self._epochs else -1
        for batch, at in self._sound_batches(segment, position, file_size, end, dense=dense):
            last_offset = batch.base_offset + batch.last_offset_delta
            segment.note_recovered(
                Place(at, batch.size, batch.base_offset, last_offset, batch.max_timestamp, batch.leader_epoch), interval
            )
            if batch.leader_epoch > epoch:
                epoch = batch.leader_epoch
                self._epochs.append(EpochStart(epoch, batch.base_offset))
            if batch.producer_id >= 0:
                if self._producer_offset is None:
                    self._producer_offset = batch.base_offset
                if report.marker_offset is None and batch.is_control:
                    report.marker_offset = batch.base_offset
            end = last_offset + 1
            report.scanned_batches += 1
        report.scanned_bytes += segment.size - position
        if segment.size == file_size:
            return end, False
        if end < recovery_point and self._start < recovery_point:
            raise Damaged(
                f"{segment.path.name} is damaged at position {segment.size} (offset {end}), "
                f"before the recovery point {recovery_point}"
            )
        if recovery_point == UNKNOWN and self._sound_batch_follows(segment, file_size, end):
            raise Damaged(f"{segment.path.name} is damaged at position {segment.size} (offset {end})")
        return end, True

    def _sound_batches(
        self, segment: Segment, position: int, file_size: int, end: int, *, dense: bool
    ) -> Iterator[tuple[Batch, int]]:
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
                if (dense and batch.base_offset != end) or not batch.crc_is_right():
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

    def _cut(self, segments: list[Segment], at: int, file_size: int, end: int) -> None:
        """Remove everything after offset `end`, which is where the sound batches of segment `at` end."""
        segment = segments[at]
        self._report.cut_offset = end
        self._report.cut_place = f"position {segment.size} of {segment.path.name}"
        self._disk.truncate(segment.file, segment.size)
        self._disk.sync(segment.file)
        self._report.cut_bytes += file_size - segment.size
        self._remove(segments[at + 1 :])
        del segments[at + 1 :]

    def _remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._report.cut_bytes += segment.size
            self._report.cut_segments += 1
            self._files.forget(segment.paths())
            for path in segment.paths():
                self._disk.remove(path)
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
        if not scanned and log.log_start_offset < log.log_end_offset:
            last = log.locate(log.log_end_offset - 1, wait=True)
            scanned = [] if last is None else [EpochStart(last[1].leader_epoch, last[1].base_offset)]
        if scanned and known and known[-1].epoch > scanned[-1].epoch:
            self._report.notes.append(f"leader epoch checkpoint: epoch {known[-1].epoch} is not in the log")
            known = []
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
