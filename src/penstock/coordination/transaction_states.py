"""The state of one transactional id, the statuses it goes through, and which may follow which.

Everything is in the state, and every record of `__transaction_state` holds a whole one: the last record of an id says all
there is to know, so log cleaning takes nothing away.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from penstock.model.ids import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 2**15 - 1
"""Only ever on markers and inside the coordinator: clients get epochs below, so there is one left to fence the last."""


class Status(enum.IntEnum):
    """Kafka's numbers, as they are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """The name that Kafka's tools show and filter by."""
        return _TITLE_OF[self]


_TITLE_OF = {status: "".join(word.capitalize() for word in status.name.split("_")) for status in Status}
TITLES = frozenset(_TITLE_OF.values())

_AT_REST = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
_PREPARED = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})

NEXT_STATUSES: dict[Status, frozenset[Status]] = {
    Status.EMPTY: frozenset({Status.EMPTY, Status.ONGOING, Status.PREPARE_ABORT, Status.DEAD}),
    Status.ONGOING: frozenset({Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT}),
    Status.PREPARE_COMMIT: frozenset({Status.COMPLETE_COMMIT}),
    Status.PREPARE_ABORT: frozenset({Status.COMPLETE_ABORT}),
    Status.COMPLETE_COMMIT: frozenset({Status.EMPTY, Status.ONGOING, Status.PREPARE_ABORT, Status.DEAD}),
    Status.COMPLETE_ABORT: frozenset({Status.EMPTY, Status.ONGOING, Status.PREPARE_ABORT, Status.DEAD}),
    Status.DEAD: frozenset({Status.EMPTY}),
}
"""DEAD is an id that nobody knows: not seen yet, or expired. At rest, an abort without a transaction raises the epoch
(KIP-890)."""


class Identity(NamedTuple):
    """What a client shows to prove that it is the one."""

    producer_id: int
    producer_epoch: int


class TransactionState(NamedTuple):
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIME
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    """The id before the current one, when epochs had run out."""
    next_producer_id: int = NO_PRODUCER_ID
    """While prepared: the id that the client has been given, because the epochs of this one have run out."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the current one if its owner is the same client, who may repeat a request with it."""
    transaction_version: int = 0
    """2 if the epoch was raised when the transaction ended, so that its markers are newer than its records."""

    @property
    def at_rest(self) -> bool:
        return self.status in _AT_REST

    @property
    def prepared(self) -> bool:
        return self.status in _PREPARED

    @property
    def epochs_run_out(self) -> bool:
        return self.producer_epoch >= EPOCH_MAX - 1

    @property
    def identity(self) -> Identity:
        """Who the client is from now on; while prepared this may be the next id already."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Identity(self.next_producer_id, 0)
        return Identity(self.producer_id, self.producer_epoch)

    @property
    def last_identity(self) -> Identity | None:
        """Who the same client was before its epoch was raised: a request of that name is a repeated one."""
        if self.last_producer_epoch == NO_EPOCH:
            return None
        if self.producer_epoch == 0 and self.previous_producer_id != NO_PRODUCER_ID:
            return Identity(self.previous_producer_id, self.last_producer_epoch)
        return Identity(self.producer_id, self.last_producer_epoch)
