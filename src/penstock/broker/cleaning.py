"""When logs are cleaned, and by whom: one niced child process, one log at a time, the dirtiest first.

The broker chooses, hands the job to the child, and swaps the result in when it comes back; appends and reads go on
meanwhile. Cleaned is what is closed, flushed, decided (below the last stable offset) and older than
min.compaction.lag.ms. A log is due when its dirty part is at least min.cleanable.dirty.ratio of it, or holds something
older than max.compaction.lag.ms.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from penstock.broker.partition import Partition
from penstock.storage import swap
from penstock.storage.cleaner import CleaningJob, CleaningResult, SourceSegment
from penstock.storage.cleaner_process import Reply
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import ChecksumMismatch
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 15.0
STATE_FILE = "cleaner"
REPLY_BYTES_MAX = 64 * 1024 * 1024


class Candidate(NamedTuple):
    dirty_ratio: float
    partition: Partition
    log: PartitionLog
    end_offset: int


class Cleaning:
    def __init__(
        self,
        directory: DataDirectory,
        partitions: Callable[[], Iterable[Partition]],
        now_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._now_ms = now_ms
        self._first_dirty: dict[str, int] = self._load()
        self._child: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.cleaned_bytes = 0
        self.freed_bytes = 0

    def _load(self) -> dict[str, int]:
        """Where each log's dirty part begins; when that is lost, everything counts as dirty once."""
        try:
            payload = self._directory.read_state(STATE_FILE)
            return {} if payload is None else msgspec.json.decode(payload, type=dict[str, int])
        except (ChecksumMismatch, msgspec.DecodeError):
            return {}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_child()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                while await self.clean_one():
                    pass
            except OSError as error:
                logger.error("log cleaning failed, will be tried again: %s", error)

    # ------------------------------------------------------------------------------------------------ choosing

    async def clean_one(self) -> bool:
        """Clean the dirtiest log that is due; False when none is."""
        due = self._due()
        if due is None:
            return False
        try:
            reply = await self._ask_child(self._job(due))
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            logger.error("the cleaning process failed: %s", error)
            await self._end_child()
            return False
        if reply.result is None:
            logger.error("%s cannot be cleaned: %s", due.log.name, reply.error)
            # not again before something new was written
            self._first_dirty[due.log.name] = due.end_offset
            return True
        await self._take_over(due, reply.result)
        return True

    def _due(self) -> Candidate | None:
        now_ms = self._now_ms()
        candidates = [
            candidate
            for partition in self._partitions()
            if partition.compacts and partition.log is not None
            if (candidate := self._candidate(partition, partition.log, now_ms)) is not None
        ]
        return max(candidates, key=lambda candidate: candidate.dirty_ratio, default=None)

    def _candidate(self, partition: Partition, log: PartitionLog, now_ms: int) -> Candidate | None:
        config = partition.config
        end_offset = min(log.active.base_offset, partition.last_stable_offset, partition.high_watermark)
        first_dirty = min(self._first_dirty.get(log.name, 0), log.log_end_offset)
        clean = dirty = 0
        oldest_dirty_ms = now_ms
        for at, segment in enumerate(log.segments[:-1]):
            end = log.segments[at + 1].base_offset
            if segment.base_offset >= end_offset:
                break
            if end > first_dirty and now_ms - segment.largest_timestamp() < config.min_compaction_lag_ms:
                end_offset = segment.base_offset
                break
            if end <= first_dirty:
                clean += segment.size
            else:
                if not dirty:
                    oldest_dirty_ms = segment.largest_timestamp()
                dirty += segment.size
        if not dirty or end_offset <= first_dirty:
            return None
        ratio = dirty / (clean + dirty)
        overdue = now_ms - oldest_dirty_ms > config.max_compaction_lag_ms
        if ratio < config.min_cleanable_dirty_ratio and not overdue:
            return None
        return Candidate(ratio, partition, log, end_offset)

    def _job(self, due: Candidate) -> CleaningJob:
        log, partition = due.log, due.partition
        sources = tuple(
            SourceSegment(segment.base_offset, segment.size)
            for segment in log.segments[:-1]
            if segment.base_offset < due.end_offset
        )
        return CleaningJob(
            directory=str(log.directory),
            segments=sources,
            first_dirty_offset=max(self._first_dirty.get(log.name, 0), log.segments[0].base_offset),
            end_offset=due.end_offset,
            segment_bytes=partition.config.segment_bytes,
            index_interval_bytes=partition.config.index_interval_bytes,
            delete_retention_ms=partition.config.delete_retention_ms,
            now_ms=self._now_ms(),
            aborted=partition.aborted.ranges(),
            producer_last_offsets=partition.producers.last_offsets(),
        )

    # ------------------------------------------------------------------------------------------------ taking over

    async def _take_over(self, due: Candidate, result: CleaningResult) -> None:
        """Swap the new segments in, unless the old ones changed under the child's hands."""
        log = due.log
        loop = asyncio.get_running_loop()
        disk = self._directory.disk
        if not log.holds(result.old_base_offsets) or log.failure is not None:
            logger.info("%s changed while it was cleaned; the work is thrown away", log.name)
            await loop.run_in_executor(None, swap.finish, disk, log.directory, disk.names(log.directory))
            return
        log.swapping = True
        try:
            decided = await loop.run_in_executor(None, swap.decide, disk, log.directory, result)
            swap.carry_out(disk, log.directory, decided)
            new = [
                Segment(disk, self._directory.files, log.directory, segment.base_offset, segment.size)
                for segment in result.new_segments
            ]
            log.replace_segments(len(result.old_base_offsets), new)
            await loop.run_in_executor(None, swap.forget, disk, log.directory)
        finally:
            log.swapping = False
        self._first_dirty[log.name] = result.cleaned_to_offset
        self.cleaned_bytes += result.bytes_before
        self.freed_bytes += result.bytes_before - result.bytes_after
        await self._save()
        logger.info(
            "cleaned %s up to offset %d: %d of %d records stay, %d bytes became %d",
            log.name,
            result.cleaned_to_offset,
            result.records_kept,
            result.records_read,
            result.bytes_before,
            result.bytes_after,
        )

    async def _save(self) -> None:
        known = {partition.log.name for partition in self._partitions() if partition.log is not None}
        self._first_dirty = {name: offset for name, offset in self._first_dirty.items() if name in known}
        payload = msgspec.json.encode(self._first_dirty)
        await asyncio.get_running_loop().run_in_executor(None, self._directory.write_state, STATE_FILE, payload)

    # ------------------------------------------------------------------------------------------------ the child

    async def _ask_child(self, job: CleaningJob) -> Reply:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "penstock.storage.cleaner_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=REPLY_BYTES_MAX,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(msgspec.json.encode(job) + b"\n")
        await self._child.stdin.drain()
        line = await self._child.stdout.readuntil(b"\n")
        return msgspec.json.decode(line, type=Reply)

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()
