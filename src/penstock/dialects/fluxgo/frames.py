"""FluxGo's frames: what a request is made of, and what an answer looks like.

    request   u32 N | u8 command | payload of N-1 bytes
    answer    u32 M | u8 code    | payload of M-1 bytes

    Produce      01   u16 length, topic | u64 partition | the record, to the end of the frame   -> u64 offset
    Consume      02   u16 length, topic | u64 partition | u64 offset                            -> the record
    CommitOffset 04   u16 length, group | u16 length, topic | u64 partition | u64 offset        -> nothing
    FetchOffset  05   u16 length, group | u16 length, topic | u64 partition                     -> u64 offset

All integers are big-endian and unsigned; strings are bytes that nobody promised to be UTF-8. Bytes behind the last
field are ignored. A payload that is too short for its fields has an answer of its own and leaves the connection open:
where a frame ends is known from its length alone. Names are not judged here.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

Bytes = bytes | memoryview

LENGTH = struct.Struct(">I")
LENGTH_BYTES = 4
PARTITION_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
"""What the log can count to; the wire has room for more."""

_U16 = struct.Struct(">H")
_U64 = struct.Struct(">Q")
_TWO_U64 = struct.Struct(">QQ")
_HEADER = struct.Struct(">IB")
_OFFSET_ANSWER = struct.Struct(">IBQ")
_NAME_LENGTH_BYTES = 2
_INTEGER_BYTES = 8
_OFFSET_ANSWER_LENGTH = 9


class Command(enum.IntEnum):
    PRODUCE = 0x01
    CONSUME = 0x02
    COMMIT_OFFSET = 0x04
    FETCH_OFFSET = 0x05


class Code(enum.IntEnum):
    """The codes that an answer may carry. FluxGo names four more that no server sends: FF, FD, FB and 12."""

    NONE = 0x00
    PRODUCE_TOPIC_LENGTH = 0x11
    PRODUCE_LOG_ACCESS = 0x13
    PRODUCE_APPEND_FAILED = 0x14
    CONSUME_TOPIC_LENGTH = 0x21
    CONSUME_TOPIC_NOT_FOUND = 0x22
    CONSUME_OFFSET_INVALID = 0x23
    CONSUME_READ_FAILED = 0x24
    OFFSET_GROUP_LENGTH = 0x30
    OFFSET_TOPIC_LENGTH = 0x31
    OFFSET_COMMIT_FAILED = 0x32
    OFFSET_FETCH_FAILED = 0x33
    OFFSET_NOT_FOUND = 0x34
    PAYLOAD_TOO_SHORT = 0xFC
    UNKNOWN_COMMAND = 0xFE


class Produce(NamedTuple):
    """`head` is the part of the frame that the next produce to the same partition has in common with this one."""

    head: bytes
    topic: str
    partition: int
    value: Bytes


class Consume(NamedTuple):
    topic: str
    partition: int
    offset: int


class CommitOffset(NamedTuple):
    group: bytes
    topic: str
    partition: int
    offset: int


class FetchOffset(NamedTuple):
    group: bytes
    topic: str
    partition: int


class Malformed(NamedTuple):
    """A frame that is whole and makes no sense: its answer is known already."""

    code: Code
    text: bytes


Request = Produce | Consume | CommitOffset | FetchOffset | Malformed

UNKNOWN_COMMAND = Malformed(Code.UNKNOWN_COMMAND, b"Unknown command code")
PRODUCE_TOO_SHORT = Malformed(Code.PAYLOAD_TOO_SHORT, b"Invalid produce payload: too short")
PRODUCE_TOPIC_CUT = Malformed(Code.PRODUCE_TOPIC_LENGTH, b"Invalid produce payload: too short for topic")
CONSUME_TOO_SHORT = Malformed(Code.PAYLOAD_TOO_SHORT, b"Invalid consume payload: too short for topic length")
CONSUME_HEADER_CUT = Malformed(Code.CONSUME_TOPIC_LENGTH, b"Invalid consume payload: too short for full header")
COMMIT_TOO_SHORT = Malformed(Code.PAYLOAD_TOO_SHORT, b"Invalid commit payload: too short for headers")
COMMIT_GROUP_CUT = Malformed(Code.OFFSET_GROUP_LENGTH, b"Invalid commit payload: too short for group ID")
COMMIT_TOPIC_CUT = Malformed(Code.OFFSET_TOPIC_LENGTH, b"Invalid commit payload: too short for topic")
FETCH_TOO_SHORT = Malformed(Code.PAYLOAD_TOO_SHORT, b"Invalid fetch payload: too short for headers")
FETCH_GROUP_CUT = Malformed(Code.OFFSET_GROUP_LENGTH, b"Invalid fetch payload: too short for group ID")
FETCH_TOPIC_CUT = Malformed(Code.OFFSET_TOPIC_LENGTH, b"Invalid fetch payload: too short for topic")


# ------------------------------------------------------------------------------------------------------------ requests


def read_request(frame: Bytes) -> Request:
    """The request in `frame`, which begins at the command and is not empty."""
    command = frame[0]
    if command == Command.PRODUCE:
        return _read_produce(frame)
    if command == Command.CONSUME:
        return _read_consume(frame)
    if command == Command.COMMIT_OFFSET:
        return _read_commit(frame)
    if command == Command.FETCH_OFFSET:
        return _read_fetch(frame)
    return UNKNOWN_COMMAND


def _read_produce(frame: Bytes) -> Produce | Malformed:
    if len(frame) < 1 + _NAME_LENGTH_BYTES + _INTEGER_BYTES:
        return PRODUCE_TOO_SHORT
    topic_end = 1 + _NAME_LENGTH_BYTES + _U16.unpack_from(frame, 1)[0]
    start = topic_end + _INTEGER_BYTES
    if len(frame) < start:
        return PRODUCE_TOPIC_CUT
    topic = _name(frame[1 + _NAME_LENGTH_BYTES : topic_end])
    return Produce(bytes(frame[:start]), topic, _U64.unpack_from(frame, topic_end)[0], frame[start:])


def _read_consume(frame: Bytes) -> Consume | Malformed:
    if len(frame) < 1 + _NAME_LENGTH_BYTES:
        return CONSUME_TOO_SHORT
    topic_end = 1 + _NAME_LENGTH_BYTES + _U16.unpack_from(frame, 1)[0]
    if len(frame) < topic_end + 2 * _INTEGER_BYTES:
        return CONSUME_HEADER_CUT
    partition, offset = _TWO_U64.unpack_from(frame, topic_end)
    return Consume(_name(frame[1 + _NAME_LENGTH_BYTES : topic_end]), partition, offset)


def _read_commit(frame: Bytes) -> CommitOffset | Malformed:
    numbers = 2 * _INTEGER_BYTES
    if len(frame) < 1 + 2 * _NAME_LENGTH_BYTES + numbers:
        return COMMIT_TOO_SHORT
    group_end = 1 + _NAME_LENGTH_BYTES + _U16.unpack_from(frame, 1)[0]
    if len(frame) < group_end + _NAME_LENGTH_BYTES + numbers:
        return COMMIT_GROUP_CUT
    topic_start = group_end + _NAME_LENGTH_BYTES
    topic_end = topic_start + _U16.unpack_from(frame, group_end)[0]
    if len(frame) < topic_end + numbers:
        return COMMIT_TOPIC_CUT
    partition, offset = _TWO_U64.unpack_from(frame, topic_end)
    group = bytes(frame[1 + _NAME_LENGTH_BYTES : group_end])
    return CommitOffset(group, _name(frame[topic_start:topic_end]), partition, offset)


def _read_fetch(frame: Bytes) -> FetchOffset | Malformed:
    if len(frame) < 1 + 2 * _NAME_LENGTH_BYTES + _INTEGER_BYTES:
        return FETCH_TOO_SHORT
    group_end = 1 + _NAME_LENGTH_BYTES + _U16.unpack_from(frame, 1)[0]
    if len(frame) < group_end + _NAME_LENGTH_BYTES + _INTEGER_BYTES:
        return FETCH_GROUP_CUT
    topic_start = group_end + _NAME_LENGTH_BYTES
    topic_end = topic_start + _U16.unpack_from(frame, group_end)[0]
    if len(frame) < topic_end + _INTEGER_BYTES:
        return FETCH_TOPIC_CUT
    group = bytes(frame[1 + _NAME_LENGTH_BYTES : group_end])
    return FetchOffset(group, _name(frame[topic_start:topic_end]), _U64.unpack_from(frame, topic_end)[0])


def _name(raw: Bytes) -> str:
    """For the eye and for the catalogue: no topic has a name that is not ASCII, so nothing is mistaken for another."""
    return str(raw, "utf-8", "replace")


# ------------------------------------------------------------------------------------------------------------- answers


def answer(code: Code, payload: bytes = b"") -> bytes:
    return _HEADER.pack(1 + len(payload), code) + payload


def answer_header(payload_bytes: int) -> bytes:
    """What stands before a payload that is sent by itself."""
    return _HEADER.pack(1 + payload_bytes, Code.NONE)


def offset_answers(base_offset: int, count: int) -> bytes:
    """`count` answers with consecutive offsets."""
    pack = _OFFSET_ANSWER.pack
    if count == 1:
        return pack(_OFFSET_ANSWER_LENGTH, 0, base_offset)
    return b"".join([pack(_OFFSET_ANSWER_LENGTH, 0, at) for at in range(base_offset, base_offset + count)])
