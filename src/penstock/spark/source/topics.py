"""What a driver asks the cluster before it gives out work: which partitions there are, where they begin and end, and which
offsets a starting or ending option means.

Everything that can be wrong with a read and does not lie in its records is found here, before a task is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from penstock.client.kafka import EARLIEST, LATEST, ClusterInfo, ConfigKind, Isolation, KafkaClient, KafkaError
from penstock.client.kafka_cluster import UNKNOWN_TOPIC_MS_MAX
from penstock.model.ids import ZERO_ID, TopicPartition
from penstock.spark.source.errors import SourceError, explained, log
from penstock.spark.source.offsets import Offsets, TopicIds, id_text, place, shown
from penstock.spark.source.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assigned,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Edge,
    SourceOptions,
    Subscribed,
)

CONTACT_MS_MAX = 20_000
"""How long the first answer may take, unless kafka.default.api.timeout.ms says otherwise: a wrong address should not cost
the minute that a broker which restarts under a running query is waited for."""
_NAMED_MAX = 5

R = TypeVar("R")


class Resolved(NamedTuple):
    offsets: Offsets
    at_log_end: frozenset[TopicPartition]
    """Those whose offset is where the log ended just now: asked again, the answer is another."""


class Topics:
    """The topics of a read, seen from the driver; the client connects at the first question."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: KafkaClient | None = None
        self._found: tuple[float, list[TopicPartition]] | None = None
        self._data_dirs: tuple[str, ...] | None = None
        self.info: ClusterInfo | None = None
        """What the last look at the partitions saw."""

    @property
    def client(self) -> KafkaClient:
        if self._client is None:
            self._client = self._contacted()
        return self._client

    def _contacted(self) -> KafkaClient:
        """A client whose broker answered."""
        settings = self._options.settings
        if not self._options.contact_timeout_is_given:
            hurried = replace(settings, api_timeout_ms=min(settings.api_timeout_ms, CONTACT_MS_MAX))
            with KafkaClient(hurried) as client, explained(settings):
                client.metadata(())
        with explained(settings):
            return KafkaClient(settings)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, question: Callable[[KafkaClient], R]) -> R:
        """Again as often as fetchOffset.numRetries says, when the client has given up."""
        with explained(self._options.settings):
            for _ in range(self._options.offset_retries):
                try:
                    return question(self.client)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    log.warning("%s; retrying", error)
                    time.sleep(self._options.offset_retry_pause_ms / 1_000)
            return question(self.client)

    # ------------------------------------------------------------------------------------------------ partitions

    def partitions(self) -> list[TopicPartition]:
        """Those that the subscription means; raises SourceError for a topic or partition that is named and not there."""
        return self._resolve(may_be_missing=False)

    def partitions_since(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that the subscription means now; of the ones known before, some may be gone. A broker that has just
        started may not have heard of all of them: it is asked for a while before that is believed."""
        wanted = set(known)
        if self._found is not None:
            seen_at, places = self._found
            if (time.monotonic() - seen_at) * 1_000 < self._options.metadata_ttl_ms and wanted <= set(places):
                return places
        deadline = time.monotonic() + UNKNOWN_TOPIC_MS_MAX / 1_000
        places = self._resolve(may_be_missing=True)
        while not wanted <= set(places) and time.monotonic() < deadline:
            time.sleep(self._options.settings.retry_backoff_ms / 1_000)
            places = self._resolve(may_be_missing=True)
        self._found = (time.monotonic(), places)
        return places

    def forget_partitions(self) -> None:
        """Refresh the partitions before they are used next."""
        self._found = None

    def _resolve(self, may_be_missing: bool) -> list[TopicPartition]:
        subscription = self._options.subscription
        if isinstance(subscription, Assigned):
            wanted: Iterable[str] | None = {where.topic for where in subscription.partitions}
        elif isinstance(subscription, Subscribed):
            wanted = subscription.topics
        else:
            wanted = None
        info = self.info = self.ask(lambda client: client.metadata(wanted))
        there = [place(topic, number) for topic, found in info.topics.items() for number in found.partitions]
        if wanted is not None and not may_be_missing:
            self._check_topics(set(wanted) - set(info.topics), info)
        if isinstance(subscription, Assigned):
            missing = set(subscription.partitions) - set(there)
            if missing and not may_be_missing:
                first = min(missing)
                count = len(info.topics[first.topic].partitions)
                raise SourceError(
                    f"assign: partition {first} does not exist; the topic has partitions 0 to {count - 1}"
                )
            return sorted(set(subscription.partitions) - missing)
        if isinstance(subscription, Subscribed):
            return sorted(there)
        pattern = subscription.pattern
        return sorted(
            where for where in there if pattern.fullmatch(where.topic) and not info.topics[where.topic].is_internal
        )

    def _check_topics(self, missing: set[str], info: ClusterInfo) -> None:
        if not missing:
            return
        servers = ",".join(str(address) for address in self._options.settings.bootstrap)
        names = ", ".join(repr(name) for name in sorted(missing))
        raise SourceError(f"{servers} has no topic {names}: create it, or check the name")

    # ------------------------------------------------------------------------------------------------ offsets

    def earliest(self, places: Iterable[TopicPartition]) -> Offsets:
        return self._listed(dict.fromkeys(places, EARLIEST), self._options.isolation)

    def latest(self, places: Iterable[TopicPartition]) -> Offsets:
        """Where readers get to: the last stable offset, or with read_uncommitted the high watermark."""
        return self._listed(dict.fromkeys(places, LATEST), self._options.isolation)

    def _listed(self, timestamps: Mapping[TopicPartition, int], isolation: Isolation) -> Offsets:
        if not timestamps:
            return {}
        asked: dict[tuple[str, int], int] = {
            (where.topic, where.partition): timestamp for where, timestamp in timestamps.items()
        }
        found = self.ask(lambda client: client.list_offsets(asked, isolation))
        return {where: listed.offset for where, listed in found.items() if listed.offset is not None}

    def start(self, bound: Bound, places: list[TopicPartition]) -> Resolved:
        """Where to begin."""
        match bound:
            case Edge.EARLIEST:
                return Resolved(self.earliest(places), frozenset())
            case Edge.LATEST:
                return Resolved(self.latest(places), frozenset(places))
            case AtOffsets(offsets):
                _check_complete(offsets, places, "startingOffsets")
                at_end = frozenset(where for where in places if offsets[where] == LATEST_OFFSET)
                return Resolved(self._filled(offsets), at_end)
            case AtTimestamp(timestamp_ms):
                return self._start_at(dict.fromkeys(places, timestamp_ms), "startingTimestamp")
            case AtTimestamps(timestamps_ms):
                _check_complete(timestamps_ms, places, "startingOffsetsByTimestamp")
                return self._start_at(timestamps_ms, "startingOffsetsByTimestamp")

    def _start_at(self, timestamps_ms: Mapping[TopicPartition, int], option: str) -> Resolved:
        found = self._listed(timestamps_ms, self._options.isolation)
        unmatched = timestamps_ms.keys() - found.keys()
        if unmatched and not self._options.begins_at_end_if_unmatched:
            raise SourceError(
                f"{_few(unmatched)} has no record at or after {option}; "
                "set startingOffsetsByTimestampStrategy=latest to start at the end"
            )
        return Resolved({**found, **self.latest(unmatched)}, frozenset(unmatched))

    def end(self, bound: Bound, places: list[TopicPartition]) -> Offsets:
        """Before which offset to stop."""
        match bound:
            case AtOffsets(offsets):
                _check_complete(offsets, places, "endingOffsets")
                return self._filled(offsets)
            case AtTimestamp(timestamp_ms):
                return self._end_at(dict.fromkeys(places, timestamp_ms))
            case AtTimestamps(timestamps_ms):
                _check_complete(timestamps_ms, places, "endingOffsetsByTimestamp")
                return self._end_at(timestamps_ms)
        return self.latest(places)

    def _end_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> Offsets:
        last = self.latest(timestamps_ms)
        found = self._listed(timestamps_ms, self._options.isolation)
        return {where: min(found.get(where, offset), offset) for where, offset in last.items()}

    def _filled(self, offsets: Offsets) -> Offsets:
        """The numbers that stand for an end of the log become offsets."""
        at_start = [where for where, offset in offsets.items() if offset == EARLIEST_OFFSET]
        at_end = [where for where, offset in offsets.items() if offset == LATEST_OFFSET]
        return {**offsets, **self.earliest(at_start), **self.latest(at_end)}

    # ------------------------------------------------------------------------------------------------ files

    def data_dirs(self) -> tuple[str, ...]:
        """Where the broker says that its logs are; nothing if it does not tell us, or if it is one of several: the files of
        a replica that does not lead may be behind, or wrong. Asked once."""
        if self._data_dirs is not None:
            return self._data_dirs
        found: dict[str, None] = {}
        try:
            brokers = self.client.broker_ids()
            for broker in brokers if len(brokers) == 1 else ():
                entry = self.client.describe_configs(ConfigKind.BROKER, str(broker)).get("log.dirs")
                if entry is not None and entry.value:
                    found.update(dict.fromkeys(path.strip() for path in entry.value.split(",") if path.strip()))
        except KafkaError as error:
            log.debug("the cluster does not report its log directories: %s", error)
        self._data_dirs = tuple(found)
        return self._data_dirs

    # ------------------------------------------------------------------------------------------------ ids

    def topic_ids(self) -> TopicIds:
        """The ids from the last refresh of the partitions. Brokers before Kafka 2.8 have none."""
        return {} if self.info is None else _ids(self.info)

    def topic_ids_now(self, topics: Iterable[str]) -> TopicIds:
        """The ids of these topics; a deleted topic has none."""
        wanted = set(topics)
        return _ids(self.ask(lambda client: client.metadata(wanted))) if wanted else {}


def _ids(info: ClusterInfo) -> TopicIds:
    return {
        name: id_text(topic.topic_id) for name, topic in info.topics.items() if topic.topic_id not in (None, ZERO_ID)
    }


def _check_complete(given: Iterable[TopicPartition], places: list[TopicPartition], option: str) -> None:
    missing, unknown = set(places) - set(given), set(given) - set(places)
    if missing:
        raise SourceError(
            f"{option} has no entry for {_few(missing)}: list every partition; -2 is earliest, -1 is latest"
        )
    if unknown:
        raise SourceError(f"{option} contains {_few(unknown)}, which is not read")


def _few(places: Iterable[TopicPartition]) -> str:
    some = sorted(places)
    rest = len(some) - _NAMED_MAX
    return shown(some[:_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")
