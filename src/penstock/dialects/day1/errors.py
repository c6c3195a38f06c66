"""What Day1 says of each fault: it has no codes, only texts, and a word in front that tells where it failed."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.errors import Fault

_NO_LOG = frozenset(
    {
        Fault.UNKNOWN_TOPIC_OR_PARTITION,
        Fault.UNKNOWN_TOPIC_ID,
        Fault.INCONSISTENT_TOPIC_ID,
        Fault.TOPIC_EXISTS,
        Fault.INVALID_TOPIC,
        Fault.INVALID_PARTITIONS,
        Fault.INVALID_REPLICATION_FACTOR,
        Fault.INVALID_REPLICA_ASSIGNMENT,
        Fault.INVALID_CONFIG,
        Fault.NOT_LEADER,
        Fault.LEADER_NOT_AVAILABLE,
        Fault.TOPIC_AUTHORIZATION_FAILED,
        Fault.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""There is no log to use: mini-kafka tells that bare, as the failure to open its file."""

_FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)

PRODUCE_PREFIXES: Mapping[Fault, str] = {fault: "" if fault in _NO_LOG else "append error: " for fault in _FAULTS}
FETCH_PREFIXES: Mapping[Fault, str] = {fault: "" if fault in _NO_LOG else "fetch error: " for fault in _FAULTS}


def produce_error(fault: Fault, text: str) -> str:
    return PRODUCE_PREFIXES[fault] + (text or fault.value)


def fetch_error(fault: Fault, text: str = "") -> str:
    return FETCH_PREFIXES[fault] + (text or fault.value)
