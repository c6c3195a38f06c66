"""Facts of many files added up by partition, and what only shows over all of them: gaps, duplicates, order."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.audit.distinct import Distinct
from penstock.audit.facts import DIGEST_MAX, Facts, Piece, Runs


class Merged:
    """One partition."""

    __slots__ = ("facts", "keys")

    def __init__(self, facts: Facts, keys: Distinct) -> None:
        self.facts = facts
        self.keys = keys


def merge(parts: Iterable[Facts], gaps_are_fine: Collection[str] = ()) -> list[Merged]:
    """By topic and partition; `gaps_are_fine` are topics whose cleaning leaves gaps."""
    by_place: dict[tuple[str, int], list[Facts]] = {}
    for part in parts:
        by_place.setdefault((part.topic, part.partition), []).append(part)
    return [_merged(found, find_gaps=topic not in gaps_are_fine) for (topic, _), found in sorted(by_place.items())]


def _merged(parts: list[Facts], *, find_gaps: bool) -> Merged:
    first = parts[0]
    total = Facts(first.topic, first.partition, topic_id=first.topic_id)
    keys = Distinct()
    # A partition without records has a start and an end, too: retention left them.
    whole = [part for part in parts if part.runs] or parts
    total.log_start_offset = min((part.log_start_offset for part in whole), default=0)
    total.log_end_offset = max((part.log_end_offset for part in whole), default=0)
    for part in parts:
        _add(total, part)
        keys.merge(part.keys, part.is_sketch)
        total.found.take(part.found)
        _check_order(total, part.visible)
    total.runs = _joined(total, sorted(run for part in parts for run in part.runs))
    total.visible = _joined(None, sorted(run for part in parts for run in part.visible))
    if find_gaps:
        before = total.log_start_offset
        for start, end in total.runs:
            if start > before:
                total.found.add_offsets("gap", total.place, before, start - 1, "are missing")
            before = end + 1
    return Merged(total, keys)


def _add(total: Facts, part: Facts) -> None:
    total.files += part.files
    total.bytes += part.bytes
    total.batches += part.batches
    total.records += part.records
    total.hidden += part.hidden
    total.null_keys += part.null_keys
    total.null_values += part.null_values
    total.key_bytes += part.key_bytes
    total.value_bytes += part.value_bytes
    total.record_bytes_max = max(total.record_bytes_max, part.record_bytes_max)
    for moment in (part.timestamp_min, part.timestamp_max):
        if moment is not None:
            low, high = total.timestamp_min, total.timestamp_max
            total.timestamp_min = moment if low is None else min(low, moment)
            total.timestamp_max = moment if high is None else max(high, moment)
    for hour, (records, size) in part.hours.items():
        counted = total.hours.get(hour, (0, 0))
        total.hours[hour] = (counted[0] + records, counted[1] + size)
    for number, piece in part.pieces.items():
        there = total.pieces.setdefault(number, Piece())
        there.records += piece.records
        there.digest = (there.digest + piece.digest) & DIGEST_MAX


def _check_order(total: Facts, runs: Runs) -> None:
    """Within one file rows lie in the order of their offsets."""
    before = -1
    for first, last in runs:
        if first <= before:
            total.found.add("order", total.place, f"offset {first} follows {before}")
        before = max(before, last)


def _joined(total: Facts | None, runs: Runs) -> Runs:
    """Sorted stretches as few as possible; what overlaps is a duplicate."""
    joined: Runs = []
    for first, last in runs:
        if joined and first <= joined[-1][1]:
            if total is not None:
                total.found.add_offsets("duplicate", total.place, first, min(last, joined[-1][1]), "are duplicated")
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        elif joined and first == joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
