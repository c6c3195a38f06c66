"""Values that are Avro, by schemas that somebody names.

A record is either bare Avro, or has in front of it a zero byte and the number of its schema, as producers with a schema
registry write it. Either way the schema that it was written with is needed; a new version of it is named to the next
run, and its new fields become new columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

from penstock.lake.columns import Kinds, column_name, wider
from penstock.lake.errors import ArchiveError
from penstock.lake.typed import Unreadable

FRAME_BYTES: Final = 5
"""A zero and four bytes of schema id."""
BARE: Final = ""

_PLAIN: Final = {
    "int": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "date": "date",
    "uuid": "string",
    "time-millis": "string",
    "time-micros": "string",
}


class AvroReader:
    """Top-level fields are columns; records, arrays and maps inside them are strings of JSON."""

    def __init__(self, schemas: Mapping[str, str], declared: Kinds) -> None:
        """Schemas by id, or one by `BARE`. Raises ArchiveError for one that is no record."""
        try:
            import fastavro
            from fastavro.schema import SchemaParseException
        except ImportError:
            raise ArchiveError("Avro requires fastavro: pip install 'penstock-broker[lake]'") from None
        self._read = fastavro.schemaless_reader
        self._schemas: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        for number, text in schemas.items():
            try:
                parsed = fastavro.parse_schema(json.loads(text))
                fields = parsed["fields"] if isinstance(parsed, dict) and parsed.get("type") == "record" else None
            except (SchemaParseException, ValueError, KeyError, TypeError) as error:
                raise ArchiveError(f"invalid Avro schema{f' {number}' if number else ''}: {error}") from None
            if fields is None:
                raise ArchiveError(f"Avro schema{f' {number}' if number else ''} is not a record schema")
            self._schemas[number] = parsed
            for field in fields:
                name, kind = column_name(field["name"]), avro_kind(field["type"])
                kinds[name] = wider(kinds.get(name, kind), kind)
        self.declared: Kinds = {**kinds, **{column_name(field): kind for field, kind in declared.items()}}

    def fields(self, value: bytes) -> Mapping[str, Any]:
        schema, start = self._schemas.get(BARE), 0
        if schema is None:
            if len(value) < FRAME_BYTES or value[0]:
                raise Unreadable("the value has no schema id")
            number, start = str(int.from_bytes(value[1:FRAME_BYTES], "big")), FRAME_BYTES
            schema = self._schemas.get(number)
            if schema is None:
                raise Unreadable(f"unknown Avro schema {number}: add it with --schema {number}=FILE")
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            record = self._read(stream, schema, None)
        except Exception as error:  # noqa: BLE001 - bytes that are no Avro make fastavro raise whatever they meet
            raise Unreadable(
                f"the value does not match the Avro schema: {type(error).__name__} {error}".rstrip()
            ) from None
        if stream.tell() != len(value):
            raise Unreadable(f"{len(value) - stream.tell()} bytes after the Avro record")
        assert isinstance(record, dict)
        return record


def avro_kind(kind: Any) -> str:
    """The column of a field of this type."""
    if isinstance(kind, list):
        kinds = {avro_kind(one) for one in kind if one != "null"}
        return kinds.pop() if len(kinds) == 1 else "string"
    if isinstance(kind, dict):
        logical = kind.get("logicalType")
        if logical == "decimal":
            return f"decimal({kind['precision']},{kind.get('scale', 0)})" if kind["precision"] <= 38 else "string"
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        return avro_kind(kind["type"])
    return _PLAIN.get(kind, "string")
