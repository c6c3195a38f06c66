"""The options of topics in a pipeline's file, checked by the same code that checks them when a query starts.

The names are those of Spark's Kafka connector, in any case of letters, and those that Penstock adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.model.topic_config import nearest
from penstock.spark.sink.options import SinkError, SinkOptions
from penstock.spark.source.errors import SourceError
from penstock.spark.source.options import KNOWN, parse_options

BOOTSTRAP: Final = "kafka.bootstrap.servers"
GROUP: Final = "kafka.group.id"
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
SOURCE: Final = tuple(name for name in KNOWN if name not in SUBSCRIPTIONS)
SINK: Final = ("includeHeaders",)
_OF_CONSUMERS: Final = frozenset({GROUP, "kafka.isolation.level", "kafka.fetch.max.bytes"}) | {
    "kafka.max.partition.fetch.bytes"
}


def problem_with_name(name: str, known: Iterable[str]) -> str | None:
    """What is wrong with an option of this name, or None."""
    lower = name.lower()
    spelt = {one.lower(): one for one in known}
    if lower.startswith("kafka.") or lower in spelt:
        return None
    if lower in {one.lower() for one in SUBSCRIPTIONS}:
        return f"{name} is not supported: use topic, topics or topic_pattern"
    near = nearest(lower, spelt)
    for one, written in spelt.items():
        near = near.replace(f" {one}?", f" {written}?")
    return f"unknown option {name}{near}"


def problem_with_source(options: Mapping[str, str]) -> str | None:
    """What a reader would say to these options, or None."""
    try:
        parse_options(options)
    except SourceError as error:
        return str(error)
    return None


def problem_with_sink(options: Mapping[str, str]) -> str | None:
    """What a writer would say to these options, or None."""
    try:
        from pyspark.sql.types import BinaryType, StructField, StructType
    except ModuleNotFoundError:
        return None  # a file can be checked where nothing could run it
    try:
        SinkOptions.of(options, StructType([StructField("value", BinaryType())]))
    except SinkError as error:
        return str(error)
    return None


def for_sink(options: Mapping[str, str]) -> dict[str, str]:
    """Of what is said for all topics, what a sink takes: how to reach the broker, and a producer's settings."""
    return {
        name: value
        for name, value in options.items()
        if name.lower().startswith("kafka.") and name.lower() not in _OF_CONSUMERS
    }


def has(options: Mapping[str, str], name: str) -> bool:
    return any(one.lower() == name.lower() for one in options)
