"""One RustLog connection: frames in, requests to the broker, frames out. No I/O and no clock.

A frame is a u32 length and a payload of at most 10 MiB; a payload that begins with `{` is JSON, any other is binary, and
both may be mixed on a connection. Consecutive produces of one form for one partition are performed as one `ProduceRun`.

A payload that is no request is answered with an error and the connection stays. A length of zero or above the limit is
answered with an error, in the form that the connection spoke last, and the connection is closed: where the next frame
begins cannot be known.

Requests take effect in their order. While a topic is being made, later requests of the connection wait for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from penstock.broker.engine import Bytes, RunAppended
from penstock.dialects.rustlog import binary_form, json_form, large
from penstock.dialects.rustlog.binary_form import SIZE_BYTES, DecodeError, ProduceHead
from penstock.dialects.rustlog.errors import Code, code_and_text, json_text, shown
from penstock.dialects.rustlog.large import LargeJson, LargeProduce
from penstock.dialects.rustlog.requests import (
    BINARY,
    JSON,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    Fetched,
    Form,
    ListTopics,
    Metrics,
    OffsetCommit,
    OffsetFetch,
    ProduceRun,
    Ready,
    Refusal,
    Request,
)
from penstock.dialects.rustlog.service import RustLogService
from penstock.model.chunks import Chunk
from penstock.model.errors import NO_FAULT, Fault
from penstock.model.fed import CUT_AT_ONCE, REQUEST_COST, Fed
from penstock.model.pending import Pending, held, in_turn
from penstock.model.slices import Failed, Work, at_once, done
from penstock.records.record import Record

_SIZE = struct.Struct(">I")
_OPENING_BRACE = 0x7B
JSON_COST = 64
JSON_COST_SHIFT = 4
"""The cost of searching for JSON produces, and the bytes of JSON that cost as much as one record of a run."""
COPIED_BYTES_MAX = 256 * 1024
"""Slices of bytes are cheaper than slices of a view: what one read delivers is copied once. Large frames are not."""


class RustLogSession:
    __slots__ = ("_form", "_head", "_json_head", "_metrics", "_prefix", "_service")

    def __init__(self, service: RustLogService, client_host: str = "") -> None:
        self._service = service
        self._metrics = service.metrics
        self._form = BINARY
        self._prefix: bytes | None = None
        """What the last single-record produce began with: at the second in a row there will be more."""
        self._head: ProduceHead | None = None
        self._json_head: json_form.ProduceHead | None = None
        self._metrics.connections += 1

    # ------------------------------------------------------------------------------------------------ bytes in

    def feed(self, view: memoryview) -> Fed:
        end = len(view)
        data: Bytes = bytes(view) if end <= COPIED_BYTES_MAX else view
        frame_bytes_max = self._service.settings.frame_bytes_max
        requests: list[Any] = []
        at = needed = 0
        fatal = None
        left = CUT_AT_ONCE
        while end - at >= SIZE_BYTES:
            head = self._head
            if head is not None:
                values, at = head.cut(data, at, end, frame_bytes_max, left)
                if values:
                    left -= len(values)
                    self._form = BINARY
                    _add_singles(requests, BINARY, head.topic, head.partition, values)
                    if end - at < SIZE_BYTES:
                        break
            json_head = self._json_head
            if json_head is not None and type(data) is bytes:
                values, at = json_head.cut(data, at, end, frame_bytes_max, left)
                left -= JSON_COST
                if values:
                    left -= len(values)
                    self._form = JSON
                    _add_singles(requests, JSON, json_head.topic, json_head.partition, values)
                    if end - at < SIZE_BYTES:
                        break
            size: int = _SIZE.unpack_from(data, at)[0]
            start = at + SIZE_BYTES
            if not 0 < size <= frame_bytes_max:
                if size and start < end:
                    self._form = JSON if data[start] == _OPENING_BRACE else BINARY
                requests.append(Ready(_size_refused(self._form, size, frame_bytes_max)))
                fatal = f"a frame of {size} bytes; 1 to {frame_bytes_max} are allowed"
                break
            stop = start + size
            if stop > end or left <= 0:
                needed = SIZE_BYTES + size
                break
            left -= REQUEST_COST
            if data[start] == _OPENING_BRACE:
                left -= size >> JSON_COST_SHIFT
                self._cut_json(data[start:stop], requests)
            else:
                self._cut_binary(data, start, stop, requests)
            at = stop
        self._metrics.bytes_in += at
        return Fed(at, needed, requests, fatal)

    def _cut_binary(self, data: Bytes, start: int, stop: int, requests: list[Any]) -> None:
        """Add the request of a binary payload to those before it."""
        self._form = BINARY
        try:
            if data[start] != binary_form.PRODUCE:
                requests.append(binary_form.read_request(data, start, stop))
                return
            topic, partition, values, prefix = binary_form.read_produce(data, start, stop, large.RECORDS_AT_ONCE)
        except DecodeError as error:
            requests.append(Ready(binary_form.decode_failed(str(error))))
            return
        if isinstance(values, int):
            assert isinstance(prefix, int)
            requests.append(LargeProduce(topic, partition, values, data[start:stop], prefix - start))
            return
        assert not isinstance(prefix, int)
        if prefix is not None and prefix == self._prefix:
            self._head = ProduceHead(prefix, topic, partition)
        self._prefix = prefix
        _add_produce(requests, BINARY, topic, partition, values)

    def _cut_json(self, payload: Bytes, requests: list[Any]) -> None:
        """Add the request of a JSON payload to those before it."""
        self._form = JSON
        if len(payload) > large.JSON_BYTES_MIN:
            requests.append(LargeJson(payload))
            return
        try:
            request = json_form.read_request(payload)
            if not isinstance(request, json_form.ProduceBody):
                requests.append(request)
                return
            values = json_form.records(request, self._service.settings.frame_bytes_max)
        except json_form.ParseError as error:
            requests.append(Ready(json_form.parse_failed(str(error))))
            return
        if type(payload) is bytes:
            self._json_head = json_form.head_of(payload, request) or self._json_head
        _add_produce(requests, JSON, request.topic, request.partition, values)

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Request | LargeProduce | LargeJson) -> Any:
        if type(request) is ProduceRun:
            appended = self._service.append(request)
            if (
                type(appended) is RunAppended
                and appended.fault is Fault.UNKNOWN_TOPIC_OR_PARTITION
                and self._service.makes(request)
            ):
                return held(in_turn(self._service.make(request), partial(self._append_made, request)), borrows=True)
            return appended
        if type(request) is Ready:
            return None
        if type(request) is LargeProduce:
            return self._service.engine.in_slices(self._produce_large(request), borrows=True)
        if type(request) is LargeJson:
            return self._service.engine.in_slices(self._perform_json(request), borrows=True)
        return _PERFORM[type(request)](self, request)

    def _produce_large(self, request: LargeProduce) -> Work[Any]:
        try:
            values = yield from large.binary_records(request)
        except DecodeError as error:
            return binary_form.decode_failed(str(error))
        run = ProduceRun(BINARY, request.topic, request.partition, values, [request.record_count])
        appended = yield from self._service.append_long(run)
        if isinstance(appended, Pending):
            appended = yield appended
        return self._answer_run(run, appended)

    def _perform_json(self, request: LargeJson) -> Work[Any]:
        """Read and perform the request, and encode its answer."""
        try:
            read = yield from large.json_request(request.payload, self._service.settings.frame_bytes_max)
        except json_form.ParseError as error:
            return json_form.parse_failed(str(error))
        if not isinstance(read, large.JsonProduce):
            result = self.perform(read)
            if isinstance(result, Pending):
                result = yield result
            return b"".join(cast("list[bytes]", self.answer(read, result)))
        run = ProduceRun(JSON, read.topic, read.partition, read.values, [len(read.values)])
        appended = yield from self._service.append_long(run) if run.values else done(self._service.append(run))
        if isinstance(appended, Pending):
            appended = yield appended
        if appended.fault is not NO_FAULT:
            return self._answer_run(run, appended)
        self._metrics.messages_produced += appended.written
        return (yield from json_form.produced_in_slices(appended.base_offset, appended.written))

    def _fetch(self, request: Fetch) -> Any:
        found = self._service.fetch(request)
        if request.form is BINARY:
            return found
        return in_turn(found, self._encoded) if isinstance(found, Pending) else self._encoded(found)

    def _encoded(self, found: Fetched | Refusal) -> Any:
        """The frame of a JSON answer that takes long to encode; otherwise the result itself."""
        if isinstance(found, Refusal) or len(found.records) < large.RECORDS_AT_ONCE:
            size = 0 if isinstance(found, Refusal) else sum([len(record.value or b"") for record in found.records])
            if size <= json_form.ENCODED_AT_ONCE:
                return found
        assert isinstance(found, Fetched)
        return self._service.engine.in_slices(self._encode(found), drop=True)

    def _encode(self, found: Fetched) -> Work[bytes | Refusal]:
        records = cast("Sequence[Record]", found.records)  # JSON is encoded from values in memory
        frame = yield from json_form.fetched(records, found.next_offset, self._service.settings.frame_bytes_max)
        self._metrics.messages_fetched += len(records)
        return self._service.too_large(records[0]) if frame is None else frame

    def _describe_topic(self, topic: str) -> Any:
        return self._service.engine.in_slices(self._service.high_watermarks(topic), drop=True)

    def _append_made(self, run: ProduceRun, fault: Fault) -> RunAppended | Pending[RunAppended]:
        if fault is NO_FAULT or self._service.engine.partition(run.topic, run.partition) is not None:
            return self._service.append(run)
        return RunAppended(fault)

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Request | LargeProduce | LargeJson, result: Any) -> list[Chunk]:
        if type(request) is ProduceRun:
            frame = self._answer_run(request, result)
        elif type(request) is Ready:
            frame = request.frame
        elif type(result) is Failed:
            raise result.error
        elif type(result) is bytes:
            frame = result
        elif type(request) is Fetch:
            chunks = self._answer_fetch(request, result)
            self._metrics.bytes_out += sum(map(len, chunks))
            return chunks
        else:
            frame = _ANSWER[type(request)](self, request, result)
        self._metrics.bytes_out += len(frame)
        return [frame]

    def _answer_run(self, run: ProduceRun, result: RunAppended) -> bytes:
        fault, base_offset, written, text = result
        self._metrics.messages_produced += written
        is_json = run.form is JSON
        if run.counts is None and fault is NO_FAULT:
            singles = json_form.produced_singles if is_json else binary_form.produced_singles
            return singles(base_offset, written)
        produced = json_form.produced if is_json else binary_form.produced
        refused = b""
        if fault is not NO_FAULT:
            refused = _refused(run.form, Refusal(fault, text), run.topic, run.partition, Code.WRITE)
        out = []
        done = 0
        for count in run.counts or [1] * len(run.values):
            if fault is not NO_FAULT and (not written or done + count > written):
                out.append(refused)
            else:
                out.append(produced(base_offset + done if count else 0, count))
            done += count
        return b"".join(out)

    def _answer_fetch(self, request: Fetch, result: Fetched | Refusal) -> list[Chunk]:
        if isinstance(result, Fetched):
            self._metrics.messages_fetched += len(result.records)
            if request.form is BINARY:
                values = [b"" if record.value is None else record.value for record in result.records]
                return binary_form.fetched(values, result.next_offset)
            records = cast("Sequence[Record]", result.records)  # JSON is encoded from values in memory
            frame = at_once(json_form.fetched(records, result.next_offset, self._service.settings.frame_bytes_max))
            if frame is not None:
                return [frame]
            result = self._service.too_large(records[0])
        return [_refused(request.form, result, request.topic, request.partition, Code.FETCH)]

    def _answer_commit(self, request: OffsetCommit, refusal: Refusal | None) -> bytes:
        if request.form is JSON:
            return json_form.committed(success=refusal is None)
        if refusal is None or refusal.fault is Fault.UNKNOWN_MEMBER_ID:  # the group has members, and this is none
            return binary_form.committed(success=refusal is None)
        return _refused(request.form, refusal, request.topic, request.partition, Code.COMMIT)

    def _answer_offset(self, request: OffsetFetch, result: int | Refusal | None) -> bytes:
        if isinstance(result, Refusal):
            return _refused(request.form, result, request.topic, request.partition, Code.INTERNAL)
        return json_form.offset_fetched(result) if request.form is JSON else binary_form.offset_fetched(result)

    def _answer_create(self, request: CreateTopic, refusal: Refusal | None) -> bytes:
        if refusal is None:
            return binary_form.created()
        return _refused(BINARY, refusal, request.topic, 0, Code.INTERNAL)

    def _answer_topics(self, _request: ListTopics, topics: list[bytes]) -> bytes:
        frame = binary_form.topics_listed(topics)
        limit = self._service.settings.frame_bytes_max
        if len(frame) - SIZE_BYTES > limit:
            return binary_form.error(
                Code.INTERNAL, f"Internal error: {len(topics)} topics do not fit a frame of {limit}"
            )
        return frame

    def _answer_topic(self, request: DescribeTopic, high_watermarks: list[int] | None) -> bytes:
        if high_watermarks is None:
            text = f"DescribeTopic failed: Topic '{shown(request.topic)}' not found"
            return binary_form.error(Code.DESCRIBE_TOPIC, text)
        return binary_form.topic_described(request.topic, high_watermarks)

    def _answer_partition(self, request: DescribePartition, high_watermark: int | None) -> bytes:
        topic, partition = request
        if high_watermark is None:
            text = f"DescribePartition failed: Partition {partition} not found in topic '{shown(topic)}'"
            return binary_form.error(Code.DESCRIBE_PARTITION, text)
        return binary_form.partition_described(topic, partition, high_watermark)

    def closed(self) -> None:
        self._metrics.connections -= 1
        self._head = self._json_head = None


_PERFORM: dict[type, Callable[[RustLogSession, Any], Any]] = {
    Fetch: RustLogSession._fetch,
    OffsetCommit: lambda session, request: session._service.commit(request),
    OffsetFetch: lambda session, request: session._service.committed(request),
    CreateTopic: lambda session, request: held(session._service.create(request)),
    ListTopics: lambda session, _: session._service.engine.in_slices(session._service.topics(), drop=True),
    DescribeTopic: lambda session, request: session._describe_topic(request.topic),
    DescribePartition: lambda session, request: session._service.high_watermark(request.topic, request.partition),
    Metrics: lambda session, _: session._service.metrics_text(),
}

_ANSWER: dict[type, Callable[[RustLogSession, Any, Any], bytes]] = {
    OffsetCommit: RustLogSession._answer_commit,
    OffsetFetch: RustLogSession._answer_offset,
    CreateTopic: RustLogSession._answer_create,
    ListTopics: RustLogSession._answer_topics,
    DescribeTopic: RustLogSession._answer_topic,
    DescribePartition: RustLogSession._answer_partition,
    Metrics: lambda _session, _request, text: binary_form.metrics(text),
}


def _add_produce(requests: list[Any], form: Form, topic: str, partition: int, values: list[Bytes]) -> None:
    """Into the run at the end of `requests` where it fits, else into a new one."""
    count = len(values)
    run = requests[-1] if requests else None
    if type(run) is ProduceRun and run.partition == partition and run.topic == topic and run.form is form:
        run.values += values
        if run.counts is not None:
            run.counts.append(count)
        elif count != 1:
            run.counts = [1] * (len(run.values) - count)
            run.counts.append(count)
    else:
        requests.append(ProduceRun(form, topic, partition, values, None if count == 1 else [count]))


def _add_singles(requests: list[Any], form: Form, topic: str, partition: int, values: list[Bytes]) -> None:
    """As many produces as values, each of one record."""
    run = requests[-1] if requests else None
    if type(run) is ProduceRun and run.partition == partition and run.topic == topic and run.form is form:
        run.values += values
        if run.counts is not None:
            run.counts += [1] * len(values)
    else:
        requests.append(ProduceRun(form, topic, partition, values, None))


def _refused(form: Form, refusal: Refusal, topic: str, partition: int, failure: Code) -> bytes:
    if form is JSON:
        return json_form.error(json_text(refusal, topic, partition, failure))
    return binary_form.error(*code_and_text(refusal, topic, partition, failure))


def _size_refused(form: Form, size: int, frame_bytes_max: int) -> bytes:
    if form is JSON:
        if not size:
            return json_form.parse_failed("a frame without payload")
        return json_form.error(f"max frame size exceeded: {size} bytes (max: {frame_bytes_max})")
    if not size:
        return binary_form.error(Code.INTERNAL, "Frame error: invalid protocol: zero-length frame")
    return binary_form.error(Code.INTERNAL, f"Frame error: frame too large: {size} bytes (max: {frame_bytes_max})")
