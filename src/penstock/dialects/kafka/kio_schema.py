"""kio's generated dataclasses read as plain shapes: what a version of a message holds, field by field.

The guard before kio's reader, the decoder for large requests and the encoder of answers are built from these shapes. No
other code reads kio's dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from kio.index import KioIndexError, load_request_schema, load_response_schema

from penstock.model.errors import ProtocolError

MISSING: Final = object()
"""No default: the field must be given."""

FIXED_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    """kio's name of the primitive type; "" for a nested message."""
    nested: Shape | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object
    """What kio puts in when the field is not given, in kio's types; MISSING if it must be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    name: str
    is_flexible: bool
    fields: tuple[Field, ...]
    """In wire order, tagged ones among them."""
    entity: type[Any]
    """kio's class."""


def request_type(key: int, version: int) -> type[Any]:
    """kio's class; the module behind it is loaded at its first use. Raises ProtocolError if there is none."""
    try:
        return load_request_schema(key, version)
    except KioIndexError:
        raise ProtocolError(f"api key {key} has no version {version}") from None


@functools.cache
def request_shape(key: int, version: int) -> Shape:
    return _shape(request_type(key, version))


@functools.cache
def answer_shape(key: int, version: int) -> Shape:
    try:
        return _shape(load_response_schema(key, version))
    except KioIndexError:
        raise ProtocolError(f"api key {key} has no version {version}") from None


def _shape(entity: type[Any]) -> Shape:
    fields = tuple(_field(field) for field in dataclasses.fields(entity))
    return Shape(entity.__name__, entity.__flexible__, fields, entity)


def _field(field: dataclasses.Field[Any]) -> Field:
    annotation: Any = field.type
    is_nullable = False
    if typing.get_origin(annotation) is types.UnionType:
        (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
        is_nullable = True
    is_array = typing.get_origin(annotation) is tuple
    if is_array:
        annotation = typing.get_args(annotation)[0]
    is_nested = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
    nested = _shape(annotation) if is_nested else None
    return Field(
        name=field.name,
        kind="" if is_nested else field.metadata["kafka_type"],
        nested=nested,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=MISSING if field.default is dataclasses.MISSING else field.default,
    )
