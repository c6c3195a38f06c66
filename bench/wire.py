"""The few Kafka frames that the load sends, encoded ahead of time, and the answers it checks.

Own code and independent of the product's, so that a mistake there is not repeated here. Produce v9 and Fetch v12 are
the newest versions that name topics instead of ids; the rest are old, plain versions because nothing depends on them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import zstandard
from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 18, 19, 20
CLIENT_ID = b"bench"
ACKS_ALL = -1
PLAIN, ZSTD = 0, 4

_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_START = 21


class WireError(Exception):
    """An answer that is not what a working broker sends."""


# ---------------------------------------------------------------------------------------------------- encoding


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def _record(delta: int, value: bytes, key: bytes | None = None) -> bytes:
    key_field = b"\x01" if key is None else _varint(len(key)) + key
    body = b"\x00\x00" + _varint(delta) + key_field + _varint(len(value)) + value + b"\x00"
    return _varint(len(body)) + body


def _wrap(records: bytes, count: int, compression: int = PLAIN) -> bytes:
    timestamp_ms = time.time_ns() // 1_000_000  # older ones would fall to retention
    header = struct.pack(">hiqqqhii", compression, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    covered = header + records
    return struct.pack(">qiibI", 0, len(covered) + 9, -1, 2, crc32c(covered)) + covered


def batch_of(values: Sequence[bytes], keys: Sequence[bytes] | None = None, compression: int = PLAIN) -> bytes:
    """A batch of these records, plain or packed with zstd."""
    records = b"".join(_record(i, value, None if keys is None else keys[i]) for i, value in enumerate(values))
    if compression == ZSTD:
        records = zstandard.compress(records)
    return _wrap(records, len(values), compression)


def batch(count: int, value_bytes: int) -> bytes:
    """A batch of `count` records without key, values of `value_bytes`."""
    value = bytes(range(33, 127)) * (value_bytes // 94 + 1)
    return _wrap(b"".join(_record(i, value[:value_bytes]) for i in range(count)), count)


def batch_of_bytes(total: int, value_bytes: int) -> tuple[bytes, int]:
    """A batch of exactly `total` bytes, of records near `value_bytes` (the last one fills up), and its record count."""
    value = bytes(range(33, 127)) * (value_bytes // 47 + 3)
    records = bytearray()
    count = 0
    room = total - _BATCH_HEADER.size
    while room - len(records) > 2 * (value_bytes + 16):
        records += _record(count, value[:value_bytes])
        count += 1
    for size in range(room - len(records), 0, -1):
        last = _record(count, value[:size])
        if len(records) + len(last) == room:
            return _wrap(bytes(records + last), count + 1), count + 1
    raise ValueError(f"no batch of exactly {total} bytes")


def frame(api: int, version: int, correlation_id: int, body: bytes, *, flexible: bool) -> bytes:
    head = (
        struct.pack(">hhih", api, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + (b"\x00" if flexible else b"")
    )
    return struct.pack(">i", len(head) + len(body)) + head + body


def compact(text: bytes) -> bytes:
    return uvarint(len(text) + 1) + text


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def produce(
    correlation_id: int, topic: str, batches: Mapping[int, bytes], acks: int, timeout_ms: int = 30_000
) -> bytes:
    """Produce v9: one batch a partition, as Kafka demands."""
    parts = b"".join(struct.pack(">i", index) + compact(data) + b"\x00" for index, data in batches.items())
    topics = uvarint(2) + compact(topic.encode()) + uvarint(len(batches) + 1) + parts + b"\x00"
    body = b"\x00" + struct.pack(">hi", acks, timeout_ms) + topics + b"\x00"
    return frame(PRODUCE, 9, correlation_id, body, flexible=True)


def produce_answer(correlation_id: int, topic: str, partitions: Sequence[int]) -> bytes:
    """What a broker answers to `produce` when all is well: the references send it, fixed."""
    parts = b"".join(struct.pack(">ihqqq", index, 0, 0, -1, 0) + b"\x01\x00\x00" for index in partitions)
    topics = uvarint(2) + compact(topic.encode()) + uvarint(len(partitions) + 1) + parts + b"\x00"
    body = struct.pack(">i", correlation_id) + b"\x00" + topics + struct.pack(">i", 0) + b"\x00"
    return struct.pack(">i", len(body)) + body


def fetch(
    correlation_id: int,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    max_wait_ms: int = 500,
    isolation: int = 0,
) -> bytes:
    """Fetch v12 without a session; isolation 1 is read_committed."""
    part = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, max_bytes) + b"\x00"
    topics = uvarint(2) + compact(topic.encode()) + uvarint(2) + part + b"\x00"
    body = struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, isolation, 0, -1) + topics + b"\x01\x01\x00"
    return frame(FETCH, 12, correlation_id, body, flexible=True)


def api_versions(correlation_id: int) -> bytes:
    return frame(API_VERSIONS, 0, correlation_id, b"", flexible=False)


def metadata(correlation_id: int, topic: str) -> bytes:
    return frame(METADATA, 1, correlation_id, struct.pack(">i", 1) + string(topic), flexible=False)


def create_topic(correlation_id: int, topic: str, partitions: int, configs: Mapping[str, str]) -> bytes:
    pairs = b"".join(string(key) + string(value) for key, value in configs.items())
    one = string(topic) + struct.pack(">ihi", partitions, 1, 0) + struct.pack(">i", len(configs)) + pairs
    body = struct.pack(">i", 1) + one + struct.pack(">ib", 30_000, 0)
    return frame(CREATE_TOPICS, 2, correlation_id, body, flexible=False)


def delete_topic(correlation_id: int, topic: str) -> bytes:
    body = struct.pack(">i", 1) + string(topic) + struct.pack(">i", 30_000)
    return frame(DELETE_TOPICS, 1, correlation_id, body, flexible=False)


def latest_offsets(correlation_id: int, topic: str, partitions: Sequence[int]) -> bytes:
    parts = b"".join(struct.pack(">iq", index, -1) for index in partitions)
    body = struct.pack(">ii", -1, 1) + string(topic) + struct.pack(">i", len(partitions)) + parts
    return frame(LIST_OFFSETS, 1, correlation_id, body, flexible=False)


# ---------------------------------------------------------------------------------------------------- answers


class Reader:
    def __init__(self, frame: memoryview) -> None:
        self.frame = frame
        self.at = 0

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self.frame, self.at)
        self.at += struct.calcsize(form)
        return values

    def one(self, form: str) -> int:
        return self.take(form)[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.frame[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip(self, size: int) -> None:
        if size < 0 or self.at + size > len(self.frame):
            raise WireError(f"an answer of {len(self.frame)} bytes promises {size} more at {self.at}")
        self.at += size

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.skip(self.uvarint())


def open_answer(frame: memoryview, correlation_id: int, *, flexible: bool) -> Reader:
    reader = Reader(frame)
    length, correlation = reader.take(">ii")
    if length + 4 != len(frame) or correlation != correlation_id:
        raise WireError(f"expected answer {correlation_id} of {len(frame)} bytes, got {correlation} of {length + 4}")
    if flexible:
        reader.tags()
    return reader


def check_produce(frame: memoryview, correlation_id: int) -> None:
    """Raises unless every partition of a Produce v9 answer says error 0."""
    reader = open_answer(frame, correlation_id, flexible=True)
    partitions = 0
    for _ in range(reader.uvarint() - 1):
        reader.skip(reader.uvarint() - 1)
        for _ in range(reader.uvarint() - 1):
            index, error, offset, _time, _start = reader.take(">ihqqq")
            if error or offset < 0:
                raise WireError(f"produce to partition {index}: error {error}, offset {offset}")
            for _ in range(reader.uvarint() - 1):
                raise WireError(f"produce to partition {index}: record errors")
            reader.skip(max(reader.uvarint() - 1, 0))
            reader.tags()
            partitions += 1
        reader.tags()
    if partitions == 0:
        raise WireError("a produce answer without a partition")


class Fetched(NamedTuple):
    """The one partition of a Fetch v12 answer."""

    high_watermark: int
    records: memoryview

    def next_offset(self) -> int:
        """Behind the last whole batch; -1 when there is none."""
        at = 0
        found = -1
        while len(self.records) - at >= _BATCH_HEADER.size:
            base, length, _epoch, _magic, _crc, _attributes, last_delta, *_ = _BATCH_HEADER.unpack_from(
                self.records, at
            )
            at += length + 12
            if at <= len(self.records):
                found = base + last_delta + 1
        return found


def fetched(frame: memoryview, correlation_id: int, offset: int) -> Fetched:
    reader = open_answer(frame, correlation_id, flexible=True)
    _throttle, error, _session = reader.take(">ihi")
    if error or reader.uvarint() != 2:
        raise WireError(f"fetch: error {error} or not one topic")
    reader.skip(reader.uvarint() - 1)
    if reader.uvarint() != 2:
        raise WireError("fetch: not one partition")
    index, error, high_watermark, _stable, _start = reader.take(">ihqqq")
    if error:
        raise WireError(f"fetch of partition {index} at {offset}: error {error}, high watermark {high_watermark}")
    for _ in range(max(reader.uvarint() - 1, 0)):
        reader.take(">qq")
        reader.tags()
    reader.take(">i")
    size = reader.uvarint() - 1
    return Fetched(high_watermark, frame[reader.at : reader.at + max(size, 0)])


def check_fetch(frame: memoryview, correlation_id: int, offset: int) -> int:
    """Raises unless a Fetch v12 answer holds sound batches from `offset` on; gives the bytes of records."""
    high_watermark, records = fetched(frame, correlation_id, offset)
    size = len(records)
    if size < _BATCH_HEADER.size:
        raise WireError(f"fetch at {offset}: {size} bytes of records, high watermark {high_watermark}")
    header = _BATCH_HEADER.unpack_from(records)
    base, length, crc, last_delta = header[0], header[1], header[4], header[6]
    if not base <= offset <= base + last_delta:
        raise WireError(f"fetch at {offset} gave a batch of {base} to {base + last_delta}")
    if length + 12 <= size and crc32c(records[_CRC_START : length + 12]) != crc:
        raise WireError(f"fetch at {offset}: the CRC of the first batch is wrong")
    return size


def check_api_versions(frame: memoryview, correlation_id: int) -> None:
    reader = open_answer(frame, correlation_id, flexible=False)
    error, keys = reader.take(">hi")
    if error or keys < 1:
        raise WireError(f"ApiVersions: error {error}, {keys} keys")


def check_metadata(frame: memoryview, correlation_id: int) -> int:
    """The number of partitions of the one topic asked for."""
    reader = open_answer(frame, correlation_id, flexible=False)
    for _ in range(reader.one(">i")):
        reader.one(">i")
        reader.skip(reader.one(">h"))
        reader.one(">i")
        reader.skip(max(reader.one(">h"), 0))
    reader.one(">i")
    if reader.one(">i") != 1:
        raise WireError("metadata: not one topic")
    error = reader.one(">h")
    reader.skip(reader.one(">h"))
    reader.one(">b")
    if error:
        raise WireError(f"metadata: error {error}")
    return reader.one(">i")


def topic_error(frame: memoryview, correlation_id: int, *, throttle: bool, message: bool) -> int:
    """The error code of the one topic in a CreateTopics v2 or DeleteTopics v1 answer."""
    reader = open_answer(frame, correlation_id, flexible=False)
    if throttle:
        reader.one(">i")
    if reader.one(">i") != 1:
        raise WireError("not one topic in the answer")
    reader.skip(reader.one(">h"))
    error = reader.one(">h")
    if message:
        reader.skip(max(reader.one(">h"), 0))
    return error


def offsets(frame: memoryview, correlation_id: int) -> dict[int, int]:
    """Partition to offset, from a ListOffsets v1 answer."""
    reader = open_answer(frame, correlation_id, flexible=False)
    found: dict[int, int] = {}
    for _ in range(reader.one(">i")):
        reader.skip(reader.one(">h"))
        for _ in range(reader.one(">i")):
            index, error, _timestamp, offset = reader.take(">ihqq")
            if error:
                raise WireError(f"offset of partition {index}: error {error}")
            found[index] = offset
    return found
