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
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from penstock.dialects.kafka.apis import APIS, answer_header_is_flexible
from penstock.dialects.kafka.kio_guard import guarded
from penstock.dialects.kafka.kio_schema import Shape, answer_shape, request_type
from penstock.dialects.kafka.kio_writer import Chunks, Encoded, answer_put, answer_put_in_slices
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work

Description = Mapping[str, Any] | object


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
    out = _begun(key, version)
    answer_put(key, version)(out, fields)
    _HEAD.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def answer_in_slices(key: int, version: int, correlation_id: int, fields: Description) -> Work[Encoded]:
    """The same for an answer with many elements, in slices. Raises ProtocolError if it is too large."""
    out = Chunks(_begun(key, version))
    yield from answer_put_in_slices(key, version)(out, fields)
    chunks = out.all()
    _HEAD.pack_into(chunks[0], 0, out.size - 4, correlation_id)
    return Encoded([*chunks])


def _begun(key: int, version: int) -> bytearray:
    return bytearray(_HEAD.size + answer_header_is_flexible(key, version))


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
