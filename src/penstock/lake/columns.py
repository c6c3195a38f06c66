"""The columns of an archived table: the record as it was, and what its value says.

The record's own seven come first and never change; nothing of a record is left out. Typed columns follow in the order in
which they were first seen, and are never taken away or given another kind: lake formats can add columns, and readers
of old files must be able to read on. Last comes `_error`, if values are read at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from penstock.arrow.columns import HEADERS

RECORD: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)
DECODED: Final = ("key", "value", "headers", "timestamp", "timestampType", "partition", "offset")
"""What `arrow.decode` calls them, in the same order."""
ERROR: Final = "_error"
RESERVED: Final = frozenset({*RECORD.names, ERROR, "day", "hour"})
COLUMNS_MAX: Final = 500
"""Typed columns of a table: objects used as maps would otherwise give it a column a key."""

_KINDS: Final = {
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
KINDS: Final = tuple(_KINDS)
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_FORBIDDEN: Final = re.compile(r"[\s,;{}()=\x00-\x1f./\\`\"]")
"""Delta refuses some of them in a name, dots and quotes are trouble in SQL."""

Kinds = Mapping[str, str]
"""Typed columns by name, in their order."""


def arrow_type(kind: str) -> pa.DataType:
    """Raises ValueError for a kind that there is not."""
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
    return _KINDS[kind]


def kind_of(type_: pa.DataType) -> str:
    """The kind of a column that a table has already."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return "binary"
    if pa.types.is_timestamp(type_):
        return "timestamp"
    if pa.types.is_integer(type_):
        return "long"
    if pa.types.is_floating(type_):
        return "double"
    return next((kind for kind, known in _KINDS.items() if known == type_), "string")


def schema_of(kinds: Kinds, *, with_error: bool) -> pa.Schema:
    fields = [*RECORD, *(pa.field(name, arrow_type(kind)) for name, kind in kinds.items())]
    return pa.schema([*fields, pa.field(ERROR, pa.string())] if with_error else fields)


def column_name(field: str) -> str:
    """What the column of a field is called: itself, unless a table cannot have that."""
    name = _FORBIDDEN.sub("_", field) or "_"
    return f"value_{name}" if name.lower() in RESERVED else name


def wider(one: str, other: str) -> str:
    """The kind that holds what both hold; a string holds everything, as JSON."""
    if one == other:
        return one
    return "double" if {one, other} == {"long", "double"} else "string"
