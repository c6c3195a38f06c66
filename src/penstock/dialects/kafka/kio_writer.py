"""The encoder of answers: a function per field, built once per version from kio's schemas.

`Put` writes a value at once. `PutInSlices` is a generator for a message with arrays: it pauses after some elements and
divides its output into chunks, so that an answer with 50,000 elements neither blocks the loop nor is copied as a whole.
"""

from __future__ import annotations

import datetime as dt
import functools
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.kio_schema import MISSING, Field, Shape, answer_shape
from penstock.dialects.kafka.wire import uvarint
from penstock.model import limits
from penstock.model.chunks import Chunk
from penstock.model.errors import Fault, ProtocolError
from penstock.model.slices import Work

PAUSE_ELEMENTS = 16
"""Elements written between two pauses: about 50 us."""
CHUNK_BYTES = 128 * 1024

Put = Callable[[bytearray, Any], None]
PutInSlices = Callable[["Chunks", Any], Work[None]]


class Encoded(NamedTuple):
    """An answer that is ready to be sent."""

    chunks: list[Chunk]


class Chunks:
    """The output so far, in pieces."""

    __slots__ = ("_done", "current", "size")

    def __init__(self, first: bytearray) -> None:
        self._done: list[bytearray] = []
        self.current = first
        self.size = 0
        """Size of the completed pieces."""

    def cut(self) -> None:
        """Start another piece if this one is large. Raises ProtocolError if the answer becomes too large."""
        if len(self.current) > CHUNK_BYTES:
            self._end_piece()
            self.current = bytearray()

    def all(self) -> list[bytearray]:
        self._end_piece()
        return self._done

    def _end_piece(self) -> None:
        self._done.append(self.current)
        self.size += len(self.current)
        if self.size > limits.ANSWER_BYTES_MAX:
            raise ProtocolError(f"the answer has more than {limits.ANSWER_BYTES_MAX} bytes; ask for less at once")


@functools.cache
def answer_put(key: int, version: int) -> Put:
    return _struct_put(answer_shape(key, version))


@functools.cache
def answer_put_in_slices(key: int, version: int) -> PutInSlices:
    shape = answer_shape(key, version)
    return _struct_put_in_slices(shape) if _has_arrays(shape) else _in_slices(_struct_put(shape))


def _struct_put(shape: Shape) -> Put:
    plain = [
        (field.name, _field_put(field, shape.is_flexible), _default(field))
        for field in shape.fields
        if field.tag is None
    ]
    put_tags = _tags_put(shape)
    is_flexible = shape.is_flexible
    message = shape.name

    def put(out: bytearray, description: Any) -> None:
        is_mapping = type(description) is dict or isinstance(description, Mapping)
        for name, put_field, default in plain:
            value = description.get(name, default) if is_mapping else getattr(description, name, default)
            if value is MISSING:
                raise TypeError(f"{message} needs {name}")
            put_field(out, value)
        if put_tags is not None:
            put_tags(out, description, is_mapping)
        elif is_flexible:
            out.append(0)

    return put


def _tags_put(shape: Shape) -> Callable[[bytearray, Any, bool], None] | None:
    """None for a message without tagged fields."""
    tagged = sorted(
        (field.tag, field.name, _field_put(field, True), _default(field))
        for field in shape.fields
        if field.tag is not None
    )
    if not tagged:
        return None

    def put(out: bytearray, description: Any, is_mapping: bool) -> None:
        present: list[bytes] = []
        for tag, name, put_field, default in tagged:
            value = description.get(name, MISSING) if is_mapping else getattr(description, name, MISSING)
            if value is MISSING:
                continue
            data = bytearray()
            put_field(data, value)
            if default is not MISSING and data == _encoded(put_field, default):
                continue
            present += (uvarint(tag), uvarint(len(data)), bytes(data))
        out += uvarint(len(present) // 3) + b"".join(present)

    return put


def _has_arrays(shape: Shape) -> bool:
    return any(field.is_array or (field.nested is not None and _has_arrays(field.nested)) for field in shape.fields)


def _in_slices(put: Put) -> PutInSlices:
    def put_in_slices(out: Chunks, value: Any) -> Work[None]:
        put(out.current, value)
        yield None

    return put_in_slices


def _struct_put_in_slices(shape: Shape) -> PutInSlices:
    """A message with arrays. Tagged fields are written at once: no answer has a large one."""
    plain: list[tuple[str, Put, PutInSlices | None, object]] = [
        (
            field.name,
            _field_put(field, shape.is_flexible),
            _field_put_in_slices(field, shape.is_flexible),
            _default(field),
        )
        for field in shape.fields
        if field.tag is None
    ]
    put_tags = _tags_put(shape)
    is_flexible = shape.is_flexible
    message = shape.name

    def put(out: Chunks, description: Any) -> Work[None]:
        is_mapping = type(description) is dict or isinstance(description, Mapping)
        for name, put_field, put_field_in_slices, default in plain:
            value = description.get(name, default) if is_mapping else getattr(description, name, default)
            if value is MISSING:
                raise TypeError(f"{message} needs {name}")
            if put_field_in_slices is None or value is None:
                put_field(out.current, value)
            else:
                yield from put_field_in_slices(out, value)
        if put_tags is not None:
            put_tags(out.current, description, is_mapping)
        elif is_flexible:
            out.current.append(0)

    return put


def _field_put_in_slices(field: Field, is_flexible: bool) -> PutInSlices | None:
    """None for a field that is never long."""
    nested = field.nested
    if not field.is_array:
        if nested is None or not _has_arrays(nested):
            return None
        put_message = _struct_put_in_slices(nested)
        return _marked(put_message) if field.is_nullable else put_message
    pack = struct.Struct(">i").pack
    put_element: Put = _primitive_put(field.kind, is_flexible) if nested is None else _struct_put(nested)
    put_long_element = None if nested is None or not _has_arrays(nested) else _struct_put_in_slices(nested)

    def put_array(out: Chunks, values: Any) -> Work[None]:
        out.current += uvarint(len(values) + 1) if is_flexible else pack(len(values))
        if put_long_element is not None:
            for value in values:
                yield from put_long_element(out, value)
                out.cut()
                yield None
            return
        for number, value in enumerate(values):
            put_element(out.current, value)
            if number % PAUSE_ELEMENTS == 0:
                out.cut()
                yield None

    return put_array


def _marked(put: PutInSlices) -> PutInSlices:
    """A nullable nested message that is not null (KIP-893)."""

    def put_marked(out: Chunks, value: Any) -> Work[None]:
        out.current.append(1)
        yield from put(out, value)

    return put_marked


def _encoded(put: Put, value: object) -> bytearray:
    out = bytearray()
    put(out, value)
    return out


def _default(field: Field) -> object:
    default = field.default
    if default is MISSING:
        if field.is_nullable and (field.is_array or field.nested is not None or field.kind in ("string", "uuid")):
            return None
        return 0 if field.name in ("throttle_time", "error_code") else MISSING
    if isinstance(default, dt.timedelta):
        return default // dt.timedelta(milliseconds=1)
    return default


def _field_put(field: Field, is_flexible: bool) -> Put:
    if field.nested is not None:
        put = _struct_put(field.nested)
        if field.is_nullable and not field.is_array and field.tag is None:
            return _nullable_put(put)
    else:
        put = _primitive_put(field.kind, is_flexible)
    if not field.is_array:
        return put
    return _compact_array_put(put) if is_flexible else _legacy_array_put(put)


def _nullable_put(put: Put) -> Put:
    """A nested message after a byte that says whether it is present (KIP-893)."""

    def put_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            put(out, value)

    return put_nullable


def _compact_array_put(put: Put) -> Put:
    def put_array(out: bytearray, values: Any) -> None:
        if values is None:
            out.append(0)
            return
        out += uvarint(len(values) + 1)
        for value in values:
            put(out, value)

    return put_array


def _legacy_array_put(put: Put) -> Put:
    pack = struct.Struct(">i").pack

    def put_array(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\xff\xff\xff\xff"
            return
        out += pack(len(values))
        for value in values:
            put(out, value)

    return put_array


_FORMATS = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
}


def _primitive_put(kind: str, is_flexible: bool) -> Put:
    if kind in _FORMATS:
        return _number_put(_FORMATS[kind])
    if kind == "string":
        return _put_compact_string if is_flexible else _put_string
    if kind in ("bytes", "records"):
        return _put_compact_bytes if is_flexible else _put_bytes
    others: dict[str, Put] = {"uuid": _put_uuid, "error_code": _put_error, "datetime_i64": _put_time}
    return others[kind]


def _number_put(number_format: str) -> Put:
    pack = struct.Struct(number_format).pack

    def put(out: bytearray, value: Any) -> None:
        out += pack(value)

    return put


_I16_PACK = struct.Struct(">h").pack
_I32_PACK = struct.Struct(">i").pack
_I64_PACK = struct.Struct(">q").pack


_STRING_BYTES_MAX = 2**15 - 1


def _put_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        data = value.encode()
        if len(data) > _STRING_BYTES_MAX:  # an error message may contain a long name that the peer sent
            data = data[:_STRING_BYTES_MAX].decode(errors="ignore").encode()
        out += _I16_PACK(len(data))
        out += data


def _put_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        data = value.encode()
        out += uvarint(len(data) + 1)
        out += data


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _I32_PACK(len(value))
        out += value


def _put_compact_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
    else:
        out += uvarint(len(value) + 1)
        out += value


def _put_uuid(out: bytearray, value: uuid.UUID | bytes | None) -> None:
    if value is None:
        out += bytes(16)
        return
    data = value.bytes if isinstance(value, uuid.UUID) else value
    if len(data) != 16:
        raise ValueError(f"an id has 16 bytes, not {len(data)}")
    out += data


def _put_error(out: bytearray, value: int | Fault) -> None:
    out += _I16_PACK(CODES[value] if isinstance(value, Fault) else value)


def _put_time(out: bytearray, value: int | None) -> None:
    out += _I64_PACK(-1 if value is None else value)
