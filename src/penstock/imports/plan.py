"""From what was found to what will be made: topic names, partition counts, configs; and what is left out, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.imports.source import Commit, Found, Skips, SourceError, SourcePartition, shown
from penstock.imports.survey import Survey
from penstock.model import limits
from penstock.model.errors import BrokerError
from penstock.model.ids import INTERNAL_TOPICS, topic_name

GROUP_BYTES_MAX = 255
_MESSAGE_BYTES_SMALL = 900_000
"""Batches up to here fit a topic that says nothing, also when one has to be made again and packs a little worse."""
_FUTURE_MS_DEFAULT = 3_600_000
"""message.timestamp.after.max.ms unless a topic says otherwise."""
_FOR_EVER = str((1 << 63) - 1)

KEEP = {"retention.ms": "-1"}
"""What came over is old, and must not be gone the next minute: nothing expires unless the user says so."""


@dataclass(slots=True)
class Plan:
    """Which partition of the source becomes which of ours."""

    names: dict[str, str] = field(default_factory=dict)
    """Topics by the name that they had."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Targets of single-partition topics that become a partition of another topic."""
    partitions: list[SourcePartition] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)

    def target(self, partition: SourcePartition) -> tuple[str, int]:
        return self.target_of(partition.topic, partition.partition)

    def target_of(self, topic: str, number: int) -> tuple[str, int]:
        return self.names[topic], self.numbers.get(topic, number)

    def partition_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for partition in self.partitions:
            topic, number = self.target(partition)
            counts[topic] = max(counts.get(topic, 0), number + 1)
        return counts

    def renames(self) -> dict[str, str]:
        """The source name of each target: two plans with equal names are the same import."""
        return {
            name if topic not in self.numbers else f"{name}:{self.numbers[topic]}": shown(topic)
            for topic, name in self.names.items()
        }


def make_plan(found: Found, mapping: Mapping[str, str], topics: Iterable[str] = ()) -> Plan:
    """`mapping` renames topics to NEW or NEW:PARTITION; `topics` restricts the import to these topics of the source."""
    plan = Plan(skipped=found.skipped)
    only = frozenset(topics)
    counts = Counter(partition.topic for partition in found.partitions)
    refused: set[str] = set()
    places: set[tuple[str, int]] = set()
    taken = _Taken()
    for partition in found.partitions:
        topic = partition.topic
        if (only and topic not in only) or topic in refused:
            continue
        if topic not in plan.names:
            name, _, number = mapping.get(topic, topic).partition(":") if topic in mapping else (topic, "", "")
            problem = _problem(topic, name, number, counts[topic]) or taken.take(topic, name, number)
            if problem:
                refused.add(topic)
                plan.skipped.add(f"topic {topic!r}", problem)
                continue
            plan.names[topic] = name
            if number:
                plan.numbers[topic] = int(number)
        place = plan.target(partition)
        if place[1] >= limits.PARTITIONS_PER_TOPIC_MAX:
            why = f"a topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions"
            plan.skipped.add(f"partition {place[1]} of {shown(topic)}", why)
        elif place in places:
            why = f"another one already becomes {place[0]}-{place[1]}"
            plan.skipped.add(f"{shown(str(partition))} in {shown(partition.files[0])}", why)
        else:
            places.add(place)
            plan.partitions.append(partition)
    for topic in (*only, *mapping):
        if topic not in counts:
            raise SourceError(f"there is no topic {shown(topic)} to import")
    return plan


def _problem(topic: str, name: str, number: str, partitions: int) -> str | None:
    try:
        topic_name(name)
    except BrokerError:
        return f"Kafka allows no topic of that name; give it another with --map {shown(topic)}=NEW"
    if name in INTERNAL_TOPICS:
        return f"the broker itself writes that topic; give it another name with --map {topic}=NEW"
    if number and partitions > 1:
        return f"it has {partitions} partitions; only a topic with one partition can become a partition of another"
    return None


class _Taken:
    """The mapping of source topics to target topics: as a whole, or as one partition."""

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}
        self._partitions: dict[tuple[str, str], str] = {}

    def take(self, topic: str, name: str, number: str) -> str | None:
        """Note a topic, or return why it cannot be mapped so."""
        other = self._topics.get(name)
        if other is not None and (not number or (name, "") in self._partitions):
            return f"{other!r} becomes {name} too; give one of them another name with --map"
        if (name, number) in self._partitions:
            return f"{self._partitions[name, number]!r} becomes {name}:{number} too; give one of them another place"
        self._topics.setdefault(name, topic)
        self._partitions[name, number] = topic
        return None


def topic_configs(surveys: Iterable[Survey], wanted: Mapping[str, str]) -> dict[str, str]:
    """How a topic has to be made so that it takes what was found."""
    configs = dict(KEEP)
    largest = youngest = 0
    for survey in surveys:
        largest = max(largest, survey.largest_batch_bytes)
        youngest = max(youngest, survey.timestamp_max)
    if largest > _MESSAGE_BYTES_SMALL:
        configs["max.message.bytes"] = str(largest + largest // 8)
    if youngest > time.time() * 1000 + _FUTURE_MS_DEFAULT / 2:
        configs["message.timestamp.after.max.ms"] = _FOR_EVER
    return {**configs, **wanted}


def usable_commits(commits: Iterable[Commit], plan: Plan, skipped: Skips) -> list[Commit]:
    """The commits that belong to imported partitions, and whose groups may be called so."""
    there = {(partition.topic, partition.partition) for partition in plan.partitions}
    usable = []
    for commit in commits:
        what = f"offset of group {commit.group!r} for {shown(commit.topic)}-{commit.partition}"
        name = commit.group.encode(errors="surrogateescape")
        if (commit.topic, commit.partition) not in there:
            skipped.add(what, "the partition is not imported", is_loss=False)
        elif not 0 < len(name) <= GROUP_BYTES_MAX or not commit.group.isprintable():
            skipped.add(what, f"a group name must have 1 to {GROUP_BYTES_MAX} bytes and no control characters")
        elif not 0 <= commit.offset < 1 << 63:
            skipped.add(what, f"{commit.offset} is not an offset")
        else:
            usable.append(commit)
    return usable
