"""The columns of a topic, with the names and types that Spark's Kafka source gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
"""All of them, in Spark's order; `headers` only comes with includeHeaders."""

DEFAULT: Final[tuple[str, ...]] = tuple(name for name in SCHEMA.names if name != "headers")

CREATE_TIME, LOG_APPEND_TIME = 0, 1


def schema_of(columns: Sequence[str] = DEFAULT) -> pa.Schema:
    """The schema of these columns, in this order; raises ValueError for a name that no topic has."""
    check_names(columns)
    return pa.schema([SCHEMA.field(name) for name in columns])


def check_names(columns: Iterable[str]) -> None:
    unknown = [name for name in columns if name not in SCHEMA.names]
    if unknown:
        raise ValueError(f"unknown column {unknown[0]!r}: the columns of a topic are {', '.join(SCHEMA.names)}")
