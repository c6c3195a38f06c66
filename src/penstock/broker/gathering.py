"""What many connections append in one turn of the event loop, gathered: a partition is written once, not once a request.

A busy broker finds many sockets ready at once, each with a single request. Between `gather` and `settle` the engine only
notes such appends, and gives each a `Pending`; `settle` appends them, partition by partition, in the order in which they
came, and completes the pendings that need no flush. Batches of producers are written side by side; bare records become
one batch. What was noted borrows its buffers until then.

It decides nothing about records: `Partition` and `runs` do that, with a longer run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker import runs
from penstock.broker.engine import ACKS_ALL, Appended, Bytes, RunAppended
from penstock.broker.partition import Partition
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.pending import Pending
from penstock.records.batch import Batch
from penstock.records.builder import NewRecord
from penstock.records.compression import Codec


class _Batches(NamedTuple):
    views: Sequence[memoryview]
    looked: Sequence[Batch | BrokerError] | None
    """The `looked` argument of `Partition.append`: set for all batches of a partition or for none."""
    acks: int
    pending: Pending[list[Appended]]


class _Run(NamedTuple):
    values: Sequence[Bytes]
    keys: Sequence[Bytes | None] | None
    acks: int
    timestamp_ms: int
    pending: Pending[RunAppended]


class Gathering:
    __slots__ = ("_batches", "_runs", "_when_settled", "active")

    def __init__(self) -> None:
        self.active = False
        """Between `gather` and `settle`."""
        self._when_settled: list[Callable[[], None]] = []
        self._batches: dict[Partition, list[_Batches]] = {}
        self._runs: dict[Partition, list[_Run]] = {}

    def add_batches(
        self,
        partition: Partition,
        views: Sequence[memoryview],
        acks: int,
        looked: Sequence[Batch | BrokerError] | None = None,
    ) -> Pending[list[Appended]]:
        pending: Pending[list[Appended]] = Pending()
        added = _Batches(views, looked, acks, pending)
        if partition in self._batches:
            self._batches[partition].append(added)
        else:
            self._batches[partition] = [added]
        return pending

    def add_run(
        self,
        partition: Partition,
        values: Sequence[Bytes],
        keys: Sequence[Bytes | None] | None,
        acks: int,
        timestamp_ms: int,
    ) -> Pending[RunAppended]:
        pending: Pending[RunAppended] = Pending()
        added = _Run(values, keys, acks, timestamp_ms, pending)
        if partition in self._runs:
            self._runs[partition].append(added)
        else:
            self._runs[partition] = [added]
        return pending

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """For coordinators, which have appends of their own to put together."""
        self._when_settled.append(callback)

    def settle(self, now_ms: int) -> None:
        """Append all of it. The pendings of appends that wait for a flush are completed by the flush."""
        self.active = False
        if self._when_settled:
            callbacks, self._when_settled = self._when_settled, []
            for callback in callbacks:
                callback()
        batches, self._batches = self._batches, {}
        for partition, gathered in batches.items():
            _append_batches(partition, gathered, now_ms)
        if self._runs:
            appended_runs, self._runs = self._runs, {}
            for partition, gathered_runs in appended_runs.items():
                _append_runs(partition, gathered_runs, now_ms)

    def settle_one(self, partition: Partition, now_ms: int) -> None:
        """Append everything gathered for one partition."""
        batches = self._batches.pop(partition, None)
        if batches is not None:
            _append_batches(partition, batches, now_ms)
        gathered_runs = self._runs.pop(partition, None)
        if gathered_runs is not None:
            _append_runs(partition, gathered_runs, now_ms)


def _append_batches(partition: Partition, gathered: list[_Batches], now_ms: int) -> None:
    views, looked = gathered[0].views, gathered[0].looked
    if len(gathered) > 1:
        views = [view for one in gathered for view in one.views]
        if looked is not None:
            looked = [known for one in gathered for known in one.looked or ()]
    appended, safe_offset = partition.append(views, now_ms, looked)
    durable = bool(safe_offset) and partition.durable
    waiting: list[tuple[Pending[list[Appended]], list[Appended]]] = []
    start = 0
    for own_views, _, acks, pending in gathered:
        end = start + len(own_views)
        results = appended[start:end]
        start = end
        if durable and (acks == ACKS_ALL or partition.waits_always):
            waiting.append((pending, results))
        else:
            pending.complete(results)
    if not waiting:
        return

    def flushed(fault: Fault) -> None:
        for pending, results in waiting:
            if fault is not NO_FAULT:
                results = [Appended(fault) if result.fault is NO_FAULT else result for result in results]
            pending.complete(results)

    if not partition.when_flushed(safe_offset, flushed):
        flushed(NO_FAULT)


def _append_runs(partition: Partition, gathered: list[_Run], now_ms: int) -> None:
    appended = _written_runs(partition, gathered, now_ms)
    waits = partition.durable and appended.written
    if len(gathered) == 1 and not waits:
        gathered[0].pending.complete(appended)
        return
    waiting: list[tuple[Pending[RunAppended], RunAppended]] = []
    start = 0
    for own_values, _, acks, _, pending in gathered:
        result = _part(appended, start, len(own_values))
        start += len(own_values)
        if waits and result.written and (acks == ACKS_ALL or partition.waits_always):
            waiting.append((pending, result))
        else:
            pending.complete(result)
    if not waiting:
        return

    def flushed(fault: Fault) -> None:
        for pending, result in waiting:
            pending.complete(result if fault is NO_FAULT else RunAppended(fault, text=fault.value))

    if not partition.when_flushed(appended.base_offset + appended.written, flushed):
        flushed(NO_FAULT)


def _written_runs(partition: Partition, gathered: list[_Run], now_ms: int) -> RunAppended:
    first = gathered[0]
    if len(gathered) == 1:
        return runs.write_run(partition, first.values, first.keys, first.timestamp_ms, now_ms)
    values: list[Bytes] = []
    keys: list[Bytes | None] = []
    stamps_ms: list[int] = []
    keyed = False
    for own_values, own_keys, _, timestamp_ms, _ in gathered:
        values += own_values
        keyed = keyed or own_keys is not None
        keys += [None] * len(own_values) if own_keys is None else own_keys
        stamps_ms += [timestamp_ms] * len(own_values)
    if stamps_ms.count(first.timestamp_ms) == len(stamps_ms):
        return runs.write_run(partition, values, keys if keyed else None, first.timestamp_ms, now_ms)
    stamps_ms = [timestamp_ms if timestamp_ms > 0 else now_ms for timestamp_ms in stamps_ms]
    return runs.write_new(partition, list(map(NewRecord, stamps_ms, keys, values)), Codec.NONE, now_ms)


def _part(appended: RunAppended, start: int, count: int) -> RunAppended:
    """What became of `count` records of a longer run, from its record `start` on."""
    fault, base_offset, written, text = appended
    if written >= start + count:
        return RunAppended(NO_FAULT, base_offset + start, count)
    if written > start:
        return RunAppended(fault, base_offset + start, written - start, text)
    return RunAppended(fault, text=text)
