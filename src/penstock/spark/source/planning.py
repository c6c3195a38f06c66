"""How offsets become work: ranges for tasks, and how much of a backlog one micro-batch takes. Arithmetic alone.

A range is one task. Whatever is divided, the pieces cover exactly the offsets asked for, none twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.source.offsets import OFFSET_MAX, Offsets


class Range(NamedTuple):
    """Offsets from `start` to before `end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    """What lies between, for the partitions of `end`; empty ones are left out."""
    return [
        Range(place.topic, place.partition, start[place], end[place])
        for place in sorted(end)
        if start[place] < end[place]
    ]


def divided(
    ranges: Sequence[Range], partitions_min: int | None = None, records_per_partition_max: int | None = None
) -> list[Range]:
    """The ranges in pieces of at most so many offsets, and in at least so many pieces if there are as many offsets."""
    pieces = [1 if records_per_partition_max is None else -(-one.size // records_per_partition_max) for one in ranges]
    if partitions_min is not None and partitions_min > sum(pieces):
        pieces = _spread(ranges, pieces, partitions_min)
    return [piece for one, count in zip(ranges, pieces, strict=True) for piece in _cut(one, count)]


def _spread(ranges: Sequence[Range], pieces: list[int], wanted: int) -> list[int]:
    """One piece more where they are largest, until there are as many as wanted or every piece is one offset."""
    shares = list(pieces)
    largest = [(-one.size / count, at) for at, (one, count) in enumerate(zip(ranges, shares, strict=True))]
    heapify(largest)
    for _ in range(min(wanted, sum(one.size for one in ranges)) - sum(shares)):
        _, at = largest[0]
        shares[at] += 1
        heapreplace(largest, (-ranges[at].size / shares[at], at))
    return shares


def _cut(one: Range, count: int) -> list[Range]:
    bounds = [one.start + one.size * at // count for at in range(count + 1)]
    return [one._replace(start=low, end=high) for low, high in pairwise(bounds)]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int) -> Offsets:
    """Where a micro-batch ends that takes about `offsets_max` offsets: from each partition by its share of the backlog,
    and at least one, so that a small partition beside a large one is not starved."""
    backlog = {place: max(0, end[place] - start[place]) for place in end}
    total = sum(backlog.values())
    if total <= offsets_max:
        return dict(end)
    ends: Offsets = {}
    for place, until in end.items():
        if not backlog[place]:
            ends[place] = until
            continue
        share = max(1, offsets_max * backlog[place] // total)
        ends[place] = min(until, start[place] + share, OFFSET_MAX)
    return ends


def backlog(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, end[place] - start[place]) for place in end)
