"""Which batches of a log a reader sees: not the markers, and of transactions only what was committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from penstock.records.batch import Batch
from penstock.records.control import MarkerKind, read_marker


class Aborted(Protocol):
    """An aborted transaction, as a fetch answer or a transaction index names it."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...


def visible_batches(batches: Iterable[Batch], aborted: Iterable[Aborted] = ()) -> Iterator[Batch]:
    """The batches that hold records for readers; `aborted` are the aborted transactions that overlap them.

    The batches must not go beyond the last stable offset if only what is committed is to be seen. A transaction ends in a
    partition with its marker: what the same producer writes behind it belongs to the next.
    """
    to_come = deque(sorted((one.first_offset, one.producer_id) for one in aborted))
    aborting: set[int] = set()
    for batch in batches:
        while to_come and to_come[0][0] <= batch.last_offset:
            aborting.add(to_come.popleft()[1])
        if batch.is_control:
            if batch.producer_id in aborting:
                marker = read_marker(batch)
                if marker is not None and marker.kind is MarkerKind.ABORT:
                    aborting.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            yield batch
