"""Every API that is not hand-written: requests decoded by kio, answers encoded from plain descriptions.

`decode_request` gives kio's entity of the request's version. `answer` takes one description for all versions, a mapping
or any object with attributes, named as kio names the fields, and writes what the request's version has:

- a name that the version lacks is ignored; a name that is not given has kio's default, null where null is allowed, and
  0 for `throttle_time` and `error_code`; any other is a TypeError, because the handler forgot it;
- milliseconds are ints in and out of time fields (`throttle_time=0`), a time that may be null is -1 or None;
- errors are ints or a `Fault`, ids are `uuid.UUID` or 16 bytes, null ids are None.

kio's own encoder is not used: it is written in Python too, wants an object of a class per version, and takes 20 to 50
us for a small answer.
"""

from __future__ import annotations

import datetime as dt
import functools
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from penstock.dialects.kafka.apis import APIS, answer_header_is_flexible
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.kio_guard import guarded
from penstock.dialects.kafka.kio_schema import MISSING, Field, Shape, answer_shape, request_type
from penstock.dialects.kafka.wire import uvarint
from penstock.model.errors import Fault, ProtocolError

Description = Mapping[str, Any] | object

_Put = Callable[[bytearray, Any], None]


@functools.cache
def _reader(key: int, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    return cast("Callable[[memoryview, int], tuple[Any, int]]", entity_reader(request_type(key, version)))


def decode_request(key: int, version: int, view: memoryview, start: int) -> Any:
    """kio's entity of the body at `start` of `view`, which ends where the request does. Raises ProtocolError."""
    safe_view, safe_start = guarded(key, version, view, start)
    try:
        # kio takes read-only buffers alone, and the receive buffer is none.
        return _reader(key, version)(memoryview(bytes(safe_view[safe_start:])), 0)[0]
    except (SerialError, ValueError, TypeError, LookupError, OverflowError) as error:
        raise ProtocolError(f"a {_name(key)} request of version {version} is malformed: {error}") from None


def milliseconds(time: dt.timedelta) -> int:
    """A time field of a decoded request as what it was on the wire."""
    return time // dt.timedelta(milliseconds=1)


_HEAD = struct.Struct(">ii")


def answer(key: int, version: int, correlation_id: int, fields: Description) -> bytes:
    """The whole frame of the answer, its size in front."""
    out = bytearray(_HEAD.size)
    if answer_header_is_flexible(key, version):
        out += b"\x00"
    _answer_put(key, version)(out, fields)
    _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def unknown_names(key: int, fields: Description) -> set[str]:
    """Names in `fields`, at any depth, that no served version of the answer has: misspelled ones. Loads every version
    of the API, so it is for tests."""
    api = APIS[key]
    shapes = [answer_shape(key, version) for version in range(api.version_min, api.version_max + 1)]
    return set(_unknown(shapes, fields, ""))


def _name(key: int) -> str:
    return APIS[key].name if key in APIS else f"api key {key}"


def _unknown(shapes: list[Shape], value: object, path: str) -> Iterable[str]:
    items = value.items() if isinstance(value, Mapping) else vars(value).items()
    for name, inner in items:
        fields = [field for shape in shapes for field in shape.fields if field.name == name]
        if not fields:
            yield path + name
        nested = [field.nested for field in fields if field.nested is not None]
        if nested and inner is not None:
            for element in inner if fields[0].is_array else (inner,):
                yield from _unknown(nested, element, f"{path}{name}.")


# ---- the encoder: a function per field, made once per version -------------------------------------------------------


@functools.cache
def _answer_put(key: int, version: int) -> _Put:
    return _struct_put(answer_shape(key, version))


def _struct_put(shape: Shape) -> _Put:
    plain = [
        (field.name, _field_put(field, shape.is_flexible), _default(field))
        for field in shape.fields
        if field.tag is None
    ]
    tagged = sorted(
        (field.tag, field.name, _field_put(field, True), _default(field))
        for field in shape.fields
        if field.tag is not None
    )
    is_flexible = shape.is_flexible
    message = shape.name

    def put(out: bytearray, description: Any) -> None:
        is_mapping = isinstance(description, Mapping)
        for name, put_field, default in plain:
            value = description.get(name, default) if is_mapping else getattr(description, name, default)
            if value is MISSING:
                raise TypeError(f"{message} needs {name}")
            put_field(out, value)
        if not is_flexible:
            return
        if not tagged:
            out.append(0)
            return
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


def _encoded(put: _Put, value: object) -> bytearray:
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
        return milliseconds(default)
    return default


def _field_put(field: Field, is_flexible: bool) -> _Put:
    if field.nested is not None:
        put = _struct_put(field.nested)
        if field.is_nullable and not field.is_array and field.tag is None:
            return _nullable_put(put)
    else:
        put = _primitive_put(field.kind, is_flexible)
    if not field.is_array:
        return put
    return _compact_array_put(put) if is_flexible else _legacy_array_put(put)


def _nullable_put(put: _Put) -> _Put:
    """A nested message with a byte in front that says whether it is there (KIP-893)."""

    def put_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            put(out, value)

    return put_nullable


def _compact_array_put(put: _Put) -> _Put:
    def put_array(out: bytearray, values: Any) -> None:
        if values is None:
            out.append(0)
            return
        out += uvarint(len(values) + 1)
        for value in values:
            put(out, value)

    return put_array


def _legacy_array_put(put: _Put) -> _Put:
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


def _primitive_put(kind: str, is_flexible: bool) -> _Put:
    if kind in _FORMATS:
        return _number_put(_FORMATS[kind])
    if kind == "string":
        return _put_compact_string if is_flexible else _put_string
    if kind in ("bytes", "records"):
        return _put_compact_bytes if is_flexible else _put_bytes
    others: dict[str, _Put] = {"uuid": _put_uuid, "error_code": _put_error, "datetime_i64": _put_time}
    return others[kind]


def _number_put(number_format: str) -> _Put:
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
        if len(data) > _STRING_BYTES_MAX:  # an error's text may have the peer's own long name in it
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
