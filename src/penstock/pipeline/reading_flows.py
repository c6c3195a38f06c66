"""Flows of a pipeline's file: where rows come from, where they go, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.pipeline import topic_options
from penstock.pipeline.declaration import (
    ConsoleSink,
    Delivery,
    Flow,
    Mode,
    Sink,
    TableSink,
    TopicSink,
    Trigger,
    Upsert,
)
from penstock.pipeline.keys import Keys, duration_ms
from penstock.pipeline.reading_sources import Shared, checked_options, checked_topic

MODES: Final = tuple(Mode)
_TRIGGERS: Final = {"once": "once", "available_now": "available_now", "availableNow": "available_now"}
_ROWS_SHOWN: Final = 20
_ROWS_SHOWN_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class FlowDefaults:
    """What the top of the file says for flows that say nothing."""

    trigger: Trigger
    delivery: Delivery
    checkpoint: str


def read_trigger(keys: Keys, default: Trigger) -> Trigger:
    found = keys.text("trigger", "once, available_now or an interval such as 10 seconds")
    if found is None:
        return default
    if found in _TRIGGERS:
        return Trigger(_TRIGGERS[found])
    interval_ms = duration_ms(found)
    if interval_ms is None:
        takes = "once, available_now or an interval such as 10 seconds"
        keys.problem(f"{keys.named('trigger')} = {found!r} is not {takes}", keys.line_of("trigger"))
        return default
    return Trigger("interval", interval_ms)


def read_delivery(keys: Keys, default: Delivery) -> Delivery:
    return Delivery(keys.choice("delivery", tuple(Delivery), default))


def read_flow(name: str, keys: Keys, shared: Shared, defaults: FlowDefaults) -> Flow | None:
    origin = keys.text("from", "a source or a transform", required=True)
    target = keys.section("to", required=True)
    mode = Mode(keys.choice("mode", MODES, Mode.APPEND))
    trigger = read_trigger(keys, defaults.trigger)
    delivery = read_delivery(keys, defaults.delivery)
    checkpoint = keys.text("checkpoint", "a directory")
    keys.done()
    if target is None:
        return None
    kind = target.only_one_of(("topic", "table", "console"), "a flow has exactly one target")
    sink: Sink | None = None
    if kind == "topic":
        sink = _topic_sink(target, shared)
    elif kind == "table":
        sink = _table_sink(target, shared, mode)
    elif kind == "console":
        sink = _console_sink(target)
        if keys.has("delivery") and delivery is Delivery.EXACTLY_ONCE:
            keys.problem(f"{keys.named('delivery')}: a console supports at_least_once only", keys.line_of("delivery"))
        delivery = Delivery.AT_LEAST_ONCE
    if origin is None or sink is None:
        return None
    place = f"{defaults.checkpoint}/{name}" if checkpoint is None else shared.place(checkpoint)
    return Flow(name, keys.line_of("from"), origin, sink, mode, trigger, delivery, place)


def _topic_sink(keys: Keys, shared: Shared) -> TopicSink:
    topic = keys.text("topic", "a topic name", required=True) or ""
    if topic:
        checked_topic(topic, keys, keys.line_of("topic"))
    layout = keys.choice("format", ("json", "raw"), "json")
    key = keys.text("key", "a SQL expression, such as a column")
    if key is not None and layout == "raw":
        keys.problem(f"{keys.named('key')}: raw rows already have a column key", keys.line_of("key"))
    before = keys.problems_so_far
    options = topic_options.for_sink(shared.topic_options) | checked_options(keys, "options", topic_options.SINK)
    keys.done()
    if not topic_options.has(options, topic_options.BOOTSTRAP):
        keys.problem(
            f"{keys.path}: no broker is set: set brokers at the top level, or options.{topic_options.BOOTSTRAP}"
        )
    elif (
        keys.problems_so_far == before
        and (wrong := topic_options.problem_with_sink({**options, "topic": topic or "none"})) is not None
    ):
        keys.problem(f"{keys.path}: {wrong}", keys.line_of("options"))
    return TopicSink(topic, key, layout, options)


def _table_sink(keys: Keys, shared: Shared, mode: Mode) -> TableSink:
    path = keys.text("table", "a path", required=True) or ""
    layout = keys.choice("format", ("parquet", "delta"), "parquet")
    partition_by = tuple(scalar.text for scalar in keys.texts("partition_by", "a column, or a list of them"))
    upsert = _upsert(keys)
    keys.done()
    if upsert is not None and layout != "delta":
        keys.problem(f"{keys.named('upsert')} requires format: delta", keys.line_of("upsert"))
    allowed = (Mode.APPEND,) if upsert is None else (Mode.APPEND, Mode.UPDATE)
    if mode not in allowed:
        hint = "; update requires format: delta and upsert" if mode is Mode.UPDATE else ""
        keys.problem(f"{keys.path}: a table requires mode append, not {mode}{hint}")
    return TableSink(shared.place(path), layout, partition_by, upsert)


def _upsert(keys: Keys) -> Upsert | None:
    inner = keys.section("upsert")
    if inner is None:
        return None
    key = tuple(scalar.text for scalar in inner.texts("key", "a column, or a list of them"))
    if not key:
        inner.problem(f"{inner.named('key')} is required: the columns that identify a row")
    order_by = inner.text("order_by", "a column; the row with the highest value wins")
    delete_when = inner.text("delete_when", "a SQL condition")
    inner.done()
    return Upsert(key, order_by, delete_when)


def _console_sink(keys: Keys) -> ConsoleSink:
    """`console: true`, or `console: {rows: 5}`."""
    inner = None if keys.text_is("console", "true") else keys.section("console")
    rows_max = _ROWS_SHOWN if inner is None else inner.whole("rows", _ROWS_SHOWN, 1, _ROWS_SHOWN_MAX)
    if inner is not None:
        inner.done()
    keys.done()
    return ConsoleSink(rows_max)
