"""From what was found to what will be made: topic names, partition counts, configs; and what is left out, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.imports.source import Commit, Found, Skipped, SourceError, SourcePartition, shown
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
    partitions: list[SourcePartition] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def target(self, partition: SourcePartition) -> tuple[str, int]:
        return self.names[partition.topic], partition.partition

    def partition_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for partition in self.partitions:
            topic, number = self.target(partition)
            counts[topic] = max(counts.get(topic, 0), number + 1)
        return counts


def make_plan(found: Found, mapping: Mapping[str, str], topics: Iterable[str] = ()) -> Plan:
    """`mapping` gives topics other names; `topics` narrows the import to those of the source."""
    plan = Plan(skipped=list(found.skipped))
    only = frozenset(topics)
    taken: dict[str, str] = {}
    refused: set[str] = set()
    for partition in found.partitions:
        topic = partition.topic
        if (only and topic not in only) or topic in refused:
            continue
        if topic not in plan.names:
            problem = _problem(topic, mapping.get(topic, topic), taken)
            if problem:
                refused.add(topic)
                plan.skipped.append(Skipped(f"topic {topic!r}", problem))
                continue
            plan.names[topic] = mapping.get(topic, topic)
            taken[plan.names[topic]] = topic
        if partition.partition >= limits.PARTITIONS_PER_TOPIC_MAX:
            why = f"a topic has at most {limits.PARTITIONS_PER_TOPIC_MAX} partitions"
            plan.skipped.append(Skipped(f"partition {partition.partition} of {topic}", why))
            continue
        plan.partitions.append(partition)
    there = {partition.topic for partition in found.partitions}
    for topic in (*only, *mapping):
        if topic not in there:
            raise SourceError(f"there is no topic {shown(topic)} to import")
    return plan


def _problem(topic: str, name: str, taken: Mapping[str, str]) -> str | None:
    try:
        topic_name(name)
    except BrokerError:
        return f"Kafka allows no topic of that name; give it another with --map {shown(topic)}=NEW"
    if name in INTERNAL_TOPICS:
        return f"the broker itself writes that topic; give it another name with --map {topic}=NEW"
    if name in taken:
        return f"{taken[name]!r} becomes {name} too; give one of them another name with --map"
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


def usable_commits(commits: Iterable[Commit], plan: Plan, skipped: list[Skipped]) -> list[Commit]:
    """The commits that belong to imported partitions, and whose groups may be called so."""
    there = {(partition.topic, partition.partition) for partition in plan.partitions}
    usable = []
    for commit in commits:
        what = f"offset of group {commit.group!r} for {shown(commit.topic)}-{commit.partition}"
        name = commit.group.encode(errors="surrogateescape")
        if (commit.topic, commit.partition) not in there:
            skipped.append(Skipped(what, "the partition is not imported"))
        elif not 0 < len(name) <= GROUP_BYTES_MAX or not commit.group.isprintable():
            skipped.append(Skipped(what, f"a group's name has 1 to {GROUP_BYTES_MAX} bytes and no control characters"))
        elif not 0 <= commit.offset < 1 << 63:
            skipped.append(Skipped(what, f"{commit.offset} is no offset"))
        else:
            usable.append(commit)
    return usable
