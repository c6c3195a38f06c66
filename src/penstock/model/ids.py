"""Names and ids: what a topic and a group may be called, and which partition is meant."""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple, NewType

from penstock.model.errors import BrokerError, Fault

TopicName = NewType("TopicName", str)

TOPIC_NAME_CHARS_MAX = 249
"""Kafka's bound: with "-" and a partition number the directory name stays below 255 bytes."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,%d}" % TOPIC_NAME_CHARS_MAX)

GROUP_NAME_BYTES_MAX = 255
"""Of the groups that the smaller dialects name. Kafka's clients may call theirs anything."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

ZERO_ID = uuid.UUID(int=0)
_RESERVED_IDS = frozenset({ZERO_ID, uuid.UUID(int=1)})
"""Kafka reserves 0 (no id) and 1 (the metadata log)."""


class TopicPartition(NamedTuple):
    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def topic_name(text: str) -> TopicName:
    """The name, if it follows Kafka's grammar; checked before any path is made of it."""
    if _TOPIC_NAME.fullmatch(text) is None or text in (".", ".."):
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise BrokerError(
            Fault.INVALID_TOPIC,
            f"topic name {shown!r} is not 1 to {TOPIC_NAME_CHARS_MAX} characters of A-Z a-z 0-9 . _ - "
            'other than "." and ".."',
        )
    return TopicName(text)


def is_group_name(text: str) -> bool:
    """Whether a group of the smaller dialects may be called so: UTF-8 of a bounded length, no control characters."""
    return 0 < len(text.encode()) <= GROUP_NAME_BYTES_MAX and _CONTROL.search(text) is None


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def new_topic_id() -> uuid.UUID:
    while True:
        topic_id = uuid.uuid4()
        if topic_id not in _RESERVED_IDS:
            return topic_id
