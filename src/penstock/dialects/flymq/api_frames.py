"""API-key frames, as FlyMQ's document has them: u32 length, i16 API key, i16 version, payload.

Version 1 has a u32 stream id behind the version, in requests and answers: order holds within a stream only. An answer has an
i16 error before its payload (Kafka's numbers); with an error the payload is a string that says more.

Consecutive Produces of one read for one place become one request. When each has one plain message without headers, that is a
`ProduceRun`, cut like those of the opcode frames; other uncompressed batches make a `BatchRun`. Everything else is an
`ApiCall`, read when it is performed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from penstock.broker.engine import RunAppended
from penstock.dialects.flymq.placing import Contiguous, Outcome, Placed, each, outcome_of
from penstock.dialects.flymq.wire import I16, I32, I64, U16, U32, repeated, string, text_of
from penstock.model.errors import BrokerError, Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES
from penstock.model.slices import Work
from penstock.records.builder import Bytes

LENGTH_BYTES = 4
VERSIONS = (0, 1)
STREAMED = 1
"""The version with stream ids."""
NO_KEY = -1
"""In the answer to a frame that is too short to have a key."""

_HEADER = struct.Struct(">hh")
_ANSWER = struct.Struct(">Ihhh")
_STREAM_ANSWER = struct.Struct(">IhhIh")
_PLACE = struct.Struct(">iq")
_PLACE_ANSWER = struct.Struct(">IhhhIiq")
_STREAM_PLACE_ANSWER = struct.Struct(">IhhIhIiq")
"""Whole answers to a Produce of one message."""
_PLACE_BYTES = _PLACE_ANSWER.size - LENGTH_BYTES
_STREAM_PLACE_BYTES = _STREAM_PLACE_ANSWER.size - LENGTH_BYTES
_BATCH_TO_KEY = struct.Struct(">qiBIII")
"""First offset, last offset delta, compression, bytes of the batch, bytes of its first message, bytes of the key."""
_COMPRESSION_OFFSET = 12
"""Of the compression in a batch."""
_NO_HEADERS = bytes(4)
BATCHES_AT_ONCE = 100
PLACES_AT_ONCE = 1_000
"""Answers to batches, and places of messages, that are encoded between two pauses."""


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14


class ApiCall:
    __slots__ = ("fault", "key", "payload", "stream", "unordered_key", "version")

    def __init__(self, key: int, version: int, stream: int, payload: Bytes, fault: Fault = Fault.NONE) -> None:
        self.key = key
        self.version = version
        self.stream = stream
        self.payload = payload
        self.fault = fault
        """What is wrong with the frame itself."""
        self.unordered_key = stream if version == STREAMED else None


class ProduceRun:
    """Produces of one plain message each."""

    __slots__ = (
        "asked",
        "keys",
        "partition",
        "stamps",
        "start",
        "stream",
        "topic",
        "unordered_key",
        "values",
        "version",
    )

    def __init__(self, start: Start, values: list[Bytes], keys: list[Bytes | None] | None, stamps: list[bytes]) -> None:
        self.start = start
        self.version, self.stream, self.topic, self.asked, _, _ = start
        self.values = values
        self.keys = keys
        self.stamps = stamps
        """The timestamps as they came: most often they are all the same."""
        self.partition = 0
        """Where all of it went, if it went to one."""
        self.unordered_key = self.stream if self.version == STREAMED else None

    @property
    def timestamps(self) -> list[int] | int:
        """One for all, or one each."""
        stamps = self.stamps
        if len(stamps) == 1 or stamps.count(stamps[0]) == len(stamps):
            timestamp: int = I64.unpack(stamps[0])[0]
            return timestamp
        return [I64.unpack(stamp)[0] for stamp in stamps]


class BatchRun:
    """Produces of plain batches of any shape."""

    __slots__ = ("asked", "batches", "counts", "start", "stream", "topic", "unordered_key", "version")

    def __init__(self, start: Start, batches: list[bytes]) -> None:
        self.start = start
        self.version, self.stream, self.topic, self.asked, _, _ = start
        self.batches = batches
        self.counts: list[int | BrokerError] = []
        """How many messages each batch had, or what was wrong with it."""
        self.unordered_key = start.stream if start.version == STREAMED else None


class Start(NamedTuple):
    """What a Produce says before its batch."""

    version: int
    stream: int
    topic: str
    asked: int
    skip: int
    """From the frame's length to its batch."""
    named: bytes
    """All of it but the length."""


def _start_of(data: bytes, at: int, stop: int) -> Start | None:
    version = I16.unpack_from(data, at + LENGTH_BYTES + 2)[0]
    topic_at = at + LENGTH_BYTES + _HEADER.size
    stream = 0
    if version == STREAMED:
        if topic_at + U32.size > stop:
            return None
        stream = U32.unpack_from(data, topic_at)[0]
        topic_at += U32.size
    if topic_at + 2 > stop:
        return None
    batch_at = topic_at + 6 + U16.unpack_from(data, topic_at)[0]
    if batch_at > stop:
        return None
    try:
        topic = text_of(data[topic_at + 2 : batch_at - 4])
    except BrokerError:
        return None
    asked = I32.unpack_from(data, batch_at - 4)[0]
    return Start(version, stream, topic, asked, batch_at - at, data[at + LENGTH_BYTES : batch_at])


def call_at(data: Bytes, at: int, stop: int) -> ApiCall:
    """The frame between `at` (behind its length) and `stop`."""
    if stop - at < _HEADER.size:
        return ApiCall(NO_KEY, 0, 0, b"", Fault.INVALID_REQUEST)
    key, version = _HEADER.unpack_from(data, at)
    at += _HEADER.size
    if version not in VERSIONS:
        return ApiCall(key, version, 0, b"", Fault.UNSUPPORTED_VERSION)
    stream = 0
    if version == STREAMED:
        if stop - at < U32.size:
            return ApiCall(key, version, 0, b"", Fault.INVALID_REQUEST)
        stream = U32.unpack_from(data, at)[0]
        at += U32.size
    return ApiCall(key, version, stream, data[at:stop])


def cut_run(
    data: bytes, at: int, stop: int, end: int, limit_bytes: int, count_max: int, last: Start | None
) -> tuple[ProduceRun | BatchRun | None, int]:
    """The run that the Produce frame from `at` (its length) to `stop` begins, and where it ends; None when the frame has to
    be looked at by itself. `last` is how the run before it began: most go on like it."""
    if last is not None and at + last.skip <= stop and data.startswith(last.named, at + LENGTH_BYTES):
        begun = last
    else:
        new = _start_of(data, at, stop)
        if new is None:
            return None, at
        begun = new
    batch_skip, named = begun.skip, begun.named
    first = at
    values: list[Bytes] = []
    keys: list[Bytes | None] | None = None
    stamps: list[bytes] = []
    starts, number = data.startswith, U32.unpack_from
    while True:
        key_at = at + batch_skip + _BATCH_TO_KEY.size
        if key_at > stop:
            break
        _, _, compression, batch_bytes, message_bytes, key_bytes = _BATCH_TO_KEY.unpack_from(data, at + batch_skip)
        value_at = key_at + key_bytes + 4
        message_end = key_at + message_bytes - 4
        if compression or batch_bytes != message_bytes + 4 or message_end > stop or value_at > message_end:
            break
        value_end = value_at + number(data, value_at - 4)[0]
        if value_end + 12 > message_end or not starts(_NO_HEADERS, value_end):
            break
        key = data[key_at : value_at - 4] if key_bytes else None
        if key is not None and keys is None:
            keys = [None] * len(values)
        if keys is not None:
            keys.append(key)
        values.append(data[value_at:value_end])
        stamps.append(data[value_end + 4 : value_end + 12])
        size = stop - at
        if stop < end and key is None and keys is None and value_end + 12 == stop:
            # the same again, but for the value and the timestamp
            head = data[at:value_at]
            value_skip, end_skip = value_at - at, value_end - at
            at = stop
            last_at = min(end - size, at + (count_max - len(values) - 1) * size)
            while at <= last_at and starts(head, at) and starts(_NO_HEADERS, at + end_skip):
                values.append(data[at + value_skip : at + end_skip])
                stamps.append(data[at + end_skip + 4 : at + size])
                at += size
        else:
            at = stop
        if len(values) >= count_max or end - at < LENGTH_BYTES or not starts(named, at + LENGTH_BYTES):
            break
        length = number(data, at)[0]
        stop = at + LENGTH_BYTES + length
        if length > limit_bytes or stop > end:
            break
    if not values:
        return _cut_batches(data, begun, first, stop, end, limit_bytes)
    return ProduceRun(begun, values, keys, stamps), at


def _cut_batches(
    data: bytes, begun: Start, at: int, stop: int, end: int, limit_bytes: int
) -> tuple[BatchRun | None, int]:
    compression_skip = begun.skip + _COMPRESSION_OFFSET
    batches: list[bytes] = []
    while at + compression_skip < stop and not data[at + compression_skip]:
        batches.append(data[at + begun.skip : stop])
        at = stop
        if end - at < LENGTH_BYTES or not data.startswith(begun.named, at + LENGTH_BYTES):
            break
        length = U32.unpack_from(data, at)[0]
        stop = at + LENGTH_BYTES + length
        if length > limit_bytes or stop > end:
            break
    return (BatchRun(begun, batches) if batches else None), at


# ------------------------------------------------------------------------------------------------------ answers


def answer(key: int, version: int, stream: int, payload: bytes, fault: Fault = Fault.NONE) -> bytes:
    return answer_head(key, version, stream, len(payload), fault) + payload


def answer_head(key: int, version: int, stream: int, payload_bytes: int, fault: Fault = Fault.NONE) -> bytes:
    """What stands before a payload."""
    if version == STREAMED:
        size = _STREAM_ANSWER.size - LENGTH_BYTES + payload_bytes
        return _STREAM_ANSWER.pack(size, key, version, stream, CODES[fault])
    return _ANSWER.pack(_ANSWER.size - LENGTH_BYTES + payload_bytes, key, version, CODES[fault])


def head_bytes(version: int) -> int:
    """Of an answer's frame before its payload."""
    return (_STREAM_ANSWER if version == STREAMED else _ANSWER).size - LENGTH_BYTES


def error(key: int, version: int, stream: int, fault: Fault, text: str) -> bytes:
    return answer(key, version, stream, string(text or fault.value), fault)


def answer_run(run: ProduceRun, written: RunAppended | Outcome) -> bytes | bytearray:
    """One answer a frame, in one buffer."""
    count = len(run.values)
    if count == 1 and type(written) is RunAppended and written.fault is Fault.NONE:
        offset = written.base_offset
        if run.version == STREAMED:
            return _STREAM_PLACE_ANSWER.pack(_STREAM_PLACE_BYTES, 0, STREAMED, run.stream, 0, 1, run.partition, offset)
        return _PLACE_ANSWER.pack(_PLACE_BYTES, 0, 0, 0, 1, run.partition, offset)
    outcome = outcome_of(written, run.partition, count)
    if isinstance(outcome, Contiguous):
        template = _placed_answer(run, Placed(Fault.NONE, outcome.partition, 0))
        return repeated(template, len(template) - 8, outcome.base_offset, count)
    return b"".join(_placed_answer(run, placed) for placed in outcome)


def answer_batches(run: BatchRun, outcome: Outcome) -> Work[bytes]:
    """One answer a batch: the places of its messages, or the first thing that went wrong."""
    placed = iter(each(outcome, sum(count for count in run.counts if isinstance(count, int))))
    answers = []
    for number, count in enumerate(run.counts):
        if number % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1:
            yield None
        if isinstance(count, BrokerError):
            answers.append(error(ApiKey.PRODUCE, run.version, run.stream, count.fault, count.text))
            continue
        rows = list(islice(placed, count))
        bad = next((row for row in rows if row.fault is not Fault.NONE), None)
        if bad is not None:
            answers.append(error(ApiKey.PRODUCE, run.version, run.stream, bad.fault, bad.text))
        else:
            answers.append(answer(ApiKey.PRODUCE, run.version, run.stream, places(rows)))
    return b"".join(answers)


def _placed_answer(run: ProduceRun, placed: Placed) -> bytes:
    if placed.fault is not Fault.NONE:
        return error(ApiKey.PRODUCE, run.version, run.stream, placed.fault, placed.text)
    return answer(ApiKey.PRODUCE, run.version, run.stream, places([placed]))


def places_in_slices(outcome: Outcome, count: int) -> Work[bytes]:
    """As `places`, for many messages. Raises BrokerError if one of them failed."""
    rows = [U32.pack(count)]
    for start in range(0, count, PLACES_AT_ONCE):
        size = min(PLACES_AT_ONCE, count - start)
        if isinstance(outcome, Contiguous):
            some = each(Contiguous(outcome.partition, outcome.base_offset + start), size)
        else:
            some = outcome[start : start + size]
        for row in some:
            if row.fault is not Fault.NONE:
                raise BrokerError(row.fault, row.text)
            rows.append(_PLACE.pack(row.partition, row.offset))
        yield None
    return b"".join(rows)


def places(placed: Sequence[Placed]) -> bytes:
    return b"".join((U32.pack(len(placed)), *(_PLACE.pack(row.partition, row.offset) for row in placed)))
