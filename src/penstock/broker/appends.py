"""Appends to several partitions at once: in order for each partition, answered when every partition is flushed.

A request may name thousands of partitions, or one partition thousands of times, so the work pauses: after some batches of a
partition, and between partitions. Other connections may append to the same partitions in between. Batches whose records
take longer to check go through `Preparing`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from penstock.broker import internal_topics
from penstock.broker.engine import ACKS_ALL, Append, Appended
from penstock.broker.flush_wait import FlushWait
from penstock.broker.partition import Partition
from penstock.broker.preparing import Light, Looked, Preparing, merged
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.ids import INTERNAL_TOPICS
from penstock.model.pending import Hold, Pending
from penstock.model.slices import Work, at_once

BATCHES_AT_ONCE = 16
"""Batches between two pauses: about 200 us."""
BYTES_AT_ONCE = 1024 * 1024
_GROUPED_AT_ONCE = 512

Partitions = Mapping[tuple[str, int], Partition]


def refused(topic: str) -> Appended:
    """Why clients cannot append to a partition that does not exist or is internal."""
    if topic in INTERNAL_TOPICS:
        refusal = internal_topics.refusal(topic)
        return Appended(refusal.fault, text=refusal.text)
    return Appended(Fault.UNKNOWN_TOPIC_OR_PARTITION)


def append_many(
    partitions: Partitions, preparing: Preparing, appends: Sequence[Append], acks: int
) -> list[Appended] | Pending[list[Appended]]:
    """The results of a few appends, in order."""
    return at_once(_append(partitions, preparing, appends, acks, Light()))


def append_in_slices(
    partitions: Partitions, preparing: Preparing, appends: Sequence[Append], acks: int
) -> Work[list[Appended] | Pending[list[Appended]]]:
    """As `append_many`, for any number of appends, in slices. Their bytes are borrowed until the work is done, and until a
    hold that it returns no longer needs them."""
    return _append(partitions, preparing, appends, acks, None)


def _append(
    partitions: Partitions, preparing: Preparing, appends: Sequence[Append], acks: int, light: Light | None
) -> Work[list[Appended] | Pending[list[Appended]]]:
    """`light` limits the checks of the whole call; None resets the limit after each pause."""
    places_of: dict[tuple[str, int], list[int]] = {}
    for at, append in enumerate(appends):
        places_of.setdefault((append.topic, append.partition), []).append(at)
        if at % _GROUPED_AT_ONCE == _GROUPED_AT_ONCE - 1:
            yield None
    results: list[Appended] = [Appended(NO_FAULT)] * len(appends)
    waits: list[tuple[Partition, int, list[int]]] = []
    prepared: list[tuple[Sequence[int], list[Appended] | Hold[list[Appended]]]] = []
    since_pause = 0
    now_ms = time.time_ns() // 1_000_000
    for key, places in places_of.items():
        partition = partitions.get(key)
        safe_offset = at = 0
        while at < len(places):
            if partition is None or key[0] in INTERNAL_TOPICS:
                refusal = refused(key[0])
                for place in places[at:]:
                    results[place] = refusal
                safe_offset = 0
                since_pause += 1
                break
            if len(places) == 1 and not partition.staged:  # most often
                place = places[0]
                (results[place],), safe_offset = partition.append((appends[place].records,), now_ms)
                since_pause += 1
                break
            some = places if len(places) == 1 else _some(appends, places, at)
            views = [appends[place].records for place in some]
            looked: Looked | None = None
            if partition.staged:
                looked = preparing.look(partition, views, light or Light())
                since_pause = BATCHES_AT_ONCE
            if looked is None and partition.staged:
                prepared.append((some, preparing.append(partition, views, acks)))
            else:
                appended, end_offset = partition.append(views, now_ms, looked)
                for place, result in zip(some, appended, strict=True):
                    results[place] = result
                if end_offset > safe_offset:
                    safe_offset = end_offset
            at += len(some)
            since_pause += len(some)
            if since_pause >= BATCHES_AT_ONCE and at < len(places):
                since_pause = 0
                yield None
                now_ms = time.time_ns() // 1_000_000
                if partitions.get(key) is not partition:  # its topic was deleted
                    partition = None
        if safe_offset and partition is not None and partition.durable:
            if acks == ACKS_ALL or partition.waits_always:
                waits.append((partition, safe_offset, places))
        if since_pause >= BATCHES_AT_ONCE:
            since_pause = 0
            yield None
            now_ms = time.time_ns() // 1_000_000
    if not waits:
        return merged(results, prepared) if prepared else results
    wait = FlushWait(results, [places for _, _, places in waits])
    for number, (partition, safe_offset, _) in enumerate(waits):
        if not partition.when_flushed(safe_offset, wait.callback(number)):
            wait.flushed(number, NO_FAULT)
        if number % _GROUPED_AT_ONCE == _GROUPED_AT_ONCE - 1:
            yield None
    return merged(wait.pending, prepared) if prepared else wait.pending


def _some(appends: Sequence[Append], places: Sequence[int], start: int) -> Sequence[int]:
    """The next batches of a partition, to be appended together."""
    size = 0
    for at in range(start, min(len(places), start + BATCHES_AT_ONCE)):
        size += len(appends[places[at]].records)
        if size > BYTES_AT_ONCE:
            return places[start : at + 1]
    return places[start : start + BATCHES_AT_ONCE]
