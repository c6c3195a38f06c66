"""Messages and batches of the API-key frames: the document's encodings, read with bounds and written plain.

    Message  bytes key, bytes value, i32 header count, (string name, string value)..., i64 timestamp ms
    Batch    i64 first offset, i32 last offset delta, u8 compression, bytes of u32-length-prefixed Messages

A timestamp of 0 or less says nothing: the broker's time is taken, as for all records of dialects without timestamps.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.engine import LargeRecord
from penstock.dialects.flymq.wire import I32, I64, STRING_BYTES_MAX, U16, U32, Reader, raw_string, too_short
from penstock.model.chunks import Chunk
from penstock.model.errors import BrokerError, Fault
from penstock.model.limits import HEADERS_PER_RECORD_MAX
from penstock.model.slices import Work, at_once
from penstock.records.batch import BatchError
from penstock.records.builder import Bytes
from penstock.records.compression import Codec, decompress
from penstock.records.record import HEADER_NAME_ERRORS, Headers, Record

PLAIN = 0
CODECS = {PLAIN: Codec.NONE, 1: Codec.LZ4, 2: Codec.SNAPPY, 3: Codec.ZSTD, 4: Codec.GZIP}
"""The document's numbers (its order is that of its table), and Kafka's."""

_HEAD = struct.Struct(">qiBI")
_SIZE_AND_KEY_SIZE = struct.Struct(">II")
_NO_HEADERS_AND_TIMESTAMP = struct.Struct(">iq")
UNPACKED_OBJECTS_MAX = 5_000
"""Messages and headers of one compressed batch: 25 ms to read and append."""
MESSAGE_BYTES_MIN = 20
"""Two empty fields, no headers, a timestamp."""
READ_AT_ONCE = 500
"""Messages, or headers of one, that are read between two pauses."""
MESSAGE_OVERHEAD_BYTES = 4 + MESSAGE_BYTES_MIN


class Message(NamedTuple):
    key: Bytes | None
    value: Bytes
    headers: Headers = ()
    timestamp: int = 0


def read_batch(reader: Reader, limit_bytes: int) -> list[Message]:
    """The messages of a produced batch; its offsets are the client's guess, and the broker gives its own."""
    codec, packed = open_batch(reader)
    try:
        return messages_of(decompress(codec, packed, limit_bytes) if codec else packed)
    except BatchError as error:
        raise BrokerError(Fault.CORRUPT_MESSAGE, str(error)) from None


def open_batch(reader: Reader) -> tuple[Codec, Bytes]:
    """The codec of the messages of a produced batch, and their bytes, which are a part of the reader's data."""
    reader.i64()
    reader.i32()
    kind = reader.u8()
    codec = CODECS.get(kind)
    packed = reader.raw_borrowed()
    if codec is None:
        raise BrokerError(Fault.UNSUPPORTED_COMPRESSION_TYPE, f"compression {kind} is not known; 0 to 4 are")
    return codec, packed


def unpacked_messages(data: bytes) -> list[Message]:
    """The messages of a compressed batch, within a limit: they are cheap to send and slow to read."""
    return messages_of(data, UNPACKED_OBJECTS_MAX)


def messages_of(data: Bytes, objects_max: int | None = None) -> list[Message]:
    """The messages in `data`, with at most `objects_max` messages and headers in total."""
    return at_once(messages_in_slices(data, objects_max))


def messages_in_slices(data: Bytes, objects_max: int | None = None) -> Work[list[Message]]:
    """As `messages_of`, in slices."""
    messages: list[Message] = []
    objects = 0
    inside = Reader(data)
    while inside.left:
        message = read_message(inside.raw())
        messages.append(message)
        objects += 1 + len(message.headers)
        if objects_max is not None and objects > objects_max:
            raise BrokerError(
                Fault.INVALID_RECORD, f"more than {objects_max} messages and headers in a compressed batch"
            )
        if len(messages) % READ_AT_ONCE == 0 or len(message.headers) >= READ_AT_ONCE:
            yield None
    if not messages:
        raise BrokerError(Fault.INVALID_RECORD, "a batch has at least one message")
    return messages


def read_message(data: bytes) -> Message:
    reader = Reader(data)
    key = reader.raw()
    value = reader.raw()
    count = reader.i32()
    headers: Headers = ()
    if count:
        if not 0 < count <= HEADERS_PER_RECORD_MAX:
            raise BrokerError(Fault.INVALID_RECORD, f"{count} headers, 0 to {HEADERS_PER_RECORD_MAX} are allowed")
        if count * 4 > reader.left:
            raise too_short()
        headers = tuple((reader.string(), reader.raw_string()) for _ in range(count))
    return Message(key or None, value, headers, reader.i64())


def message_of(record: Record) -> bytes:
    """A record as a length-prefixed Message. Raises BrokerError when FlyMQ's lengths cannot hold it."""
    key, value, headers = record.key or b"", record.value or b"", record.headers
    if not headers:
        size = MESSAGE_BYTES_MIN + len(key) + len(value)
        stamp = _NO_HEADERS_AND_TIMESTAMP.pack(0, record.timestamp)
        return b"".join((_SIZE_AND_KEY_SIZE.pack(size, len(key)), key, U32.pack(len(value)), value, stamp))
    parts = [U32.pack(len(key)), key, U32.pack(len(value)), value, I32.pack(len(headers))]
    for name, content in headers:
        encoded = name.encode("utf-8", HEADER_NAME_ERRORS)
        content = content or b""
        if len(encoded) > STRING_BYTES_MAX or len(content) > STRING_BYTES_MAX:
            raise BrokerError(
                Fault.MESSAGE_TOO_LARGE,
                f"the record at offset {record.offset} has a header of more than {STRING_BYTES_MAX} bytes",
            )
        parts += (raw_string(encoded), U16.pack(len(content)), content)
    parts.append(I64.pack(record.timestamp))
    return b"".join((U32.pack(sum(map(len, parts))), *parts))


def batches_of(
    records: Sequence[Record], bytes_max: int, frame_bytes_max: int, lead_bytes: int = 0
) -> tuple[list[bytes], int]:
    """As `batches_in_slices`, without pauses."""
    return at_once(batches_in_slices(records, bytes_max, frame_bytes_max, lead_bytes))


def batches_in_slices(
    records: Sequence[Record], bytes_max: int, frame_bytes_max: int, lead_bytes: int = 0
) -> Work[tuple[list[bytes], int]]:
    """The records as plain batches, a new one where offsets have a gap: at least one record, and no more than fit
    `bytes_max` or FlyMQ's lengths. Also how many records went in. A first record that does not fit a frame behind the
    `lead_bytes` of the answer, or FlyMQ's lengths, is a BrokerError."""
    batches: list[bytes] = []
    messages: list[bytes] = []
    first = size = taken = 0
    for record in records:
        try:
            message = message_of(record)
        except BrokerError:
            if taken:
                break
            raise
        cost = len(message)
        if not messages or record.offset != first + len(messages):
            cost += _HEAD.size
        if taken and size + cost > bytes_max:
            break
        if not taken and lead_bytes + cost > frame_bytes_max:
            raise too_large(record.offset, lead_bytes + cost, frame_bytes_max)
        if messages and record.offset != first + len(messages):
            batches.append(batch_of(first, messages))
            messages = []
        if not messages:
            first = record.offset
        messages.append(message)
        size += cost
        taken += 1
        if taken % READ_AT_ONCE == 0:
            yield None
    if messages:
        batches.append(batch_of(first, messages))
    return batches, taken


def batch_of_one(record: Record, frame_bytes_max: int, lead_bytes: int) -> bytes:
    """As `batches_of`, for what one who reads record by record gets."""
    message = message_of(record)
    size = len(message)
    answer_bytes = lead_bytes + _HEAD.size + size
    if answer_bytes > frame_bytes_max:
        raise too_large(record.offset, answer_bytes, frame_bytes_max)
    return _HEAD.pack(record.offset, 0, PLAIN, size) + message


def large_batches(
    records: Sequence[LargeRecord], bytes_max: int, frame_bytes_max: int, lead_bytes: int
) -> tuple[int, list[Chunk]]:
    """As `batches_of`, with a batch for each record, whose value leaves from the log's file."""
    parts: list[Chunk] = []
    total = taken = 0
    for record in records:
        key, value = record.key or b"", record.value
        size = MESSAGE_BYTES_MIN + len(key) + len(value)
        total += _HEAD.size + U32.size + size
        if taken and total > bytes_max:
            break
        if lead_bytes + total > frame_bytes_max:
            raise too_large(record.offset, lead_bytes + total, frame_bytes_max)
        head = _HEAD.pack(record.offset, 0, PLAIN, U32.size + size)
        lead = b"".join((head, _SIZE_AND_KEY_SIZE.pack(size, len(key)), key, U32.pack(len(value))))
        parts += (lead, value, _NO_HEADERS_AND_TIMESTAMP.pack(0, record.timestamp))
        taken += 1
    return taken, parts


def too_large(offset: int, answer_bytes: int, frame_bytes_max: int) -> BrokerError:
    """A record whose answer does not fit a frame."""
    text = f"the record at offset {offset} has {answer_bytes} bytes, a frame holds {frame_bytes_max}"
    return BrokerError(Fault.MESSAGE_TOO_LARGE, text)


def batch_of(first_offset: int, messages: Sequence[bytes]) -> bytes:
    size = sum(map(len, messages))
    return b"".join((_HEAD.pack(first_offset, len(messages) - 1, PLAIN, size), *messages))
