"""Reading records: CONSUME, FETCH and SUBSCRIBE of the opcode frames, Fetch and ListOffsets of the API-key frames.

Committed records only. Where an answer carries offsets, offsets that no longer exist are passed over; CONSUME, which has one
record and no offset, says where to go on instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from penstock.broker.engine import Isolation, OffsetFound, Read, RecordsRead
from penstock.coordination.group_commands import FetchOffsets, FetchResult
from penstock.dialects.flymq.batches import batch_of_one, batches_of, large_batches
from penstock.dialects.flymq.errors import check_group, checked
from penstock.dialects.flymq.filters import SCANNED_BYTES_MAX, filter_of
from penstock.dialects.flymq.turns import follow
from penstock.dialects.flymq.wire import I64, INT64_MAX, U32, U64, InParts, Payload, Reader, raw
from penstock.model.errors import BrokerError, Fault
from penstock.model.pending import Pending

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
ANSWER_OVERHEAD_BYTES = 64
"""Of an answer beside its records, with room to spare."""
_ROW_BYTES = 16
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
        checked(read.fault)
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
            raise _too_large(offset, size, service.frame_bytes_max)
        lead = b"".join((U32.pack(len(key)), key, U32.pack(len(value))))
        return lead + value if type(value) is bytes else InParts([lead, value])

    read = service.engine.read_records(topic, partition, offset, 1, 1, large=True)
    return follow(read, found) if isinstance(read, Pending) else found(read)


def _gone(offset: int, next_offset: int) -> BrokerError:
    return BrokerError(Fault.OFFSET_OUT_OF_RANGE, f"no record at offset {offset}; next is {next_offset}")


def _too_large(offset: int, size: int, size_max: int) -> BrokerError:
    return BrokerError(
        Fault.MESSAGE_TOO_LARGE, f"the record at offset {offset} has {size} bytes, a frame holds {size_max}"
    )


def fetch(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, partition, offset = reader.string(), reader.i32(), reader.offset()
    wanted = reader.i32()
    text = reader.string() if reader.left else ""
    service.check_partition(topic, partition)
    fits = filter_of(text) if text else None
    wanted = FETCHED_RECORDS if wanted <= 0 else min(wanted, FETCHED_RECORDS_MAX)
    room = service.frame_bytes_max - ANSWER_OVERHEAD_BYTES - _ROW_BYTES * wanted
    scanned = wanted if fits is None else FETCHED_RECORDS_MAX
    bytes_max = room if fits is None else min(room, SCANNED_BYTES_MAX)

    def look(offset: int) -> Any:
        return follow(service.engine.read_records(topic, partition, offset, scanned, max(bytes_max, 1)), found)

    def found(read: RecordsRead) -> Any:
        if read.fault is Fault.OFFSET_OUT_OF_RANGE:
            # Below the log start the records are gone; past the end there are none yet.
            return look(read.log_start_offset) if offset < read.log_start_offset else _rows([], offset)
        checked(read.fault)
        next_offset = max(read.next_offset, offset)
        rows: list[bytes] = []
        for record in read.records:
            if fits is not None and not fits(record):
                continue
            if len(rows) == wanted:
                next_offset = record.offset
                break
            row = b"".join((U64.pack(record.offset), raw(record.key or b""), raw(record.value or b"")))
            if len(row) > service.frame_bytes_max - ANSWER_OVERHEAD_BYTES:
                raise _too_large(record.offset, len(row), service.frame_bytes_max)
            rows.append(row)
        return _rows(rows, next_offset)

    return look(offset)


def _rows(rows: list[bytes], next_offset: int) -> bytes:
    return b"".join((U32.pack(len(rows)), U64.pack(next_offset), *rows))


def subscribe(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, group, partition, mode = reader.string(), reader.string(), reader.i32(), reader.short_string()
    check_group(group)
    service.check_partition(topic, partition)
    if mode not in ("", "latest", "earliest", "commit"):
        raise BrokerError(Fault.INVALID_REQUEST, f"unknown subscribe mode: {mode}")
    session.subscribe(topic, group)
    if mode != "commit":
        return U64.pack(
            start_of(service, topic, partition) if mode == "earliest" else end_of(service, topic, partition)
        )

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
    return _place(service, topic, partition, EARLIEST)


def end_of(service: FlyMQService, topic: str, partition: int) -> int:
    """Where the next committed record will be."""
    found = service.engine.partition(topic, partition)
    checked(Fault.UNKNOWN_TOPIC_OR_PARTITION if found is None else Fault.NONE)
    assert found is not None
    checked(Fault.STORAGE_ERROR if found.log is None else Fault.NONE)
    return found.last_stable_offset


def _place(service: FlyMQService, topic: str, partition: int, which: int) -> int:
    found = service.engine.list_offset(topic, partition, which, Isolation.READ_COMMITTED)
    assert isinstance(found, OffsetFound), "the ends of a log are known at once"
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
    hard_bytes_max = service.frame_bytes_max - ANSWER_OVERHEAD_BYTES
    bytes_max = max(1, min(bytes_max, hard_bytes_max))
    if bytes_min <= 0 or wait_ms <= 0:
        read = engine.read_records(topic, partition, offset, API_FETCHED_RECORDS_MAX, bytes_max, large=True)
        if isinstance(read, RecordsRead):
            return _fetched(read, there, bytes_max, hard_bytes_max)
        return follow(read, lambda read: _fetched(read, there, bytes_max, hard_bytes_max))
    reads = [Read(topic, partition, offset, bytes_max)]
    waited = engine.read(reads, bytes_max, bytes_min, min(wait_ms, WAIT_MS_MAX), Isolation.READ_COMMITTED)

    def look(_: Any) -> Any:
        read = engine.read_records(topic, partition, offset, API_FETCHED_RECORDS_MAX, bytes_max, large=True)
        return follow(read, lambda read: _fetched(read, there, bytes_max, hard_bytes_max))

    return follow(waited, look)


def _fetched(read: RecordsRead, there: Partition, bytes_max: int, hard_bytes_max: int) -> Payload:
    checked(read.fault)
    if read.larges:
        count, parts = large_batches(read.larges, bytes_max, hard_bytes_max)
        return InParts([_FETCHED.pack(there.high_watermark, count), *parts])
    records = read.records
    if len(records) == 1:
        return _FETCHED.pack(there.high_watermark, 1) + batch_of_one(records[0], hard_bytes_max)
    batches, _ = batches_of(records, bytes_max, hard_bytes_max)
    return b"".join((_FETCHED.pack(there.high_watermark, len(batches)), *batches))


def api_list_offsets(service: FlyMQService, session: FlyMQSession, reader: Reader) -> Any:
    topic, partition, timestamp = reader.string(), reader.i32(), reader.i64()
    if timestamp < EARLIEST:
        raise BrokerError(Fault.INVALID_REQUEST, f"timestamp {timestamp}: -1 is the latest, -2 the earliest")

    def found(result: OffsetFound) -> bytes:
        checked(result.fault)
        return I64.pack(result.offset) + I64.pack(result.timestamp_ms)

    return follow(service.engine.list_offset(topic, partition, timestamp, Isolation.READ_COMMITTED), found)
