"""The lines of MiniKafka: what they ask, what is wrong with them, and what is answered.

    TOPIC <topic> <key> <length>\\n<bytes>     +OFFSET <offset>
    <topic>:<group>:<partition>[:<toOffset>]  +MSG <offset> <length> <partition> <key>\\n<bytes>\\n, +EMPTY, or +END <toOffset>
    ACK                                       +OK
    SET_OFFSET <topic>:<group> <n or BEGIN>   +OK
                                              -ERR <text>

A line ends with a line feed, and a carriage return is part of it. Its bytes are Latin-1 characters: keys and names are
opaque bytes. The first rule that fits decides: it begins with TOPIC, it begins with SET_OFFSET, it has a colon, it is ACK.

Numbers are what Java's parseInt and parseLong take: a sign, then ASCII digits, within 32 or 64 bits.
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from penstock.broker.engine import Bytes

LINE_BYTES_MAX = 65_536
"""The original has no bound; a topic, a group and a key of any use are far shorter."""

_NUMBER = re.compile(rb"[+-]?[0-9]{1,40}")
_I32 = range(-(2**31), 2**31)
_I64 = range(-(2**63), 2**63)


class ProduceRun:
    """Produce lines in a row for one topic; their keys choose the partitions."""

    __slots__ = ("keys", "topic", "values")

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.keys: list[bytes] = []
        self.values: list[Bytes] = []


class Poll(NamedTuple):
    topic: str
    group: bytes
    partition: int
    """-1: all."""
    to_offset: int
    """The last offset that is wanted; negative: no bound."""


class Ack(NamedTuple):
    pass


class SetOffset(NamedTuple):
    topic: str
    group: bytes
    offset: int


class Said(NamedTuple):
    """A line whose answer needs no broker."""

    answer: bytes


Request = ProduceRun | Poll | Ack | SetOffset | Said


class BadLength(Exception):
    """A negative payload length: the original closes without a word."""


class NoArgument(Exception):
    """A bare SET_OFFSET: the original closes without a word."""


OK = b"+OK\n"
EMPTY = b"+EMPTY\n"
UNKNOWN_COMMAND = b"-ERR unknown command\n"
BAD_PRODUCE = b"-ERR bad format, expected TOPIC <topic> <key> <payload_length>\\n<payload>\n"
BAD_LENGTH = b"-ERR invalid payload length\n"
BAD_POLL = b"-ERR bad format, expected TOPIC:GROUP:PARTITION[:toOffset]\n"
BAD_PARTITION = b"-ERR invalid partition number\n"
BAD_TO_OFFSET = b"-ERR invalid toOffset\n"
BAD_SET_OFFSET = b"-ERR bad format, expected SET_OFFSET topic:group offset|BEGIN\n"
BAD_PLACE = b"-ERR bad format, expected topic:group\n"
BAD_OFFSET = b"-ERR invalid offset format\n"


def read_produce(line: bytes) -> tuple[bytes, bytes, int] | bytes:
    """Topic, key and payload length of a line that begins with TOPIC, or the answer that says what is wrong with it."""
    parts = line.split(b" ", 3)
    if len(parts) < 4:
        return BAD_PRODUCE
    _, topic, key, digits = parts
    length = int(digits) if digits.isdigit() and len(digits) < 10 else _number(digits, _I32)
    if length is None:
        return BAD_LENGTH
    if length < 0:
        raise BadLength(f"a payload of {length} bytes")
    return topic, key, length


def read_other(line: bytes) -> Request:
    """The request of a line that does not begin with TOPIC; raises NoArgument."""
    if line.startswith(b"SET_OFFSET"):
        return _read_set_offset(line)
    if b":" in line:
        return _read_poll(line)
    return Ack() if line == b"ACK" else Said(UNKNOWN_COMMAND)


def _read_poll(line: bytes) -> Request:
    parts = _split(line, b":")
    if len(parts) < 3:
        return Said(BAD_POLL)
    partition = _number(parts[2], _I32)
    if partition is None:
        return Said(BAD_PARTITION)
    to_offset = _number(parts[3], _I64) if len(parts) > 3 else -1
    if to_offset is None:
        return Said(BAD_TO_OFFSET)
    return Poll(parts[0].decode("latin-1"), parts[1], partition, to_offset)


def _read_set_offset(line: bytes) -> Request:
    if len(line) <= len(b"SET_OFFSET"):
        raise NoArgument("SET_OFFSET without an argument")
    parts = _split(line[len(b"SET_OFFSET ") :], b" ")
    if len(parts) != 2:
        return Said(BAD_SET_OFFSET)
    place = _split(parts[0], b":")
    if len(place) != 2:
        return Said(BAD_PLACE)
    offset = 0 if parts[1] == b"BEGIN" else _number(parts[1], _I64)
    if offset is None:
        return Said(BAD_OFFSET)
    return SetOffset(place[0].decode("latin-1"), place[1], offset)


def _split(text: bytes, separator: bytes) -> list[bytes]:
    """As Java's split: empty parts at the end are dropped. The text after the fourth part is not split: it is not used."""
    text = text.rstrip(separator)
    return text.split(separator, 4) if text else []


def _number(text: bytes, allowed: range) -> int | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value in allowed else None


# ------------------------------------------------------------------------------------------------------------ answers


def message_head(offset: int, size: int, partition: int, key: bytes) -> bytes:
    """What comes before the payload. A line feed in the key would end the line: it is sent as two characters."""
    if b"\n" in key:
        key = key.replace(b"\n", b"\\n")
    return b"+MSG %d %d %d %b\n" % (offset, size, partition, key)


def end(to_offset: int) -> bytes:
    return b"+END %d\n" % to_offset


def error(text: str) -> bytes:
    return b"-ERR %b\n" % text.replace("\n", " ").encode("latin-1", "replace")


# ----------------------------------------------------------------------------------------------------------- partitions

_POWERS = [pow(31, exponent, 2**32) for exponent in range(1_025)]
_HASHED_BYTES = len(_POWERS) - 1
_CACHED_KEY_BYTES_MAX = 64


def partition_of(key: bytes, partitions: int) -> int:
    """Where the original puts a key: the absolute value of Java's String.hashCode, modulo the partitions.

    The absolute value of the smallest integer, which Java does not have, is taken as if it had.
    """
    return (_cached_hash(key) if len(key) <= _CACHED_KEY_BYTES_MAX else java_hash(key)) % partitions


def java_hash(key: bytes) -> int:
    """The absolute value of the hash of the key's Latin-1 characters."""
    value = 0
    for start in range(0, len(key), _HASHED_BYTES):
        part = key[start : start + _HASHED_BYTES]
        value = (value * _POWERS[len(part)] + sum(map(mul, part[::-1], _POWERS))) & 0xFFFFFFFF
    return value if value < 2**31 else 2**32 - value


_cached_hash = lru_cache(maxsize=16_384)(java_hash)
