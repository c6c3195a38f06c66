"""One Day1 connection: frames in, requests to the broker, frames out. No I/O and no clock.

Consecutive produces to one partition become one `ProduceRun`: the broker appends all their records in one write, and
the answers leave in one buffer. Most produces carry one record and have topic and partition in the same bytes as the
one before, so these are cut by comparing bytes.

mini-kafka handles a request after the one before it. Here a request is performed when it arrives, which looks the same
as long as the broker takes it at once; where the topic has to be made first, all later requests of the connection are
held until it is.

A frame that is too large closes the connection without an answer, as mini-kafka does. Everything else has one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from penstock.broker.engine import Bytes, LargeRecord, RecordsRead, RunAppended
from penstock.broker.long_runs import READ_AT_ONCE, append_long_run, read_on
from penstock.dialects.day1 import errors
from penstock.dialects.day1.frames import (
    FETCH_HEADER_BYTES,
    ITEM_OVERHEAD_BYTES,
    ITEMS_MAX,
    KEY_BYTES_MAX,
    LENGTH,
    LENGTH_BYTES,
    Fetch,
    LargeProduce,
    Malformed,
    Produce,
    error_answer,
    fetch_answer,
    item,
    produce_answers,
    read_request,
    records_in_slices,
)
from penstock.dialects.day1.service import Day1Service
from penstock.model.chunks import Chunk, joined
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.fed import CUT_AT_ONCE, REQUEST_COST, Fed
from penstock.model.ids import topic_name
from penstock.model.pending import Pending, held, in_turn
from penstock.model.slices import Failed, Work
from penstock.records.record import Record

COPY_BYTES_MAX = 512 * 1024
"""Up to here a read is copied once and cut as bytes, which is faster than views; larger ones are mostly one record."""

_ONE = b"\x00\x01"
_KEY_LENGTH_BYTES = 2
_LENGTHS = struct.Struct(">HI")
"""Of key and value, when the key is empty."""
_ANSWER_BYTES = FETCH_HEADER_BYTES + ITEM_OVERHEAD_BYTES
"""What is around a record in the answer that gives it alone."""
[_EMPTY_FETCH] = fetch_answer((), 0)


class ProduceRun:
    """Produces in a row to one partition: their records one behind the other, and how many each has."""

    __slots__ = ("counts", "keys", "partition", "topic", "values")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.keys: list[Bytes | None] = []
        self.values: list[Bytes] = []
        self.counts: list[int] = []


class Day1Session:
    __slots__ = ("_head", "_partition", "_service", "_topic", "client_host")

    def __init__(self, service: Day1Service, client_host: str = "") -> None:
        self._service = service
        self.client_host = client_host
        self._head = b""
        """Key, topic, partition and count of the last produce of one record, as they came."""
        self._topic = ""
        self._partition = 0

    # ------------------------------------------------------------------------------------------------ bytes in

    def feed(self, view: memoryview) -> Fed:
        requests: list[Any] = []
        run: ProduceRun | None = None
        frame_bytes_max = self._service.settings.frame_bytes_max
        end = len(view)
        data = view.tobytes() if end <= COPY_BYTES_MAX else view
        at = 0
        left = CUT_AT_ONCE
        while end - at >= LENGTH_BYTES:
            if self._head and type(data) is bytes and data.startswith(self._head, at + LENGTH_BYTES):
                if run is None or run.topic != self._topic or run.partition != self._partition:
                    cut = ProduceRun(self._topic, self._partition)
                    at = self._cut(data, at, frame_bytes_max, cut, left)
                    left -= len(cut.counts)
                    if cut.counts:
                        run = cut
                        requests.append(run)
                else:
                    taken = len(run.counts)
                    at = self._cut(data, at, frame_bytes_max, run, left)
                    left -= len(run.counts) - taken
                if end - at < LENGTH_BYTES:
                    break
            size = LENGTH.unpack_from(data, at)[0]
            if size > frame_bytes_max:
                return Fed(at, 0, requests, f"a frame of {size} bytes; {frame_bytes_max} are allowed")
            stop = at + LENGTH_BYTES + size
            if stop > end or left <= 0:
                return Fed(at, LENGTH_BYTES + size, requests)
            request = read_request(data[at + LENGTH_BYTES : stop])
            left -= REQUEST_COST
            if size > frame_bytes_max - _ANSWER_BYTES and type(request) is Produce:
                request = _that_can_be_given_back(request, frame_bytes_max)
            if type(request) is Produce:
                if run is None or run.topic != request.topic or run.partition != request.partition:
                    run = ProduceRun(request.topic, request.partition)
                    requests.append(run)
                run.keys += request.keys
                run.values += request.values
                run.counts.append(len(request.values))
                left -= len(request.values)
                if request.head.endswith(_ONE):
                    self._head, self._topic, self._partition, *_ = request
            else:
                run = None
                requests.append(request)
            at = stop
        return Fed(at, 0, requests)

    def _cut(self, data: bytes, at: int, frame_bytes_max: int, run: ProduceRun, count_max: int) -> int:
        """Take the whole produces of one record from `at` on that go where the last one went; where they end."""
        head = self._head
        head_end = LENGTH_BYTES + len(head)
        size_min = len(head) + _LENGTHS.size
        end = len(data)
        length_of, lengths_of = LENGTH.unpack_from, _LENGTHS.unpack_from
        keys, values = run.keys, run.values
        taken = len(values)
        while len(values) - taken < count_max and data.startswith(head, at + LENGTH_BYTES):
            (size,) = length_of(data, at)
            stop = at + LENGTH_BYTES + size
            if stop > end or not size_min <= size <= frame_bytes_max:
                break
            start = at + head_end
            key_bytes, value_bytes = lengths_of(data, start)
            start += _KEY_LENGTH_BYTES
            if key_bytes:
                key_start = start
                start += key_bytes
                if start + LENGTH_BYTES > stop:
                    break
                (value_bytes,) = length_of(data, start)
                key = data[key_start:start]
            else:
                key = b""
            start += LENGTH_BYTES
            value_end = start + value_bytes
            if value_end > stop:
                break
            keys.append(key)
            values.append(data[start:value_end])
            if not key_bytes and value_end == stop:
                # Most often the next ones have the same lengths: then one comparison is enough for each.
                shape, skip, frame_bytes = data[at:start], start - at, stop - at
                at = stop
                last = min(end - frame_bytes, at + (count_max - (len(values) - taken) - 1) * frame_bytes)
                while at <= last and data.startswith(shape, at):
                    values.append(data[at + skip : at + frame_bytes])
                    at += frame_bytes
                keys += [b""] * (len(values) - len(keys))
            else:
                at = stop
        run.counts += [1] * (len(values) - taken)
        return at

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Any) -> Any:
        if type(request) is ProduceRun:
            return self._produce(request)
        if type(request) is Fetch:
            return self._fetch(request)
        if type(request) is LargeProduce:
            return self._service.engine.in_slices(self._produce_large(request), borrows=True)
        assert type(request) is Malformed
        return None

    def _produce(self, run: ProduceRun) -> RunAppended | Pending[RunAppended]:
        result = self._append(run)
        if isinstance(result, Pending) or result.fault is not Fault.UNKNOWN_TOPIC_OR_PARTITION:
            return result
        making = self._service.make_partition(run.topic, run.partition)
        if isinstance(making, BrokerError):
            return RunAppended(making.fault, text=making.text)

        def made(refusal: BrokerError | None) -> RunAppended | Pending[RunAppended]:
            return self._append(run) if refusal is None else RunAppended(refusal.fault, text=refusal.text)

        return held(in_turn(making, made), borrows=True)

    def _produce_large(self, request: LargeProduce) -> Work[Malformed | RunAppended | Pending[RunAppended]]:
        read = yield from records_in_slices(request)
        if isinstance(read, Malformed):
            return read
        keys, values = read
        topic, partition, service = request.topic, request.partition, self._service
        if len(request.payload) > service.settings.frame_bytes_max - _ANSWER_BYTES:
            refused = _that_can_be_given_back(
                Produce(b"", topic, partition, keys, values), service.settings.frame_bytes_max
            )
            if isinstance(refused, Malformed):
                return refused
        if service.engine.partition(topic, partition) is None:
            making = service.make_partition(topic, partition)
            refusal = making if isinstance(making, BrokerError) else (yield making)
            if refusal is not None:
                return RunAppended(refusal.fault, text=refusal.text)
        return (yield from append_long_run(service.engine, topic, partition, values, keys, service.settings.acks))

    def _append(self, run: ProduceRun) -> RunAppended | Pending[RunAppended]:
        service = self._service
        if run.values:
            return service.engine.append_run(run.topic, run.partition, run.values, run.keys, service.settings.acks)
        # Produces without records are answered with the offset that the next record will have.
        partition = service.engine.partition(run.topic, run.partition)
        if partition is None:
            return RunAppended(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.log is None:
            return RunAppended(Fault.STORAGE_ERROR)
        return RunAppended(NO_FAULT, partition.log.log_end_offset)

    def _fetch(self, request: Fetch) -> list[Chunk] | Pending[list[Chunk]]:
        topic, index, offset, max_bytes = request
        engine = self._service.engine
        partition = engine.partition(topic, index)
        if partition is None:
            try:
                topic_name(topic)
            except BrokerError as error:
                return [error_answer(errors.fetch_error(error.fault, error.text))]
            return [_EMPTY_FETCH]
        room = self._service.settings.frame_bytes_max - FETCH_HEADER_BYTES
        items_max = max_bytes // ITEM_OVERHEAD_BYTES
        if not items_max:
            return [_EMPTY_FETCH]
        if items_max > ITEMS_MAX:
            items_max = ITEMS_MAX
        log = partition.log
        if log is None:
            return [error_answer(errors.fetch_error(Fault.STORAGE_ERROR))]
        first = max(offset, log.log_start_offset)
        # What items have beside key and value is counted here and not by the broker: the second may be one too many.
        bytes_max = min(max_bytes, room) - ITEM_OVERHEAD_BYTES
        found = engine.read_records(
            topic, index, first, min(items_max, READ_AT_ONCE), bytes_max, large=True, headers=False
        )
        if type(found) is RecordsRead and len(found.records) < READ_AT_ONCE:
            return _fetched(found, max_bytes, room)

        def fetched(read: RecordsRead) -> Any:
            if len(read.records) < READ_AT_ONCE or items_max <= READ_AT_ONCE:
                return _fetched(read, max_bytes, room)
            reading = read_on(engine, topic, index, read, items_max, bytes_max, headers=False)
            return engine.in_slices(_fetched_in_slices(reading, max_bytes, room), drop=True)

        return in_turn(found, fetched) if isinstance(found, Pending) else fetched(found)

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Any, result: Any) -> list[Chunk]:
        if type(request) is ProduceRun:
            return [_answer_run(request, result)]
        if type(request) is Fetch:
            if type(result) is Failed:
                raise result.error
            fetched: list[Chunk] = result
            return fetched
        if type(request) is LargeProduce:
            return [_answer_large(request, result)]
        assert type(request) is Malformed
        return [error_answer(request.text)]

    def closed(self) -> None:
        """Nothing is kept for it."""


def _that_can_be_given_back(request: Produce, frame_bytes_max: int) -> Produce | Malformed:
    """A fetch answer has more around a record than a produce to a topic with a short name."""
    room = frame_bytes_max - _ANSWER_BYTES
    for key, value in zip(request.keys, request.values, strict=True):
        size = len(key or b"") + len(value)
        if size > room:
            text = f"a record of {size} bytes; an answer holds {room}"
            return Malformed(errors.produce_error(Fault.MESSAGE_TOO_LARGE, text))
    return request


def _answer_run(run: ProduceRun, result: RunAppended) -> bytes:
    counts = run.counts
    if result.fault is NO_FAULT:
        return produce_answers(result.base_offset, counts)
    written = 0
    if result.written:
        # A produce counts when all its records made it.
        written = sum(1 for end in accumulate(counts) if end <= result.written)
    refused = error_answer(errors.produce_error(result.fault, result.text))
    return produce_answers(result.base_offset, counts[:written]) + refused * (len(counts) - written)


def _answer_large(request: LargeProduce, result: RunAppended | Malformed | Failed) -> bytes:
    if isinstance(result, Failed):
        raise result.error
    if isinstance(result, Malformed):
        return error_answer(result.text)
    if result.written >= request.record_count:
        return produce_answers(result.base_offset, (request.record_count,))
    return error_answer(errors.produce_error(result.fault, result.text))


def _fetched(read: RecordsRead, max_bytes: int, room: int) -> list[Chunk]:
    """The records that fit, by the strict rule: not even the first may be larger than what was asked for. A
    record that no answer could hold is an error that names it, so that the reader can step over it."""
    if read.fault is not NO_FAULT:
        if read.fault is Fault.OFFSET_OUT_OF_RANGE:
            return [_EMPTY_FETCH]
        return [error_answer(errors.fetch_error(read.fault, read.text))]
    if len(read.records) == 1:  # most often
        record = read.records[0]
        key, value = record.key or b"", record.value or b""
        if len(key) <= KEY_BYTES_MAX and ITEM_OVERHEAD_BYTES + len(key) + len(value) <= min(max_bytes, room):
            return fetch_answer(item(record.offset, key, value), 1)
    items = _items(read.larges or read.records, 0, max_bytes, room)
    if isinstance(items, bytes):
        return [items]
    parts, count, _ = items
    return fetch_answer(parts, count)


def _fetched_in_slices(reading: Work[RecordsRead], max_bytes: int, room: int) -> Work[list[Chunk]]:
    """As `_fetched`, for many records, all of which are in memory."""
    records = (yield from reading).records
    packed: list[Chunk] = []
    size = count = 0
    for first in range(0, len(records), READ_AT_ONCE):
        some = records[first : first + READ_AT_ONCE]
        items = _items(some, size, max_bytes, room)
        if isinstance(items, bytes):
            return [items]
        parts, taken, size = items
        packed += joined(parts)
        count += taken
        if taken < len(some):
            break
        yield None
    return fetch_answer(packed, count)


def _items(
    records: Sequence[Record | LargeRecord], size: int, max_bytes: int, room: int
) -> tuple[list[Chunk], int, int] | bytes:
    """The records that fit after items of `size` bytes: their items, their number and the size of all items; an error if
    there are none and the first is too large for any answer."""
    parts: list[Chunk] = []
    count = 0
    for record in records:
        key, value = record.key or b"", b"" if record.value is None else record.value
        item_bytes = ITEM_OVERHEAD_BYTES + len(key) + len(value)
        if len(key) > KEY_BYTES_MAX or item_bytes > room:
            if size:
                break
            text = f"the record at offset {record.offset} has a key of {len(key)} and a value of {len(value)} bytes"
            return error_answer(errors.fetch_error(Fault.MESSAGE_TOO_LARGE, f"{text}, more than an answer holds"))
        if size + item_bytes > max_bytes or size + item_bytes > room:
            break
        size += item_bytes
        parts += item(record.offset, key, value)
        count += 1
    return parts, count, size
