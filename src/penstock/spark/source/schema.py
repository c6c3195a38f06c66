"""Which columns a read builds: all of Spark's Kafka source, or those that `.schema()` names."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.arrow.columns import schema_of
from penstock.spark.source.errors import SourceError

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}


def full_schema(include_headers: bool) -> StructType:
    names = [name for name in TYPES if name != "headers" or include_headers]
    return StructType([StructField(name, TYPES[name]) for name in names])


def columns_of(schema: StructType, include_headers: bool | None) -> tuple[str, ...]:
    """The columns to build, in their order; raises SourceError for one that a topic does not have."""
    names = schema.fieldNames()
    if not names:
        raise SourceError("the schema has no columns: use at least one of " + ", ".join(TYPES))
    for name in names:
        if name not in TYPES:
            same = next((known for known in TYPES if known.lower() == name.lower()), None)
            hint = f"; did you mean {same}?" if same else f"; the columns of a topic are {', '.join(TYPES)}"
            raise SourceError(f"the schema has an unknown column {name}{hint}")
        if names.count(name) > 1:
            raise SourceError(f"the schema has a duplicate column {name}")
        found, right = schema[name].dataType, TYPES[name]
        if found.simpleString() != right.simpleString():
            raise SourceError(
                f"the schema declares {name} as {found.simpleString()}, but it is {right.simpleString()}: "
                "declare it as that, and cast or parse it after load()"
            )
        if found != right:
            raise SourceError(f"the schema declares a part of {name} as not null, but it may be null")
        if not schema[name].nullable and name in ("key", "value", "headers"):
            raise SourceError(f"the schema declares {name} as not null, but it may be null")
    if "headers" in names and include_headers is False:
        raise SourceError("the schema has headers, but includeHeaders=false excludes them: set it to true")
    return tuple(names)


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """As Spark wants it back: to the flag that says whether a column may be null."""
    return pa.schema([schema_of([field.name]).field(0).with_nullable(field.nullable) for field in schema])
