"""The requests that this client sends: their keys, and the versions that it has words for.

Where a request has both, it names topics and not topic ids: ids came late (Fetch 13, Produce 13, OffsetCommit 10), and
nothing here needs them. Lower bounds are what a broker of 2017 speaks (Kafka 0.11, the first with transactions).
"""

from __future__ import annotations

import enum
from typing import Final


class Api(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def label(self) -> str:
        """As Kafka's documentation writes it: ListOffsets."""
        return self.name.title().replace("_", "")


VERSIONS: Final[dict[Api, tuple[int, int]]] = {
    Api.PRODUCE: (3, 12),
    Api.FETCH: (4, 12),
    Api.LIST_OFFSETS: (2, 11),
    Api.METADATA: (4, 13),
    Api.OFFSET_COMMIT: (2, 9),
    Api.OFFSET_FETCH: (2, 9),
    Api.FIND_COORDINATOR: (0, 6),
    Api.SASL_HANDSHAKE: (1, 1),
    Api.API_VERSIONS: (0, 4),
    Api.CREATE_TOPICS: (2, 7),
    Api.INIT_PRODUCER_ID: (0, 5),
    Api.ADD_PARTITIONS_TO_TXN: (0, 3),
    Api.ADD_OFFSETS_TO_TXN: (0, 4),
    Api.END_TXN: (0, 5),
    Api.TXN_OFFSET_COMMIT: (0, 5),
    Api.DESCRIBE_CONFIGS: (1, 4),
    Api.SASL_AUTHENTICATE: (0, 2),
    Api.DESCRIBE_PRODUCERS: (0, 0),
    Api.DESCRIBE_TRANSACTIONS: (0, 0),
    Api.LIST_TRANSACTIONS: (0, 2),
}

TRANSACTIONS_1: Final = {Api.PRODUCE: 11, Api.END_TXN: 4, Api.TXN_OFFSET_COMMIT: 4}
"""The highest versions that mean a transaction of version 1: partitions are added by request, and only InitProducerId
raises the epoch. Above them a transaction is of version 2: the broker adds partitions as batches come, and every EndTxn
raises the epoch (KIP-890)."""
