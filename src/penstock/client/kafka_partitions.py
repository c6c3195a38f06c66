"""What is asked of a partition's leader: where its log begins and ends, its batches, and to take batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from penstock.client.kafka_apis import TRANSACTIONS_1, Api
from penstock.client.kafka_cluster import Isolation, KafkaCluster, Lane, LeaderCall, Outcome, by_topic, partition
from penstock.client.kafka_codec import Message
from penstock.client.kafka_connection import Connection, Pending
from penstock.client.kafka_errors import KafkaError, check
from penstock.model.ids import TopicPartition

EARLIEST, LATEST = -2, -1
"""Timestamps that mean: the log start offset, and the end (of what the isolation lets see)."""

FETCH_BYTES_MAX = 50 * 1024 * 1024
"""Java's fetch.max.bytes."""
FETCH_PARTITION_BYTES_MAX = 8 * 1024 * 1024
"""Eight times Java's: an answer becomes a few Arrow batches, and a round trip each megabyte costs a fifth."""
_ACKS_NONE = 0

Bytes = bytes | bytearray | memoryview
R = TypeVar("R")


class ListedOffset(NamedTuple):
    offset: int | None
    """None when no record is that young."""
    timestamp_ms: int
    leader_epoch: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """Whole batches from the one that holds the offset on, and perhaps the beginning of another."""

    records: memoryview
    aborted: tuple[AbortedTransaction, ...]
    """Transactions that overlap the batches and were aborted, oldest first; none unless reading what is committed."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class Produced(NamedTuple):
    base_offset: int
    """-1 if the broker does not say: acks 0, or a batch that it had written before and no longer remembers where."""
    append_time_ms: int
    """-1 unless the topic has LogAppendTime."""
    log_start_offset: int


class ProducerState(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    open_since_offset: int | None
    """Where its open transaction begins in the partition."""


class Call(Generic[R]):
    """A request that is on its way; `wait` gives a result a partition, after as many tries as it takes."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[], dict[TopicPartition, R]]) -> None:
        self.wait = wait


class PartitionRequests(KafkaCluster):
    def list_offsets(
        self, timestamps: Mapping[tuple[str, int], int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, ListedOffset]:
        """The first offset at or after a timestamp in milliseconds, for each partition; or EARLIEST, LATEST."""

        def begin(connection: Connection, items: Mapping[TopicPartition, int]) -> Pending:
            return connection.begin(
                Api.LIST_OFFSETS,
                {
                    "replica_id": -1,
                    "isolation_level": isolation,
                    "timeout": self.settings.request_timeout_ms,
                    "topics": [
                        {
                            "name": topic,
                            "partitions": [
                                {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": -1}
                                for index, timestamp in rows.items()
                            ],
                        }
                        for topic, rows in by_topic(items).items()
                    ],
                },
            )

        def outcomes(answer: Message) -> Iterator[Outcome[ListedOffset]]:
            for topic in answer.topics:
                for row in topic.partitions:
                    listed = ListedOffset(
                        None if row.offset < 0 else row.offset, row.timestamp, getattr(row, "leader_epoch", -1)
                    )
                    yield Outcome(topic.name, row.partition_index, row.error_code, None, listed)

        return self.ask_leaders(timestamps, begin, outcomes).wait()

    def fetch(self, offsets: Mapping[tuple[str, int], int], **how: Any) -> dict[TopicPartition, Fetched]:
        """As `begin_fetch`, waited for."""
        return self.begin_fetch(offsets, **how).wait()

    def begin_fetch(
        self,
        offsets: Mapping[tuple[str, int], int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        wait_ms_max: int = 500,
        bytes_min: int = 1,
        bytes_max: int = FETCH_BYTES_MAX,
        partition_bytes_max: int = FETCH_PARTITION_BYTES_MAX,
    ) -> Call[Fetched]:
        """Ask for batches from an offset on; the broker works while the caller does something else.

        A partition always gives at least one whole batch if there is one, however small the bounds (KIP-74).
        """

        def begin(connection: Connection, items: Mapping[TopicPartition, int]) -> Pending:
            return connection.begin(
                Api.FETCH,
                {
                    "replica_id": -1,
                    "max_wait": wait_ms_max,
                    "min_bytes": bytes_min,
                    "max_bytes": bytes_max,
                    "isolation_level": isolation,
                    "session_id": 0,
                    "session_epoch": -1,
                    "forgotten_topics_data": (),
                    "rack_id": "",
                    "topics": [
                        {
                            "topic": topic,
                            "partitions": [
                                {
                                    "partition": index,
                                    "fetch_offset": offset,
                                    "partition_max_bytes": partition_bytes_max,
                                    "current_leader_epoch": -1,
                                    "last_fetched_epoch": -1,
                                    "log_start_offset": -1,
                                }
                                for index, offset in rows.items()
                            ],
                        }
                        for topic, rows in by_topic(items).items()
                    ],
                },
                timeout_ms=self.settings.request_timeout_ms + wait_ms_max,
            )

        call: LeaderCall[int, Fetched] = self.ask_leaders(offsets, begin, _fetched, Lane.FETCHES)
        return Call(call.wait)

    def produce(self, batches: Mapping[tuple[str, int], Bytes], **how: Any) -> dict[TopicPartition, Produced]:
        """As `begin_produce`, waited for."""
        return self.begin_produce(batches, **how).wait()

    def begin_produce(
        self,
        batches: Mapping[tuple[str, int], Bytes],
        *,
        acks: int = -1,
        transactional_id: str | None = None,
        transaction_version: int = 1,
    ) -> Call[Produced]:
        """Send a batch to each partition; the bytes may be reused as soon as this returns only if nobody calls `wait`.

        What fails for a reason that may pass is sent again, also when it is not known whether the broker has it: only a
        batch with producer id and sequence is written once. Wait before the next batch of the same partition begins.
        """
        version_max = self.transaction_version_max(Api.PRODUCE, transaction_version)

        def begin(connection: Connection, items: Mapping[TopicPartition, Bytes]) -> Pending:
            self.check_transaction_version(connection, Api.PRODUCE, transaction_version)
            return connection.begin(
                Api.PRODUCE,
                {
                    "transactional_id": transactional_id,
                    "acks": acks,
                    "timeout": self.settings.request_timeout_ms,
                    "topic_data": [
                        {
                            "name": topic,
                            "partition_data": [{"index": index, "records": records} for index, records in rows.items()],
                        }
                        for topic, rows in by_topic(items).items()
                    ],
                },
                version_max=version_max,
                is_answered=acks != _ACKS_NONE,
            )

        if acks == _ACKS_NONE:
            self._send_and_forget(batches, begin)
            return Call(lambda: {partition(*place): Produced(-1, -1, -1) for place in batches})
        return Call(self.ask_leaders(batches, begin, _produced).wait)

    def _send_and_forget(
        self,
        batches: Mapping[tuple[str, int], Bytes],
        begin: Callable[[Connection, Mapping[TopicPartition, Bytes]], Pending],
    ) -> None:
        for topic_partition, records in batches.items():
            place = partition(*topic_partition)

            def attempt(place: TopicPartition = place, records: Bytes = records) -> None:
                begin(self.connection(self.leader(place)), {place: records})

            self.retrying(attempt)

    def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, list[ProducerState]]:
        """Who writes to these partitions, and where their open transactions begin."""

        def begin(connection: Connection, items: Mapping[TopicPartition, bool]) -> Pending:
            topics = [{"name": topic, "partition_indexes": list(rows)} for topic, rows in by_topic(items).items()]
            return connection.begin(Api.DESCRIBE_PRODUCERS, {"topics": topics})

        def outcomes(answer: Message) -> Iterator[Outcome[list[ProducerState]]]:
            for topic in answer.topics:
                for row in topic.partitions:
                    states = [
                        ProducerState(
                            one.producer_id,
                            one.producer_epoch,
                            one.last_sequence,
                            one.last_timestamp,
                            None if one.current_txn_start_offset < 0 else one.current_txn_start_offset,
                        )
                        for one in row.active_producers
                    ]
                    yield Outcome(topic.name, row.partition_index, row.error_code, row.error_message, states)

        return self.ask_leaders(dict.fromkeys(partitions, True), begin, outcomes).wait()

    # ------------------------------------------------------------------------------------------------ versions

    @staticmethod
    def transaction_version_max(api: Api, transaction_version: int) -> int | None:
        """The highest version of a request that means this version of transactions."""
        if transaction_version not in (1, 2):
            raise ValueError(f"unknown transaction version {transaction_version}")
        return TRANSACTIONS_1[api] if transaction_version == 1 else None

    @staticmethod
    def check_transaction_version(connection: Connection, api: Api, transaction_version: int) -> None:
        if transaction_version == 2 and connection.version(api) <= TRANSACTIONS_1[api]:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "the broker does not support transaction version 2",
                where=str(connection.address),
            )


def _fetched(answer: Message) -> Iterator[Outcome[Fetched]]:
    check(getattr(answer, "error_code", 0), where="Fetch")
    for topic in answer.responses:
        for row in topic.partitions:
            aborted = [AbortedTransaction(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
            # Some brokers do not sort them, though the protocol says so.
            aborted.sort(key=lambda one: one.first_offset)
            fetched = Fetched(
                memoryview(b"") if row.records is None else row.records,
                tuple(aborted),
                row.high_watermark,
                row.last_stable_offset,
                getattr(row, "log_start_offset", -1),
            )
            yield Outcome(topic.topic, row.partition_index, row.error_code, None, fetched)


def _produced(answer: Message) -> Iterator[Outcome[Produced]]:
    for topic in answer.responses:
        for row in topic.partition_responses:
            code = row.error_code
            produced = Produced(row.base_offset, row.log_append_time, getattr(row, "log_start_offset", -1))
            if code == ErrorCode.duplicate_sequence_number:
                code, produced = 0, Produced(-1, -1, produced.log_start_offset)
            yield Outcome(topic.name, row.index, code, getattr(row, "error_message", None), produced)
