"""Transactions in a log that is read without its coordinator: how each ended, and which never did.

A transaction of a partition begins with a producer's first transactional batch and ends with that producer's marker
(KIP-98). `Transactions` takes batches in log order and knows the aborted ones, and those that are open at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.records.batch import Batch
from penstock.records.control import MarkerKind, read_marker


class OpenTransaction(NamedTuple):
    producer_id: int
    producer_epoch: int
    first_offset: int


class EndedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Transactions:
    open: dict[int, OpenTransaction] = field(default_factory=dict)
    aborted: list[EndedTransaction] = field(default_factory=list)
    seen: bool = False
    """Whether there are any, ended or not."""

    def note(self, batch: Batch) -> None:
        if not batch.is_transactional:
            return
        self.seen = True
        if not batch.is_control:
            begun = self.open.get(batch.producer_id)
            first_offset = batch.base_offset if begun is None else begun.first_offset
            self.open[batch.producer_id] = OpenTransaction(batch.producer_id, batch.producer_epoch, first_offset)
            return
        marker = read_marker(batch)
        begun = self.open.pop(batch.producer_id, None) if marker is not None else None
        if begun is not None and marker is not None and marker.kind is MarkerKind.ABORT:
            self.aborted.append(EndedTransaction(batch.producer_id, begun.first_offset, batch.base_offset))

    def committed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches that a reader of committed records sees, once the whole log was noted; markers are left out."""
        hidden: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in self.aborted:
            hidden.setdefault(producer_id, []).append((first_offset, last_offset))
        for producer_id, _, first_offset in self.open.values():
            hidden.setdefault(producer_id, []).append((first_offset, 1 << 63))
        for batch in batches:
            if batch.is_control:
                continue
            if batch.is_transactional and any(
                first <= batch.base_offset < last for first, last in hidden.get(batch.producer_id, ())
            ):
                continue
            yield batch
