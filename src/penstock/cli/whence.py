"""Places in a topic as people write them: `consume --from`, `groups reset --to`; and the offsets that they mean."""

from __future__ import annotations

import contextlib
import datetime
import enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.connection import Spot, offsets
from penstock.cli.failure import Failed, Misused

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class From(enum.Enum):
    BEGINNING = enum.auto()
    END = enum.auto()
    OFFSET = enum.auto()
    LAST = enum.auto()
    TIMESTAMP_MS = enum.auto()


Start = tuple[From, int]

_NAMED = {"beginning": From.BEGINNING, "earliest": From.BEGINNING, "end": From.END, "latest": From.END}


def parse_start(text: str, option: str = "--from") -> Start:
    if text in _NAMED:
        return _NAMED[text], 0
    with contextlib.suppress(ValueError):
        number = int(text)
        return (From.LAST, -number) if text.startswith("-") else (From.OFFSET, number)
    with contextlib.suppress(ValueError, OverflowError):
        if text.startswith("@"):
            return From.TIMESTAMP_MS, int(text[1:])
        moment = datetime.datetime.fromisoformat(text)
        return From.TIMESTAMP_MS, int((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1000)
    raise Misused(
        f"{option} {text}: expected beginning, end, an offset, -N, @MILLISECONDS or a time like 2026-01-31T12:00Z"
    )


class Bounds(NamedTuple):
    """What there is to read of some partitions."""

    start: dict[Spot, int]
    end: dict[Spot, int]


def bounds(admin: AdminClient, spots: list[Spot]) -> Bounds:
    from confluent_kafka.admin import OffsetSpec

    return Bounds(offsets(admin, spots, OffsetSpec.earliest()), offsets(admin, spots, OffsetSpec.latest()))


def readable_ends(admin: AdminClient, spots: list[Spot]) -> dict[Spot, int]:
    """Up to where a consumer can read: no further than the first open transaction."""
    from confluent_kafka.admin import OffsetSpec

    return offsets(admin, spots, OffsetSpec.latest(), committed=True)


def resolve(admin: AdminClient, there: Bounds, start: Start, written: str) -> dict[Spot, int]:
    """The offset that is meant in each partition; `written` is the option as it was given, for what is refused."""
    from confluent_kafka.admin import OffsetSpec

    kind, number = start
    if kind is From.BEGINNING:
        return dict(there.start)
    if kind is From.END:
        return dict(there.end)
    if kind is From.LAST:
        return {spot: max(there.start[spot], end - number) for spot, end in there.end.items()}
    if kind is From.TIMESTAMP_MS:
        found = offsets(admin, list(there.end), OffsetSpec.for_timestamp(number))
        return {spot: end if found[spot] < 0 else found[spot] for spot, end in there.end.items()}
    for (topic, partition), end in there.end.items():
        first = there.start[topic, partition]
        if not first <= number <= end:
            raise Failed(
                f"{written} is out of range: partition {partition} of topic {topic} has offsets {first} to {end}"
            )
    return dict.fromkeys(there.end, number)
