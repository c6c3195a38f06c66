"""The APIs of the Kafka protocol that this dialect knows: their versions, and which header a version has.

A row says what can be spoken, not what is: the set that ApiVersions advertises is made of the rows that have a handler,
so nothing is announced that does not exist. Ranges are contiguous and wide because clients have gaps in theirs: aiokafka
knows JoinGroup 0, 1, 2 and 5, librdkafka exactly version 2 of OffsetForLeaderEpoch.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Api(NamedTuple):
    key: ApiKey
    name: str
    version_min: int
    version_max: int
    advertised_min: int
    """Lower than `version_min` where clients read more from the range than what they send."""
    first_flexible: int | None


class Advertised(NamedTuple):
    """One entry of the ApiVersions answer."""

    key: int
    version_min: int
    version_max: int


def _table() -> dict[int, Api]:
    k = ApiKey
    rows: tuple[tuple[ApiKey, str, int, int, int | None], ...] = (
        (k.PRODUCE, "Produce", 3, 13, 9),
        (k.FETCH, "Fetch", 4, 18, 12),
        (k.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
        (k.METADATA, "Metadata", 0, 13, 9),
        (k.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8),
        (k.OFFSET_FETCH, "OffsetFetch", 1, 10, 6),
        (k.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
        (k.JOIN_GROUP, "JoinGroup", 0, 9, 6),
        (k.HEARTBEAT, "Heartbeat", 0, 4, 4),
        (k.LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
        (k.SYNC_GROUP, "SyncGroup", 0, 5, 4),
        (k.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
        (k.LIST_GROUPS, "ListGroups", 0, 5, 3),
        (k.SASL_HANDSHAKE, "SaslHandshake", 0, 1, None),
        (k.API_VERSIONS, "ApiVersions", 0, 4, 3),
        (k.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
        (k.DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
        (k.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
        (k.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
        (k.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
        (k.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3),
        (k.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3),
        (k.END_TXN, "EndTxn", 0, 5, 3),
        (k.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1),
        (k.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3),
        (k.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
        (k.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
        (k.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2),
        (k.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
        (k.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
        (k.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
        (k.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
        (k.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        (k.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0),
        (k.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
        (k.OFFSET_DELETE, "OffsetDelete", 0, 0, None),
        (k.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
        (k.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
        (k.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
        (k.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
        (k.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0),
        (k.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0),
        (k.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0),
        (k.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
    )
    # librdkafka before 2.11 takes a Produce range that starts at 3 as "no compression" (KAFKA-18659).
    advertised_min = {k.PRODUCE: 0}
    return {
        int(key): Api(key, name, low, high, advertised_min.get(key, low), flexible)
        for key, name, low, high, flexible in rows
    }


APIS = _table()

NEVER = 1 << 15
"""A version that no request has."""
FIRST_FLEXIBLE = {key: NEVER if api.first_flexible is None else api.first_flexible for key, api in APIS.items()}


def api_name(key: int) -> str:
    """For log lines; a key that is not known has its number."""
    api = APIS.get(key)
    return f"api key {key}" if api is None else api.name


def is_served(key: int, version: int) -> bool:
    """Whether the codecs of this dialect speak that version; whether it has a handler is the session's to know."""
    api = APIS.get(key)
    return api is not None and api.version_min <= version <= api.version_max


def is_flexible(key: int, version: int) -> bool:
    """Whether the request has header version 2 and its body compact types; false for a key that is not known."""
    return version >= FIRST_FLEXIBLE.get(key, NEVER)


def answer_header_is_flexible(key: int, version: int) -> bool:
    """Whether the answer's header ends with a tag buffer: never that of ApiVersions, whose reader does not know yet
    what the broker speaks (KIP-511)."""
    return key != ApiKey.API_VERSIONS and version >= FIRST_FLEXIBLE.get(key, NEVER)


def advertised(handled: Collection[int]) -> tuple[Advertised, ...]:
    """What ApiVersions announces when there are handlers for the keys `handled`; a KeyError if one is not known."""
    rows = (APIS[key] for key in sorted(handled))
    return tuple(Advertised(int(api.key), api.advertised_min, api.version_max) for api in rows)
