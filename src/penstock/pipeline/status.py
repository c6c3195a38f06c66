"""Where each flow of a pipeline is: its checkpoint, its groups on the broker, and how far the topics have gone on.

Needs no Spark, and works while the pipeline runs. The checkpoint is the truth; the groups' offsets, which are one batch
behind, stand in where a checkpoint cannot be read. A broker that does not answer leaves the lag unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.kafka import LATEST, Isolation, KafkaClient, KafkaError, KafkaSettings
from penstock.pipeline.checkpoints import Checkpoint, Offsets, UnreadableCheckpoint, read_checkpoint
from penstock.pipeline.declaration import AnyFlow, Pipeline, TopicSource
from penstock.pipeline.groups import group_of

PATIENCE_MS: Final = 5_000
"""For a broker to answer: somebody waits at a terminal."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    topic: str
    partition: int
    offset: int
    """Where the next batch begins."""
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        return None if self.end_offset is None else max(0, self.end_offset - self.offset)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    flow: str
    state: str
    """not started, between batches, in a batch (or cut off in one), or unreadable"""
    checkpoint: Checkpoint | None
    partitions: tuple[PartitionStatus, ...]
    groups: tuple[str, ...]
    notes: tuple[str, ...]
    """What could not be found out, and why."""

    @property
    def lag(self) -> int | None:
        lags = [partition.lag for partition in self.partitions]
        if not lags or any(lag is None for lag in lags):
            return None
        return sum(lag for lag in lags if lag is not None)


def status_of(pipeline: Pipeline, flow: AnyFlow) -> FlowStatus:
    sources = [one for one in pipeline.upstream(flow.origin) if isinstance(one, TopicSource) and one.is_stream]
    groups = {group_of(pipeline.name, flow.name, source): source for source in sources}
    notes: list[str] = []
    checkpoint = None
    try:
        checkpoint = read_checkpoint(flow.checkpoint)
        state = _state(checkpoint)
        offsets = {} if checkpoint is None else checkpoint.offsets
    except UnreadableCheckpoint as error:
        notes.append(str(error))
        state = "unreadable"
        offsets = _of_groups(groups, notes)
    ends = _ends(sources, offsets, notes)
    partitions = tuple(
        PartitionStatus(topic, number, offset, ends.get((topic, number)))
        for (topic, number), offset in sorted(offsets.items())
    )
    return FlowStatus(flow.name, state, checkpoint, partitions, tuple(groups), tuple(dict.fromkeys(notes)))


def _state(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None or checkpoint.planned_batch is None:
        return "not started"
    return "in a batch" if checkpoint.is_in_batch else "between batches"


def _settings(source: TopicSource) -> KafkaSettings:
    options = {name: value for name, value in source.options.items() if name.lower().startswith("kafka.")}
    return KafkaSettings.of_options({"kafka.default.api.timeout.ms": str(PATIENCE_MS), **options})


def _of_groups(groups: Mapping[str, TopicSource], notes: list[str]) -> Offsets:
    found: Offsets = {}
    for group, source in groups.items():
        try:
            with KafkaClient(_settings(source)) as client:
                found.update(
                    {(place.topic, place.partition): kept.offset for place, kept in client.fetch_offsets(group).items()}
                )
        except KafkaError as error:
            notes.append(f"the offsets of group {group} are unknown: {error.text}")
    return found


def _ends(sources: Iterable[TopicSource], offsets: Offsets, notes: list[str]) -> Offsets:
    """Where the topics end for readers of what is committed, as far as their brokers answer."""
    ends: Offsets = {}
    clusters = {settings.bootstrap: settings for settings in map(_settings, sources)}
    for settings in clusters.values():
        missing = {place: LATEST for place in offsets if place not in ends}
        if not missing:
            break
        try:
            with KafkaClient(settings) as client:
                for place, listed in client.list_offsets(missing, Isolation.READ_COMMITTED).items():
                    if listed.offset is not None:
                        ends[place.topic, place.partition] = listed.offset
        except KafkaError as error:
            notes.append(f"the lag is unknown: {error.text}")
    return ends
