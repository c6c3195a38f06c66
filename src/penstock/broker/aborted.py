"""The aborted transactions of a partition, so that readers of committed data can leave their records out.

An entry is written to the segment's `.txnindex` before the marker that aborts the transaction, and flushed with it; what is
loaded at start is completed from the markers that recovery replays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from penstock.coordination.producer_records import AbortedTransaction

ENTRY_BYTES = 34


class AbortedTransactions:
    """By last offset, which is the order in which they were aborted."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def load(self, data: bytes, log_end_offset: int) -> bool:
        """Take in a file; whether it has nothing else than whole entries of what is in the log. Raises ValueError."""
        whole = len(data) % ENTRY_BYTES == 0
        for start in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
            entry = AbortedTransaction.decode(data, start)
            if entry.last_offset < log_end_offset:
                self.add(entry)
            else:
                whole = False
        return whole

    def add(self, entry: AbortedTransaction) -> bool:
        """Whether it was not known: recovery meets some twice."""
        entries = self._entries
        if entries and entry.last_offset <= entries[-1].last_offset:
            at = bisect_left(entries, entry.last_offset, key=_last_offset)
            if at < len(entries) and entries[at].last_offset == entry.last_offset:
                return False
            entries.insert(at, entry)
        else:
            entries.append(entry)
        return True

    def between(self, offset: int, upper: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of those with records in offset..upper-1, by first offset."""
        entries = self._entries
        if not entries or entries[-1].last_offset < offset:
            return []
        at = bisect_left(entries, offset, key=_last_offset)
        found = [(entry.first_offset, entry.producer_id) for entry in entries[at:] if entry.first_offset < upper]
        return [(producer_id, first_offset) for first_offset, producer_id in sorted(found)]

    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(producer id, first offset, last offset) of each, for log cleaning."""
        return tuple((entry.producer_id, entry.first_offset, entry.last_offset) for entry in self._entries)

    def cut_start(self, log_start_offset: int) -> None:
        at = bisect_left(self._entries, log_start_offset, key=_last_offset)
        del self._entries[:at]


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset
