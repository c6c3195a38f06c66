"""A thin synchronous Kafka client: batches in, batches out, with any broker that speaks Kafka's protocol.

It hands over and takes whole record batches as bytes; `penstock.records` builds and reads them. There is no consumer group
and no background thread: who calls knows which partitions and offsets are wanted. Each request goes to the broker that has
to answer it, and again when that broker changed, restarted or was slow. Whatever goes wrong is a `KafkaError` with
Kafka's own name of it.

    with KafkaClient("127.0.0.1:9092") as client:
        for place, fetched in client.fetch({("orders", 0): 0}).items():
            for batch in whole_batches(fetched.records): ...

A client is for one thread and one process; `KafkaSettings` can be pickled and sent to others.
"""

from __future__ import annotations

from penstock.client.kafka_cluster import ClusterInfo, Isolation, PartitionInfo, TopicInfo
from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_groups import GroupOffset, GroupRequests
from penstock.client.kafka_partitions import (
    EARLIEST,
    LATEST,
    AbortedTransaction,
    Call,
    Fetched,
    ListedOffset,
    Produced,
    ProducerState,
)
from penstock.client.kafka_settings import KafkaSettings, Sasl, Tls
from penstock.client.kafka_topics import ConfigEntry, ConfigKind, TopicRequests
from penstock.client.kafka_transactions import Producer, Transaction, TransactionListing, TransactionRequests

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortedTransaction",
    "Call",
    "ClusterInfo",
    "ConfigEntry",
    "ConfigKind",
    "Fetched",
    "GroupOffset",
    "Isolation",
    "KafkaClient",
    "KafkaError",
    "KafkaSettings",
    "ListedOffset",
    "PartitionInfo",
    "Produced",
    "Producer",
    "ProducerState",
    "Sasl",
    "Tls",
    "TopicInfo",
    "Transaction",
    "TransactionListing",
]


class KafkaClient(TransactionRequests, GroupRequests, TopicRequests):
    """Every request of this client; `with` closes its connections."""
