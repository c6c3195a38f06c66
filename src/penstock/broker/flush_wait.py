"""Results of appends that are answered after a flush."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.engine import ACKS_ALL, Appended
from penstock.broker.partition import Partition
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.pending import Pending


class FlushWait:
    """Results that are complete but are not returned before all their partitions are flushed."""

    __slots__ = ("_groups", "_left", "_results", "pending")

    def __init__(self, results: list[Appended], groups: Sequence[Sequence[int]]) -> None:
        self._results = results
        self._groups = groups
        self._left = len(groups)
        self.pending: Pending[list[Appended]] = Pending()

    def callback(self, group: int) -> Callable[[Fault], None]:
        return lambda fault: self.flushed(group, fault)

    def flushed(self, group: int, fault: Fault) -> None:
        if fault is not NO_FAULT:
            for at in self._groups[group]:
                if self._results[at].fault is NO_FAULT:
                    self._results[at] = Appended(fault)
        self._left -= 1
        if self._left == 0:
            self.pending.complete(self._results)


def once_safe(
    partition: Partition, results: list[Appended], safe_offset: int, acks: int
) -> list[Appended] | Pending[list[Appended]]:
    """The results of an append to one partition: at once, or after the flush that `acks` and the topic require."""
    if safe_offset and (acks == ACKS_ALL or partition.waits_always) and partition.durable:
        wait = FlushWait(results, (range(len(results)),))
        if partition.when_flushed(safe_offset, wait.callback(0)):
            return wait.pending
    return results
