"""The primitive types of Kafka's protocol: varints, strings, tag buffers (KIP-482). What is built of them is elsewhere.

Readers take a view and a position and give the value and the position behind it. They raise `ProtocolError` when the
bytes are not there; `struct.error` and `IndexError` may escape too, and every decoder maps them at its border with
`MALFORMED`. No reader allocates by what a count says before it has seen that so many elements can be there.
"""

from __future__ import annotations

import struct

from penstock.model import limits
from penstock.model.errors import ProtocolError

MALFORMED = (struct.error, IndexError, UnicodeDecodeError)
"""What reading past the end, or text that is not UTF-8, raises."""

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")

_UVARINT_BYTES_MAX = 5


def read_uvarint(view: memoryview, at: int) -> tuple[int, int]:
    byte = view[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for index in range(1, _UVARINT_BYTES_MAX):
        byte = view[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ProtocolError(f"a varint is longer than {_UVARINT_BYTES_MAX} bytes")


TAGGED_FIELDS_MAX = 100
"""Fields of one tag buffer: Kafka's messages have up to three, and each unknown field is skipped."""


def read_tag_count(view: memoryview, at: int) -> tuple[int, int]:
    count, at = read_uvarint(view, at)
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields exceed the limit of {TAGGED_FIELDS_MAX}")
    return count, at


def skip_tags(view: memoryview, at: int) -> int:
    """The position behind a tag buffer whose fields are of no interest."""
    count, at = read_tag_count(view, at)
    for _ in range(count):
        _, at = read_uvarint(view, at)
        size, at = read_uvarint(view, at)
        at += size
        if at > len(view):
            raise ProtocolError("a tagged field is longer than its request")
    return at


def read_string(view: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        length, at = read_uvarint(view, at)
        length -= 1
    else:
        length = I16.unpack_from(view, at)[0]
        at += 2
    if length < 0:
        if length != -1:
            raise ProtocolError(f"a string has length {length}")
        return None, at
    stop = at + length
    if stop > len(view):
        raise ProtocolError("a string is longer than its request")
    if length > limits.STRING_BYTES_MAX:
        raise ProtocolError(f"a string has length {length}")
    return view[at:stop].tobytes().decode(), stop


def read_count(view: memoryview, at: int, flexible: bool, element_bytes_min: int) -> tuple[int, int]:
    """The count of an array that must not be null, and that its elements can be there."""
    if flexible:
        count, at = read_uvarint(view, at)
        count -= 1
    else:
        count = I32.unpack_from(view, at)[0]
        at += 4
    if count < 0:
        raise ProtocolError("an array that must not be null has no elements at all")
    if count > limits.REQUEST_ELEMENTS_MAX or count * element_bytes_min > len(view) - at:
        raise _too_many(view, at, count)
    return count, at


def read_nullable_count(view: memoryview, at: int, flexible: bool, element_bytes_min: int) -> tuple[int, int]:
    """As `read_count`, or a negative number: -1 means null."""
    if flexible:
        count, at = read_uvarint(view, at)
        count -= 1
    else:
        count = I32.unpack_from(view, at)[0]
        at += 4
    if count > limits.REQUEST_ELEMENTS_MAX or count * element_bytes_min > len(view) - at:
        raise _too_many(view, at, count)
    return count, at


def _too_many(view: memoryview, at: int, count: int) -> ProtocolError:
    return ProtocolError(
        f"an array claims {count} elements in {len(view) - at} bytes; the limit is {limits.REQUEST_ELEMENTS_MAX}"
    )


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_UVARINTS = tuple(_uvarint(value) for value in range(1 << 10))


def uvarint(value: int) -> bytes:
    return _SHORT_UVARINTS[value] if value < 1 << 10 else _uvarint(value)


def compact_string(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def nullable_compact_string(text: str | None) -> bytes:
    return b"\x00" if text is None else compact_string(text)


def string(text: str) -> bytes:
    data = text.encode()
    return I16.pack(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)
