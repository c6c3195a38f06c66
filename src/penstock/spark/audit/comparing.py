"""A table against its topic: the same records, at the same offsets, with the same content.

Compared is what both can have: from where the topic still begins to where the table ends. What the topic's retention took is
the table's alone, and what the table has yet to take is the topic's.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.spark.audit.facts import Found, Runs
from penstock.spark.audit.merging import Merged
from penstock.spark.audit.row_facts import PIECE_BITS


def compare(table: Mapping[int, Merged], topic: Mapping[int, Merged], ends: Mapping[int, int]) -> Found:
    """By partitions; `ends` are the next offsets of the table's partitions, as far as it says."""
    found = Found()
    for number in sorted({*table, *topic}):
        kept, original = table.get(number), topic.get(number)
        if kept is None and original is not None and ends.get(number, 0) > original.facts.log_start_offset:
            _compare(number, None, original, ends[number], found)
        elif kept is not None and original is None:
            found.add("extra", kept.facts.place, "the topic has no such partition", kept.facts.records)
        elif kept is not None and original is not None:
            _compare(number, kept, original, ends.get(number, kept.facts.log_end_offset), found)
    return found


def _compare(number: int, table: Merged | None, topic: Merged, end: int, found: Found) -> None:
    place = f"{topic.facts.topic}-{number}"
    start = topic.facts.log_start_offset
    there = cut(topic.facts.visible, start, end)
    kept = cut(table.facts.visible, start, end) if table is not None else []
    for first, last in subtract(there, kept):
        found.add("missing", place, f"offsets {first} to {last} are not in the table", last - first + 1)
    for first, last in subtract(kept, there):
        found.add("extra", place, f"offsets {first} to {last} are not in the topic", last - first + 1)
    if table is None:
        return
    for piece, ours in sorted(table.facts.pieces.items()):
        first, last = piece << PIECE_BITS, (piece + 1 << PIECE_BITS) - 1
        theirs = topic.facts.pieces.get(piece)
        if first < start or (last >= end and topic.facts.log_end_offset > end):
            continue  # one side has more of it than the other can
        if theirs is not None and theirs.records == ours.records and theirs.checksum != ours.checksum:
            found.add("content", place, f"records between offsets {first} and {last} differ from the topic's")


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
