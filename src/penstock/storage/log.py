"""A partition's log: the segments, in order, and the offsets that bound what may be read.

    log start offset <= flushed offset <= log end offset
    high watermark = flushed offset, or the log end offset where the flush policy promises nothing

States: *online*; *failed* (a disk error, or deleted files: nothing is appended or flushed until the broker restarts, and
flushed records can still be read); *offline* (recovery found damage before the recovery point: neither read nor written).
A full disk is not a state of a log: the write is cut back and answered with an error, and the disk's reserve decides when
records are accepted again (`Disk.room`). Neither a read error nor a lack of descriptors changes the state.

Promises: offsets are dense and never given twice; state changes only after the whole write returned; nothing below the high
watermark changes, except that retention and delete-records move the log start offset up.

The log does not check batches, knows no producers and waits for nothing: the broker's partition does.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import random
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.model.chunks import FileRange
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import ZERO_ID
from penstock.model.topic_config import TopicConfig
from penstock.records.batch import BATCH_BYTES_MIN, Batch
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.files import (
    Disk,
    DiskFailed,
    DiskFull,
    FileCache,
    LogFile,
    disk_failure,
    is_temporary,
    public_reason,
    untraced,
)
from penstock.storage.flush_job import FlushJob
from penstock.storage.room import FULL, Room
from penstock.storage.segment import RELATIVE_OFFSET_MAX, Place, Segment, file_name

logger = logging.getLogger("penstock.storage")

SEGMENT_BYTES_MAX = 2**31 - 1
"""Positions in an index have 32 bits, in Kafka's format with a sign."""
PLACES_REMEMBERED = 64
"""Recent batch starts by offset: a consumer that follows the log asks for exactly one of these next."""


class PartitionLog:
    __slots__ = (
        "_closed_bytes",
        "_directory_dirty",
        "_disk",
        "_dropped",
        "_files",
        "_places",
        "_unsynced",
        "active",
        "config",
        "directory",
        "doomed",
        "epochs",
        "failure",
        "flush_refused",
        "flush_under_way",
        "flush_wanted",
        "flushed_offset",
        "flushed_position",
        "flushed_segment",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "name",
        "on_roll",
        "producerless_offset",
        "replays",
        "segments",
        "swapping",
        "topic_id",
        "withdrawn",
    )

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: Path,
        config: TopicConfig,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        leader_epoch: int,
    ) -> None:
        assert segments, "a log has at least its active segment"
        self._disk = disk
        self._files = files
        self.directory = directory
        self.name = directory.name
        self.config = config
        self.segments = segments
        self.active = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.leader_epoch = leader_epoch
        self.epochs = LeaderEpochs(disk, directory)
        self.flushed_offset = log_end_offset
        self.flushed_segment = self.active
        self.flushed_position = self.active.size
        self.flush_under_way = False
        self.flush_wanted = False
        """Whether a flush was asked for while one was under way."""
        self.flush_refused: OSError | None = None
        """Why the last flush could not begin, when that is no failure of the disk: whoever sees it tries again."""
        self.failure: DiskFailed | None = None
        self._dropped: list[Segment] = []
        """No longer part of the log, but their files are there until the log start offset is safe."""
        self.doomed: list[tuple[int, Path]] = []
        """Deleted files and when to unlink them (file.delete.delay.ms)."""
        self.swapping = False
        """While files of cleaned segments are put in place: no segment is dropped, which can wait."""
        self.replays = 0
        """Readers that hold segments while they wait: no segment is replaced under them, which can wait too."""
        self.withdrawn = False
        """The topic is deleted: the folder's name may belong to another log."""
        self.topic_id: uuid.UUID = ZERO_ID
        self.producerless_offset = 0
        """Below it no producer is to be remembered: whoever replays the log for them may begin here."""
        self.on_roll: Callable[[], object] | None = None
        self._closed_bytes = sum(segment.size for segment in segments[:-1])
        self._unsynced: list[LogFile] = []
        self._directory_dirty = False
        self._places: dict[int, tuple[Segment, int, int]] = {}

    # ------------------------------------------------------------------------------------------------ appending

    def append(self, batches: Sequence[Batch], now_ms: int, endures: Room = Room.AMPLE) -> int:
        """Append batches that are placed from the log end on; how many were written (all, or those before an error).

        Raises BrokerError STORAGE_ERROR if not even the first was written, or if the state of the disk does not allow
        writing these records (`endures`).
        """
        if self.failure is not None or self._disk.room > endures:
            raise self._refusal()
        total = batches[0].size if len(batches) == 1 else sum([batch.size for batch in batches])
        if self._fits(total, batches[-1], now_ms):
            self._append_part(batches, total, now_ms, endures)
            return len(batches)
        return self._append_over_segments(batches, now_ms, endures)

    def append_own(self, batch: Batch, now_ms: int) -> None:
        """Append a batch of the broker itself. On a full disk it uses the space that the reserve frees."""
        while True:
            seen = self._disk.room
            try:
                self.append((batch,), now_ms, Room.TIGHT)
                return
            except BrokerError:
                if self._disk.room is seen or self._disk.room > Room.TIGHT:
                    raise

    @property
    def has_room_for_own(self) -> bool:
        """Whether batches of the broker itself can be written."""
        return self._disk.room <= Room.TIGHT

    def _refusal(self) -> BrokerError:
        if self.failure is not None:
            text = f"{self.name} is read-only after a disk error: {public_reason(self.failure)}"
        else:
            text = f"{self.name}: no room on the disk"
            self._disk.refusals.note(self.name, "no room on the disk")
        return BrokerError(Fault.STORAGE_ERROR, text)

    def _fits(self, total: int, last: Batch, now_ms: int) -> bool:
        config = self.config
        active = self.active
        size = active.size
        if size == 0:
            return total <= config.segment_bytes
        return (
            size + total <= config.segment_bytes
            and now_ms - active.created_ms < config.segment_ms
            and last.base_offset + last.last_offset_delta - active.base_offset <= RELATIVE_OFFSET_MAX
            and size // max(config.index_interval_bytes, BATCH_BYTES_MIN) < config.segment_index_bytes // 8
        )

    def _roll_can_wait(self, batch: Batch) -> bool:
        """Whether a batch goes into the active segment though that is full. A closed segment keeps its files open until they
        are flushed, and rolls may come faster than flushes."""
        active = self.active
        return (
            self._files.is_crowded
            and active.size + batch.size <= SEGMENT_BYTES_MAX
            and batch.base_offset + batch.last_offset_delta - active.base_offset <= RELATIVE_OFFSET_MAX
        )

    def _append_over_segments(self, batches: Sequence[Batch], now_ms: int, endures: Room) -> int:
        done = 0
        while done < len(batches):
            try:
                first = batches[done]
                if self.active.size and not self._fits(first.size, first, now_ms) and not self._roll_can_wait(first):
                    self.roll()
                    if self._disk.room > endures:  # the indexes of the old segment used the last free space
                        raise self._refusal()
                end = done + 1
                total = batches[done].size
                while end < len(batches) and self._fits(total + batches[end].size, batches[end], now_ms):
                    total += batches[end].size
                    end += 1
                self._append_part(batches[done:end], total, now_ms, endures)
            except BrokerError:
                if done == 0:
                    raise
                break
            done = end
        return done

    def _append_part(self, batches: Sequence[Batch], total: int, now_ms: int, endures: Room) -> None:
        active = self.active
        first, last = batches[0], batches[-1]
        position = active.size
        seen = self._disk.room
        try:
            if first.leader_epoch > self.leader_epoch or self.log_end_offset == 0:
                self._begin_epoch(first.leader_epoch)
                if self._disk.room > endures:  # the epoch used the last free space
                    raise self._refusal()
            active.append(batches, total, self.config.index_interval_bytes)
        except DiskFailed as error:
            self.fail(error)
            raise BrokerError(Fault.STORAGE_ERROR, f"{self.name}: {public_reason(error)}") from error
        except OSError as error:
            self._disk.refusals.note(self.name, str(error))
            if error.errno in FULL:
                self._disk.make_room(seen)
            is_full = error.errno in FULL or isinstance(error, DiskFull)
            text = f"{self.name}: {'no room on the disk' if is_full else 'cannot append'}: {public_reason(error)}"
            raise BrokerError(Fault.STORAGE_ERROR, text) from error
        if active.created_ms < 0:
            active.created_ms = now_ms - self._jitter_ms()
        self.log_end_offset = last.base_offset + last.last_offset_delta + 1
        places = self._places
        places[first.base_offset] = (active, position, first.size)
        if len(places) > PLACES_REMEMBERED:
            del places[next(iter(places))]

    def _jitter_ms(self) -> int:
        """Segments of many logs that began together shall not roll together."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return random.randrange(jitter_ms) if jitter_ms else 0

    def append_aborted(self, entry: bytes) -> None:
        """Add an entry to the active segment's index of aborted transactions; it is flushed with the marker it is of.

        Raises BrokerError STORAGE_ERROR. The marker must not be written then: without the entry aborted records would be
        read as committed ones.
        """
        if self._disk.room > Room.TIGHT:
            raise self._refusal()
        path = self.active.path.with_suffix(".txnindex")
        try:
            known = next((one for one in self._unsynced if one.path == path), None)
            file = known or self._files.create(path)
            self._disk.with_room(self._disk.write_at, file, self._disk.size(path), (entry,), len(entry))
        except OSError as error:
            if isinstance(error, DiskFailed):
                self.fail(error)
            else:
                self._disk.refusals.note(self.name, str(error))
            raise BrokerError(
                Fault.STORAGE_ERROR, f"{self.name}: cannot store an aborted transaction: {public_reason(error)}"
            ) from error
        if known is None:
            self._unsynced.append(self._files.hold(file))
        self._directory_dirty = True

    def read_aborted(self, segment: Segment) -> bytes:
        """A segment's index of aborted transactions."""
        path = segment.path.with_suffix(".txnindex")
        return self._disk.read_whole(path) if self._disk.exists(path) else b""

    def rewrite_aborted(self, segment: Segment, entries: bytes) -> None:
        """Mend a segment's index of aborted transactions at start; waits for the disk."""
        self._files.forget([segment.path.with_suffix(".txnindex")])
        # while it is owed, no recovery point is stored: the next start would repair it again
        self._disk.replace_or_owe(segment.path.with_suffix(".txnindex"), entries)

    def _begin_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.log_end_offset)
        self.leader_epoch = epoch

    def roll(self) -> None:
        """Close the active segment and begin one at the log end."""
        try:
            old = self.active
            old.store_indexes(self.log_end_offset, closing=True)
            # recovery reads no closed segment, so its indexes must survive as well as it does
            indexes = [path for path in (old.offsets.path, old.times.path) if self._disk.exists(path)]
            unsynced = [*(self._disk.open(path) for path in indexes), old.file]
            new = Segment(self._disk, self._files, self.directory, self.log_end_offset)
            # Last: an empty file that the next append does not go to would look like damage to recovery.
            self._files.create(new.path)
        except OSError as error:
            self._disk.refusals.note(self.name, str(error))
            text = f"{self.name}: cannot start a segment: {public_reason(error)}"
            raise BrokerError(Fault.STORAGE_ERROR, text) from error
        self._unsynced += [self._files.hold(file) for file in unsynced]
        old.offsets.forget()
        old.times.forget()
        self._directory_dirty = True
        self._closed_bytes += old.size
        self.segments.append(new)
        self.active = new
        if self.on_roll is not None:
            self.on_roll()

    def fail(self, error: DiskFailed) -> None:
        """The disk cannot be trusted: read-only until the next start, and everybody is told."""
        if self.failure is None:
            self.failure = disk_failure(error)
            self._forget_unsynced()
            logger.error("%s is read-only until the broker starts again: %s", self.name, self.failure)

    def retire(self) -> None:
        """Stop all writes and flushes and close all files, because the topic was deleted."""
        self.failure = DiskFailed(errno.ENOENT, f"{self.name}: the topic was deleted")
        self._forget_unsynced()
        self.on_roll = None
        self._files.forget(path for segment in self.segments for path in segment.paths())

    def _forget_unsynced(self) -> None:
        self._files.release(self._unsynced)
        self._unsynced.clear()

    # ------------------------------------------------------------------------------------------------ flushing

    @property
    def keeps_files_open(self) -> bool:
        """Whether files besides the active segment's stay open until the next flush."""
        return bool(self._unsynced)

    @property
    def dirty(self) -> bool:
        return self.flushed_offset < self.log_end_offset

    def begin_flush(self) -> FlushJob | None:
        """The work that makes everything appended so far safe; None when there is none or some is under way."""
        if self.flush_under_way:
            self.flush_wanted = True
            return None
        if self.failure is not None or not self.dirty:
            return None
        try:
            active_file = self.active.file
        except OSError as error:
            if is_temporary(error):
                self.flush_refused = untraced(error)
            else:
                self.fail(disk_failure(error))
            return None
        files, self._unsynced = self._unsynced, []
        files.append(self._files.hold(active_file))
        directory = self.directory if self._directory_dirty else None
        self._directory_dirty = False
        self.flush_refused = None
        self.flush_wanted = False
        self.flush_under_way = True
        return FlushJob(self, files, directory)

    def end_flush(self, job: FlushJob) -> None:
        self.flush_under_way = False
        self._files.release(job.files)
        if job.error is None and job.refused is None:
            job.look_for_deleted(self._disk)
        self.flush_refused = job.refused
        if job.refused is not None:
            if self.failure is None:
                # without the active file, which every flush has
                self._unsynced = [*map(self._files.hold, job.files[:-1]), *self._unsynced]
            self._directory_dirty = self._directory_dirty or job.directory is not None
            return
        if job.error is None and job.deleted:
            job.error = self._deletion(job.deleted)
        if job.error is not None:
            self.fail(job.error)
            return
        if job.offset > self.flushed_offset:
            self.flushed_offset = job.offset
            self.flushed_segment = job.segment
            self.flushed_position = job.position

    def _deletion(self, deleted: list[LogFile]) -> DiskFailed | None:
        """The error of a flush of files that somebody else deleted.

        The broker deletes files too, but never the active segment's: retention drops a segment before its files go, and
        cleaning puts other files in their place. A deleted topic's log is not served any more.
        """
        paths = {path for segment in self.segments for path in segment.paths()}
        for file in deleted:
            if file.path == self.active.path or (file.path in paths and not self._disk.exists(file.path)):
                return DiskFailed(errno.ENOENT, f"{file.path}: the file was deleted while the broker was using it")
        return None

    def mark_unflushed(self, offset: int) -> None:
        """What recovery found from `offset` on, files included, may not be on the disk yet."""
        self.flushed_offset = offset
        self._directory_dirty = True

    # ------------------------------------------------------------------------------------------------ reading

    def segment_at(self, offset: int) -> int:
        """Index of the segment that may hold `offset`."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def segment_end(self, offset: int, upper: int) -> int:
        """Where a read from `offset` ends at the latest: its segment's end, or `upper`."""
        following = self.segment_at(offset) + 1
        return min(upper, self.segments[following].base_offset) if following < len(self.segments) else upper

    def locate(self, offset: int, *, wait: bool = False) -> tuple[Segment, Place] | None:
        """The first batch whose last offset is at or past `offset`; None past the end. Raises Cold unless it may wait."""
        for segment in self.segments[self.segment_at(offset) :]:
            place = segment.locate(offset, segment.size, wait=wait)
            if place is not None:
                return segment, place
        return None

    def read(self, offset: int, max_bytes: int, upper: int, *, one_batch: bool) -> FileRange | None:
        """Whole batches' bytes from the one that holds `offset`, up to offset `upper`, in one range of one file.

        The range may end inside a batch, as Kafka's does, but not inside the first when `one_batch` asks for it. None
        when nothing fits. Raises Cold when a header is not in memory.
        """
        if offset >= upper:
            return None
        found = self._places.get(offset)
        if found is not None:
            segment, position, first_size = found
        else:
            located = self.locate(offset)
            if located is None:
                return None
            segment, place = located
            if place.base_offset >= upper:
                return None
            position, first_size = place.position, place.size
        length = self._end_position(segment, upper) - position
        if length <= 0:
            return None
        if length > max_bytes:
            length = max(max_bytes, first_size) if one_batch else max_bytes
            if length < first_size:
                return None
        return segment.range(position, length)

    def _end_position(self, segment: Segment, upper: int) -> int:
        """Where in `segment` the batches below offset `upper` end."""
        if upper >= self.log_end_offset:
            return segment.size
        if upper == self.flushed_offset:
            if segment is self.flushed_segment:
                return self.flushed_position
            if segment.base_offset < self.flushed_segment.base_offset:
                return segment.size
            return 0
        at = self.segment_at(segment.base_offset)
        if at + 1 < len(self.segments) and self.segments[at + 1].base_offset <= upper:
            return segment.size
        place = segment.locate(upper, segment.size)
        return segment.size if place is None else place.position

    def headers(self, offset: int) -> Iterator[tuple[Segment, int, Batch]]:
        """Every batch header from the one that holds `offset` on, waiting for the disk: for loading, not for serving."""
        for segment in self.segments[self.segment_at(offset) :]:
            start = segment.locate(max(offset, segment.base_offset), segment.size, wait=True)
            if start is not None:
                for position, batch in segment.headers(start.position, segment.size):
                    yield segment, position, batch

    def find_timestamp(self, timestamp_ms: int, offset: int = 0) -> tuple[Segment, Place] | None:
        """The first batch from `offset` on that has a record at or after `timestamp_ms`. Raises Cold and Unfinished."""
        offset = max(offset, self.log_start_offset)
        for segment in self.segments[self.segment_at(offset) :]:
            if segment.largest_timestamp(wait=False) < timestamp_ms:
                continue
            place = segment.first_batch_at_or_after(timestamp_ms, segment.size, offset)
            if place is not None:
                return segment, place
        return None

    # ------------------------------------------------------------------------------------------------ deleting

    def advance_start(self, offset: int) -> None:
        """Delete-records: nothing below `offset` is read any more; whole segments below it go."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = min(offset, self.log_end_offset)
        self.drop_segments(self._count_below_start())
        self._cut_epochs()

    def _count_below_start(self) -> int:
        count = 0
        while count + 1 < len(self.segments) and self.segments[count + 1].base_offset <= self.log_start_offset:
            count += 1
        return count

    def drop_segments(self, count: int) -> int:
        """Let the first `count` segments go, never the active one; their bytes. `delete_dropped` deletes the files."""
        count = min(count, len(self.segments) - 1)
        if count <= 0 or self.swapping:
            return 0
        gone, self.segments = self.segments[:count], self.segments[count:]
        freed = sum(segment.size for segment in gone)
        self._closed_bytes -= freed
        self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
        self._places = {at: place for at, place in self._places.items() if place[0] not in gone}
        for segment in gone:
            self._files.forget(segment.paths())
        self._dropped.extend(gone)
        self._cut_epochs()
        return freed

    def delete_dropped(self, log_start_offset: int, now_ms: int) -> None:
        """Delete the files of dropped segments below a log start offset that is safe on disk.

        Not before: a power cut may undo some deletions and not others, and what is left must not look like a log that
        lost records in the middle.
        """
        delete_at = now_ms + self.config.file_delete_delay_ms
        while self._dropped:
            segment = self._dropped[0]
            following = self._dropped[1] if len(self._dropped) > 1 else self.segments[0]
            if following.base_offset > log_start_offset:
                break
            for path in [*segment.paths(), self.directory / file_name(segment.base_offset, ".snapshot")]:
                if self._disk.exists(path):
                    doomed = path.with_name(path.name + ".deleted")
                    self._disk.rename(path, doomed)
                    self.doomed.append((delete_at, doomed))
            del self._dropped[0]

    def holds(self, base_offsets: Sequence[int]) -> bool:
        """Whether these are the log's oldest segments, none of them the active one."""
        oldest = [segment.base_offset for segment in self.segments[: len(base_offsets)]]
        return oldest == list(base_offsets) and len(base_offsets) < len(self.segments)

    def replace_segments(self, count: int, new: list[Segment]) -> list[Segment]:
        """Read from `new` instead of the oldest `count` segments. Those are returned, for the file cache to forget."""
        replaced = self.segments[:count]
        self.segments = [*new, *self.segments[count:]]
        for segment in replaced:
            segment.retire()
        old = set(replaced)
        self._closed_bytes = sum(segment.size for segment in self.segments[:-1])
        self._places = {at: place for at, place in self._places.items() if place[0] not in old}
        if self.flushed_segment in old:
            self.flushed_segment = self.active
            self.flushed_position = 0 if self.dirty else self.active.size
        return replaced

    def end_swap(self) -> None:
        """Segments may be dropped again; those that delete-records wanted to drop meanwhile go now."""
        self.swapping = False
        self.drop_segments(self._count_below_start())

    def _cut_epochs(self) -> None:
        """Not worth a failure: epochs that ended before the log starts do no harm."""
        with contextlib.suppress(OSError):
            self.epochs.cut_start(self.log_start_offset)

    def sweep_doomed(self, now_ms: int) -> None:
        """Unlink what is due. A file that cannot be unlinked is tried again next time, and raised at the end."""
        failure: OSError | None = None
        left = []
        for at, path in self.doomed:
            try:
                if at <= now_ms:
                    self._disk.remove(path)
                    continue
            except OSError as error:
                failure = error
            left.append((at, path))
        self.doomed = left
        if failure is not None:
            raise failure

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self.active.size


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
