"""Streams that are asked for their offsets and read as Spark does, without Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.spark.source.range_reader import Task
from penstock.spark.source.schema import full_schema
from penstock.spark.source.stream import StreamSource
from penstock.spark.source.wire_reader import forget_connections
from tests.spark.made_topics import Cluster, options

ALL = ReadAllAvailable()
_streams: list[StreamSource] = []


def stream(broker: Cluster, **some: Any) -> StreamSource:
    """As in a process of its own."""
    source = StreamSource(options(broker, **some), full_schema(False))
    _streams.append(source)
    return source


def stop_streams() -> None:
    """Those of the test that ended."""
    while _streams:
        _streams.pop().stop()
    forget_connections()


def numbers(offset: dict[str, Any]) -> dict[str, dict[str, int]]:
    """An offset without the ids of topics."""
    return {name: {at: value for at, value in rows.items() if at != "id"} for name, rows in offset.items()}


def work(source: StreamSource, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    tasks = source.partitions(start, end)
    assert all(isinstance(task, Task) for task in tasks)
    return [(task.work.partition, task.work.start, task.work.end) for task in tasks if isinstance(task, Task)]


def keys(source: StreamSource, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        key for task in source.partitions(start, end) for batch in source.read(task) for key in batch["key"].to_pylist()
    ]
