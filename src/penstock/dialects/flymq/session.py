"""One FlyMQ connection: both kinds of frames in, requests to the broker, answers out. No I/O and no clock.

The first byte of a frame tells the kinds apart: AF begins an opcode frame, and a u32 length below the limit cannot. Answers
leave in the order of the requests, except that API-key frames of version 1 keep it within their stream only (`multiplexes`,
`unordered_key`): a waiting fetch holds up its own stream and no other.

What a request finds is what the one before it left. Only a few take several steps (making a topic, ending a transaction);
those hold up what is behind them. Everything else is performed as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from penstock.dialects.flymq import api_frames, large, opcode_frames
from penstock.dialects.flymq.api_frames import LENGTH_BYTES, VERSIONS, ApiCall, ApiKey, BatchRun, Start, call_at
from penstock.dialects.flymq.batches import Message, messages_of, open_batch, read_batch, unpacked_messages
from penstock.dialects.flymq.opcode_frames import (
    COMPRESSION_FLAGS,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Opcode,
    OpcodeCall,
    record_metadata,
)
from penstock.dialects.flymq.packed import when_unpacked
from penstock.dialects.flymq.placing import Columns, Outcome, Placing, each
from penstock.dialects.flymq.service import API_KEYS, HOLDING, OPCODES, FlyMQService
from penstock.dialects.flymq.turns import follow, give_back
from penstock.dialects.flymq.wire import U32, InParts, Reader
from penstock.model.chunks import Chunk
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.fed import CUT_AT_ONCE, REQUEST_COST, Fed
from penstock.model.limits import SCRATCH_BYTES
from penstock.model.pending import Hold, held
from penstock.model.slices import Failed, Work, at_once
from penstock.records.builder import Bytes
from penstock.records.compression import Codec

_OPCODE_PRODUCE, _KEY_PRODUCE = int(Opcode.PRODUCE), int(ApiKey.PRODUCE)
SUBSCRIPTIONS_MAX = 10_000
"""Pairs of topic and group that one connection may subscribe to."""
CHOSEN = -1
"""The partition of a Produce by API key when the broker is to choose."""

OpcodeRun = opcode_frames.ProduceRun
ApiRun = api_frames.ProduceRun
Request = OpcodeCall | ApiCall | OpcodeRun | ApiRun | BatchRun

_PRODUCE_KEY = bytes(2)
_PRODUCE_VERSIONS = tuple(version.to_bytes(2, "big") for version in VERSIONS)


class FlyMQSession:
    __slots__ = ("_service", "_start", "_subscriptions", "client_host", "head_bytes")

    multiplexes = True

    def __init__(self, service: FlyMQService, client_host: str = "") -> None:
        self._service = service
        self.client_host = client_host
        self._subscriptions: set[tuple[str, str]] = set()
        self.head_bytes = 0
        """What stands before the payload in the answer to the API-key frame that is being performed."""
        self._start: Start | None = None
        """How the last run of API-key frames began."""

    @property
    def placing(self) -> Placing:
        return self._service.placing

    # ------------------------------------------------------------------------------------------------ bytes in

    def feed(self, view: memoryview) -> Fed:
        end = len(view)
        # Small frames are cut from a copy, which is cheaper to compare and slice; large ones are not copied here.
        data: Bytes = bytes(view) if end <= SCRATCH_BYTES else view
        limit = self._service.frame_bytes_max
        requests: list[Any] = []
        at = 0
        left = CUT_AT_ONCE
        while at < end:
            if data[at] == MAGIC:
                if end - at < 2:
                    break
                if data[at + 1] != VERSION:
                    return Fed(at, 0, requests, f"version {data[at + 1]} of the opcode frames; {VERSION} is known")
                if end - at < HEADER_BYTES:
                    break
                length = U32.unpack_from(data, at + 4)[0]
                if length > limit:
                    return Fed(at, 0, requests, f"a payload of {length} bytes; {limit} are allowed")
                stop = at + HEADER_BYTES + length
                if stop > end or left <= 0:
                    return Fed(at, stop - at, requests)
                at = self._opcode_frame(data, at, stop, end, requests, left)
            else:
                if end - at < LENGTH_BYTES:
                    break
                length = U32.unpack_from(data, at)[0]
                if length > limit:
                    return Fed(at, 0, requests, f"a frame of {length} bytes; {limit} are allowed")
                stop = at + LENGTH_BYTES + length
                if stop > end or left <= 0:
                    return Fed(at, stop - at, requests)
                at = self._api_frame(data, at, stop, end, requests, left)
            left -= REQUEST_COST + _records_in(requests[-1])
        return Fed(at, 0, requests)

    def _opcode_frame(self, data: Bytes, at: int, stop: int, end: int, requests: list[Any], count_max: int) -> int:
        opcode, flags = data[at + 2], data[at + 3]
        if opcode == _OPCODE_PRODUCE and flags & COMPRESSION_FLAGS == 0:
            run: OpcodeRun | None = None
            after = stop
            if isinstance(data, bytes):
                run, after = opcode_frames.cut_run(data, at, stop, end, self._service.frame_bytes_max, count_max)
            else:
                alone = opcode_frames.produce_at(data, at, stop)
                if alone is not None:
                    topic, asked, value, key, _, _ = alone
                    run = OpcodeRun(topic, asked, [value], None if key is None else [key], borrows=True)
            if run is not None:
                requests.append(run)
                return after
        requests.append(OpcodeCall(opcode, flags, data[at + HEADER_BYTES : stop]))
        return stop

    def _api_frame(self, data: Bytes, at: int, stop: int, end: int, requests: list[Any], count_max: int) -> int:
        start = at + LENGTH_BYTES
        if (
            isinstance(data, bytes)
            and stop - start > 4
            and data.startswith(_PRODUCE_KEY, start)
            and data.startswith(_PRODUCE_VERSIONS, start + 2)
        ):
            limit = self._service.frame_bytes_max
            run, after = api_frames.cut_run(data, at, stop, end, limit, count_max, self._start)
            if run is not None:
                self._start = run.start
                requests.append(run)
                return after
        requests.append(call_at(data, start, stop))
        return stop

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Request) -> Any:
        try:
            if type(request) is OpcodeRun:
                return self._run(request)
            if type(request) is ApiRun:
                return self._api_run(request)
            if type(request) is OpcodeCall:
                return self._opcode(request)
            if type(request) is BatchRun:
                return self._batches(request)
            assert isinstance(request, ApiCall)
            return self._api(request)
        except BrokerError as error:
            return error

    def _run(self, run: OpcodeRun) -> Any:
        if self._service.placing.partitions(run.topic):
            return self._write(run)
        return self._when_there(run.topic, lambda: self._write(run))

    def _write(self, run: OpcodeRun) -> Any:
        topic, asked = run.topic, run.asked
        placing = self._service.placing
        count = placing.partitions(topic)
        run.now_ms = self._service.engine.now_ms()
        is_asked = 0 <= asked < count
        placed: Any
        if is_asked or count <= 1:
            run.partition = asked if is_asked else 0
            placed = placing.write(topic, run.partition, run.values, run.keys, 0)
        else:
            placed = placing.place(topic, -1, Columns(run.values, run.keys))
        if run.borrows:
            run.give_back()
        return placed

    def _api_run(self, run: ApiRun) -> Any:
        topic, asked, timestamps = run.topic, run.asked, run.timestamps
        placing = self._service.placing
        count = placing.partitions(topic)
        if asked < CHOSEN:
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        if type(timestamps) is int and (count == 1 or (count and asked >= 0)):
            run.partition = max(asked, 0)
            return placing.write(topic, run.partition, run.values, run.keys, timestamps)
        records = Columns(run.values, run.keys, timestamps)
        return self.place(topic, asked, lambda: placing.place(topic, asked, records))

    def _place_any(self, topic: str, asked: int, records: Columns) -> Any:
        """The partition field of PRODUCE holds when there is such a partition; the original never looks at it."""
        placing = self._service.placing
        return placing.place(topic, asked if 0 <= asked < placing.partitions(topic) else -1, records)

    def place(self, topic: str, asked: int, place: Callable[[], Any]) -> Any:
        is_there = self._service.placing.partitions(topic) > 0
        if asked < CHOSEN or (not is_there and asked >= max(1, self._service.settings.partitions)):
            raise BrokerError(Fault.UNKNOWN_TOPIC_OR_PARTITION)
        return self._when_there(topic, place)

    def _when_there(self, topic: str, place: Callable[[], Any]) -> Any:
        """`place`, after the topic has been made if there is none."""
        placing = self._service.placing
        if placing.partitions(topic):
            return place()
        hold: Any = None

        def created(_: object) -> Any:
            placed = place()
            if isinstance(hold, Hold) and not (isinstance(placed, Hold) and placed.borrows):
                give_back(hold)  # at once: the flush needs the log alone
            return placed

        hold = held(follow(placing.create(topic), created), borrows=True)
        return hold

    def _opcode(self, call: OpcodeCall) -> Any:
        service = self._service
        handler = OPCODES.get(call.opcode)
        if handler is None and call.opcode != _OPCODE_PRODUCE:
            raise BrokerError(Fault.INVALID_REQUEST, f"unknown opcode: {call.opcode}")
        if handler is not None and not call.flags & COMPRESSION_FLAGS:
            result = handler(service, self, Reader(call.payload))
            if type(result) is GeneratorType:
                result = self._in_slices(result, call.payload)
            return held(result) if call.opcode in HOLDING else result
        codec = call.codec()
        if codec is None:
            return self._opcode_read(call, Reader(call.payload))
        limit = service.frame_bytes_max
        return when_unpacked(
            service.engine,
            codec,
            call.payload,
            limit,
            Fault.INVALID_REQUEST,
            lambda data: self._opcode_read(call, Reader(data)),
        )

    def _opcode_read(self, call: OpcodeCall, reader: Reader) -> Any:
        handler = OPCODES.get(call.opcode)
        if handler is None:
            return self._produce(call, reader)
        result = self._in_slices(handler(self._service, self, reader), call.payload)
        return held(result) if call.opcode in HOLDING else result

    def _in_slices(self, result: Any, payload: Bytes = b"") -> Any:
        """The result of a handler, now or later. Some handlers are long work that reads the payload meanwhile."""
        if type(result) is not GeneratorType:
            return result
        return self._service.engine.in_slices(_told(result), borrows=type(payload) is not bytes)

    def _borrowing(self, work: Work[bytes]) -> Any:
        """The result of a produce, whose request is counted until it is done."""
        return self._service.engine.in_slices(_told(work), borrows=True)

    def _produce(self, call: OpcodeCall, reader: Reader) -> Any:
        """A PRODUCE that came compressed; unsound ones end here too."""
        topic, key, value, asked = reader.string(), reader.raw(), reader.raw_in_place(), reader.i32()
        now_ms = 0

        def place() -> Any:
            nonlocal now_ms
            now_ms = self._service.engine.now_ms()
            return self._place_any(topic, asked, Columns([value], [key] if key else None, now_ms))

        def answered(outcome: Outcome) -> bytes:
            row = each(outcome, 1)[0]
            if row.fault is not NO_FAULT:
                raise BrokerError(row.fault, row.text)
            return record_metadata(topic, row.partition, row.offset, now_ms, key, value)

        return follow(self._when_there(topic, place), answered)

    def _api(self, call: ApiCall) -> Any:
        if call.fault is not NO_FAULT:
            raise BrokerError(call.fault)
        if call.key == _KEY_PRODUCE:
            return self._api_produce(call)
        handler = API_KEYS.get(call.key)
        if handler is None:
            raise BrokerError(Fault.UNSUPPORTED_VERSION, f"API key {call.key} is not known")
        self.head_bytes = api_frames.head_bytes(call.version)
        return self._in_slices(handler(self._service, self, Reader(call.payload)), call.payload)

    def _api_produce(self, call: ApiCall) -> Any:
        reader = Reader(call.payload)
        topic, asked = reader.string(), reader.i32()
        codec, packed = open_batch(reader)
        if codec is Codec.NONE and len(packed) > large.LARGE_BYTES:
            return self._borrowing(large.produce(self, topic, asked, packed))
        if codec is Codec.NONE:
            return self._produce_messages(topic, asked, messages_of(packed))
        return when_unpacked(
            self._service.engine,
            codec,
            packed,
            self._service.frame_bytes_max,
            Fault.CORRUPT_MESSAGE,
            lambda data: self._produce_messages(topic, asked, unpacked_messages(data)),
        )

    def _produce_messages(self, topic: str, asked: int, messages: list[Message]) -> Any:
        placing = self._service.placing

        def place() -> Any:
            records = _columns(messages)
            refusal = placing.refusal(topic, records)
            if refusal is not None:
                raise refusal
            return placing.place(topic, asked, records)

        def answered(outcome: Outcome) -> bytes:
            placed = each(outcome, len(messages))
            for row in placed:
                if row.fault is not NO_FAULT:
                    raise BrokerError(row.fault, row.text)
            return api_frames.places(placed)

        return follow(self.place(topic, asked, place), answered)

    def _batches(self, run: BatchRun) -> Any:
        if sum(map(len, run.batches)) > large.LARGE_BYTES:
            return self._borrowing(large.produce_batches(self, run))
        batches: list[list[Message] | BrokerError] = []
        for batch in run.batches:
            try:
                batches.append(read_batch(Reader(batch), self._service.frame_bytes_max))
            except BrokerError as error:
                batches.append(error)
        if all(isinstance(batch, BrokerError) for batch in batches):
            return self._place_batches(run, batches)
        return self.place(run.topic, run.asked, lambda: self._place_batches(run, batches))

    def _place_batches(self, run: BatchRun, batches: list[list[Message] | BrokerError]) -> Any:
        placing = self._service.placing
        records = _columns_of_all(batches)
        if placing.refusal(run.topic, records) is not None:
            batches = [
                batch if isinstance(batch, BrokerError) else placing.refusal(run.topic, _columns(batch)) or batch
                for batch in batches
            ]
            records = _columns_of_all(batches)
        run.counts = [batch if isinstance(batch, BrokerError) else len(batch) for batch in batches]
        return placing.place(run.topic, run.asked, records) if records.values else []

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Request, result: Any) -> list[Chunk]:
        if type(result) is Failed:
            raise result.error
        if type(request) is OpcodeRun:
            if isinstance(result, BrokerError):
                return [opcode_frames.error(result.text) * request.count]
            return [opcode_frames.answer_run(request, result)]
        if type(request) is ApiRun:
            if isinstance(result, BrokerError):
                refused = api_frames.error(ApiKey.PRODUCE, request.version, request.stream, result.fault, result.text)
                return [refused * len(request.values)]
            return [api_frames.answer_run(request, result)]
        if type(request) is BatchRun:
            if isinstance(result, BrokerError):
                refused = api_frames.error(ApiKey.PRODUCE, request.version, request.stream, result.fault, result.text)
                return [refused * len(request.batches)]
            return [result if type(result) is bytes else at_once(api_frames.answer_batches(request, result))]
        if type(request) is OpcodeCall:
            if isinstance(result, BrokerError):
                return [opcode_frames.error(result.text)]
            if type(result) is InParts:
                return [opcode_frames.answer_head(request.opcode, len(result)), *result.chunks]
            return [opcode_frames.answer(request.opcode, result)]
        assert isinstance(request, ApiCall)
        if isinstance(result, BrokerError):
            return [api_frames.error(request.key, request.version, request.stream, result.fault, result.text)]
        if type(result) is InParts:
            return [api_frames.answer_head(request.key, request.version, request.stream, len(result)), *result.chunks]
        return [api_frames.answer(request.key, request.version, request.stream, result)]

    # ------------------------------------------------------------------------------------------------ subscriptions

    def subscribe(self, topic: str, group: str) -> None:
        """This connection is a member of the pair until it goes."""
        pair = topic, group
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX and pair not in self._subscriptions:
            raise BrokerError(Fault.POLICY_VIOLATION, f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")
        self._subscriptions.add(pair)
        self._service.subscribe(pair, self)

    def closed(self) -> None:
        for pair in self._subscriptions:
            self._service.unsubscribe(pair, self)
        self._subscriptions.clear()


def _records_in(request: Request) -> int:
    """Records that a run counts as, in addition to the request."""
    if type(request) is OpcodeRun:
        return request.count
    return len(request.values) if type(request) is ApiRun else 0


def _told(work: Work[Any]) -> Work[Any]:
    """The same work, with a BrokerError as its result instead of an exception."""
    try:
        return (yield from work)
    except BrokerError as error:
        return error


def _columns_of_all(batches: list[list[Message] | BrokerError]) -> Columns:
    return _columns([message for batch in batches if isinstance(batch, list) for message in batch])


def _columns(messages: list[Message]) -> Columns:
    return Columns(
        [message.value for message in messages],
        [message.key for message in messages] if any(message.key for message in messages) else None,
        [message.timestamp for message in messages],
        [message.headers for message in messages],
    )
