"""The fields that both kinds of FlyMQ frames are made of: big-endian integers, strings with a u16 length, bytes with a u32.

A `Reader` believes no length: what does not fit is the peer's INVALID_REQUEST, in the words of the original server.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from penstock.model.chunks import Chunk
from penstock.model.errors import BrokerError, Fault
from penstock.model.limits import REQUEST_ELEMENTS_MAX
from penstock.model.slices import Work, at_once
from penstock.records.builder import Bytes

T = TypeVar("T")

U16 = struct.Struct(">H")
I16 = struct.Struct(">h")
U32 = struct.Struct(">I")
I32 = struct.Struct(">i")
U64 = struct.Struct(">Q")
I64 = struct.Struct(">q")

STRING_BYTES_MAX = 0xFFFF
INT64_MAX = 2**63 - 1
ANSWER_LEAD_BYTES = 1_024
"""Bytes of an answer before its rows."""
ITEMS_AT_ONCE = 500
"""Items of an array that are read or written between two pauses."""
TRUE = b"\x01"

TOO_SHORT = "buffer too small"
NOT_TEXT = "invalid binary format"


class Reader:
    """Takes a payload apart from the front; bytes behind the last field are nobody's business."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: Bytes, at: int = 0) -> None:
        self._data = data
        self._at = at
        self._end = len(data)

    @property
    def left(self) -> int:
        return self._end - self._at

    def _number(self, kind: struct.Struct) -> int:
        at = self._at
        if at + kind.size > self._end:
            raise too_short()
        self._at = at + kind.size
        number: int = kind.unpack_from(self._data, at)[0]
        return number

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several numbers that stand behind each other."""
        at = self._at
        if at + layout.size > self._end:
            raise too_short()
        self._at = at + layout.size
        return layout.unpack_from(self._data, at)

    def u8(self) -> int:
        at = self._at
        if at >= self._end:
            raise too_short()
        self._at = at + 1
        return self._data[at]

    def i16(self) -> int:
        return self._number(I16)

    def u32(self) -> int:
        return self._number(U32)

    def i32(self) -> int:
        return self._number(I32)

    def i64(self) -> int:
        return self._number(I64)

    def offset(self) -> int:
        """A u64 that is an offset; Kafka's are signed, so the upper half is out of range for all."""
        return min(self._number(U64), INT64_MAX)

    def _take(self, length: int) -> bytes:
        at = self._at
        stop = at + length
        if stop > self._end:
            raise too_short()
        self._at = stop
        return bytes(self._data[at:stop])

    def string(self) -> str:
        data, start = self._data, self._at + 2
        if start > self._end:
            raise too_short()
        stop = start + U16.unpack_from(data, start - 2)[0]
        if stop > self._end:
            raise too_short()
        self._at = stop
        return text_of(data[start:stop])

    def raw_string(self) -> bytes:
        """A string that is passed on and need not be UTF-8."""
        return self._take(self._number(U16))

    def short_string(self) -> str:
        """With a u8 length: modes."""
        return text_of(self._take(self.u8()))

    def raw(self) -> bytes:
        return self._take(self._number(U32))

    def raw_borrowed(self) -> Bytes:
        """As `raw`, without a copy: the result is a part of the data."""
        length = self._number(U32)
        stop = self._at + length
        if stop > self._end:
            raise too_short()
        self._at = stop
        return self._data[stop - length : stop]

    def raw_in_place(self) -> Bytes:
        """As `raw`, without a copy if the data is immutable."""
        if not isinstance(self._data, bytes):
            return self.raw()
        length = self._number(U32)
        stop = self._at + length
        if stop > self._end:
            raise too_short()
        self._at = stop
        return memoryview(self._data)[stop - length : stop]

    def array(self, item: Callable[[], T], item_bytes_min: int) -> list[T]:
        """A u32 count and so many items; a count that cannot fit is refused before anything is made for it."""
        return at_once(self.array_in_slices(item, item_bytes_min))

    def array_in_slices(self, item: Callable[[], T], item_bytes_min: int) -> Work[list[T]]:
        """As `array`, in slices."""
        count = self._number(U32)
        if count * item_bytes_min > self.left:
            raise too_short()
        if count > REQUEST_ELEMENTS_MAX:
            raise BrokerError(
                Fault.INVALID_REQUEST, f"an array of {count} items, at most {REQUEST_ELEMENTS_MAX} are allowed"
            )
        items: list[T] = []
        while len(items) < count:
            items += [item() for _ in range(min(ITEMS_AT_ONCE, count - len(items)))]
            yield None
        return items


class Rows:
    """Rows of an answer, limited by the size of a frame."""

    __slots__ = ("_left", "_rows")

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max - ANSWER_LEAD_BYTES
        self._rows: list[bytes] = []

    def add(self, row: bytes) -> None:
        self._left -= len(row)
        if self._left < 0:
            raise BrokerError(Fault.INVALID_REQUEST, "the answer does not fit a frame: ask for less at once")
        self._rows.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def array(self) -> bytes:
        return array(self._rows)

    def first(self) -> bytes:
        return self._rows[0]


class InParts:
    """A payload of several parts: some may be large or be sent from the log's file."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks

    def __len__(self) -> int:
        return sum(map(len, self.chunks))


Payload = bytes | InParts


def too_short() -> BrokerError:
    return BrokerError(Fault.INVALID_REQUEST, TOO_SHORT)


def text_of(data: Bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise BrokerError(Fault.INVALID_REQUEST, NOT_TEXT) from None


def string(text: str) -> bytes:
    return raw_string(text.encode())


def raw_string(data: bytes) -> bytes:
    if len(data) > STRING_BYTES_MAX:
        data = data[:STRING_BYTES_MAX].decode("utf-8", "ignore").encode()
    return U16.pack(len(data)) + data


def raw(data: bytes) -> bytes:
    return U32.pack(len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    return b"".join((U32.pack(len(items)), *items))


def ints(numbers: Iterable[int]) -> bytes:
    return array([I32.pack(number) for number in numbers])


def repeated(template: bytes, at: int, first: int, count: int) -> bytearray:
    """`template` so many times, with a rising u64 at `at` of each: answers to a whole run, a column at a time."""
    if count == 1:
        answers = bytearray(template)
        U64.pack_into(answers, at, first)
        return answers
    size = len(template)
    answers = bytearray(template * count)
    numbers = struct.pack(f">{count}Q", *range(first, first + count))
    for column in range(8):
        answers[at + column :: size] = numbers[column::8]
    return answers
