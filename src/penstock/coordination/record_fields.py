"""Kafka's primitive fields, as the records of the group coordinator's internal topic use them.

Keys are never flexible; values of older versions are not, of newer ones are (KIP-482): compact lengths are one more than
they say, zero is null, and each structure ends with tagged fields. A reader walks a buffer once and raises `FieldError`
when it ends too early or lies; a writer grows one bytearray. Requests and answers of clients are the dialect's business.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


def uvarint(value: int) -> bytes:
    """The bytes of a count or a length, which is not negative."""
    if value < 0x80:
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL = tuple(bytes((value,)) for value in range(0x80))


class FieldError(ValueError):
    """Bytes that are not the fields they should be."""


class FieldReader:
    """Reads fields one after the other; `flexible` decides how strings, bytes and arrays carry their length."""

    __slots__ = ("_at", "_buffer", "flexible")

    def __init__(self, buffer: bytes | memoryview, at: int = 0, *, flexible: bool = False) -> None:
        self._buffer = buffer
        self._at = at
        self.flexible = flexible

    def _fixed(self, layout: struct.Struct) -> int:
        try:
            value: int = layout.unpack_from(self._buffer, self._at)[0]
        except struct.error:
            raise FieldError(f"the record ends inside a field at {self._at}") from None
        self._at += layout.size
        return value

    def i8(self) -> int:
        return self._fixed(_I8)

    def i16(self) -> int:
        return self._fixed(_I16)

    def i32(self) -> int:
        return self._fixed(_I32)

    def i64(self) -> int:
        return self._fixed(_I64)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._buffer) or shift > 28:
                raise FieldError(f"a varint does not end at {self._at}")
            byte = self._buffer[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._buffer):
            raise FieldError(f"the record ends inside a field of {count} bytes at {self._at}")
        taken = bytes(self._buffer[self._at : end])
        self._at = end
        return taken

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.i16()
        if length < 0:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise FieldError(f"a string before {self._at} is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise FieldError(f"a string before {self._at} is null")
        return text

    def bytes_(self) -> bytes:
        length = self.uvarint() - 1 if self.flexible else self.i32()
        if length < 0:
            raise FieldError(f"a byte string before {self._at} is null")
        return self.take(length)

    def count(self) -> int:
        """The length of an array; every element takes a byte or more, so a count beyond the buffer is a lie."""
        count = self.uvarint() - 1 if self.flexible else self.i32()
        if count < 0 or count > len(self._buffer) - self._at:
            raise FieldError(f"an array before {self._at} has a count of {count}")
        return count

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(16))

    def end(self) -> None:
        if self._at != len(self._buffer):
            raise FieldError(f"{len(self._buffer) - self._at} bytes follow the last field")

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible structure; nothing in one that is not flexible."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.take(self.uvarint())
        return found


class FieldWriter:
    """Writes what `FieldReader` reads."""

    __slots__ = ("buffer", "flexible")

    def __init__(self, version: int, *, flexible: bool = False) -> None:
        """Each key and value of an internal topic starts with its version (for a key that is its type)."""
        self.buffer = bytearray(_I16.pack(version))
        self.flexible = flexible

    def i8(self, value: int) -> None:
        self.buffer += _I8.pack(value)

    def i16(self, value: int) -> None:
        self.buffer += _I16.pack(value)

    def i32(self, value: int) -> None:
        self.buffer += _I32.pack(value)

    def i64(self, value: int) -> None:
        self.buffer += _I64.pack(value)

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def nullable_string(self, text: str | None) -> None:
        if text is None:
            if self.flexible:
                self.uvarint(0)
            else:
                self.i16(-1)
            return
        raw = text.encode()
        if self.flexible:
            self.uvarint(len(raw) + 1)
        else:
            self.i16(len(raw))
        self.buffer += raw

    def string(self, text: str) -> None:
        self.nullable_string(text)

    def bytes_(self, raw: bytes) -> None:
        self.count(len(raw))
        self.buffer += raw

    def count(self, count: int) -> None:
        if self.flexible:
            self.uvarint(count + 1)
        else:
            self.i32(count)

    def i32s(self, values: Sequence[int]) -> None:
        """An array of numbers."""
        self.count(len(values))
        self.buffer += struct.pack(f">{len(values)}i", *values)

    def uuid(self, value: uuid.UUID) -> None:
        self.buffer += value.bytes

    def tags(self, fields: dict[int, bytes] | None = None) -> None:
        """Tagged fields in the order of their numbers; nothing in a structure that is not flexible."""
        if not self.flexible:
            return
        self.uvarint(len(fields) if fields else 0)
        for tag, raw in sorted((fields or {}).items()):
            self.uvarint(tag)
            self.uvarint(len(raw))
            self.buffer += raw

    def done(self) -> bytes:
        return bytes(self.buffer)
