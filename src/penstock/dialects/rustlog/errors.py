"""RustLog's error codes, and the table from the broker's faults to them.

Only the binary form has codes. The JSON form has texts, of which the document fixes the beginnings.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from penstock.dialects.rustlog.requests import Refusal
from penstock.model.errors import Fault


class Code(enum.IntEnum):
    INTERNAL = 1
    """Also for a frame whose length is wrong."""
    DECODE = 2
    FETCH = 4
    COMMIT = 5
    NO_PARTITION = 10
    TOPIC_EXISTS = 11
    PARTITION_COUNT = 12
    DESCRIBE_TOPIC = 13
    DESCRIBE_PARTITION = 14
    WRITE = 500


CODES: Mapping[Fault, Code | None] = MappingProxyType(
    {
        **dict.fromkeys(Fault),
        Fault.UNKNOWN_TOPIC_OR_PARTITION: Code.NO_PARTITION,
        Fault.INVALID_TOPIC: Code.NO_PARTITION,
        Fault.TOPIC_EXISTS: Code.TOPIC_EXISTS,
        Fault.INVALID_PARTITIONS: Code.PARTITION_COUNT,
        Fault.INVALID_REQUEST: Code.DECODE,
    }
)
"""None: the code that the kind of request has for its failures (`FETCH`, `COMMIT`, `WRITE`, or `INTERNAL`)."""

_FAILED: Mapping[Code, str] = MappingProxyType(
    {
        Code.INTERNAL: "Internal error",
        Code.FETCH: "Fetch failed",
        Code.COMMIT: "Offset commit failed",
        Code.WRITE: "Failed to write record",
    }
)

_NAME_CHARS_SHOWN = 300


def shown(name: str) -> str:
    """A name as error texts repeat it: a peer may send one of a frame's length."""
    return name if len(name) <= _NAME_CHARS_SHOWN else name[: _NAME_CHARS_SHOWN - 3] + "..."


def code_and_text(refusal: Refusal, topic: str, partition: int, failure: Code) -> tuple[Code, str]:
    """How the binary form says it; `failure` is the code of what the request wanted."""
    fault, text = refusal
    if fault is Fault.UNKNOWN_TOPIC_OR_PARTITION:
        return Code.NO_PARTITION, f"Topic or partition does not exist: topic={shown(topic)}, partition={partition}"
    if fault is Fault.TOPIC_EXISTS:
        return Code.TOPIC_EXISTS, f"Topic '{shown(topic)}' already exists"
    code = CODES[fault]
    if code is None:
        return failure, f"{_FAILED[failure]}: {text or fault.value}"
    return code, text or fault.value


def json_text(refusal: Refusal, topic: str, partition: int, failure: Code) -> str:
    """How the JSON form says it."""
    fault, text = refusal
    if fault is Fault.UNKNOWN_TOPIC_OR_PARTITION:
        return f"partition not found: topic={shown(topic)}, partition={partition}"
    if fault is Fault.OFFSET_OUT_OF_RANGE:
        return f"offset out of range: {text}"
    if CODES[fault] is not None:
        return text or fault.value
    return f"{_FAILED[failure].lower()}: {text or fault.value}"
