"""Producer ids and transactions: what is asked of a transaction coordinator.

Version 1 (any broker since 0.11): partitions and groups are added by request, EndTxn leaves the epoch as it is. Version 2
(KIP-890, brokers whose feature transaction.version is 2): the broker adds partitions as batches come, and EndTxn gives the
producer id and epoch that the next transaction has. A transaction is of one version from end to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from penstock.client.kafka_apis import Api
from penstock.client.kafka_cluster import CoordinatorKind, by_topic, partition
from penstock.client.kafka_codec import Message
from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_groups import GroupOffset, commit_topics
from penstock.client.kafka_partitions import PartitionRequests
from penstock.model.ids import TopicPartition

TRANSACTION_TIMEOUT_MS = 60_000


class Producer(NamedTuple):
    """Who writes: batches carry both numbers."""

    producer_id: int
    producer_epoch: int


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


class Transaction(NamedTuple):
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    """-1 when none is open."""
    producer: Producer
    partitions: frozenset[TopicPartition]


class TransactionRequests(PartitionRequests):
    def init_producer_id(
        self,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        current: Producer | None = None,
    ) -> Producer:
        """A producer id, or for a transactional id its producer with the next epoch: what an older instance left open
        is aborted, and it is fenced. With `current` only the owner of that epoch gets the next (KIP-360)."""
        producer = current or Producer(-1, -1)
        fields = {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
        }
        where = "InitProducerId" if transactional_id is None else f"InitProducerId of {transactional_id!r}"

        def failure(answer: Message) -> KafkaError | None:
            return KafkaError(answer.error_code, where=where) if answer.error_code else None

        if transactional_id is not None:
            answer = self.ask_coordinator(
                CoordinatorKind.TRANSACTION, transactional_id, Api.INIT_PRODUCER_ID, fields, failure
            )
            return Producer(answer.producer_id, answer.producer_epoch)

        def attempt() -> Producer:
            answer = self.any_connection().request(Api.INIT_PRODUCER_ID, fields)
            error = failure(answer)
            if error is not None:
                raise error
            return Producer(answer.producer_id, answer.producer_epoch)

        return self.retrying(attempt)

    def add_partitions_to_txn(
        self, transactional_id: str, producer: Producer, partitions: Iterable[tuple[str, int]]
    ) -> None:
        """Before the first batch of a transaction goes to a partition (transactions of version 1)."""
        topics = by_topic({partition(*place): True for place in partitions})

        def failure(answer: Message) -> KafkaError | None:
            errors = [
                KafkaError(
                    row.partition_error_code,
                    where="AddPartitionsToTxn",
                    topic=topic.name,
                    partition=row.partition_index,
                )
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
                if row.partition_error_code
            ]
            # One bad partition spoils all; the others say only that they were not attempted.
            errors.sort(key=lambda error: error.error_code is ErrorCode.operation_not_attempted)
            return errors[0] if errors else None

        self.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            Api.ADD_PARTITIONS_TO_TXN,
            {
                "v3_and_below_transactional_id": transactional_id,
                "v3_and_below_producer_id": producer.producer_id,
                "v3_and_below_producer_epoch": producer.producer_epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": list(rows)} for topic, rows in topics.items()],
                **_producer(transactional_id, producer),
                "topics": [{"name": topic, "partitions": list(rows)} for topic, rows in topics.items()],
            },
            failure,
        )

    def add_offsets_to_txn(self, transactional_id: str, producer: Producer, group: str) -> None:
        """Before the first TxnOffsetCommit of a transaction for a group (transactions of version 1)."""
        self.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            Api.ADD_OFFSETS_TO_TXN,
            {**_producer(transactional_id, producer), "group_id": group},
            lambda answer: _failure(answer.error_code, "AddOffsetsToTxn", transactional_id),
        )

    def txn_offset_commit(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        offsets: Mapping[tuple[str, int], int | GroupOffset],
        *,
        transaction_version: int = 1,
    ) -> None:
        """Offsets of a group that count if the transaction does."""

        def failure(answer: Message) -> KafkaError | None:
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code:
                        return KafkaError(
                            row.error_code, where="TxnOffsetCommit", topic=topic.name, partition=row.partition_index
                        )
            return None

        self.ask_coordinator(
            CoordinatorKind.GROUP,
            group,
            Api.TXN_OFFSET_COMMIT,
            {
                **_producer(transactional_id, producer),
                "group_id": group,
                "generation_id": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": commit_topics(offsets),
            },
            failure,
            version_max=self.transaction_version_max(Api.TXN_OFFSET_COMMIT, transaction_version),
        )

    def end_txn(
        self, transactional_id: str, producer: Producer, *, commit: bool, transaction_version: int = 1
    ) -> Producer:
        """Commit or abort; the producer that the next transaction has. Repeating it is safe."""
        answer = self.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            Api.END_TXN,
            {**_producer(transactional_id, producer), "committed": commit},
            lambda answer: _failure(answer.error_code, "EndTxn", transactional_id),
            version_max=self.transaction_version_max(Api.END_TXN, transaction_version),
        )
        if getattr(answer, "producer_id", -1) < 0:
            return producer
        return Producer(answer.producer_id, answer.producer_epoch)

    # ------------------------------------------------------------------------------------------------ looking

    def list_transactions(
        self, prefix: str = "", *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """The transactional ids that begin with `prefix`, of all coordinators; `states` such as Ongoing narrow it."""
        fields = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }

        def of_broker(broker: int) -> list[TransactionListing]:
            answer = self.connection(broker).request(Api.LIST_TRANSACTIONS, fields)
            error = _failure(answer.error_code, "ListTransactions", "")
            if error is not None:
                raise error
            return [
                TransactionListing(row.transactional_id, row.producer_id, row.transaction_state)
                for row in answer.transaction_states
                if row.transactional_id.startswith(prefix)
            ]

        found: list[TransactionListing] = []
        for broker in self.broker_ids():
            found += self.retrying(lambda broker=broker: of_broker(broker))  # type: ignore[misc]
        return sorted(found)

    def describe_transaction(self, transactional_id: str) -> Transaction:
        """Raises TRANSACTIONAL_ID_NOT_FOUND when its coordinator does not know it."""
        answer = self.ask_coordinator(
            CoordinatorKind.TRANSACTION,
            transactional_id,
            Api.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [transactional_id]},
            lambda answer: _failure(answer.transaction_states[0].error_code, "DescribeTransactions", transactional_id),
        )
        row = answer.transaction_states[0]
        return Transaction(
            row.transactional_id,
            row.transaction_state,
            row.transaction_timeout,
            row.transaction_start_time,
            Producer(row.producer_id, row.producer_epoch),
            frozenset(partition(topic.topic, index) for topic in row.topics for index in topic.partitions),
        )


def _producer(transactional_id: str, producer: Producer) -> dict[str, object]:
    return {
        "transactional_id": transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }


def _failure(code: int, request: str, transactional_id: str) -> KafkaError | None:
    where = f"{request} of {transactional_id!r}" if transactional_id else request
    return KafkaError(code, where=where) if code else None
