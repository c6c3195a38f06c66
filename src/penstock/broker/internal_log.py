"""One partition of an internal topic, as a coordinator uses it: replay it once, append to it, answer when it is flushed.

States: *loading* (the log is being replayed, slice by slice, while others are served), *online*, *offline* (the partition
cannot be written; whoever asks is told that the coordinator is not available, until the next start).

A coordinator's state is ahead of its log between an append and its flush. So an answer waits until everything that was
written before it is safe, and if a write fails, the state is thrown away and made again from the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor

from penstock.broker.partition import Partition
from penstock.model.errors import Fault
from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.builder import NewRecord, build_batch, build_run
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment

LOAD_SLICE_S = 0.002
"""How long replaying may hold the loop at a time."""
LOAD_READ_BYTES = 1024 * 1024

NO_ROOM = "no room on the broker's disk to store commits, groups and transactions"

KeyValue = tuple[bytes, bytes | None]


class InternalLog:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def id(self) -> str:
        return str(self._partition.id)

    @property
    def problem(self) -> str | None:
        """Why nothing can be appended now, as text for clients, or None."""
        log = self._partition.log
        if log is None:
            return f"{self.id} is offline"
        if log.failure is not None:
            return f"{self.id} is read-only after a disk error"
        return None if log.has_room_for_own else NO_ROOM

    def append(
        self,
        records: Sequence[KeyValue],
        now_ms: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Append in one batch, transactional when there is a producer. Raises BrokerError."""
        keys, values = zip(*records, strict=True)
        if producer_id < 0 and None not in values:
            data = build_run(values, now_ms, keys)
        else:
            data = build_batch(
                [NewRecord(now_ms, key, value) for key, value in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id >= 0,
            )
        self._partition.append_own(data, now_ms)

    def when_safe(self, then: Callable[[Fault], None]) -> None:
        """Call when everything appended so far is flushed: at once where it is, or where the policy does not wait."""
        log = self._partition.log
        if log is None:
            then(Fault.COORDINATOR_NOT_AVAILABLE)
        elif not self._partition.durable or not self._partition.when_flushed(log.log_end_offset, then):
            then(Fault.NONE)

    async def replay(self, take: Callable[[Batch], Iterable[None] | None], readers: Executor) -> None:
        """Pass every batch of the log to `take`, in slices; `take` may process a batch in steps. Raises OSError, and
        BatchError for a corrupt batch."""
        log = self._partition.log
        if log is None:
            return
        log.replays += 1
        try:
            await self._replay(log, take, readers)
        finally:
            log.replays -= 1

    @staticmethod
    async def _replay(log: PartitionLog, take: Callable[[Batch], Iterable[None] | None], readers: Executor) -> None:
        deadline = time.monotonic() + LOAD_SLICE_S
        offset = log.log_start_offset
        done: Segment | None = None
        while True:
            # Segments may be dropped meanwhile, and the file of this one stays open. Log cleaning waits (`log.replays`).
            index = log.segment_at(offset)
            if log.segments[index] is done:
                index += 1
            if index == len(log.segments):
                return
            done = segment = log.segments[index]
            if not segment.size:
                continue
            async for batch in _batches(segment.reader(), segment.size, readers):
                if batch.next_offset > max(offset, log.log_start_offset):
                    if not batch.crc_is_right():
                        raise BatchError(f"the batch at offset {batch.base_offset} is corrupt: its CRC is wrong")
                    for _ in take(batch) or ():
                        if time.monotonic() > deadline:
                            await asyncio.sleep(0)
                            deadline = time.monotonic() + LOAD_SLICE_S
                    offset = batch.next_offset
                if time.monotonic() > deadline:
                    await asyncio.sleep(0)
                    deadline = time.monotonic() + LOAD_SLICE_S


async def _batches(read: Callable[[int, int], bytes], end: int, readers: Executor) -> AsyncIterator[Batch]:
    """The batches of a file below `end`, read on a thread, some at a time."""
    loop = asyncio.get_running_loop()
    position = 0
    length = LOAD_READ_BYTES
    while end - position >= HEADER_BYTES:
        view = memoryview(await loop.run_in_executor(readers, read, position, min(length, end - position)))
        at = 0
        while len(view) - at >= HEADER_BYTES:
            header = Batch.of_header(view[at:])
            if at + header.size > len(view):
                break
            yield Batch(view[at : at + header.size])
            at += header.size
        position += at
        length = LOAD_READ_BYTES if at else header.size  # one that is larger than a read is read alone
        if not at and header.size > end - position:
            raise BatchError(f"the batch at {position} ends at {position + header.size}, the segment at {end}")
