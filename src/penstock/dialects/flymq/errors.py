"""What goes wrong, in FlyMQ's forms: Kafka's numbers in the API-key frames, one number and a text in the opcode frames."""

from __future__ import annotations

from typing import Final

from penstock.dialects.flymq.wire import I32, string
from penstock.model.errors import BrokerError, Fault

OPCODE_ERROR_CODE: Final = 1
"""The original has no other; its clients look at the text."""

CODES: Final[dict[Fault, int]] = {
    Fault.NONE: 0,
    Fault.UNKNOWN: -1,
    Fault.UNKNOWN_TOPIC_OR_PARTITION: 3,
    Fault.UNKNOWN_TOPIC_ID: 100,
    Fault.INCONSISTENT_TOPIC_ID: 103,
    Fault.TOPIC_EXISTS: 36,
    Fault.INVALID_TOPIC: 17,
    Fault.INVALID_PARTITIONS: 37,
    Fault.INVALID_REPLICATION_FACTOR: 38,
    Fault.INVALID_REPLICA_ASSIGNMENT: 39,
    Fault.INVALID_CONFIG: 40,
    Fault.TOPIC_DELETION_DISABLED: 73,
    Fault.NOT_LEADER: 6,
    Fault.LEADER_NOT_AVAILABLE: 5,
    Fault.FENCED_LEADER_EPOCH: 74,
    Fault.UNKNOWN_LEADER_EPOCH: 75,
    Fault.ELECTION_NOT_NEEDED: 84,
    Fault.NO_REASSIGNMENT_IN_PROGRESS: 85,
    Fault.OFFSET_OUT_OF_RANGE: 1,
    Fault.CORRUPT_MESSAGE: 2,
    Fault.MESSAGE_TOO_LARGE: 10,
    Fault.INVALID_RECORD: 87,
    Fault.INVALID_TIMESTAMP: 32,
    Fault.UNSUPPORTED_COMPRESSION_TYPE: 76,
    Fault.UNSUPPORTED_FOR_MESSAGE_FORMAT: 43,
    Fault.INVALID_REQUIRED_ACKS: 21,
    Fault.NOT_ENOUGH_REPLICAS: 19,
    Fault.STORAGE_ERROR: 56,
    Fault.OUT_OF_ORDER_SEQUENCE: 45,
    Fault.DUPLICATE_SEQUENCE: 46,
    Fault.UNKNOWN_PRODUCER_ID: 59,
    Fault.INVALID_PRODUCER_EPOCH: 47,
    Fault.PRODUCER_FENCED: 90,
    Fault.INVALID_TXN_STATE: 48,
    Fault.INVALID_PRODUCER_ID_MAPPING: 49,
    Fault.INVALID_TRANSACTION_TIMEOUT: 50,
    Fault.CONCURRENT_TRANSACTIONS: 51,
    Fault.TRANSACTION_COORDINATOR_FENCED: 52,
    Fault.TRANSACTIONAL_ID_NOT_FOUND: 105,
    Fault.TRANSACTION_ABORTABLE: 120,
    Fault.COORDINATOR_LOADING: 14,
    Fault.COORDINATOR_NOT_AVAILABLE: 15,
    Fault.NOT_COORDINATOR: 16,
    Fault.INVALID_GROUP_ID: 24,
    Fault.GROUP_ID_NOT_FOUND: 69,
    Fault.NON_EMPTY_GROUP: 68,
    Fault.GROUP_SUBSCRIBED_TO_TOPIC: 86,
    Fault.GROUP_MAX_SIZE_REACHED: 81,
    Fault.UNKNOWN_MEMBER_ID: 25,
    Fault.MEMBER_ID_REQUIRED: 79,
    Fault.FENCED_INSTANCE_ID: 82,
    Fault.ILLEGAL_GENERATION: 22,
    Fault.INCONSISTENT_GROUP_PROTOCOL: 23,
    Fault.REBALANCE_IN_PROGRESS: 27,
    Fault.INVALID_SESSION_TIMEOUT: 26,
    Fault.INVALID_COMMIT_OFFSET_SIZE: 28,
    Fault.OFFSET_METADATA_TOO_LARGE: 12,
    Fault.FENCED_MEMBER_EPOCH: 110,
    Fault.STALE_MEMBER_EPOCH: 113,
    Fault.UNRELEASED_INSTANCE_ID: 111,
    Fault.UNSUPPORTED_ASSIGNOR: 112,
    Fault.INVALID_REGULAR_EXPRESSION: 128,
    Fault.INVALID_REQUEST: 42,
    Fault.UNSUPPORTED_VERSION: 35,
    Fault.REQUEST_TIMED_OUT: 7,
    Fault.POLICY_VIOLATION: 44,
    Fault.RESOURCE_NOT_FOUND: 91,
    Fault.TOPIC_AUTHORIZATION_FAILED: 29,
    Fault.GROUP_AUTHORIZATION_FAILED: 30,
    Fault.CLUSTER_AUTHORIZATION_FAILED: 31,
    Fault.SECURITY_DISABLED: 54,
}


def coded(text: str) -> bytes:
    """The payload of an error answer to an opcode frame; every client of the original reads this one of its forms."""
    return I32.pack(OPCODE_ERROR_CODE) + string(text)


def checked(fault: Fault, text: str = "") -> None:
    if fault is not Fault.NONE:
        raise BrokerError(fault, text)


def check_group(name: str) -> str:
    """Group names of all dialects: 1 to 255 bytes of UTF-8 without control characters."""
    if not 0 < len(name.encode()) <= GROUP_BYTES_MAX:
        raise BrokerError(Fault.INVALID_GROUP_ID, f"a group name has 1 to {GROUP_BYTES_MAX} bytes")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in name):
        raise BrokerError(Fault.INVALID_GROUP_ID, "a group name has no control characters")
    return name


GROUP_BYTES_MAX: Final = 255
