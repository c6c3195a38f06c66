"""The binary form of RustLog: big-endian, strings with a u16 length and strict UTF-8, bytes after the last field ignored.

    01 Produce            topic, u32 partition, u32 count, count x (u32 length, bytes)   01 u64 base offset, u32 count
    02 Fetch              group, topic, u32 partition, u64 offset, u32 max bytes         02 u32 count, count x (u32, bytes), u64 next offset
    03 OffsetCommit       group, topic, u32 partition, u64 offset                        03 u8 success
    04 OffsetFetch        group, topic, u32 partition                                    04 u8 has, u64 offset if it has
    05 CreateTopic        topic, u32 partitions                                          05 u8 success
    06 ListTopics                                                                        06 u32 count, count x (topic, u32 partitions)
    07 DescribeTopic      topic                                                          07 topic, u32 partitions, u32 count, count x (u32, u64)
    08 DescribePartition  topic, u32 partition                                           08 topic, u32 partition, u64 high watermark
    09 Metrics                                                                           09 u32 length, text
    FF Ping                                                                              FF
                                                                                         FE u16 code, u16 length, text

Single-record produces are the hot path: `ProduceHead` knows the bytes that the frames of one producer have in common and
compares them in one piece.
"""  # noqa: E501 - a table

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain

from penstock.broker.engine import Bytes
from penstock.dialects.rustlog.errors import Code
from penstock.dialects.rustlog.requests import (
    BINARY,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    Ready,
    Request,
)
from penstock.model.chunks import Chunk, FileRange, joined

SIZE_BYTES = 4

PRODUCE = 0x01
FETCH = 0x02
OFFSET_COMMIT = 0x03
OFFSET_FETCH = 0x04
CREATE_TOPIC = 0x05
LIST_TOPICS = 0x06
DESCRIBE_TOPIC = 0x07
DESCRIBE_PARTITION = 0x08
METRICS = 0x09
ERROR = 0xFE
PING = 0xFF
PONG = b"\x00\x00\x00\x01\xff"

FETCH_OVERHEAD_BYTES = 1 + 4 + 8
"""What a fetch answer has beside its records: type, count, next offset."""
RECORD_OVERHEAD_BYTES = 4
RECORD_WEIGHT_BYTES = 12
"""What `max_bytes` counts for a record beside its bytes: what it takes on the original's disk."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PRODUCED = struct.Struct(">IBQI")
_PRODUCED_BYTES = _PRODUCED.size - SIZE_BYTES
_FETCH_NUMBERS = struct.Struct(">IQI")
_FETCHED_ONE = struct.Struct(">IBII")
_U16_MAX = 0xFFFF


class DecodeError(Exception):
    """The payload is no request; the text is for the answer."""


class ProduceHead:
    """What the single-record produces of one producer to one partition begin with."""

    __slots__ = ("_prefix", "_unpack", "partition", "topic")

    def __init__(self, prefix: bytes, topic: str, partition: int) -> None:
        self._prefix = prefix
        self._unpack = struct.Struct(f">I{len(prefix)}sI").unpack_from
        self.topic = topic
        self.partition = partition

    def cut(self, data: Bytes, at: int, end: int, frame_bytes_max: int, count_max: int) -> tuple[list[Bytes], int]:
        """The records of the frames from `at` on that are whole and begin so, and where the first other one is."""
        unpack, prefix = self._unpack, self._prefix
        size_of_rest = len(prefix) + 4
        head_bytes = SIZE_BYTES + size_of_rest
        last = end - head_bytes
        values: list[Bytes] = []
        add = values.append
        for _ in range(count_max):
            if at > last:
                break
            size, found, length = unpack(data, at)
            stop = at + SIZE_BYTES + size
            if found != prefix or size != length + size_of_rest or stop > end or size > frame_bytes_max:
                break
            add(data[at + head_bytes : stop])
            at = stop
        return values, at


class _Fields:
    """Reads the fields of one payload; each knows what it is called when it is missing."""

    __slots__ = ("_at", "_data", "_stop")

    def __init__(self, data: Bytes, at: int, stop: int) -> None:
        self._data = data
        self._at = at
        self._stop = stop

    @property
    def at(self) -> int:
        return self._at

    def _fixed(self, layout: struct.Struct, missing: str) -> int:
        end = self._at + layout.size
        if end > self._stop:
            raise DecodeError(missing)
        value: int = layout.unpack_from(self._data, self._at)[0]
        self._at = end
        return value

    def u32(self, name: str) -> int:
        return self._fixed(_U32, f"missing {name}")

    def u64(self, name: str) -> int:
        return self._fixed(_U64, f"missing {name}")

    def text(self, name: str) -> str:
        end = self._fixed(_U16, f"missing {name} length") + self._at
        if end > self._stop:
            raise DecodeError(f"truncated {name}")
        try:
            value = str(self._data[self._at : end], "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"invalid utf8 {name}: {_utf8_text(error)}") from None
        self._at = end
        return value

    def records(self, count: int) -> list[Bytes]:
        data, at, stop = self._data, self._at, self._stop
        values: list[Bytes] = []
        for _ in range(count):
            if at + 4 > stop:
                raise DecodeError("truncated record length")
            end = at + 4 + _U32.unpack_from(data, at)[0]
            if end > stop:
                raise DecodeError("truncated record")
            values.append(data[at + 4 : end])
            at = end
        self._at = at
        return values


def _utf8_text(error: UnicodeDecodeError) -> str:
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"


def read_produce(
    data: Bytes, at: int, stop: int, count_max: int
) -> tuple[str, int, list[Bytes], bytes | None] | tuple[str, int, int, int]:
    """Topic, partition and records of a Produce whose type is at `at`; for a single record, also the bytes before it. For
    more records than `count_max`, their number and the start of the first."""
    fields = _Fields(data, at + 1, stop)
    topic = fields.text("topic")
    partition = fields.u32("partition")
    count = fields.u32("record count")
    prefix_end = fields.at
    if count > count_max:
        return topic, partition, count, prefix_end
    values = fields.records(count)
    return topic, partition, values, bytes(data[at:prefix_end]) if count == 1 else None


def read_request(data: Bytes, at: int, stop: int) -> Request:
    """Any request but Produce; raises DecodeError."""
    kind = data[at]
    if kind == FETCH:
        return _read_fetch(data, at + 1, stop)
    read = _READERS.get(kind)
    if read is None:
        return Ready(error(Code.DECODE, f"Decode error: unknown request type: {kind}"))
    return read(_Fields(data, at + 1, stop))


def _read_fetch(data: Bytes, at: int, stop: int) -> Request:
    if at + 2 <= stop:
        topic_at = at + 4 + _U16.unpack_from(data, at)[0]
        if topic_at <= stop:
            topic_end = topic_at + _U16.unpack_from(data, topic_at - 2)[0]
            if topic_end + _FETCH_NUMBERS.size <= stop:
                try:
                    group = str(data[at + 2 : topic_at - 2], "utf-8")
                    topic = str(data[topic_at:topic_end], "utf-8")
                except UnicodeDecodeError:
                    pass
                else:
                    return Fetch(BINARY, group, topic, *_FETCH_NUMBERS.unpack_from(data, topic_end))
    # something is missing: field by field it is found out what
    fields = _Fields(data, at, stop)
    return Fetch(
        BINARY,
        fields.text("group_id"),
        fields.text("topic"),
        fields.u32("partition"),
        fields.u64("offset"),
        fields.u32("max_bytes"),
    )


def _read_commit(fields: _Fields) -> Request:
    return OffsetCommit(
        BINARY, fields.text("group"), fields.text("topic"), fields.u32("partition"), fields.u64("offset")
    )


def _read_offset_fetch(fields: _Fields) -> Request:
    return OffsetFetch(BINARY, fields.text("group"), fields.text("topic"), fields.u32("partition"))


_READERS: dict[int, Callable[[_Fields], Request]] = {
    OFFSET_COMMIT: _read_commit,
    OFFSET_FETCH: _read_offset_fetch,
    CREATE_TOPIC: lambda fields: CreateTopic(fields.text("topic"), fields.u32("partition count")),
    LIST_TOPICS: lambda _: ListTopics(),
    DESCRIBE_TOPIC: lambda fields: DescribeTopic(fields.text("topic")),
    DESCRIBE_PARTITION: lambda fields: DescribePartition(fields.text("topic"), fields.u32("partition")),
    METRICS: lambda _: Metrics(),
    PING: lambda _: Ready(PONG),
}


# ------------------------------------------------------------------------------------------------------------ answers


def frame(payload: bytes) -> bytes:
    return _U32.pack(len(payload)) + payload


def error(code: int, text: str) -> bytes:
    message = text.encode()
    if len(message) > _U16_MAX:
        message = message[:_U16_MAX].decode(errors="ignore").encode()
    return frame(struct.pack(">BHH", ERROR, code, len(message)) + message)


def decode_failed(text: str) -> bytes:
    return error(Code.DECODE, f"Decode error: decode error: {text}")


def produced(base_offset: int, count: int) -> bytes:
    return _PRODUCED.pack(_PRODUCED_BYTES, PRODUCE, base_offset, count)


def produced_singles(base_offset: int, requests: int) -> bytes:
    """The answers of that many requests with one record each."""
    pack = _PRODUCED.pack
    return b"".join([pack(_PRODUCED_BYTES, PRODUCE, at, 1) for at in range(base_offset, base_offset + requests)])


def fetched(values: Sequence[bytes | FileRange], next_offset: int) -> list[Chunk]:
    if len(values) == 1:
        value = values[0]
        size = FETCH_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES + len(value)
        return joined((_FETCHED_ONE.pack(size, FETCH, 1, len(value)), value, _U64.pack(next_offset)))
    pack = _U32.pack
    parts: list[Chunk] = [b"", struct.pack(">BI", FETCH, len(values))]
    for value in values:
        parts += (pack(len(value)), value)
    parts.append(_U64.pack(next_offset))
    parts[0] = pack(sum(map(len, parts)))
    return joined(parts)


def committed(*, success: bool) -> bytes:
    return frame(bytes([OFFSET_COMMIT, success]))


def offset_fetched(offset: int | None) -> bytes:
    if offset is None:
        return frame(bytes([OFFSET_FETCH, 0]))
    return frame(struct.pack(">BBQ", OFFSET_FETCH, 1, offset))


def created() -> bytes:
    return frame(bytes([CREATE_TOPIC, 1]))


def topic_row(name: str, partitions: int) -> bytes:
    return _text(name) + _U32.pack(partitions)


def topics_listed(rows: Sequence[bytes]) -> bytes:
    return frame(struct.pack(">BI", LIST_TOPICS, len(rows)) + b"".join(rows))


def topic_described(topic: str, high_watermarks: Sequence[int]) -> bytes:
    count = len(high_watermarks)
    pairs = struct.pack(f">{'IQ' * count}", *chain.from_iterable(enumerate(high_watermarks)))
    return frame(bytes([DESCRIBE_TOPIC]) + _text(topic) + struct.pack(">II", count, count) + pairs)


def partition_described(topic: str, partition: int, high_watermark: int) -> bytes:
    return frame(bytes([DESCRIBE_PARTITION]) + _text(topic) + struct.pack(">IQ", partition, high_watermark))


def metrics(text: str) -> bytes:
    data = text.encode()
    return frame(bytes([METRICS]) + _U32.pack(len(data)) + data)


def _text(value: str) -> bytes:
    data = value.encode()
    return _U16.pack(len(data)) + data
