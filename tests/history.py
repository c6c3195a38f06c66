"""A checker of histories, after Jepsen's analysis of Kafka-like logs (jepsen-io/redpanda, jepsen.tests.kafka).

Whoever sends or polls writes down what it saw; `check` compares. It knows no broker: the same checker judges threads with
real clients and simulations. Logs are taken to be dense, as those without compaction and transactions are.

    aborted read        a polled value whose send definitely failed
    inconsistent offset one (partition, offset) with two values, by anyone's account
    lost write          an acknowledged send at or below the highest polled offset that nobody ever polled
    unseen              an acknowledged send above it; after everything was read there are none
    duplicate           one value at two offsets
    unexplained read    a polled value that nobody sent
    poll skip           a consumer passed over an offset that holds a value, within one assignment
    non-monotonic poll  a consumer went back, within one assignment
    non-monotonic send  a producer's acknowledged offsets did not rise
"""

from __future__ import annotations

import bisect
import enum
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

Value = Hashable
NOWHERE = -1


class Outcome(enum.Enum):
    """What the sender was told. Unknown may have happened, once, or not."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    partition: int
    offset: int


class Send(NamedTuple):
    producer: Hashable
    partition: int
    value: Value
    outcome: Outcome
    offset: int = NOWHERE


class Poll(NamedTuple):
    """What one poll gave of one partition; an assignment ends when the consumer seeks or is assigned anew."""

    consumer: Hashable
    assignment: int
    partition: int
    records: tuple[tuple[int, Value], ...]


@dataclass(slots=True)
class Verdict:
    """What is wrong, a line each. `figures` are for reports."""

    aborted_reads: list[str] = field(default_factory=list)
    inconsistent_offsets: list[str] = field(default_factory=list)
    lost_writes: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    unexplained_reads: list[str] = field(default_factory=list)
    poll_skips: list[str] = field(default_factory=list)
    non_monotonic_polls: list[str] = field(default_factory=list)
    non_monotonic_sends: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether all is well."""
        return not any(self.figures().values())

    def figures(self) -> dict[str, int]:
        return {entry.name: len(getattr(self, entry.name)) for entry in fields(self)}

    def __str__(self) -> str:
        lines = []
        for entry in fields(self):
            found = getattr(self, entry.name)
            if found:
                lines += [f"{entry.name}: {len(found)}", *(f"    {line}" for line in found[:10])]
        return "\n".join(lines) or "no anomaly"


class History:
    """What happened, in the order of each producer and each consumer. May be written to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sends: list[Send] = []
        self.polls: list[Poll] = []

    def sent(self, producer: Hashable, partition: int, value: Value, outcome: Outcome, offset: int = NOWHERE) -> None:
        """A send has ended. Those of one producer to one partition come in the order in which they were made."""
        assert (outcome is Outcome.OK) == (offset != NOWHERE)
        with self._lock:
            self.sends.append(Send(producer, partition, value, outcome, offset))

    def polled(
        self, consumer: Hashable, partition: int, records: Iterable[tuple[int, Value]], assignment: int = 0
    ) -> None:
        with self._lock:
            self.polls.append(Poll(consumer, assignment, partition, tuple(records)))

    def count(self, outcome: Outcome) -> int:
        return sum(send.outcome is outcome for send in self.sends)

    def check(self) -> Verdict:
        return _Check(self).run()


class _Check:
    def __init__(self, history: History) -> None:
        self._sends = history.sends
        self._polls = history.polls
        self._verdict = Verdict()
        self._values_at: dict[Place, set[Value]] = defaultdict(set)
        self._polled: set[tuple[int, Value]] = set()
        self._polled_end: dict[int, int] = {}
        self._offsets: dict[int, list[int]] = {}

    def run(self) -> Verdict:
        self._collect()
        self._check_reads()
        self._check_places()
        self._check_acknowledged()
        self._check_order_of_polls()
        self._check_order_of_sends()
        return self._verdict

    def _observed(self) -> Iterator[tuple[Place, Value]]:
        for send in self._sends:
            if send.outcome is Outcome.OK:
                yield Place(send.partition, send.offset), send.value
        for poll in self._polls:
            for offset, value in poll.records:
                yield Place(poll.partition, offset), value

    def _collect(self) -> None:
        for place, value in self._observed():
            self._values_at[place].add(value)
        for poll in self._polls:
            for offset, value in poll.records:
                self._polled.add((poll.partition, value))
                self._polled_end[poll.partition] = max(offset, self._polled_end.get(poll.partition, NOWHERE))
        by_partition: dict[int, list[int]] = defaultdict(list)
        for partition, offset in self._values_at:
            by_partition[partition].append(offset)
        self._offsets = {partition: sorted(offsets) for partition, offsets in by_partition.items()}

    def _check_reads(self) -> None:
        """Polled values must have been sent, and not be known to have failed."""
        outcomes: dict[tuple[int, Value], set[Outcome]] = defaultdict(set)
        for send in self._sends:
            outcomes[send.partition, send.value].add(send.outcome)
        for partition, value in self._polled:
            told = outcomes.get((partition, value))
            if told is None:
                self._verdict.unexplained_reads.append(f"{value!r} in partition {partition} was never sent there")
            elif told == {Outcome.FAILED}:
                self._verdict.aborted_reads.append(f"{value!r} in partition {partition} was refused, and read")

    def _check_places(self) -> None:
        places: dict[tuple[int, Value], set[int]] = defaultdict(set)
        for place, values in self._values_at.items():
            if len(values) > 1:
                shown = ", ".join(sorted(map(repr, values)))
                self._verdict.inconsistent_offsets.append(f"{place.partition}:{place.offset} is {shown}")
            for value in values:
                places[place.partition, value].add(place.offset)
        for (partition, value), offsets in places.items():
            if len(offsets) > 1:
                self._verdict.duplicates.append(f"{value!r} in partition {partition} at {sorted(offsets)}")

    def _check_acknowledged(self) -> None:
        for send in self._sends:
            if send.outcome is not Outcome.OK or (send.partition, send.value) in self._polled:
                continue
            text = f"{send.value!r} at {send.partition}:{send.offset} by {send.producer}"
            if send.offset <= self._polled_end.get(send.partition, NOWHERE):
                self._verdict.lost_writes.append(f"{text}, {self._where(send)}")
            else:
                self._verdict.unseen.append(text)

    def _where(self, send: Send) -> str:
        """A loss in the middle is the alarming one: neither retention nor a cut tail explains it."""
        polled = [offset for poll in self._polls if poll.partition == send.partition for offset, _ in poll.records]
        return "before all that was read" if send.offset < min(polled) else "in the middle"

    def _check_order_of_polls(self) -> None:
        last: dict[tuple[Hashable, int, int], int] = {}
        for poll in self._polls:
            key = (poll.consumer, poll.assignment, poll.partition)
            for offset, value in poll.records:
                before = last.get(key)
                if before is not None and offset <= before:
                    self._verdict.non_monotonic_polls.append(
                        f"{poll.consumer} read {poll.partition}:{offset} ({value!r}) after {before}"
                    )
                elif before is not None and (missed := self._between(poll.partition, before, offset)):
                    self._verdict.poll_skips.append(
                        f"{poll.consumer} went from {poll.partition}:{before} to {offset} over {missed[:5]}"
                    )
                last[key] = offset

    def _between(self, partition: int, before: int, after: int) -> list[int]:
        """Offsets between the two that hold a value, as somebody knows."""
        if after == before + 1:
            return []
        offsets = self._offsets[partition]
        return offsets[bisect.bisect_right(offsets, before) : bisect.bisect_left(offsets, after)]

    def _check_order_of_sends(self) -> None:
        last: dict[tuple[Hashable, int], Send] = {}
        for send in self._sends:
            if send.outcome is not Outcome.OK:
                continue
            before = last.get((send.producer, send.partition))
            if before is not None and send.offset <= before.offset:
                self._verdict.non_monotonic_sends.append(
                    f"{send.producer}: {send.value!r} at {send.partition}:{send.offset} "
                    f"after {before.value!r} at {before.offset}"
                )
            last[send.producer, send.partition] = send
