"""Offsets of topics as JSON, in the shape that Spark's Kafka source has: {"orders": {"0": 42, "1": 7}}.

A stream also keeps the id of each topic, after its partitions: {"orders": {"0": 42, "id": "fWXVd8QiRAyQ1lJyJDDa0Q"}}. A
topic that was deleted and created again has a different id, and the old offsets are meaningless for it. Offsets of Spark's
Kafka source, of earlier versions and of clusters without topic ids have none.

Spark keeps a stream's offsets as text and takes two that differ by a byte for two offsets: what is made here is sorted, by
topic and by partition number.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.model.ids import TopicName, TopicPartition

Offsets = dict[TopicPartition, int]
TopicIds = dict[str, str]
OffsetJson = dict[str, dict[str, int | str]]

ID = "id"
"""The key of the topic id, next to the partitions."""

OFFSET_MAX = (1 << 63) - 1


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


def id_text(topic_id: uuid.UUID) -> str:
    """The id in the form of Kafka's tools and files."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def to_json(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None) -> OffsetJson:
    """Offsets as JSON, with the ids of the topics that have one."""
    shaped: OffsetJson = {}
    for where in sorted(offsets):
        shaped.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    for topic, partitions in shaped.items():
        if ids and topic in ids:
            partitions[ID] = ids[topic]
    return shaped


def of_json(shaped: object, lowest: int = 0) -> Offsets:
    """Offsets from JSON, without topic ids. Raises ValueError with the reason, also for numbers below `lowest`."""
    offsets: Offsets = {}
    for where, value in _entries(shaped):
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= OFFSET_MAX:
            raise ValueError(f"{where}: {json.dumps(value)} is not an offset")
        offsets[where] = value
    return offsets


def ids_of_json(shaped: Mapping[str, Mapping[str, object]]) -> TopicIds:
    """The ids of the topics that have one, for the same JSON as `of_json`."""
    return {topic: str(partitions[ID]) for topic, partitions in shaped.items() if ID in partitions}


def of_text(text: str, lowest: int = 0) -> Offsets:
    """As `of_json`, from the text of an option."""
    return of_json(_parsed(text), lowest)


def partitions_of_text(text: str) -> list[TopicPartition]:
    """{"orders": [0, 1]}: what the option assign holds."""
    parsed = _parsed(text)
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError('not of the form {"topic": [0, 1]}')
    places: set[TopicPartition] = set()
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic}: {json.dumps(numbers)} is not a list of partition numbers")
        places.update(place(topic, _number(number, topic)) for number in numbers)
    return sorted(places)


def shown(places: Iterable[TopicPartition]) -> str:
    """orders-0, orders-1: for people."""
    return ", ".join(str(where) for where in sorted(places))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def _entries(shaped: object) -> Iterable[tuple[TopicPartition, Any]]:
    if not isinstance(shaped, dict):
        raise ValueError('not of the form {"topic": {"0": 42}}')
    for topic, partitions in shaped.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'{topic}: not of the form {{"0": 42}}')
        for number, value in partitions.items():
            if number != ID:
                yield place(topic, _number(number, topic)), value
            elif not isinstance(value, str):
                raise ValueError(f"{topic}: {json.dumps(value)} is not a topic id")


def _number(value: object, topic: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or int(text) >= 1 << 31:
        raise ValueError(f"{topic}: {json.dumps(value)} is not a partition number")
    return int(text)
