"""Preparing: batches whose records the broker has to check are prepared off the loop, in partition order, on owned and
counted bytes.

Some topics have rules about records: a compacted topic requires keys, and old timestamps may be bounded. Checking records
takes time in proportion to their number, and even a small compressed batch can have very many. So the append itself (`look`)
only performs checks of about a millisecond: a few plain records, or a small compressed batch that unpacks to little. Most
batches are like that. All others go through this stage.

States of an append

    waiting    queued in the lane of its partition. While the copies of all appends in this stage fill their account
               (PREPARED_BYTES_MAX), its bytes are those of the request: a `Hold` that borrows them, so that the connection
               is not read
    owned      its bytes are copied and counted
    unpacking  it is first in its lane. A thread decompresses a batch, after the maximum size that it can unpack to was
               counted (UNPACKED_BYTES_MAX, broker/unpacking.py)
    walking    the records are walked on the loop in slices of two milliseconds (model/slices.py, records/walk.py)
    done       it was appended, or refused with a `BrokerError` that names the record

Guarantees

1. Order. While a partition has a lane, all appends to it queue there. Batches are in the log in the order of arrival, and
   sequences, transactions and acks behave as without this stage. An append is checked against its producer's state when its
   turn comes. Other partitions do not wait.
2. Bounds. The unpacked size of a batch, its records, its headers, and the processor time of the walk are bounded per batch
   (MESSAGE_TOO_LARGE); copies and unpacked bytes are bounded in total. An append that waits longer than
   PREPARED_WAIT_MS_MAX is refused with REQUEST_TIMED_OUT, which Kafka's producers retry. If the account is full, records of
   other dialects are refused in the same way at once.
3. Ends. An append is performed even if its client has disconnected. It is refused if its topic is deleted or the broker
   stops. Its counted bytes are given back in every case.

A connection has at most one append in this stage: the result is a `Hold`. Markers and the appends of coordinators do not
queue: internal topics have no lanes, and a marker ends only what its producer has in the log. The producer table refuses a
batch that arrives after the end of its transaction.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker import runs
from penstock.broker.account import Account
from penstock.broker.engine import Appended, RunAppended
from penstock.broker.flush_wait import once_safe
from penstock.broker.gathering import Gathering
from penstock.broker.partition import Partition
from penstock.broker.unpacking import Unpacked, Unpacking
from penstock.model.errors import BrokerError, Fault
from penstock.model.limits import (
    PREPARED_BYTES_MAX,
    PREPARED_RECORDS_MAX,
    PREPARED_WAIT_MS_MAX,
    PREPARED_WALK_MS_MAX,
)
from penstock.model.pending import Hold, Pending, gather, settle
from penstock.model.slices import Work
from penstock.records.batch import Batch, BatchError, BatchTooLarge
from penstock.records.compression import TooLarge, decompress
from penstock.records.walk import Violation, Walk, find_violation

logger = logging.getLogger(__name__)

LIGHT_RECORDS_MAX = 1_000
"""Records, and as many headers, that one append checks by itself: about 0.8 ms."""
LIGHT_PACKED_BYTES_MAX = 16 * 1024
LIGHT_UNPACKED_BYTES_MAX = 128 * 1024
"""Size of compressed batches that one append unpacks by itself, and their total unpacked size: about 0.4 ms of gzip."""

Looked = list[Batch | BrokerError]
"""The outcome for each batch: the valid batch, or why it is refused."""


class Light:
    """What one call of the engine may still check by itself."""

    __slots__ = ("records", "unpacked_bytes")

    def __init__(self) -> None:
        self.records = LIGHT_RECORDS_MAX
        self.unpacked_bytes = LIGHT_UNPACKED_BYTES_MAX


class _Append(ABC):
    """One append in a lane."""

    __slots__ = ("room", "since_s", "size")

    answer: Pending[Any]

    def __init__(self, size: int, since_s: float) -> None:
        self.size = size
        self.since_s = since_s
        self.room: Pending[None] | None = None
        """Completed when the bytes are owned; None if they are."""

    @abstractmethod
    def refuse(self, error: BrokerError) -> None: ...


class _Batches(_Append):
    """Batches of a client."""

    __slots__ = ("acks", "answer", "looked", "views")

    def __init__(self, views: Sequence[memoryview], acks: int, since_s: float) -> None:
        super().__init__(sum(map(len, views)), since_s)
        self.views = views
        self.acks = acks
        self.looked: Looked = []
        self.answer: Hold[list[Appended]]

    def own(self) -> None:
        """Copy the bytes out of the request."""
        self.views = [memoryview(bytearray(view)) for view in self.views]

    def refuse(self, error: BrokerError) -> None:
        self.answer.complete([Appended(error.fault, text=error.text)] * len(self.views))


class _Made(_Append):
    """Batches that the broker built from bare records."""

    __slots__ = ("acks", "answer", "made")

    def __init__(self, made: Sequence[bytearray], acks: int, since_s: float) -> None:
        super().__init__(sum(map(len, made)), since_s)
        self.made = made
        self.acks = acks
        self.answer: Hold[RunAppended] = Hold()

    def refuse(self, error: BrokerError) -> None:
        self.answer.complete(RunAppended(error.fault, text=error.text))


class _Lane:
    """The appends of one partition that are being prepared."""

    __slots__ = ("appends", "closed")

    def __init__(self) -> None:
        self.appends: deque[_Append] = deque()
        self.closed: Fault | None = None

    def close(self, fault: Fault) -> None:
        """Refuse all appends. Their bytes are given back when the work on them ends."""
        if self.closed is None:
            self.closed = fault
            for append in self.appends:
                append.refuse(BrokerError(fault))


class Preparing:
    """One per engine. `clock` times how long appends wait, `cpu_clock` how long walks take."""

    def __init__(
        self,
        unpacking: Unpacking,
        gathering: Gathering,
        *,
        bytes_max: int = PREPARED_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._unpacking = unpacking
        self._gathering = gathering
        self.account = Account(bytes_max, unpacking.call_soon)
        self.clock = clock
        self.cpu_clock = cpu_clock

    # ------------------------------------------------------------------------------------------------ at once

    def look(self, partition: Partition, views: Sequence[memoryview], light: Light) -> Looked | None:
        """Check the batches now if that is quick. None if they have to be prepared."""
        if partition.lane is not None:
            return None
        needs_keys, oldest_ms = partition.rules(_now_ms())
        looked: Looked = []
        for view in views:
            try:
                batch = partition.sound(view)
            except BrokerError as error:
                looked.append(error)
                continue
            light.records -= batch.count
            if light.records < 0:
                return None
            try:
                data: bytes | memoryview = batch.payload()
                if batch.compression:
                    if batch.size > LIGHT_PACKED_BYTES_MAX:
                        return None
                    data = decompress(batch.compression, data, light.unpacked_bytes)
                    light.unpacked_bytes -= len(data)
                walk = find_violation(
                    batch, data, needs_keys=needs_keys, oldest_ms=oldest_ms, headers_max=light.records
                )
                violation = _at_once(walk)
            except (TooLarge, BatchTooLarge):
                return None
            except BatchError as damage:
                looked.append(BrokerError(Fault.CORRUPT_MESSAGE, str(damage)))
            else:
                looked.append(batch if violation is None else partition.refusal_of(violation))
        return looked

    # ------------------------------------------------------------------------------------------------ in a lane

    def append(
        self, partition: Partition, views: Sequence[memoryview], acks: int
    ) -> list[Appended] | Hold[list[Appended]]:
        """Append batches when they are prepared and all earlier appends are done."""
        append = _Batches(views, acks, self.clock())
        if self.account.take_now(append.size):
            append.own()
            append.answer = Hold()
        else:
            append.answer = Hold(borrows=True)
            append.room = self.account.take(append.size)
        self._queue(partition, append)
        return append.answer.result if append.answer.done else append.answer

    def append_made(
        self, partition: Partition, made: Sequence[bytearray], acks: int
    ) -> RunAppended | Hold[RunAppended]:
        """Append bare records after the appends that are being prepared."""
        append = _Made(made, acks, self.clock())
        if not self.account.take_now(append.size):
            return RunAppended(Fault.REQUEST_TIMED_OUT, text="the broker is checking other records, try again")
        self._queue(partition, append)
        return append.answer.result if append.answer.done else append.answer

    def _queue(self, partition: Partition, append: _Append) -> None:
        lane = partition.lane
        if lane is not None:
            assert isinstance(lane, _Lane)
            lane.appends.append(append)
            return
        self._gathering.settle_one(partition, _now_ms())  # they arrived earlier
        lane = _Lane()
        lane.appends.append(append)
        partition.lane = lane
        self._unpacking.in_slices(self._work(partition, lane))

    def _work(self, partition: Partition, lane: _Lane) -> Work[None]:
        """Prepare and append until the lane is empty."""
        while lane.appends:
            append = lane.appends[0]
            if append.room is not None:
                yield append.room
                assert isinstance(append, _Batches)
                append.own()
                if append.answer.over is not None:
                    append.answer.over()
            try:
                if isinstance(append, _Batches):
                    yield from self._prepare(partition, lane, append)
                if lane.closed is not None:
                    raise BrokerError(lane.closed)
                self._perform(partition, append)
            except BrokerError as error:
                append.refuse(error)
            except Exception as error:
                logger.exception("%s: preparing an append failed", partition.id)
                append.refuse(BrokerError(Fault.UNKNOWN, str(error)))
            finally:
                lane.appends.popleft()
                self.account.give(append.size)
            if lane.appends:
                yield None
        partition.lane = None

    def _prepare(self, partition: Partition, lane: _Lane, append: _Batches) -> Work[None]:
        for view in append.views:
            if lane.closed is not None:
                return
            waited_ms = (self.clock() - append.since_s) * 1000
            if waited_ms > PREPARED_WAIT_MS_MAX:
                raise BrokerError(
                    Fault.REQUEST_TIMED_OUT,
                    f"the batch waited {waited_ms:.0f} ms to be checked, {PREPARED_WAIT_MS_MAX} are allowed",
                )
            try:
                batch = partition.sound(view)
                if partition.looks_inside:
                    yield from self._look_into(partition, batch)
            except BrokerError as error:
                append.looked.append(error)
            else:
                append.looked.append(batch)
            yield None

    def _look_into(self, partition: Partition, batch: Batch) -> Work[None]:
        """Raises BrokerError if the batch breaks a rule of its topic, is damaged, or is too large to be checked."""
        if batch.count > PREPARED_RECORDS_MAX:
            raise BrokerError(
                Fault.MESSAGE_TOO_LARGE,
                f"a batch of {batch.count} records, {PREPARED_RECORDS_MAX} are allowed in this topic",
            )
        needs_keys, oldest_ms = partition.rules(_now_ms())
        unpacked: Unpacked | None = None
        try:
            data: bytes | memoryview = batch.payload()
            if batch.compression:
                unpacked = yield from self._unpacking.unpacked(batch)
                data = unpacked.data
            walk = find_violation(batch, data, needs_keys=needs_keys, oldest_ms=oldest_ms)
            violation = yield from self._timed(walk)
        except BatchTooLarge as error:
            raise BrokerError(Fault.MESSAGE_TOO_LARGE, str(error)) from None
        except BatchError as damage:
            raise BrokerError(Fault.CORRUPT_MESSAGE, str(damage)) from None
        finally:
            data = b""
            if unpacked is not None:
                unpacked.release()
        if violation is not None:
            raise partition.refusal_of(violation)

    def _timed(self, walk: Walk[Violation | None]) -> Work[Violation | None]:
        """Perform the walk. Raises BrokerError if it takes too much processor time."""
        used_s = 0.0
        while True:
            start = self.cpu_clock()
            try:
                next(walk)
            except StopIteration as stop:
                violation: Violation | None = stop.value
                return violation
            used_s += self.cpu_clock() - start
            if used_s * 1000 > PREPARED_WALK_MS_MAX:
                raise BatchTooLarge(f"the records take more than {PREPARED_WALK_MS_MAX} ms to check")
            yield None

    @staticmethod
    def _perform(partition: Partition, append: _Append) -> None:
        if isinstance(append, _Batches):
            results, safe_offset = partition.append(append.views, _now_ms(), append.looked)
            settle(append.answer, once_safe(partition, results, safe_offset, append.acks))
        else:
            assert isinstance(append, _Made)
            settle(append.answer, runs.append_made(partition, append.made, append.acks, _now_ms()))


def merged(
    direct: list[Appended] | Pending[list[Appended]],
    prepared: Sequence[tuple[Sequence[int], list[Appended] | Hold[list[Appended]]]],
) -> list[Appended] | Hold[list[Appended]]:
    """The results of a request with appends that had to be prepared: `prepared` has their positions among the results and
    their outcomes."""

    def put(parts: list[list[Appended]]) -> list[Appended]:
        results, *others = parts
        for (places, _), part in zip(prepared, others, strict=True):
            for at, result in zip(places, part, strict=True):
                results[at] = result
        return results

    borrowing = [part for _, part in prepared if isinstance(part, Hold) and part.borrows and not part.done]
    gathered = gather([direct, *(part for _, part in prepared)])
    if not isinstance(gathered, Pending):
        return put(gathered)
    together: Hold[list[Appended]] = Hold(borrows=bool(borrowing))
    left = len(borrowing)

    def over() -> None:
        nonlocal left
        left -= 1
        if not left and together.over is not None:
            together.over()

    for part in borrowing:
        part.over = over
    gathered.then(lambda parts: together.complete(put(parts)))
    return together


def _at_once(walk: Walk[Violation | None]) -> Violation | None:
    """The result of a walk that is known to be short."""
    while True:
        try:
            next(walk)
        except StopIteration as stop:
            violation: Violation | None = stop.value
            return violation


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
