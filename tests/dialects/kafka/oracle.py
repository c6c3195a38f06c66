"""Other implementations as judges: kio's encoder (its classes built from plain trees) and kafka-python's messages.

A tree is a dict by kio's field names with plain values: milliseconds as ints, errors as ints, ids as `uuid.UUID`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import io
import struct
import types
import typing
import uuid
import warnings
from typing import Any

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

with warnings.catch_warnings():
    # kafka-python reads its schemas with a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer import FetchRequest, FetchResponse  # type: ignore[import-untyped]
    from kafka.protocol.metadata import (  # type: ignore[import-untyped]
        ApiVersionsRequest,
        ApiVersionsResponse,
        MetadataRequest,
        MetadataResponse,
    )
    from kafka.protocol.producer import ProduceRequest, ProduceResponse  # type: ignore[import-untyped]

KAFKA_PYTHON: dict[str, Any] = {
    message.__name__: message
    for message in (
        ApiVersionsRequest,
        ApiVersionsResponse,
        FetchRequest,
        FetchResponse,
        MetadataRequest,
        MetadataResponse,
        ProduceRequest,
        ProduceResponse,
    )
}

NAMES = st.text(max_size=8)
I16S = st.integers(-(2**15), 2**15 - 1)
I32S = st.integers(-(2**31), 2**31 - 1)
I64S = st.integers(-(2**63), 2**63 - 1)
ERRORS = st.sampled_from([int(code) for code in ErrorCode])
IDS = st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number))
FLEXIBLE_ANSWER_EXCEPTION = 18

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": I16S,
    "uint16": st.integers(0, 2**16 - 1),
    "int32": I32S,
    "uint32": st.integers(0, 2**32 - 1),
    "int64": I64S,
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": NAMES,
    "bytes": st.binary(max_size=12),
    "records": st.binary(max_size=12),
    "uuid": IDS,
    "error_code": ERRORS,
    "timedelta_i32": I32S,
    "timedelta_i64": st.integers(-(2**40), 2**40),
    # kio's times have whole seconds
    "datetime_i64": st.integers(0, 2**31).map(lambda seconds: seconds * 1000),
}

_SAMPLES: dict[str, Any] = {
    "bool": True,
    "int8": -3,
    "int16": -300,
    "uint16": 65_000,
    "int32": -70_000,
    "uint32": 4_000_000_000,
    "int64": -5_000_000_000,
    "float64": 0.25,
    "string": "grüße",
    "bytes": b"\x00\xff\x80",
    "records": b"\x00\xff\x80",
    "uuid": uuid.UUID(int=0x1234567890ABCDEF),
    "error_code": 47,
    "timedelta_i32": 1_234,
    "timedelta_i64": 123_456_789,
    "datetime_i64": 1_700_000_000_000,
}


def _is_message(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _parts(field: dataclasses.Field[Any]) -> tuple[Any, bool, bool]:
    """The inner type of a field, whether it is an array, and whether it may be null."""
    annotation: Any = field.type
    nullable = typing.get_origin(annotation) is types.UnionType
    if nullable:
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
    array = typing.get_origin(annotation) is tuple
    return (typing.get_args(annotation)[0] if array else annotation), array, nullable


@functools.cache
def trees(entity: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any tree that is whole for `entity`."""
    fields = {}
    for field in dataclasses.fields(entity):
        inner, array, nullable = _parts(field)
        strategy = trees(inner) if _is_message(inner) else _PRIMITIVES[field.metadata["kafka_type"]]
        if array:
            strategy = st.lists(strategy, max_size=2)
        if nullable and "tag" not in field.metadata:
            strategy = st.none() | strategy
        fields[field.name] = strategy
    return st.fixed_dictionaries(fields)


def sample(entity: type[Any]) -> dict[str, Any]:
    """A tree with two elements in every array and nothing null."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        inner, array, _ = _parts(field)
        value = sample(inner) if _is_message(inner) else _SAMPLES[field.metadata["kafka_type"]]
        tree[field.name] = [value, value] if array else value
    return tree


def _value(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind.startswith("timedelta"):
        return dt.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return dt.datetime.fromtimestamp(value / 1000, tz=dt.UTC)
    return ErrorCode(value) if kind == "error_code" else value


def entity_of(entity: type[Any], tree: dict[str, Any]) -> Any:
    """kio's object of `tree`; names that it lacks are left to its defaults."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        if field.name not in tree:
            continue
        value = tree[field.name]
        inner, array, _ = _parts(field)
        if value is None:
            values[field.name] = None
        elif _is_message(inner):
            values[field.name] = (
                tuple(entity_of(inner, element) for element in value) if array else entity_of(inner, value)
            )
        else:
            kafka_type = field.metadata["kafka_type"]
            values[field.name] = (
                tuple(_value(kafka_type, element) for element in value) if array else _value(kafka_type, value)
            )
    return entity(**values)


def encode(value: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(value))(buffer, value)
    return buffer.getvalue()


def request_body(key: int, version: int, tree: dict[str, Any]) -> bytes:
    return encode(entity_of(load_request_schema(key, version), tree))


def answer_frame(key: int, version: int, correlation_id: int, tree: dict[str, Any]) -> bytes:
    """What kio would answer, in the frame that Kafka has around it."""
    entity = load_response_schema(key, version)
    header = struct.pack(">i", correlation_id)
    if entity.__flexible__ and key != FLEXIBLE_ANSWER_EXCEPTION:
        header += b"\x00"
    body = header + encode(entity_of(entity, tree))
    return struct.pack(">i", len(body)) + body


def decode_answer(key: int, version: int, frame: bytes) -> Any:
    """kio's object of a whole answer frame, every byte of which must be used."""
    entity = load_response_schema(key, version)
    start = 9 if entity.__flexible__ and key != FLEXIBLE_ANSWER_EXCEPTION else 8
    value, size = entity_reader(entity)(frame, start)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    assert start + size == len(frame)
    return value


def same_in_kafka_python(name: str, version: int, correlation_id: int, frame: bytes) -> bool:
    """Whether kafka-python reads an answer frame and writes the same bytes again."""
    message = KAFKA_PYTHON[name]
    decoded = message.decode(frame, version=version, header=True, framed=True)
    assert decoded.header.correlation_id == correlation_id
    return bytes(decoded.encode(header=True, framed=True)) == frame
