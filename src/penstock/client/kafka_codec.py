"""Requests encoded and answers decoded, from the message shapes that kio generates of Kafka's own definitions.

`encode` takes one mapping for all versions of a request and writes what the version has: a name that the version lacks is
left out, one that is not given has Kafka's default, or null where that is allowed; any other is a TypeError. `decode`
gives a `Message` with an attribute a field. Times are integers of milliseconds, ids are `uuid.UUID`, errors integers, and
bytes and records are views of the answer: nothing is copied.

kio's own reader is not used: it takes memory for as many elements as an array claims, before it has seen one, and it
refuses tagged fields that it does not know (KIP-482 says: skip them). Here every length is held against the bytes that are
there. What does not fit is a KafkaError of CORRUPT_MESSAGE.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import struct
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from penstock.client.kafka_errors import KafkaError


class Message(types.SimpleNamespace):
    """A decoded answer, or a part of one: the attributes that its version has."""


_Put = Callable[[bytearray, Any], None]
_Take = Callable[[memoryview, int], tuple[Any, int]]

_MISSING: Final = object()
_MALFORMED = (struct.error, IndexError, UnicodeDecodeError)

_NUMBERS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}
_UUID_BYTES = 16
_UVARINT_BYTES_MAX = 5


def encode(key: int, version: int, fields: Mapping[str, Any]) -> bytearray:
    """The body of a request."""
    out = bytearray()
    _request_put(key, version)(out, fields)
    return out


def decode(key: int, version: int, view: memoryview, start: int) -> Message:
    """The body of an answer that begins at `start` of `view` and ends where the view does."""
    try:
        message, end = _answer_take(key, version)(view, start)
    except _MALFORMED:
        raise _corrupt("is shorter than its fields") from None
    if end > len(view):
        raise _corrupt("is shorter than its fields")
    assert isinstance(message, Message)
    return message


def skip_tags(view: memoryview, at: int) -> int:
    """Behind a tag buffer of which no field is known: that of an answer's header."""
    try:
        return _take_tags(view, at, {}, {})
    except _MALFORMED:
        raise _corrupt("is shorter than its header") from None


@functools.cache
def is_flexible(key: int, version: int) -> bool:
    """Whether the version has compact types and tagged fields, and headers with a tag buffer (KIP-482)."""
    flexible: bool = load_request_schema(key, version).__flexible__
    return flexible


def field_names(key: int, version: int) -> set[str]:
    """Every name that the request of that version has, nested ones too."""
    return _names(load_request_schema(key, version))


def _corrupt(what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.corrupt_message, f"malformed response: it {what}; is the server a Kafka broker?", retriable=False
    )


# ---- kio's dataclasses --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    """kio's name of the primitive type; "" for a nested message."""
    nested: type[Any] | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: object


def _fields(entity: type[Any]) -> list[_Field]:
    return [_field(field) for field in dataclasses.fields(entity)]


def _field(field: dataclasses.Field[Any]) -> _Field:
    annotation: Any = field.type
    is_nullable = typing.get_origin(annotation) is types.UnionType
    if is_nullable:
        (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    is_array = typing.get_origin(annotation) is tuple
    if is_array:
        annotation = typing.get_args(annotation)[0]
    is_nested = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
    return _Field(
        name=field.name,
        kind="" if is_nested else field.metadata["kafka_type"],
        nested=annotation if is_nested else None,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=_default(field.default, is_nullable),
    )


def _default(default: object, is_nullable: bool) -> object:
    if default is dataclasses.MISSING:
        return None if is_nullable else _MISSING
    if isinstance(default, dt.timedelta):
        return default // dt.timedelta(milliseconds=1)
    return default


def _names(entity: type[Any]) -> set[str]:
    names: set[str] = set()
    for field in _fields(entity):
        names.add(field.name)
        if field.nested is not None:
            names |= _names(field.nested)
    return names


# ---- requests -----------------------------------------------------------------------------------------------------


@functools.cache
def _request_put(key: int, version: int) -> _Put:
    return _struct_put(load_request_schema(key, version))


def _struct_put(entity: type[Any]) -> _Put:
    flexible: bool = entity.__flexible__
    fields = [(field, _field_put(field, flexible)) for field in _fields(entity)]
    plain = [(field.name, field.default, put) for field, put in fields if field.tag is None]
    tagged = sorted((field.tag, field.name, put, field.default) for field, put in fields if field.tag is not None)
    name_of_message = entity.__name__

    def put_struct(out: bytearray, values: Mapping[str, Any]) -> None:
        for name, default, put in plain:
            value = values.get(name, default)
            if value is _MISSING:
                raise TypeError(f"{name_of_message} requires {name}")
            put(out, value)
        if flexible:
            present = [
                (tag, put, values[name])
                for tag, name, put, default in tagged
                if name in values and values[name] != default
            ]
            out += uvarint(len(present))
            for tag, put, value in present:
                data = bytearray()
                put(data, value)
                out.extend(uvarint(tag) + uvarint(len(data)) + data)

    return put_struct


def _field_put(field: _Field, flexible: bool) -> _Put:
    if field.nested is None:
        put = _primitive_put(field.kind, flexible)
    else:
        put = _struct_put(field.nested)
        if field.is_nullable and not field.is_array:
            put = _nullable_put(put)
    if not field.is_array:
        return put

    def put_array(out: bytearray, values: Any) -> None:
        if flexible:
            out += uvarint(0 if values is None else len(values) + 1)
        else:
            out += struct.pack(">i", -1 if values is None else len(values))
        for value in values or ():
            put(out, value)

    return put_array


def _nullable_put(put: _Put) -> _Put:
    def put_nullable(out: bytearray, value: Any) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            put(out, value)

    return put_nullable


def _primitive_put(kind: str, flexible: bool) -> _Put:
    if kind in _NUMBERS:
        pack = struct.Struct(_NUMBERS[kind]).pack

        def put_number(out: bytearray, value: Any) -> None:
            out += pack(value)

        return put_number
    if kind == "uuid":

        def put_uuid(out: bytearray, value: uuid.UUID | None) -> None:
            out += bytes(_UUID_BYTES) if value is None else value.bytes

        return put_uuid
    is_text = kind == "string"
    width = ">h" if is_text else ">i"

    def put_bytes(out: bytearray, value: Any) -> None:
        data = value.encode() if is_text and value is not None else value
        if flexible:
            out += uvarint(0 if data is None else len(data) + 1)
        else:
            out += struct.pack(width, -1 if data is None else len(data))
        if data is not None:
            out += data

    return put_bytes


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---- answers ------------------------------------------------------------------------------------------------------


@functools.cache
def _answer_take(key: int, version: int) -> _Take:
    return _struct_take(load_response_schema(key, version))[0]


def _struct_take(entity: type[Any]) -> tuple[_Take, int]:
    """The reader of a message, and the fewest bytes that one takes."""
    flexible: bool = entity.__flexible__
    plain: list[tuple[str, _Take]] = []
    tagged: dict[int, tuple[str, _Take]] = {}
    defaults: dict[str, Any] = {}
    bytes_min = 1 if flexible else 0
    for field in _fields(entity):
        take, least = _field_take(field, flexible)
        if field.tag is None:
            plain.append((field.name, take))
            bytes_min += least
        else:
            tagged[field.tag] = (field.name, take)
            defaults[field.name] = None if field.default is _MISSING else field.default

    def take_struct(view: memoryview, at: int) -> tuple[Any, int]:
        message = Message(**defaults)
        values = message.__dict__
        for name, take in plain:
            values[name], at = take(view, at)
        if flexible:
            at = _take_tags(view, at, tagged, values)
        return message, at

    return take_struct, bytes_min


def _take_tags(view: memoryview, at: int, known: dict[int, tuple[str, _Take]], values: dict[str, Any]) -> int:
    count, at = _take_uvarint(view, at)
    for _ in range(count):
        tag, at = _take_uvarint(view, at)
        size, at = _take_uvarint(view, at)
        stop = at + size
        if stop > len(view):
            raise _corrupt(f"has a tagged field of {size} bytes, but only {len(view) - at} bytes follow")
        if tag in known:
            name, take = known[tag]
            values[name], _ = take(view[:stop], at)
        at = stop
    return at


def _field_take(field: _Field, flexible: bool) -> tuple[_Take, int]:
    if field.nested is None:
        take, bytes_min = _primitive_take(field.kind, flexible)
    else:
        take, bytes_min = _struct_take(field.nested)
        if field.is_nullable and not field.is_array:
            take, bytes_min = _nullable_take(take), 1
    if not field.is_array:
        return take, bytes_min
    name = field.name

    def take_array(view: memoryview, at: int) -> tuple[Any, int]:
        if flexible:
            count, at = _take_uvarint(view, at)
            count -= 1
        else:
            (count,) = struct.unpack_from(">i", view, at)
            at += 4
        if count < 0:
            return None, at
        if count * bytes_min > len(view) - at:
            raise _corrupt(f"claims {count} {name}, but only {len(view) - at} bytes follow")
        values: list[Any] = []
        for _ in range(count):
            value, at = take(view, at)
            values.append(value)
        return values, at

    return take_array, 1 if flexible else 4


def _nullable_take(take: _Take) -> _Take:
    def take_nullable(view: memoryview, at: int) -> tuple[Any, int]:
        return take(view, at + 1) if view[at] == 1 else (None, at + 1)

    return take_nullable


def _primitive_take(kind: str, flexible: bool) -> tuple[_Take, int]:
    if kind in _NUMBERS:
        number = struct.Struct(_NUMBERS[kind])
        unpack, size = number.unpack_from, number.size

        def take_number(view: memoryview, at: int) -> tuple[Any, int]:
            return unpack(view, at)[0], at + size

        return take_number, size
    if kind == "uuid":

        def take_uuid(view: memoryview, at: int) -> tuple[Any, int]:
            raw = view[at : at + _UUID_BYTES]
            if len(raw) < _UUID_BYTES:
                raise IndexError
            return uuid.UUID(bytes=bytes(raw)), at + _UUID_BYTES

        return take_uuid, _UUID_BYTES
    is_text = kind == "string"
    width = struct.Struct(">h" if is_text else ">i")

    def take_bytes(view: memoryview, at: int) -> tuple[Any, int]:
        if flexible:
            length, at = _take_uvarint(view, at)
            length -= 1
        else:
            (length,) = width.unpack_from(view, at)
            at += width.size
        if length < 0:
            return None, at
        stop = at + length
        if stop > len(view):
            raise _corrupt(f"has a field of {length} bytes, but only {len(view) - at} bytes follow")
        data = view[at:stop]
        return (data.tobytes().decode() if is_text else data), stop

    return take_bytes, 1 if flexible else width.size


def _take_uvarint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_UVARINT_BYTES_MAX):
        byte = view[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _corrupt(f"has a varint of more than {_UVARINT_BYTES_MAX} bytes")
