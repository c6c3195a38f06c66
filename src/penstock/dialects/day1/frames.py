"""Day1's frames: what a request is made of, and what an answer looks like.

    frame     u32 length | payload

    Produce   01 | u16 length, topic | u16 partition | u16 count | count x (u16 length, key | u32 length, value)
              -> 01 | u8 status 0 | i64 base offset
    Fetch     02 | u16 length, topic | u16 partition | i64 offset | u32 max bytes
              -> 02 | u8 status 0 | u16 count | count x (i64 offset | u16 length, key | u32 length, value)
    errors    -> FF | u16 length, text

All integers are big-endian. Topics are read as UTF-8 with a replacement for what is none. Bytes behind the last field
are ignored. A payload that ends too early, or that begins with another key, has an error for an answer and leaves the
connection open. Names are not judged here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.model.chunks import Chunk, FileRange, joined
from penstock.model.slices import Work

Bytes = bytes | memoryview

LENGTH = struct.Struct(">I")
LENGTH_BYTES = 4
PRODUCE_KEY = 1
FETCH_KEY = 2
ERROR_KEY = 255

KEY_BYTES_MAX = 2**16 - 1
ITEMS_MAX = 2**16 - 1
ITEM_OVERHEAD_BYTES = 14
"""What an item of a fetch has beside key and value, as max bytes counts it: its offset and two lengths."""
FETCH_HEADER_BYTES = 4
"""Key, status and count: what a fetch answer has beside its items."""
ERROR_TEXT_BYTES_MAX = 2**16 - 1

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_PARTITION_COUNT = struct.Struct(">HH")
_FETCH_FIELDS = struct.Struct(">HqI")
_PRODUCE_ANSWER = struct.Struct(">IBBq")
_PRODUCE_ANSWER_LENGTH = 10
_FETCH_HEADER = struct.Struct(">IBBH")
_ERROR_HEADER = struct.Struct(">IBH")
_ITEM_HEADER = struct.Struct(">qH")


class Produce(NamedTuple):
    """`head` is the payload up to the first record."""

    head: bytes
    topic: str
    partition: int
    keys: Sequence[Bytes]
    values: Sequence[Bytes]


class LargeProduce(NamedTuple):
    """A produce with many records, which are read in slices."""

    topic: str
    partition: int
    record_count: int
    payload: Bytes
    start: int
    """Start of the first record."""


class Fetch(NamedTuple):
    topic: str
    partition: int
    offset: int
    max_bytes: int


class Malformed(NamedTuple):
    """A frame that is no request: its answer is known already."""

    text: str


Request = Produce | LargeProduce | Fetch | Malformed

READ_AT_ONCE = 1_000
"""Records of a produce that are read without a pause."""

UNEXPECTED_EOF = Malformed("invalid request: unexpected EOF")


# ------------------------------------------------------------------------------------------------------------ requests


def read_request(payload: Bytes) -> Request:
    if not payload:
        return UNEXPECTED_EOF
    key = payload[0]
    try:
        if key == PRODUCE_KEY:
            return _read_produce(payload)
        if key == FETCH_KEY:
            return _read_fetch(payload)
    except struct.error:
        return UNEXPECTED_EOF
    return Malformed(f"invalid request: invalid api key: {key}")


def _read_produce(payload: Bytes) -> Produce | LargeProduce | Malformed:
    topic, at = _read_topic(payload)
    partition, count = _PARTITION_COUNT.unpack_from(payload, at)
    at += _PARTITION_COUNT.size
    if count > READ_AT_ONCE:
        return LargeProduce(topic, partition, count, payload, at)
    head = bytes(payload[:at])
    keys: list[Bytes] = []
    values: list[Bytes] = []
    if _read_records(payload, at, count, keys, values) < 0:
        return UNEXPECTED_EOF
    return Produce(head, topic, partition, keys, values)


def _read_records(payload: Bytes, at: int, count: int, keys: list[Bytes], values: list[Bytes]) -> int:
    """Read `count` records from `at` on. Returns their end, or -1 if the payload is too short."""
    end = len(payload)
    for _ in range(count):
        key_end = at + _U16.size + _U16.unpack_from(payload, at)[0]
        start = key_end + _U32.size
        value_end = start + _U32.unpack_from(payload, key_end)[0]
        if value_end > end:
            return -1
        keys.append(bytes(payload[at + _U16.size : key_end]))
        values.append(payload[start:value_end])
        at = value_end
    return at


def records_in_slices(request: LargeProduce) -> Work[tuple[list[Bytes], list[Bytes]] | Malformed]:
    """Keys and values of the records."""
    keys: list[Bytes] = []
    values: list[Bytes] = []
    at = request.start
    try:
        while at >= 0 and len(values) < request.record_count:
            at = _read_records(request.payload, at, min(READ_AT_ONCE, request.record_count - len(values)), keys, values)
            yield None
    except struct.error:
        at = -1
    return UNEXPECTED_EOF if at < 0 else (keys, values)


def _read_fetch(payload: Bytes) -> Fetch:
    topic, at = _read_topic(payload)
    return Fetch(topic, *_FETCH_FIELDS.unpack_from(payload, at))


def _read_topic(payload: Bytes) -> tuple[str, int]:
    """The name, and where it ends; an end past the payload is found by whoever reads on."""
    end = 1 + _U16.size + _U16.unpack_from(payload, 1)[0]
    return str(payload[1 + _U16.size : end], "utf-8", "replace"), end


# ------------------------------------------------------------------------------------------------------------- answers


def produce_answers(base_offset: int, counts: Iterable[int]) -> bytes:
    """The answers to produces of so many records each, which are in the log from `base_offset` on without a gap."""
    pack = _PRODUCE_ANSWER.pack
    *bases, _ = accumulate(counts, initial=base_offset)
    return b"".join([pack(_PRODUCE_ANSWER_LENGTH, PRODUCE_KEY, 0, base) for base in bases])


def item(offset: int, key: bytes, value: bytes | FileRange) -> tuple[bytes, bytes, bytes, bytes | FileRange]:
    """The parts of a record in a fetch answer."""
    return _ITEM_HEADER.pack(offset, len(key)), key, _U32.pack(len(value)), value


def fetch_answer(parts: Sequence[Chunk], count: int) -> list[Chunk]:
    """The answer with these records; its parts are joined as far as they are in memory."""
    return joined((_FETCH_HEADER.pack(FETCH_HEADER_BYTES + sum(map(len, parts)), FETCH_KEY, 0, count), *parts))


def error_answer(text: str) -> bytes:
    raw = text.encode()[:ERROR_TEXT_BYTES_MAX]
    return _ERROR_HEADER.pack(3 + len(raw), ERROR_KEY, len(raw)) + raw
