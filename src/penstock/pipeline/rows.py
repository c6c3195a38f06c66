"""Rows with a verdict: decoding, checks, and what becomes of the rows that are refused.

Each row of a source gets two hidden columns: why it is refused (null: it is not) and, where dead letters are wanted, the
letter: key, value and headers as they came. A transform's letter is the row as JSON. `accepted` lets through what is
not refused, skips or fails at the rest; `letters` gives the rest as rows for a topic.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from penstock.pipeline.declaration import BadRows, Check, Decoding, FileSource, RowRules, TopicSource
from penstock.pipeline.fields import Field, ddl, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REFUSED: Final = "_penstock_refused"
LETTER: Final = "_penstock_letter"
_BAD: Final = "_penstock_bad"
_PARSED: Final = "_penstock_parsed"
_HIDDEN: Final = (REFUSED, LETTER)

_RECORD: Final = ("key", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Columns of the record beside its value; a field of the value that is called the same takes its place."""
HEADER: Final = "penstock."
"""What the headers begin with that a letter gets."""


# ------------------------------------------------------------------------------------------------ topics


def decoded_topic(raw: DataFrame, source: TopicSource) -> DataFrame:
    """The rows of a topic as its declaration decodes them."""
    decoding = source.value
    text = sql.col("value").cast("string")
    if decoding.format in ("json", "csv"):
        raw = raw.withColumn(_PARSED, _parsed(text, decoding))
    refused = _first_reason([*_key_reasons(source), *_value_reasons(decoding)])
    raw = raw.withColumn(REFUSED, refused).withColumn(LETTER, _record_letter(raw))
    key = sql.col("key").cast("string").alias("key") if source.key == "string" else sql.col("key")
    if decoding.format in ("json", "csv"):
        fields = [sql.col(f"{_PARSED}.{quoted(field.name)}").alias(field.name) for field in decoding.fields]
        taken = {field.name.lower() for field in decoding.fields}
    else:
        fields = [text.alias("value") if decoding.format == "string" else sql.col("value")]
        taken = {"value"}
    record = [
        key if name == "key" else sql.col(name) for name in _RECORD if name in raw.columns and name.lower() not in taken
    ]
    return raw.select(*fields, *record, *_HIDDEN)


def _parsed(text: Column, decoding: Decoding) -> Column:
    schema = f"{ddl(decoding.fields)}, `{_BAD}` string"
    options = {**decoding.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
    return (
        sql.from_json(text, schema, options)
        if decoding.format == "json"
        else sql.from_csv(text, sql.lit(schema), options)
    )


def _key_reasons(source: TopicSource) -> list[tuple[Column, str]]:
    if source.key != "string":
        return []
    return [(sql.col("key").isNotNull() & ~sql.is_valid_utf8(sql.col("key")), "the key is not UTF-8")]


def _value_reasons(decoding: Decoding) -> list[tuple[Column, str]]:
    if decoding.format == "binary":
        return []
    value = sql.col("value")
    reasons = [(value.isNotNull() & ~sql.is_valid_utf8(value), "the value is not UTF-8")]
    if decoding.format == "string":
        return reasons
    bad = value.isNotNull() & (sql.col(f"{_PARSED}.{_BAD}").isNotNull() | sql.col(_PARSED).isNull())
    if decoding.format == "json":
        reasons.append((bad & sql.try_parse_json(value.cast("string")).isNull(), "the value is not JSON"))
    reasons.append((bad, "the value does not fit the schema"))
    return reasons + _missing(decoding.fields, _PARSED)


def _missing(fields: tuple[Field, ...], parent: str = "") -> list[tuple[Column, str]]:
    prefix = f"{parent}." if parent else ""
    return [
        (sql.col(f"{prefix}{quoted(field.name)}").isNull(), f"{field.name} is null or missing")
        for field in fields
        if field.required
    ]


def _first_reason(reasons: list[tuple[Column, str]]) -> Column:
    nothing = sql.lit(None).cast("string")
    return reduce(lambda rest, one: sql.when(one[0], sql.lit(one[1])).otherwise(rest), reversed(reasons), nothing)


def _header(name: str, value: Column) -> Column:
    return sql.struct(sql.lit(HEADER + name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _record_letter(raw: DataFrame) -> Column:
    added = sql.array(
        _header("topic", sql.col("topic")),
        _header("partition", sql.col("partition")),
        _header("offset", sql.col("offset")),
        _header("timestamp_ms", sql.unix_millis("timestamp")),
    )
    if "headers" in raw.columns:
        added = sql.concat(sql.coalesce(sql.col("headers"), sql.slice(added, 1, 0)), added)
    return sql.struct(
        sql.col("key").alias("key"),
        sql.col("value").alias("value"),
        added.alias("headers"),
        sql.concat_ws(
            " ", sql.lit("record"), sql.col("offset"), sql.lit("of"), sql.concat_ws("-", "topic", "partition")
        ).alias("place"),
    )


# ------------------------------------------------------------------------------------------------ files and transforms


def with_verdict(frame: DataFrame, source: FileSource | None = None) -> DataFrame:
    """Rows that are columns already; `source` when they were parsed from files."""
    reasons: list[tuple[Column, str]] = []
    if source is not None:
        if _BAD in frame.columns:
            reasons.append((sql.col(_BAD).isNotNull(), f"the line does not match the schema ({source.format.upper()})"))
        reasons += _missing(source.fields)
    columns = [sql.col(quoted(name)) for name in frame.columns if name != _BAD]
    value = sql.to_json(sql.struct(*columns))
    if _BAD in frame.columns:
        value = sql.coalesce(sql.col(_BAD), value)
    letter = sql.struct(
        sql.lit(None).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        sql.slice(sql.array(_header("none", sql.lit(""))), 1, 0).alias("headers"),
        value.alias("place"),
    )
    return frame.select(*columns, _first_reason(reasons).alias(REFUSED), letter.alias(LETTER))


def file_schema(source: FileSource) -> str:
    """The schema for Spark's reader, with a place for lines that are no rows."""
    bad = "" if source.format == "parquet" else f", `{_BAD}` string"
    return ddl(source.fields) + bad


def file_options(source: FileSource) -> dict[str, str]:
    if source.format == "parquet":
        return dict(source.options)
    return {**source.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}


# ------------------------------------------------------------------------------------------------ verdicts


def checked(frame: DataFrame, check: Check) -> DataFrame:
    """The rows with the check's verdict; a reason that is there already stays."""
    passes = sql.coalesce(sql.expr(check.condition), sql.lit(False))
    refused = sql.when(~passes, sql.lit(f"check failed: {check.name}"))
    return frame.withColumn(REFUSED, sql.coalesce(sql.col(REFUSED), refused))


def accepted(frame: DataFrame, rules: RowRules, name: str) -> DataFrame:
    """The rows that are not refused, without the hidden columns."""
    keep = sql.col(REFUSED).isNull()
    if rules.bad_rows is BadRows.FAIL:
        text = sql.concat(sql.lit(f"{name}: "), sql.col(f"{LETTER}.place"), sql.lit(": "), sql.col(REFUSED))
        keep = sql.when(keep, sql.lit(True)).otherwise(sql.raise_error(text).cast("boolean"))
    return frame.filter(keep).drop(*_HIDDEN)


def letters(frame: DataFrame, pipeline: str, origin: str) -> DataFrame:
    """The refused rows as rows for a topic: key and value as they came, the reason in a header."""
    added = sql.array(
        _header("reason", sql.col(REFUSED)), _header("pipeline", sql.lit(pipeline)), _header("origin", sql.lit(origin))
    )
    return frame.filter(sql.col(REFUSED).isNotNull()).select(
        sql.col(f"{LETTER}.key").alias("key"),
        sql.col(f"{LETTER}.value").alias("value"),
        sql.concat(sql.col(f"{LETTER}.headers"), added).alias("headers"),
    )
