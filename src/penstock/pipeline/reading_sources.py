"""Sources and transforms of a pipeline's file: from keys to declarations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.model.errors import BrokerError
from penstock.model.ids import topic_name
from penstock.pipeline import topic_options
from penstock.pipeline.declaration import (
    BadRows,
    Check,
    Decoding,
    FileSource,
    PythonTransform,
    RowRules,
    Source,
    SqlTransform,
    TableSource,
    TopicSource,
    Transform,
    Watermark,
)
from penstock.pipeline.fields import Field, InvalidSchema, parse_fields, parse_type
from penstock.pipeline.keys import Keys, duration_ms
from penstock.pipeline.sql_names import InvalidSql, view_names
from penstock.pipeline.tree import Scalar, Section, value_of

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What a view can be called in SQL without quotes."""

_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TOPIC_KINDS: Final = ("topic", "topics", "topic_pattern")
_KINDS: Final = (*_TOPIC_KINDS, "table", "files")
_OURS: Final = frozenset({"mode", "columnnameofcorruptrecord"})
"""Options of Spark's readers that decide what becomes of bad rows."""
READS: Final = ("stream", "static")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the top of the file says for all below it."""

    folder: Path
    topic_options: Mapping[str, str]

    def place(self, path: str) -> str:
        """A path as Spark takes it: relative ones are relative to the file, URLs stay."""
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
            return path
        return str((self.folder / Path(path).expanduser()).absolute())


def read_source(name: str, keys: Keys, shared: Shared) -> Source | None:
    kind = keys.only_one_of(_KINDS, "a source is one or more topics, a table, or files")
    if kind is None:
        return None
    if kind in _TOPIC_KINDS:
        return _topic_source(name, kind, keys, shared)
    if kind == "table":
        return _table_source(name, keys, shared)
    return _file_source(name, keys, shared)


def _topic_source(name: str, kind: str, keys: Keys, shared: Shared) -> TopicSource:
    is_stream = keys.choice("read", READS, "stream") == "stream"
    options = dict(shared.topic_options)
    before = keys.problems_so_far
    options.update(checked_options(keys, "options", topic_options.SOURCE))
    if kind == "topic_pattern":
        options["subscribePattern"] = keys.text(kind, "a regular expression") or "none"
    else:
        topics = keys.texts(kind, "a topic name or a list of topic names")
        for topic in topics:
            checked_topic(topic.text, keys, topic.line)
        if not topics:
            keys.problem(f"{keys.named(kind)} is empty", keys.line_of(kind))
        options["subscribe"] = ",".join(topic.text for topic in topics)
    sound = keys.problems_so_far == before
    if not topic_options.has(options, topic_options.BOOTSTRAP):
        keys.problem(
            f"{keys.path}: no broker is set: set brokers at the top level, or options.{topic_options.BOOTSTRAP}"
        )
    elif sound and (wrong := topic_options.problem_with_source(options)) is not None:
        keys.problem(f"{keys.path}: {wrong}", keys.line_of(kind if "subscribe" in wrong else "options"))
    value = _decoding(keys)
    key = keys.choice("key", ("string", "binary"), "binary")
    rules = read_rules(keys)
    keys.done()
    return TopicSource(name, keys.line, is_stream, options, value, key, rules)


def checked_topic(name: str, keys: Keys, line: int) -> None:
    try:
        topic_name(name)
    except BrokerError as error:
        keys.problem(f"{keys.path}: {error.text}", line)


def _decoding(keys: Keys) -> Decoding:
    """`value: string`, or a mapping with format, schema and options."""
    node = keys.node("value")
    if not isinstance(node, Section):
        plain = keys.choice("value", ("string", "binary", "json", "csv"), "binary")
        if plain in ("json", "csv"):
            keys.problem(f"{keys.named('value')}: {plain} requires a schema: use a mapping with format and schema")
        return Decoding(plain)
    inner = keys.section("value")
    assert inner is not None
    layout = inner.choice("format", ("json", "csv", "string", "binary"), "json")
    fields: tuple[Field, ...] = ()
    options: dict[str, str] = {}
    if layout in ("json", "csv"):
        fields = read_fields(inner, required=True)
        options = reader_options(inner)
    inner.done()
    return Decoding(layout, fields, options)


def read_fields(keys: Keys, *, required: bool) -> tuple[Field, ...]:
    """`schema`, as a text or as a mapping of names to types."""
    node = keys.node("schema")
    if isinstance(node, Scalar):
        try:
            return parse_fields(node.text)
        except InvalidSchema as error:
            keys.problem(f"{keys.named('schema')}: {error}", node.first_line + error.line)
            return ()
    inner = keys.section("schema", required=required)
    if inner is None:
        return ()
    fields = []
    for name in inner.names():
        written = inner.text(name, "a type", required=True)
        try:
            if written is not None:
                fields.append(Field(name, *parse_type(written)))
        except InvalidSchema as error:
            keys.problem(f"{inner.named(name)}: {error}", inner.line_of(name))
    return tuple(fields)


def reader_options(keys: Keys) -> dict[str, str]:
    """Options that go to Spark's json, csv or parquet reader as they are."""
    options = keys.plain("options")
    for name, scalar in options.items():
        if name.lower() in _OURS:
            keys.problem(f"{keys.path}.options.{name} cannot be set: use bad_rows or dead_letters", scalar.line)
    return {name: scalar.text for name, scalar in options.items()}


def checked_options(keys: Keys, key: str, known: tuple[str, ...]) -> dict[str, str]:
    options = keys.plain(key)
    for name, scalar in options.items():
        wrong = topic_options.problem_with_name(name, known)
        if wrong is not None:
            keys.problem(f"{keys.named(key)}: {wrong}", scalar.line)
    return {name: scalar.text for name, scalar in options.items()}


def _table_source(name: str, keys: Keys, shared: Shared) -> TableSource:
    path = keys.text("table", "a path", required=True) or ""
    layout = keys.choice("format", ("parquet", "delta"), "parquet")
    is_stream = keys.choice("read", READS, "static") == "stream"
    if is_stream and layout == "delta":
        keys.problem(
            f"{keys.path}: a delta table can only be read static; use parquet for a stream", keys.line_of("read")
        )
    options = reader_options(keys)
    rules = read_rules(keys)
    keys.done()
    return TableSource(name, keys.line, is_stream, shared.place(path), layout, options, rules)


def _file_source(name: str, keys: Keys, shared: Shared) -> FileSource:
    path = keys.text("files", "a directory or a file pattern", required=True) or ""
    layout = keys.choice("format", ("json", "csv", "parquet"), "json")
    is_stream = keys.choice("read", READS, "stream") == "stream"
    fields = read_fields(keys, required=layout != "parquet" or is_stream)
    options = reader_options(keys)
    rules = read_rules(keys)
    keys.done()
    return FileSource(name, keys.line, is_stream, shared.place(path), layout, fields, options, rules)


def read_rules(keys: Keys) -> RowRules:
    """Watermark, checks, and what becomes of bad rows."""
    dead_letters = keys.text("dead_letters", "a topic name")
    if dead_letters is not None:
        checked_topic(dead_letters, keys, keys.line_of("dead_letters"))
    if keys.has("bad_rows") and dead_letters is not None:
        keys.problem(f"{keys.path}: dead_letters cannot be combined with bad_rows", keys.line_of("bad_rows"))
    bad_rows = BadRows(keys.choice("bad_rows", ("fail", "skip"), "fail"))
    return RowRules(
        _watermark(keys),
        tuple(Check(name, scalar.text, scalar.line) for name, scalar in keys.plain("checks").items()),
        bad_rows if dead_letters is None else BadRows.DEAD_LETTERS,
        dead_letters,
    )


def _watermark(keys: Keys) -> Watermark | None:
    inner = keys.section("watermark")
    if inner is None:
        return None
    column = inner.text("column", "the column with the event time", required=True)
    delay = inner.text("delay", "the maximum delay of a row, such as 10 minutes", required=True)
    inner.done()
    if delay is not None and duration_ms(delay) is None:
        keys.problem(f"{inner.named('delay')} = {delay!r} is not a duration such as 10 minutes", inner.line_of("delay"))
    return Watermark(column or "", f"{duration_ms(delay or '') or 0} milliseconds", inner.line_of("column"))


def read_transform(name: str, keys: Keys) -> Transform | None:
    kind = keys.only_one_of(("sql", "python"), "a transform is a query or a function")
    if kind == "sql":
        return _sql_transform(name, keys)
    if kind == "python":
        return _python_transform(name, keys)
    return None


def _sql_transform(name: str, keys: Keys) -> SqlTransform | None:
    sql = keys.scalar("sql", "a query", required=True)
    rules = read_rules(keys)
    keys.done()
    if sql is None:
        return None
    try:
        views = view_names(sql.text)
    except InvalidSql as error:
        keys.problem(f"{keys.named('sql')}: {error}", sql.first_line + (error.line if sql.is_block else 0))
        views = []
    inputs = tuple(view.name for view in views)
    return SqlTransform(name, keys.line, sql.text, sql.first_line, sql.is_block, inputs, rules)


def _python_transform(name: str, keys: Keys) -> PythonTransform:
    function = keys.text("python", "module:function", required=True) or ""
    if function and _FUNCTION.fullmatch(function) is None:
        keys.problem(f"{keys.named('python')} = {function!r} is not module:function", keys.line_of("python"))
        function = ""
    inputs = keys.texts("inputs", "a list of sources and transforms")
    if not inputs:
        keys.problem(f"{keys.named('inputs')} is required: the sources and transforms that the function reads")
    arguments = keys.section("arguments")
    values = {} if arguments is None else {one: value_of(arguments.node(one)) for one in arguments.names()}
    rules = read_rules(keys)
    keys.done()
    return PythonTransform(
        name, keys.line_of("python"), function, tuple(scalar.text for scalar in inputs), values, rules
    )
