"""Opcode frames, as FlyMQ's own clients send them: AF, version 1, opcode, flags, u32 length, payload.

Consecutive PRODUCEs of one read for one topic and partition field become a `ProduceRun`, cut here in one tight loop: a frame
that looks like the one before costs two comparisons and a slice. Everything else is an `OpcodeCall`, read when it is
performed.
"""

from __future__ import annotations

import enum
import struct
from functools import lru_cache

from penstock.broker.engine import RunAppended
from penstock.dialects.flymq.errors import coded
from penstock.dialects.flymq.placing import Contiguous, Outcome, outcome_of
from penstock.dialects.flymq.wire import U16, U32, repeated, string, text_of
from penstock.model.errors import BrokerError, Fault
from penstock.records.builder import Bytes
from penstock.records.compression import Codec

MAGIC = 0xAF
VERSION = 1
HEADER_BYTES = 8
BINARY_FLAG = 0x01
COMPRESSION_FLAGS = 0x0E
CODECS = {0x02: Codec.GZIP, 0x04: Codec.LZ4, 0x06: Codec.ZSTD, 0x08: Codec.SNAPPY}
"""Other values mean "not compressed", as in the original."""
_GZIP_MAGIC = b"\x1f\x8b"
_I32 = struct.Struct(">i")
_HEADER = struct.Struct(">BBBBI")
_OFFSET_TIME_SIZES = struct.Struct(">Qqii")


class Opcode(enum.IntEnum):
    PRODUCE = 0x01
    CONSUME = 0x02
    CREATE_TOPIC = 0x03
    METADATA = 0x04
    SUBSCRIBE = 0x05
    COMMIT = 0x06
    FETCH = 0x07
    LIST_TOPICS = 0x08
    DELETE_TOPIC = 0x09
    CONSUME_ZERO_COPY = 0x0A
    FETCH_BINARY = 0x0B
    TXN_BEGIN = 0x40
    TXN_COMMIT = 0x41
    TXN_ABORT = 0x42
    TXN_PRODUCE = 0x43
    CLUSTER_METADATA = 0x53
    GET_OFFSET = 0x60
    RESET_OFFSET = 0x61
    LIST_GROUPS = 0x62
    DESCRIBE_GROUP = 0x63
    GET_LAG = 0x64
    DELETE_GROUP = 0x65
    AUTH = 0x70
    WHOAMI = 0x72
    ERROR = 0xFF


class OpcodeCall:
    __slots__ = ("flags", "opcode", "payload")

    unordered_key: int | None = None

    def __init__(self, opcode: int, flags: int, payload: Bytes) -> None:
        self.opcode = opcode
        self.flags = flags
        self.payload = payload

    def codec(self) -> Codec | None:
        """The codec of the payload; None if it is not compressed."""
        codec = CODECS.get(self.flags & COMPRESSION_FLAGS)
        if codec is Codec.GZIP and self.payload[:2] != _GZIP_MAGIC:
            raise BrokerError(Fault.INVALID_REQUEST, "gzip: invalid header")
        return codec


class ProduceRun:
    __slots__ = ("asked", "borrows", "count", "keys", "now_ms", "partition", "sizes", "topic", "values")

    unordered_key: int | None = None

    def __init__(
        self,
        topic: str,
        asked: int,
        values: list[Bytes],
        keys: list[Bytes | None] | None,
        *,
        borrows: bool = False,
    ) -> None:
        self.topic = topic
        self.asked = asked
        """The partition field: the same in all frames of the run."""
        self.values = values
        self.keys = keys
        self.count = len(values)
        self.borrows = borrows
        """Keys and values are parts of the receive buffer."""
        self.sizes: tuple[list[int], list[int]] | None = None
        self.now_ms = 0
        """When it was performed, for the answers."""
        self.partition = 0
        """Where all of it went, if it went to one."""

    def give_back(self) -> None:
        """It is performed: only the sizes of keys and values are needed still."""
        self.sizes = self.key_and_value_sizes()
        self.values, self.keys = [], None

    def key_and_value_sizes(self) -> tuple[list[int], list[int]]:
        if self.sizes is not None:
            return self.sizes
        sizes = list(map(len, self.values))
        if self.keys is None:
            return [-1] * len(sizes), sizes
        return [-1 if key is None else len(key) for key in self.keys], sizes


def produce_at(data: Bytes, at: int, stop: int) -> tuple[str, int, Bytes, Bytes | None, int, int] | None:
    """The PRODUCE frame between `at` and `stop`: topic, partition field, value, key, and where key and value begin; None
    when a length does not fit, which the plain reader then says."""
    start = at + HEADER_BYTES
    if start + 2 > stop:
        return None
    key_at = start + 6 + U16.unpack_from(data, start)[0]
    if key_at > stop:
        return None
    value_at = key_at + U32.unpack_from(data, key_at - 4)[0] + 4
    if value_at > stop:
        return None
    tail_at = value_at + U32.unpack_from(data, value_at - 4)[0]
    if tail_at + 4 > stop:
        return None
    try:
        topic = text_of(data[start + 2 : key_at - 4])
    except BrokerError:
        return None
    key = data[key_at : value_at - 4] if value_at - 4 > key_at else None
    return topic, _I32.unpack_from(data, tail_at)[0], data[value_at:tail_at], key, key_at, value_at


def cut_run(
    data: bytes, at: int, stop: int, end: int, limit_bytes: int, count_max: int
) -> tuple[ProduceRun | None, int]:
    """The run that the PRODUCE frame from `at` to `stop` begins, and where it ends; None when that frame is unsound."""
    first = produce_at(data, at, stop)
    if first is None:
        return None, stop
    topic, asked, value, key, key_at, value_at = first
    values: list[Bytes] = [value]
    keys: list[Bytes | None] | None = None if key is None else [key]
    if stop == end:
        return ProduceRun(topic, asked, values, keys), stop
    add, starts, number = values.append, data.startswith, U32.unpack_from
    lead = data[at : at + 4]
    named = data[at + HEADER_BYTES : key_at - 4]
    tail = data[value_at + len(value) : value_at + len(value) + 4]
    key_skip = key_at - at
    while True:
        size = stop - at
        value_skip, tail_skip = value_at - at, value_at - at + len(value)
        after_tail = tail_skip + 4 == size
        head = data[at:key_at] if key is not None else data[at:value_at]
        between = data[value_at - 4 : value_at]
        at = stop
        last = min(end - size, at + (count_max - len(values) - 1) * size)
        if not after_tail:
            pass
        elif key is None and keys is None:
            while at <= last and starts(head, at) and starts(tail, at + tail_skip):
                add(data[at + value_skip : at + tail_skip])
                at += size
        elif key is not None and keys is not None:
            key_end = value_skip - 4
            while at <= last and starts(head, at) and starts(between, at + key_end) and starts(tail, at + tail_skip):
                keys.append(data[at + key_skip : at + key_end])
                add(data[at + value_skip : at + tail_skip])
                at += size
        # a frame of another size
        if (
            len(values) >= count_max
            or end - at < HEADER_BYTES
            or not starts(lead, at)
            or not starts(named, at + HEADER_BYTES)
        ):
            break
        length = number(data, at + 4)[0]
        stop = at + HEADER_BYTES + length
        key_at = at + key_skip
        if length > limit_bytes or stop > end or key_at > stop:
            break
        value_at = key_at + number(data, key_at - 4)[0] + 4
        if value_at > stop:
            break
        tail_at = value_at + number(data, value_at - 4)[0]
        if tail_at + 4 > stop or not starts(tail, tail_at):
            break
        value = data[value_at:tail_at]
        key = data[key_at : value_at - 4] if value_at - 4 > key_at else None
        if key is not None and keys is None:
            keys = [None] * len(values)
        if keys is not None:
            keys.append(key)
        add(value)
    return ProduceRun(topic, asked, values, keys), at


# ------------------------------------------------------------------------------------------------------ answers


def answer(opcode: int, payload: bytes) -> bytes:
    return answer_head(opcode, len(payload)) + payload


def answer_head(opcode: int, payload_bytes: int) -> bytes:
    """What stands before a payload."""
    return _HEADER.pack(MAGIC, VERSION, opcode, BINARY_FLAG, payload_bytes)


def error(text: str) -> bytes:
    return answer(Opcode.ERROR, coded(text))


def record_metadata(topic: str, partition: int, offset: int, now_ms: int, key: Bytes | None, value: Bytes) -> bytes:
    sizes = _OFFSET_TIME_SIZES.pack(offset, now_ms, len(key) if key else -1, len(value))
    return string(topic) + _I32.pack(partition) + sizes


def answer_run(run: ProduceRun, written: RunAppended | Outcome) -> bytes | bytearray:
    """One answer a frame, in one buffer."""
    now_ms = run.now_ms
    key_sizes, sizes = run.key_and_value_sizes()
    outcome = outcome_of(written, run.partition, run.count)
    if isinstance(outcome, Contiguous):
        partition, base_offset = outcome
        head = _answer_head(run.topic, partition)
        if run.count == 1:
            return head + _OFFSET_TIME_SIZES.pack(base_offset, now_ms, key_sizes[0], sizes[0])
        if sizes.count(sizes[0]) == len(sizes) and key_sizes.count(key_sizes[0]) == len(sizes):
            template = head + _OFFSET_TIME_SIZES.pack(0, now_ms, key_sizes[0], sizes[0])
            return repeated(template, len(head), base_offset, len(sizes))
        pack = _OFFSET_TIME_SIZES.pack
        return b"".join(
            head + pack(base_offset + at, now_ms, key_size, size)
            for at, (key_size, size) in enumerate(zip(key_sizes, sizes, strict=True))
        )
    return b"".join(
        _answer_head(run.topic, placed.partition) + _OFFSET_TIME_SIZES.pack(placed.offset, now_ms, key_size, size)
        if placed.fault is Fault.NONE
        else error(placed.text)
        for placed, key_size, size in zip(outcome, key_sizes, sizes, strict=True)
    )


@lru_cache(1_024)
def _answer_head(topic: str, partition: int) -> bytes:
    """The answer to a PRODUCE up to its offset: the same for all records of a partition."""
    name = string(topic)
    size = len(name) + _I32.size + _OFFSET_TIME_SIZES.size
    return _HEADER.pack(MAGIC, VERSION, Opcode.PRODUCE, BINARY_FLAG, size) + name + _I32.pack(partition)
