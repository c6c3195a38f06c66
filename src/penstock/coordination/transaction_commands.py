"""What the transaction coordinator is asked, what it answers, and what it wants done: plain values, no behaviour.

Faults are in the results; nothing is raised for what a client may do wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.coordination.transaction_records import TransactionRecord
from penstock.coordination.transaction_states import NO_EPOCH, NO_PRODUCER_ID, TITLES, Identity, TransactionState
from penstock.model import limits
from penstock.model.errors import Fault
from penstock.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's broker settings for transactions, with its defaults, and two bounds that it does not have."""

    transaction_timeout_ms_max: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    expiration_check_interval_ms: int = 3_600_000
    transactional_ids_max: int = 1_000_000
    """Idle ids expire by time; this bounds a client that takes a new one each time."""
    record_bytes_max: int = 1_000_000
    """The partitions of a transaction have to fit one record of the internal topic (its max.message.bytes is 1 MB)."""
    partitions_max: int = limits.TRANSACTION_PARTITIONS_MAX


# ---------------------------------------------------------------------------------------------------------- commands


class InitProducerId(NamedTuple):
    transactional_id: str | None
    """None for a producer that is idempotent only."""
    timeout_ms: int
    expected: Identity | None = None
    """Who the client is already (version 3 and later): it goes on after an error, and must not have been replaced."""


class AddPartitions(NamedTuple):
    """Also what an AddOffsetsToTxn is (with the group's partition of `__consumer_offsets`), and what a Produce or a
    TxnOffsetCommit of transaction version 2 does by itself."""

    transactional_id: str
    identity: Identity
    partitions: frozenset[TopicPartition]


class VerifyPartitions(NamedTuple):
    """Do these belong to the ongoing transaction? Asked before a partition lets a transaction begin."""

    transactional_id: str
    identity: Identity
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    transactional_id: str
    identity: Identity
    commit: bool
    raises_epoch: bool
    """EndTxn 5 and later: transaction version 2."""


class MarkersWritten(NamedTuple):
    """All markers of a `WriteMarkers` are flushed, or their partitions are gone for good."""

    transactional_id: str
    identity: Identity
    """That of the markers."""


class DescribeTransaction(NamedTuple):
    transactional_id: str


class ListTransactions(NamedTuple):
    producer_ids: frozenset[int] = frozenset()
    """Empty for all."""
    statuses: frozenset[str] = frozenset()
    """Titles; empty for all."""
    running_longer_than_ms: int = -1
    matches: Callable[[str], bool] | None = None
    """On the transactional id."""
    names: tuple[str, ...] | None = None
    """Values to restrict the answer to; None for all."""

    @property
    def unknown_statuses(self) -> tuple[str, ...]:
        return tuple(sorted(self.statuses - TITLES))


Command = (
    InitProducerId
    | AddPartitions
    | VerifyPartitions
    | EndTransaction
    | MarkersWritten
    | DescribeTransaction
    | ListTransactions
)

# ----------------------------------------------------------------------------------------------------------- answers


class ProducerResult(NamedTuple):
    """Of InitProducerId and EndTransaction: who the client is from now on."""

    fault: Fault
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class PartitionsResult(NamedTuple):
    """Of AddPartitions (all or none) and VerifyPartitions."""

    fault: Fault
    strangers: frozenset[TopicPartition] = frozenset()
    """The asked partitions that are not in the transaction: TRANSACTION_ABORTABLE, or INVALID_TXN_STATE for clients that
    do not know it."""


class Description(NamedTuple):
    fault: Fault
    transactional_id: str
    state: TransactionState | None = None


class TransactionList(NamedTuple):
    unknown_statuses: tuple[str, ...]
    transactions: tuple[tuple[str, TransactionState], ...]


Answer = ProducerResult | PartitionsResult | Description | TransactionList | Fault

# ----------------------------------------------------------------------------------------------------------- effects


class WriteMarkers(NamedTuple):
    """Append an end marker to each partition, however often it takes, then send `MarkersWritten`."""

    transactional_id: str
    identity: Identity
    coordinator_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int
    """For `ProducerTable.check_marker`, which knows from 2 on that a marker was written before."""


class Outcome(NamedTuple):
    """What a command led to.

    1. `records` have been replayed already and must be appended to the shard's log, in this order, in one batch. If that
       fails, the shard is unloaded: its state is ahead of its log.
    2. `answer` leaves when all records made so far are flushed, and
    3. `effects` begin then: a marker must not be in a log before the decision is safe."""

    records: list[TransactionRecord]
    answer: Answer
    effects: list[WriteMarkers]
