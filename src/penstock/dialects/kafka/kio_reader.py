"""Decodes large requests in slices into the same entities as kio's reader, by a generator.

kio's reader decodes a request without a pause, and one request may have 50,000 elements. Here a message with arrays is read
by a generator that pauses after some elements, and a message without arrays by a plain function. Every count is checked
before the first element of its array is read, and unknown tagged fields are skipped (KIP-482), so no guard is needed.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from typing import Any, cast

from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.serial.readers import read_timedelta_i32, read_timedelta_i64

from penstock.dialects.kafka.apis import api_name
from penstock.dialects.kafka.kio_schema import FIXED_BYTES, Field, Shape, request_shape
from penstock.dialects.kafka.wire import I16, I32, MALFORMED, read_nullable_count, read_tag_count, read_uvarint
from penstock.model import limits
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work

PAUSE_ELEMENTS = 32
"""Elements read between two pauses: about 50 us."""
_NUMBERS_AT_ONCE = 1_000


class Tally:
    """The number of elements of a request read so far."""

    __slots__ = ("elements",)

    def __init__(self) -> None:
        self.elements = 0


_Read = Callable[[memoryview, int], tuple[Any, int]]
"""The value at a position, and the position after it."""
_ReadInSlices = Callable[[memoryview, int, Tally], Work[tuple[Any, int]]]


def decode_in_slices(key: int, version: int, view: memoryview, start: int) -> Work[Any]:
    """kio's entity for the body at `start` of `view`, which ends with the request. Raises ProtocolError."""
    read, read_in_slices = _request_reader(key, version)
    view = view.toreadonly()  # kio accepts no other
    try:
        if read_in_slices is None:
            entity, at = read(view, start)
        else:
            entity, at = yield from read_in_slices(view, start, Tally())
        if at > len(view):
            raise ProtocolError("the request is shorter than its fields")
    except (*MALFORMED, ValueError, OverflowError) as error:
        raise ProtocolError(f"a {api_name(key)} request of version {version} is malformed: {error}") from None
    return entity


@functools.cache
def _request_reader(key: int, version: int) -> tuple[_Read, _ReadInSlices | None]:
    return _message_reader(request_shape(key, version))


def _message_reader(shape: Shape) -> tuple[_Read, _ReadInSlices | None]:
    """Functions that read a message at once, and in slices if it has arrays."""
    plain = [field for field in shape.fields if field.tag is None]
    readers = [(field.name, *_field_reader(field, shape.is_flexible)) for field in plain]
    tags = _tags_reader(shape) if shape.is_flexible else None
    entity = shape.entity

    def read(view: memoryview, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, read_field, _ in readers:
            values[name], at = read_field(view, at)
        if tags is not None:
            at = tags(view, at, values) if view[at] else at + 1
        return entity(**values), at

    def read_in_slices(view: memoryview, at: int, tally: Tally) -> Work[tuple[Any, int]]:
        values: dict[str, Any] = {}
        for name, read_field, read_field_in_slices in readers:
            if read_field_in_slices is None:
                values[name], at = read_field(view, at)
            else:
                values[name], at = yield from read_field_in_slices(view, at, tally)
        if tags is not None:
            at = tags(view, at, values) if view[at] else at + 1
        return entity(**values), at

    if any(in_slices is not None for _, _, in_slices in readers):
        return read, read_in_slices
    if len(plain) < len(shape.fields):  # kio does not check the sizes of tagged fields
        return read, None
    return _by_kio(shape, read), None


def _by_kio(shape: Shape, read: _Read) -> _Read:
    """Read a message without arrays by kio, which is several times faster. Long messages, and those that kio refuses, are
    read here: they may have tagged fields that kio does not know, or a string that is too long."""
    read_by_kio = cast("_Read", entity_reader(shape.entity))

    def read_fast(view: memoryview, at: int) -> tuple[Any, int]:
        try:
            entity, size = read_by_kio(view, at)
        except (SerialError, ValueError, TypeError, LookupError, OverflowError):
            return read(view, at)
        return (entity, at + size) if size <= limits.STRING_BYTES_MAX else read(view, at)

    return read_fast


def _field_reader(field: Field, is_flexible: bool) -> tuple[_Read, _ReadInSlices | None]:
    if field.is_array:
        return _no_plain_array, _array_reader(field, is_flexible)
    if field.nested is None:
        return _primitive_reader(field, is_flexible), None
    read, read_in_slices = _message_reader(field.nested)
    if field.is_nullable and field.tag is None:
        return _nullable(read), None if read_in_slices is None else _nullable_in_slices(read_in_slices)
    return read, read_in_slices


def _no_plain_array(view: memoryview, at: int) -> tuple[Any, int]:
    raise AssertionError("arrays are read in slices")


# ---- arrays and nested messages ---------------------------------------------------------------------------------------


def _array_reader(field: Field, is_flexible: bool) -> _ReadInSlices:
    read_element: _Read
    read_element_in_slices: _ReadInSlices | None = None
    if field.nested is not None:
        read_element, read_element_in_slices = _message_reader(field.nested)
    elif field.kind in _NUMBERS:
        return _numbers_reader(field, is_flexible)
    else:
        read_element = _primitive_reader(field, is_flexible, is_element=True)

    def read(view: memoryview, at: int, tally: Tally) -> Work[tuple[Any, int]]:
        count, at = read_nullable_count(view, at, is_flexible, 1)
        if count < 0:
            _check_null(field, count)
            return None, at
        _count_elements(tally, count, field)
        elements = []
        if read_element_in_slices is not None:
            for _ in range(count):
                element, at = yield from read_element_in_slices(view, at, tally)
                elements.append(element)
                yield None
            return tuple(elements), at
        for number in range(count):
            element, at = read_element(view, at)
            elements.append(element)
            if number % PAUSE_ELEMENTS == 0:
                yield None
        return tuple(elements), at

    return read


def _numbers_reader(field: Field, is_flexible: bool) -> _ReadInSlices:
    code = _NUMBERS[field.kind]
    size = FIXED_BYTES[field.kind]

    def read(view: memoryview, at: int, tally: Tally) -> Work[tuple[Any, int]]:
        count, at = read_nullable_count(view, at, is_flexible, size)
        if count < 0:
            _check_null(field, count)
            return None, at
        _count_elements(tally, count, field)
        if count <= _NUMBERS_AT_ONCE:
            return struct.unpack_from(f">{count}{code}", view, at), at + count * size
        numbers: list[int] = []
        while count:
            some = min(count, _NUMBERS_AT_ONCE)
            numbers += struct.unpack_from(f">{some}{code}", view, at)
            at += some * size
            count -= some
            yield None
        return tuple(numbers), at

    return read


def _check_null(field: Field, count: int) -> None:
    if count != -1 or not field.is_nullable:
        raise ProtocolError(f"array {field.name} of the request has {count} elements")


def _count_elements(tally: Tally, count: int, field: Field) -> None:
    tally.elements += count
    if tally.elements > limits.REQUEST_ELEMENTS_MAX:
        raise ProtocolError(
            f"the request has more than {limits.REQUEST_ELEMENTS_MAX} elements, {count} of them in array {field.name}"
        )


def _nullable(read: _Read) -> _Read:
    """A nested message after a byte that says whether it is present (KIP-893)."""

    def read_nullable(view: memoryview, at: int) -> tuple[Any, int]:
        return read(view, at + 1) if _is_there(view[at]) else (None, at + 1)

    return read_nullable


def _nullable_in_slices(read: _ReadInSlices) -> _ReadInSlices:
    def read_nullable(view: memoryview, at: int, tally: Tally) -> Work[tuple[Any, int]]:
        if _is_there(view[at]):
            return (yield from read(view, at + 1, tally))
        return None, at + 1

    return read_nullable


def _is_there(marker: int) -> bool:
    if marker not in (0x01, 0xFF):
        raise ValueError(f"a nested message has marker {marker}")
    return marker == 1


def _tags_reader(shape: Shape) -> Callable[[memoryview, int, dict[str, Any]], int]:
    """Set known tagged fields and skip others. No tagged field of a request has an array."""
    known: dict[int, tuple[str, _Read]] = {
        field.tag: (field.name, _field_reader(field, True)[0]) for field in shape.fields if field.tag is not None
    }

    def read(view: memoryview, at: int, values: dict[str, Any]) -> int:
        count, at = read_tag_count(view, at)
        for _ in range(count):
            tag, at = read_uvarint(view, at)
            size, at = read_uvarint(view, at)
            stop = at + size
            if stop > len(view):
                raise ProtocolError(f"tagged field {tag} of the request is longer than the request")
            if tag in known:
                name, read_field = known[tag]
                values[name], end = read_field(view[:stop], at)
                if end != stop:
                    raise ProtocolError(f"tagged field {tag} of the request is not as long as it says")
            at = stop
        return at

    return read


# ---- primitive types --------------------------------------------------------------------------------------------------

_NUMBERS = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d"}


def _primitive_reader(field: Field, is_flexible: bool, *, is_element: bool = False) -> _Read:
    kind = field.kind
    is_nullable = field.is_nullable and not is_element
    if kind in _NUMBERS:
        return _number_reader(_NUMBERS[kind])
    if kind == "string":
        return _string_reader(field.name, is_flexible, is_nullable)
    if kind in ("bytes", "records"):
        return _bytes_reader(field.name, is_flexible, is_nullable)
    others: dict[str, _Read] = {
        "bool": _read_bool,
        "uuid": _read_uuid,
        "timedelta_i32": _time_reader(read_timedelta_i32),
        "timedelta_i64": _time_reader(read_timedelta_i64),
    }
    return others[kind]


def _number_reader(code: str) -> _Read:
    number = struct.Struct(f">{code}")
    unpack, size = number.unpack_from, number.size

    def read(view: memoryview, at: int) -> tuple[Any, int]:
        return unpack(view, at)[0], at + size

    return read


def _time_reader(read_by_kio: Callable[[Any, int], tuple[Any, int]]) -> _Read:
    """Read a time by kio, which has its own bounds for times."""

    def read(view: memoryview, at: int) -> tuple[Any, int]:
        try:
            time, size = read_by_kio(view, at)
        except SerialError as error:
            raise ValueError(f"a time: {error}") from None
        return time, at + size

    return read


def _read_bool(view: memoryview, at: int) -> tuple[bool, int]:
    if view[at] > 1:
        raise ValueError(f"a switch is {view[at]}")
    return view[at] == 1, at + 1


def _read_uuid(view: memoryview, at: int) -> tuple[uuid.UUID | None, int]:
    data = view[at : at + 16].tobytes()
    if len(data) < 16:
        raise ValueError("truncated id")
    return uuid.UUID(bytes=data) if any(data) else None, at + 16


def _string_reader(name: str, is_flexible: bool, is_nullable: bool) -> _Read:
    def read(view: memoryview, at: int) -> tuple[str | None, int]:
        if is_flexible:
            length = view[at]
            if length < 0x80:
                at += 1
            else:
                length, at = read_uvarint(view, at)
            length -= 1
        else:
            length = I16.unpack_from(view, at)[0]
            at += 2
        if length < 0:
            if length != -1 or not is_nullable:
                raise ValueError(f"{name} has length {length}")
            return None, at
        stop = at + length
        if stop > len(view) or length > limits.STRING_BYTES_MAX:
            raise ValueError(f"{name} has length {length}")
        return str(view[at:stop], "utf-8"), stop

    return read


def _bytes_reader(name: str, is_flexible: bool, is_nullable: bool) -> _Read:
    def read(view: memoryview, at: int) -> tuple[bytes | None, int]:
        if is_flexible:
            length, at = read_uvarint(view, at)
            length -= 1
        else:
            length = I32.unpack_from(view, at)[0]
            at += 4
        if length < 0:
            if length != -1 or not is_nullable:
                raise ValueError(f"{name} has length {length}")
            return None, at
        stop = at + length
        if stop > len(view):
            raise ValueError(f"{name} has length {length}")
        return view[at:stop].tobytes(), stop

    return read
