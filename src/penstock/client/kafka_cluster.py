"""Which broker to ask, and asking again: metadata, leaders, coordinators, connections, and the retries around them.

A broker has up to two connections: Fetch has its own, because its answers are long and late and an answer must leave in the
order of its request; everything else shares the other. Both are made when first needed and again when they broke. A call
that fails for a reason that may pass is repeated, with growing pauses, until the time of a call is over; then it raises
the last reason.

A client is for one thread.
"""

from __future__ import annotations

import enum
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from kio.schema.errors import ErrorCode

from penstock.client.kafka_apis import Api
from penstock.client.kafka_codec import Message
from penstock.client.kafka_connection import Connection, Pending
from penstock.client.kafka_errors import NEW_COORDINATOR, NEW_LEADER, KafkaError, check, sentence
from penstock.client.kafka_settings import Address, KafkaSettings
from penstock.model.ids import TopicName, TopicPartition

UNKNOWN_TOPIC_MS_MAX = 3_000
"""How long a call believes that a topic it cannot find was made a moment ago; Kafka tells its brokers one by one."""

V = TypeVar("V")
R = TypeVar("R")


class Isolation(enum.IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class CoordinatorKind(enum.IntEnum):
    GROUP = 0
    TRANSACTION = 1


class Lane(enum.Enum):
    """What a connection is for."""

    REQUESTS = "requests"
    FETCHES = "fetches"


class Outcome(NamedTuple, Generic[R]):
    """What an answer says of one partition."""

    topic: str
    partition: int
    error_code: int
    detail: str | None
    result: R


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    leader: int
    """-1 when there is none now."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicInfo]


class KafkaCluster:
    """The part of a client that all requests share."""

    def __init__(self, settings: KafkaSettings | str) -> None:
        """Connects at the first request, not before."""
        self.settings = KafkaSettings.of(settings) if isinstance(settings, str) else settings
        self._tls: ssl.SSLContext | None = None if self.settings.tls is None else self.settings.tls.context()
        self._connections: dict[tuple[Address, Lane], Connection] = {}
        self._retired: list[Connection] = []
        """Replaced, but somebody still waits for an answer on them."""
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._topics_seen_at: dict[str, float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}

    # ------------------------------------------------------------------------------------------------ metadata

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterInfo:
        """Brokers, and the topics named, or all. A topic that is not there is not in the answer; none is made."""
        wanted = None if topics is None else sorted(set(topics))
        return self.retrying(lambda: self._metadata(wanted))

    def _metadata(self, topics: list[str] | None) -> ClusterInfo:
        answer = self.any_connection().request(
            Api.METADATA,
            {
                "topics": None if topics is None else [{"name": topic} for topic in topics],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        check(getattr(answer, "error_code", 0), where="Metadata")
        self._brokers = {broker.node_id: Address((broker.host, broker.port)) for broker in answer.brokers}
        found: dict[str, TopicInfo] = {}
        now = time.monotonic()
        for topic in answer.topics:
            if topic.error_code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
                self._forget_topic(topic.name)
                continue
            check(topic.error_code, where="Metadata", topic=topic.name)
            info = _topic_info(topic)
            found[info.name] = info
            self._topics_seen_at[info.name] = now
            for partition, of_partition in info.partitions.items():
                self._leaders[TopicPartition(TopicName(info.name), partition)] = of_partition.leader
        return ClusterInfo(getattr(answer, "cluster_id", None), answer.controller_id, dict(self._brokers), found)

    def _forget_topic(self, topic: str | None) -> None:
        self._leaders = {place: leader for place, leader in self._leaders.items() if place.topic != topic}
        if topic is not None:
            self._topics_seen_at.pop(topic, None)

    def _forget_leaders(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._leaders.pop(place, None)

    def leader(self, place: TopicPartition) -> int:
        """Raises a KafkaError that is worth trying again when there is none now."""
        oldest = time.monotonic() - self.settings.metadata_age_ms_max / 1_000
        if place not in self._leaders or self._topics_seen_at.get(place.topic, 0.0) < oldest:
            self._metadata([place.topic])
        leader = self._leaders.get(place)
        if leader is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, topic=place.topic, partition=place.partition)
        if leader not in self._brokers:
            self._leaders.pop(place, None)
            raise KafkaError(ErrorCode.leader_not_available, topic=place.topic, partition=place.partition)
        return leader

    def feature(self, name: str) -> int:
        """The level at which the cluster has a feature, such as transaction.version; 0 if it has not."""
        return self.retrying(lambda: self.any_connection().features.get(name, 0))

    # ------------------------------------------------------------------------------------------------ connections

    def any_connection(self) -> Connection:
        """To whichever broker answers: one that is connected, one that is known, one of the first addresses."""
        for connection in self._connections.values():
            if connection.is_usable and connection.is_idle:
                return connection
        failures: list[KafkaError] = []
        for address in dict.fromkeys((*self._brokers.values(), *self.settings.bootstrap)):
            try:
                return self._connection(address)
            except KafkaError as error:
                if not error.retriable:
                    raise
                failures.append(error)
        raise KafkaError(
            ErrorCode.broker_not_available,
            "no broker can be reached: " + "; ".join(f"{error.where} ({error.text})" for error in failures),
            retriable=True,
        )

    def connection(self, broker: int, lane: Lane = Lane.REQUESTS) -> Connection:
        if broker not in self._brokers:
            raise KafkaError(ErrorCode.broker_not_available, f"unknown broker {broker}", retriable=True)
        return self._connection(self._brokers[broker], lane)

    def _connection(self, address: Address, lane: Lane = Lane.REQUESTS) -> Connection:
        connection = self._connections.get((address, lane))
        if connection is not None:
            if connection.is_usable:
                return connection
            if connection.is_idle:
                connection.close()
            else:
                self._retired.append(connection)
        connection = Connection(address, self.settings, self._tls)
        self._connections[address, lane] = connection
        return connection

    def broker_ids(self) -> list[int]:
        """Every broker of the cluster, asked for anew."""
        return sorted(self.metadata(()).brokers)

    def close(self) -> None:
        for connection in (*self._connections.values(), *self._retired):
            connection.close()
        self._connections.clear()
        self._retired.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ asking again

    def retrying(self, attempt: Callable[[], R]) -> R:
        """What `attempt` gives, once it raises nothing that may pass."""
        retries = Retries(self.settings)
        while True:
            try:
                return attempt()
            except KafkaError as error:
                retries.pause(error)

    def ask_coordinator(
        self,
        kind: CoordinatorKind,
        key: str,
        api: Api,
        fields: Mapping[str, Any],
        failure: Callable[[Message], KafkaError | None],
        version_max: int | None = None,
    ) -> Message:
        """The answer of the coordinator of a group or transactional id, once `failure` finds nothing in it."""

        def attempt() -> Message:
            try:
                connection = self.connection(self._coordinator(kind, key))
                answer = connection.request(api, fields, version_max=version_max)
                error = failure(answer)
                if error is not None:
                    raise error
                return answer
            except KafkaError as error:
                if error.error_code in NEW_COORDINATOR:
                    self._coordinators.pop((kind, key), None)
                raise

        return self.retrying(attempt)

    def _coordinator(self, kind: CoordinatorKind, key: str) -> int:
        if (kind, key) in self._coordinators:
            return self._coordinators[kind, key]
        answer = self.any_connection().request(
            Api.FIND_COORDINATOR, {"key": key, "key_type": kind, "coordinator_keys": [key]}
        )
        # From version 4 on it answers for several keys at once (KIP-699).
        found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
        check(found.error_code, getattr(found, "error_message", None), where=f"FindCoordinator of {key!r}")
        self._brokers.setdefault(found.node_id, Address((found.host, found.port)))
        self._coordinators[kind, key] = found.node_id
        node: int = found.node_id
        return node

    def ask_leaders(
        self,
        items: Mapping[tuple[str, int], V],
        begin: Callable[[Connection, Mapping[TopicPartition, V]], Pending],
        outcomes: Callable[[Message], Iterable[Outcome[R]]],
        lane: Lane = Lane.REQUESTS,
    ) -> LeaderCall[V, R]:
        """Each partition's leader is asked for its items; the requests are on their way when this returns."""
        return LeaderCall(self, {partition(*place): item for place, item in items.items()}, begin, outcomes, lane)


class Retries:
    """How long one call has tried, and how long it pauses."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._started = time.monotonic()
        self._deadline = self._started + settings.api_timeout_ms / 1_000
        self._pause_s = settings.retry_backoff_ms / 1_000
        self._pause_s_max = settings.retry_backoff_ms_max / 1_000

    def pause(self, error: KafkaError) -> None:
        """Raises `error` when it cannot pass, or when the time is over."""
        now = time.monotonic()
        deadline = self._deadline
        if error.error_code is ErrorCode.unknown_topic_or_partition:
            deadline = min(deadline, self._started + UNKNOWN_TOPIC_MS_MAX / 1_000)
        if not error.retriable or now >= deadline:
            raise error
        # Clients that lost the same broker do not come back in step.
        time.sleep(min(self._pause_s * random.uniform(0.8, 1.2), deadline - now))
        self._pause_s = min(self._pause_s * 2, self._pause_s_max)


class LeaderCall(Generic[V, R]):
    """A request to the leaders of some partitions, begun; `wait` gives a result a partition."""

    def __init__(
        self,
        cluster: KafkaCluster,
        items: dict[TopicPartition, V],
        begin: Callable[[Connection, Mapping[TopicPartition, V]], Pending],
        outcomes: Callable[[Message], Iterable[Outcome[R]]],
        lane: Lane,
    ) -> None:
        self._cluster = cluster
        self._begin = begin
        self._outcomes = outcomes
        self._lane = lane
        self._todo = items
        self._results: dict[TopicPartition, R] = {}
        self._begun: list[tuple[dict[TopicPartition, V], Pending]] = []
        self._error: KafkaError | None = None
        self._begin_round()

    def wait(self) -> dict[TopicPartition, R]:
        """Raises a KafkaError with topic and partition at the first that cannot be served."""
        retries = Retries(self._cluster.settings)
        self._end_round()
        while self._todo:
            assert self._error is not None, "a partition is missing in the response"
            retries.pause(self._error)
            self._begin_round()
            self._end_round()
        return self._results

    def _begin_round(self) -> None:
        self._begun = []
        self._error = None
        by_leader: dict[int, dict[TopicPartition, V]] = {}
        for place, item in self._todo.items():
            try:
                by_leader.setdefault(self._cluster.leader(place), {})[place] = item
            except KafkaError as error:
                self._failed(error, (place,))
        for leader, items in by_leader.items():
            try:
                connection = self._cluster.connection(leader, self._lane)
                self._begun.append((items, self._begin(connection, items)))
            except KafkaError as error:
                self._failed(error, items)

    def _end_round(self) -> None:
        for items, pending in self._begun:
            try:
                answered = self._outcomes(pending.wait())
                for outcome in answered:
                    self._settle(outcome)
                missing = self._todo.keys() & items.keys()
                if missing and self._error is None:
                    place = min(missing)
                    self._error = KafkaError(
                        ErrorCode.corrupt_message,
                        f"the response to {pending.api.label} does not contain the partition",
                        topic=place.topic,
                        partition=place.partition,
                    )
            except KafkaError as error:
                self._failed(error, items)
        self._begun = []

    def _settle(self, outcome: Outcome[R]) -> None:
        place = partition(outcome.topic, outcome.partition)
        if not outcome.error_code:
            if place in self._todo:
                del self._todo[place]
                self._results[place] = outcome.result
            return
        said = (outcome.detail or "").strip()
        meaning = sentence(outcome.error_code)
        error = KafkaError(
            outcome.error_code,
            f"{meaning} ({said})" if said and said != meaning else meaning,
            topic=place.topic,
            partition=place.partition,
        )
        if not error.retriable:
            raise error
        self._failed(error, (place,))

    def _failed(self, error: KafkaError, places: Iterable[TopicPartition]) -> None:
        if not error.retriable:
            raise error
        self._error = error
        if error.error_code in NEW_LEADER:
            self._cluster._forget_leaders(places)


def partition(topic: str, number: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), number)


def by_topic(items: Mapping[TopicPartition, V]) -> dict[str, dict[int, V]]:
    """As requests have it: topics, and in them partitions."""
    topics: dict[str, dict[int, V]] = {}
    for place, item in items.items():
        topics.setdefault(place.topic, {})[place.partition] = item
    return topics


def _topic_info(topic: Any) -> TopicInfo:
    return TopicInfo(
        topic.name,
        getattr(topic, "topic_id", None),
        topic.is_internal,
        {
            row.partition_index: PartitionInfo(
                row.leader_id,
                getattr(row, "leader_epoch", -1),
                tuple(row.replica_nodes or ()),
                tuple(row.isr_nodes or ()),
            )
            for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        },
    )
