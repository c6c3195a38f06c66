"""A table against its topic: the same records, at the same offsets, with the same content.

Offsets are compared from the start of the topic to the end of the table: only the table has older records, and it has not
taken newer ones yet. Content is compared at every offset that both have. Pieces with the same offsets and the same digest
are equal. The others are doubtful, because a sum of digests does not distinguish a missing row from a changed one; their
rows are read again and compared one by one (`rereading`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.audit.facts import Found, Runs
from penstock.audit.merging import Merged
from penstock.audit.row_facts import PIECE_BITS


class Comparison(NamedTuple):
    found: Found
    doubtful: dict[int, list[int]]
    """Numbers of the pieces to be read again, by partition."""


def compare(table: Mapping[int, Merged], topic: Mapping[int, Merged], ends: Mapping[int, int]) -> Comparison:
    """Compare partition by partition. `ends` are the next offsets of the table's partitions; empty if the table has none."""
    found = Found()
    doubtful: dict[int, list[int]] = {}
    for number in sorted({*table, *topic}):
        kept, original = table.get(number), topic.get(number)
        if original is None:
            assert kept is not None
            found.add("extra", kept.facts.place, "the topic has no such partition", kept.facts.records)
            continue
        end = ends.get(number, 0) if ends else original.facts.log_end_offset
        if kept is not None:
            end = max(ends.get(number, 0), kept.facts.log_end_offset)
            pieces = _doubtful(kept, original)
            if pieces:
                doubtful[number] = pieces
        _compare_offsets(kept, original, end, found)
    return Comparison(found, doubtful)


def compare_topic_ids(topic: str, table_id: str, topic_ids: set[str]) -> Found:
    """Compare topic ids. An empty id is unknown and matches any other."""
    found = Found()
    for topic_id in sorted(topic_ids - {"", table_id}) if table_id else ():
        found.add("topic", topic, f"the table was archived from topic id {table_id}, the topic has id {topic_id}")
    return found


def _compare_offsets(table: Merged | None, topic: Merged, end: int, found: Found) -> None:
    place = topic.facts.place
    start = topic.facts.log_start_offset
    there = cut(topic.facts.visible, start, end)
    kept = cut(table.facts.visible, start, end) if table is not None else []
    for first, last in subtract(there, kept):
        found.add_offsets("missing", place, first, last, "are not in the table")
    for first, last in subtract(kept, there):
        found.add_offsets("extra", place, first, last, "are not in the topic")


def _doubtful(table: Merged, topic: Merged) -> list[int]:
    """Pieces that both have, with different offsets or a different sum of digests."""
    kept, there = table.facts, topic.facts
    # Of a run that one side lacks, only the first and the last piece can be in both.
    one_sided = [*subtract(kept.visible, there.visible), *subtract(there.visible, kept.visible)]
    edges = {offset >> PIECE_BITS for run in one_sided for offset in run}
    return [
        number
        for number, piece in sorted(kept.pieces.items())
        if number in there.pieces and (number in edges or piece != there.pieces[number])
    ]


def cut(runs: Runs, start: int, end: int) -> Runs:
    """What of the stretches lies from `start` to before `end`."""
    return [(max(first, start), min(last, end - 1)) for first, last in runs if last >= start and first < end]


def subtract(runs: Runs, others: Runs) -> Runs:
    """Offsets of `runs` that are not in `others`; both sorted and without overlaps."""
    left: Runs = []
    at = 0
    for first, last in runs:
        while at < len(others) and others[at][1] < first:
            at += 1
        scan = at
        while first <= last and scan < len(others) and others[scan][0] <= last:
            if others[scan][0] > first:
                left.append((first, others[scan][0] - 1))
            first = max(first, others[scan][1] + 1)
            scan += 1
        if first <= last:
            left.append((first, last))
    return left
