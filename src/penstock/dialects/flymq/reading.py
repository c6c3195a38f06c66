"""Reading records: CONSUME, FETCH and SUBSCRIBE of the opcode frames, Fetch and ListOffsets of the API-key frames.

Committed records only. Where an answer carries offsets, offsets that no longer exist are passed over; CONSUME, which has one
record and no offset, says where to go on instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from penstock.broker.engine import Isolation, OffsetFound, Read, RecordsRead
from penstock.broker.long_runs import READ_AT_ONCE, read_on
from penstock.coordination.group_commands import FetchOffsets, FetchResult
from penstock.dialects.flymq.batches import batch_of_one, batches_in_slices, batches_of, large_batches, too_large
from penstock.dialects.flymq.errors import check_group, checked
from penstock.dialects.flymq.filters import Filter, filter_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I64, INT64_MAX, U32, U64, InParts, Payload, Reader, raw
from penstock.model.errors import BrokerError, Fault
from penstock.model.pending import Pending
from penstock.model.slices import Work
from penstock.records.record import Record

if TYPE_CHECKING:
    from penstock.broker.partition import Partition
    from penstock.dialects.flymq.service import FlyMQService
    from penstock.dialects.flymq.session import FlyMQSession

FETCHED_RECORDS = 10
"""What FETCH gives when it is asked for 0 or less."""
FETCHED_RECORDS_MAX = 1_000
"""What one FETCH looks at, as in the original."""
API_FETCHED_RECORDS_MAX = 10_000
WAIT_MS_MAX = 300_000
"""The original's read deadline: no client waits longer for an answer."""
TRIED_BYTES_AT_ONCE = 128 * 1024
TRIED_BYTES_MIN = 1_024
"""Bytes of keys and values that a filter is applied to between two pauses, and the bytes that each record adds."""
_ROW_BYTES = 16
"""Of a record in the answer to a FETCH, beside key and value."""
_JOINED_BYTES_MAX = 256 * 1024
"""Size of a value above which the answer is sent in parts."""
_ROWS_LEAD = struct.Struct(">IQ")
_PLACE = struct.Struct(">iQ")
_API_FETCH = struct.Struct(">iqiii")
_FETCHED = struct.Struct(">qI")

LATEST, EARLIEST = -1, -2


# ---- opcode frames ------------------------------------------------------------------------------------------------


def consume(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic = reader.string()
    partition, offset = reader.numbers(_PLACE)
    if offset > INT64_MAX:
        offset = INT64_MAX
    count = service.placing.partitions(topic)
    if not count:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, "topic not found")
    if not 0 <= partition < count:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION, f"partition {partition} out of range")

    def found(read: RecordsRead) -> Payload:
        if read.fault is Fault.OFFSET_OUT_OF_RANGE:
            if offset < read.log_start_offset:
                raise _gone(offset, read.log_start_offset)
            raise BrokerError(Fault.OFFSET_OUT_OF_RANGE, "EOF")
        checked(read.fault, read.text)
        record = read.first
        if record is None:
            if read.next_offset > offset:
                raise _gone(offset, read.next_offset)
            raise BrokerError(Fault.OFFSET_OUT_OF_RANGE, "EOF")
        if record.offset != offset:
            raise _gone(offset, record.offset)
        key, value = record.key or b"", b"" if record.value is None else record.value
        size = 2 * U32.size + len(key) + len(value)
        if size > service.frame_bytes_max:
            raise too_large(offset, size, service.frame_bytes_max)
        lead = b"".join((U32.pack(len(key)), key, U32.pack(len(value))))
        return lead + value if type(value) is bytes else InParts([lead, value])

    read = service.engine.read_records(topic, partition, offset, 1, 1, large=True, headers=False)
    return follow(read, found) if isinstance(read, Pending) else found(read)


def _gone(offset: int, next_offset: int) -> BrokerError:
    return BrokerError(Fault.OFFSET_OUT_OF_RANGE, f"no record at offset {offset}; next is {next_offset}")


def fetch(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, partition = reader.string(), reader.i32()
    (asked,) = reader.numbers(U64)
    offset = min(asked, INT64_MAX)
    wanted = reader.i32()
    text = reader.string() if reader.left else ""
    service.check_partition(topic, partition)
    wants = filter_of(text) if text else None
    wanted = FETCHED_RECORDS if wanted <= 0 else min(wanted, FETCHED_RECORDS_MAX)
    bytes_max = max(1, service.frame_bytes_max - _ROWS_LEAD.size - _ROW_BYTES * wanted)
    if wants is not None:
        return _fetch_filtered(service, topic, partition, asked, wanted, wants, bytes_max)

    def look(offset: int) -> Any:
        return follow(service.engine.read_records(topic, partition, offset, wanted, bytes_max, headers=False), found)

    def found(read: RecordsRead) -> Any:
        if read.fault is Fault.OFFSET_OUT_OF_RANGE:
            # Below the log start the records are gone; past the end there are none yet.
            return look(read.log_start_offset) if offset < read.log_start_offset else _rows([], 0, asked)
        checked(read.fault, read.text)
        next_offset = max(read.next_offset, offset)
        rows: list[bytes] = []
        for record in read.records:
            rows += _row(record, service.frame_bytes_max)
        return _rows(rows, len(read.records), next_offset)

    return look(offset)


def _fetch_filtered(
    service: FlyMQService, topic: str, partition: int, asked: int, wanted: int, wants: Filter, room: int
) -> Work[Payload]:
    offset = min(asked, INT64_MAX)
    bytes_max = min(room, wants.bytes_max)
    while True:
        look = service.engine.read_records(topic, partition, offset, FETCHED_RECORDS_MAX, bytes_max, headers=False)
        read: RecordsRead = (yield look) if isinstance(look, Pending) else look
        if read.fault is not Fault.OFFSET_OUT_OF_RANGE:
            break
        if offset >= read.log_start_offset:
            return _rows([], 0, asked)
        offset = read.log_start_offset
    checked(read.fault, read.text)
    next_offset = max(read.next_offset, offset)
    rows: list[bytes] = []
    count = tried = 0
    for record in read.records:
        tried += TRIED_BYTES_MIN + len(record.key or b"") + len(record.value or b"")
        if tried > TRIED_BYTES_AT_ONCE:
            tried = 0
            yield None
        if not wants.fits(record):
            continue
        if count == wanted:
            next_offset = record.offset
            break
        rows += _row(record, service.frame_bytes_max)
        count += 1
    return _rows(rows, count, next_offset)


def _row(record: Record, frame_bytes_max: int) -> tuple[bytes, bytes]:
    """The parts of a record in the answer to a FETCH."""
    value = record.value or b""
    lead = b"".join((U64.pack(record.offset), raw(record.key or b""), U32.pack(len(value))))
    size = _ROWS_LEAD.size + len(lead) + len(value)
    if size > frame_bytes_max:
        raise too_large(record.offset, size, frame_bytes_max)
    return lead, value


def _rows(rows: list[bytes], count: int, next_offset: int) -> Payload:
    """The answer to a FETCH; large values are not copied into it."""
    chunks = [_ROWS_LEAD.pack(count, next_offset), *rows]
    return b"".join(chunks) if max(map(len, chunks)) <= _JOINED_BYTES_MAX else InParts([*chunks])


def subscribe(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition, mode = reader.string(), reader.string(), reader.i32(), reader.short_string()
    check_group(group)
    service.check_partition(topic, partition)
    if mode not in ("", "latest", "earliest", "commit"):
        raise BrokerError(Fault.INVALID_REQUEST, f"unknown subscribe mode: {mode}")
    session.subscribe(topic, group)
    if mode == "earliest":
        return U64.pack(start_of(service, topic, partition))
    if mode != "commit":
        return follow(end_of(service, topic, partition), U64.pack)

    def fetched(result: FetchResult | Fault) -> bytes:
        committed = committed_in(result, topic, partition)
        return U64.pack(start_of(service, topic, partition) if committed is None else committed)

    return follow(service.engine.groups.ask(group, FetchOffsets(group, {topic: (partition,)})), fetched)


def committed_in(result: FetchResult | Fault, topic: str, partition: int) -> int | None:
    if isinstance(result, Fault):
        raise BrokerError(result)
    checked(result.fault)
    fetched = result.offsets.get(topic, {}).get(partition)
    return None if fetched is None or fetched.value is None else fetched.value.offset


def start_of(service: FlyMQService, topic: str, partition: int) -> int:
    found = service.engine.list_offset(topic, partition, EARLIEST, Isolation.READ_COMMITTED)
    assert isinstance(found, OffsetFound), "the start of a log is known at once"
    return _offset(found)


def end_of(service: FlyMQService, topic: str, partition: int) -> Any:
    """Where the next committed record will be, now or when all that is written by now is flushed."""
    return follow(service.engine.list_offset(topic, partition, LATEST, Isolation.READ_COMMITTED), _offset)


def _offset(found: OffsetFound) -> int:
    checked(found.fault)
    return found.offset


# ---- API-key frames -----------------------------------------------------------------------------------------------


def api_fetch(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic = reader.string()
    partition, offset, bytes_max, bytes_min, wait_ms = reader.numbers(_API_FETCH)
    engine = service.engine
    there = engine.partition(topic, partition)
    if there is None:
        raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION)
    lead_bytes = session.head_bytes + _FETCHED.size
    frame_bytes_max = service.frame_bytes_max
    bytes_max = max(1, min(bytes_max, frame_bytes_max - lead_bytes))
    waits = bytes_min > 0 and wait_ms > 0
    if not waits:
        read = engine.read_records(topic, partition, offset, READ_AT_ONCE, bytes_max, large=True)
        if type(read) is RecordsRead and len(read.records) < READ_AT_ONCE:
            return _fetched(read, there, bytes_max, frame_bytes_max, lead_bytes)

    def found(read: RecordsRead) -> Any:
        if len(read.records) < READ_AT_ONCE:
            return _fetched(read, there, bytes_max, frame_bytes_max, lead_bytes)
        reading = read_on(engine, topic, partition, read, API_FETCHED_RECORDS_MAX, bytes_max)
        return engine.in_slices(_fetched_many(reading, there, bytes_max, frame_bytes_max, lead_bytes), drop=True)

    if not waits:
        return follow(read, found)
    reads = [Read(topic, partition, offset, bytes_max)]
    waited = engine.read(reads, bytes_max, bytes_min, min(wait_ms, WAIT_MS_MAX), Isolation.READ_COMMITTED)

    def look(_: Any) -> Any:
        return follow(engine.read_records(topic, partition, offset, READ_AT_ONCE, bytes_max, large=True), found)

    return follow(waited, look)


def _fetched(read: RecordsRead, there: Partition, bytes_max: int, frame_bytes_max: int, lead_bytes: int) -> Payload:
    checked(read.fault, read.text)
    if read.larges:
        count, parts = large_batches(read.larges, bytes_max, frame_bytes_max, lead_bytes)
        return InParts([_FETCHED.pack(there.high_watermark, count), *parts])
    records = read.records
    if len(records) == 1:
        return _FETCHED.pack(there.high_watermark, 1) + batch_of_one(records[0], frame_bytes_max, lead_bytes)
    batches, _ = batches_of(records, bytes_max, frame_bytes_max, lead_bytes)
    return b"".join((_FETCHED.pack(there.high_watermark, len(batches)), *batches))


def _fetched_many(
    reading: Work[RecordsRead], there: Partition, bytes_max: int, frame_bytes_max: int, lead_bytes: int
) -> Work[Payload | BrokerError]:
    """As `_fetched`, for many records, all of which are in memory."""
    try:
        records = (yield from reading).records
        batches, _ = yield from batches_in_slices(records, bytes_max, frame_bytes_max, lead_bytes)
    except BrokerError as error:
        return error
    return b"".join((_FETCHED.pack(there.high_watermark, len(batches)), *batches))


def api_list_offsets(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, partition, timestamp = reader.string(), reader.i32(), reader.i64()
    if timestamp < EARLIEST:
        raise BrokerError(Fault.INVALID_REQUEST, f"timestamp {timestamp}: -1 is the latest, -2 the earliest")

    def found(result: OffsetFound) -> bytes:
        checked(result.fault)
        return I64.pack(result.offset) + I64.pack(result.timestamp_ms)

    return follow(service.engine.list_offset(topic, partition, timestamp, Isolation.READ_COMMITTED), found)
