"""What a pipeline's file declares, as plain values. Everything here was checked by `reading` and `graph`.

Paths are absolute or URLs. `line` is where the thing stands in the file, for what only Spark can find wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from penstock.pipeline.fields import Field


class BadRows(StrEnum):
    """What becomes of rows that do not parse or that a check refuses."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTERS = "dead_letters"


class Delivery(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class Mode(StrEnum):
    """Spark's output modes."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str
    line: int


@dataclass(frozen=True, slots=True)
class Check:
    """Rows for which the condition is not true are refused; the name is the reason."""

    name: str
    condition: str
    line: int


@dataclass(frozen=True, slots=True)
class RowRules:
    """What every source and transform can say of its rows."""

    watermark: Watermark | None = None
    checks: tuple[Check, ...] = ()
    bad_rows: BadRows = BadRows.FAIL
    dead_letters: str | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How bytes become columns: json and csv into the columns of a schema, string and binary into one."""

    format: str = "binary"
    fields: tuple[Field, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicSource:
    name: str
    line: int
    is_stream: bool
    options: Mapping[str, str]
    """With the broker and what to subscribe to, by the names of Spark's Kafka source."""
    value: Decoding
    key: str
    rules: RowRules


@dataclass(frozen=True, slots=True)
class TableSource:
    name: str
    line: int
    is_stream: bool
    path: str
    format: str
    options: Mapping[str, str]
    rules: RowRules


@dataclass(frozen=True, slots=True)
class FileSource:
    name: str
    line: int
    is_stream: bool
    path: str
    format: str
    fields: tuple[Field, ...]
    options: Mapping[str, str]
    rules: RowRules


Source = TopicSource | TableSource | FileSource


@dataclass(frozen=True, slots=True)
class SqlTransform:
    name: str
    line: int
    sql: str
    sql_line: int
    """Of the first line of the query."""
    is_block: bool
    """Whether the lines of the query are lines of the file."""
    inputs: tuple[str, ...]
    rules: RowRules


@dataclass(frozen=True, slots=True)
class PythonTransform:
    name: str
    line: int
    function: str
    """module:function"""
    inputs: tuple[str, ...]
    arguments: Mapping[str, Any]
    rules: RowRules


Transform = SqlTransform | PythonTransform


@dataclass(frozen=True, slots=True)
class TopicSink:
    topic: str
    key: str | None
    """A SQL expression."""
    format: str
    """json: an object of all columns. raw: the column value, and key, headers, partition if there are such."""
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows replace rows with the same key; of several the one with the highest `order_by` column stays."""

    key: tuple[str, ...]
    order_by: str | None
    delete_when: str | None


@dataclass(frozen=True, slots=True)
class TableSink:
    path: str
    format: str
    partition_by: tuple[str, ...]
    upsert: Upsert | None


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    rows_max: int


Sink = TopicSink | TableSink | ConsoleSink


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch begins: at an interval (0: as soon as the last ended), or only for what is there at the start."""

    kind: str = "interval"
    """interval, once or available_now"""
    interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a flow that failed is started again; a batch that succeeds begins the count anew."""

    max: int = 5
    backoff_ms: int = 1_000
    backoff_ms_max: int = 60_000

    def wait_ms(self, failures: int) -> int:
        """How long to wait after so many failures in a row: twice as long each time."""
        return min(self.backoff_ms_max, self.backoff_ms << min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    line: int
    origin: str
    """The source or transform whose rows it writes."""
    sink: Sink
    mode: Mode
    trigger: Trigger
    delivery: Delivery
    checkpoint: str


@dataclass(frozen=True, slots=True)
class DeadLetterFlow:
    """The refused rows of a source or transform on their way to its dead-letter topic: a query of its own."""

    name: str
    line: int
    origin: str
    topic: str
    options: Mapping[str, str]
    trigger: Trigger
    delivery: Delivery
    checkpoint: str


AnyFlow = Flow | DeadLetterFlow


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    file: Path
    master: str
    settings: Mapping[str, str]
    restarts: Restarts
    sources: Mapping[str, Source]
    transforms: Mapping[str, Transform]
    flows: Mapping[str, AnyFlow]

    def origin(self, name: str) -> Source | Transform:
        return self.sources[name] if name in self.sources else self.transforms[name]

    def upstream(self, name: str) -> list[Source | Transform]:
        """What the rows of `name` are made of and itself, inputs before who reads them."""
        order: dict[str, Source | Transform] = {}

        def visit(one: str) -> None:
            if one in order:
                return
            found = self.origin(one)
            if isinstance(found, SqlTransform | PythonTransform):
                for name in found.inputs:
                    visit(name)
            order[one] = found

        visit(name)
        return list(order.values())
