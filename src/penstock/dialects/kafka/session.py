"""One Kafka connection: frames in, requests to the broker, frames out. No I/O and no clock.

A frame is an i32 size and a request. Consecutive Produce requests for one partition with the same settings become one
`ProduceRun`: the broker appends the whole run in one write, and the answers leave in one buffer. Everything else is a
`Call`: decoded by kio, performed by the handler that `service` has for its key, encoded from a plain description in the
requested version. A request is decoded when it is performed; large requests, and all work whose cost grows with a count in
the request, run in slices (model/slices.py).

The peer is wrong when its bytes are no request, when it asks for what ApiVersions did not announce, or when a produce
without acknowledgement fails: Kafka has no error answer for these, so the connection is closed with one log line.

Kafka handles a request of a connection after the one before it. Here a request is performed when it arrives, and only those
that change what others find (`HOLDING`) hold up what is behind them until they are done. Records of a transaction and its
end keep their order in the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.broker.engine import Append, Appended
from penstock.dialects.kafka import fetch, kio_bridge, produce
from penstock.dialects.kafka.apis import ApiKey, api_name, is_served
from penstock.dialects.kafka.errors import CODES
from penstock.dialects.kafka.fetching import perform_fetch
from penstock.dialects.kafka.frame import SIZE_BYTES, RequestHeader, read_header
from penstock.dialects.kafka.kio_writer import Encoded
from penstock.dialects.kafka.produce import PartitionAnswer, ProducePrefix, ProduceRequest, TopicKey, answer_template
from penstock.dialects.kafka.service import KafkaService
from penstock.model import limits
from penstock.model.chunks import Chunk
from penstock.model.errors import NO_FAULT, Fault, ProtocolError
from penstock.model.fed import Fed
from penstock.model.pending import Pending, held, when
from penstock.model.slices import Failed, Work, at_once, done, released

REQUESTS_AT_ONCE = 256
"""Requests that one call cuts: about half a millisecond."""
_APPENDS_AT_ONCE = 100
_PRODUCE, _FETCH, _API_VERSIONS = int(ApiKey.PRODUCE), int(ApiKey.FETCH), int(ApiKey.API_VERSIONS)
_FEW_PARTITIONS = 32
"""Produces to at most this many partitions are performed at once: they take less than a slice."""

_SIZE = struct.Struct(">i")
_KEYED = struct.Struct(">ih")
_ACKS = (-1, 0, 1)
_NO_RECORDS = memoryview(b"")
_VERSION_THAT_ADDS_PARTITIONS = 12
"""From Produce 12 on a transactional batch adds its partition to the transaction by itself (KIP-890)."""


HOLDING = frozenset(
    {
        ApiKey.METADATA,  # which may make topics, and waits only then
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_RECORDS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_DELETE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)


class ProduceRun:
    """Produce requests in a row that differ in nothing but their records."""

    __slots__ = ("acks", "items", "partition", "topic", "transactional_id", "version")

    def __init__(self, prefix: ProducePrefix, items: list[tuple[int, memoryview]]) -> None:
        self.version = prefix.version
        self.acks = prefix.acks
        self.topic: TopicKey = prefix.topic
        self.partition = prefix.partition
        self.transactional_id = prefix.transactional_id
        self.items = items


class ProduceCall:
    """A Produce request for several partitions."""

    __slots__ = ("correlation_id", "decoding", "request", "version")

    def __init__(self, header: RequestHeader, decoding: Work[ProduceRequest]) -> None:
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.decoding: Work[ProduceRequest] | None = decoding
        """None if it is decoded and has few partitions."""
        self.request: ProduceRequest
        """Once it is decoded."""

    def decode_few(self) -> None:
        """Decode a request for a few partitions now."""
        assert self.decoding is not None
        try:
            for _ in range(_FEW_PARTITIONS):
                next(self.decoding)
        except StopIteration as stop:
            request: ProduceRequest = stop.value
            few = sum([len(partitions) for _, partitions in request.topics]) <= _FEW_PARTITIONS
            self.request = request
            self.decoding = None if few and request.transactional_id is None else done(request)


class Call:
    """A request of any other API."""

    __slots__ = ("body_start", "client_id", "correlation_id", "key", "version", "view")

    def __init__(self, header: RequestHeader, view: memoryview) -> None:
        self.key = header.api_key
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.view = view
        """The request up to its end; its body starts at `body_start`."""
        self.body_start = header.body_start


class KafkaSession:
    __slots__ = ("_prefix", "_service", "client_host")

    def __init__(self, service: KafkaService, client_host: str = "") -> None:
        self._service = service
        self._prefix: ProducePrefix | None = None
        self.client_host = client_host

    # ------------------------------------------------------------------------------------------------ bytes in

    def feed(self, view: memoryview) -> Fed:
        requests: list[Any] = []
        at = 0
        end = len(view)
        while end - at >= SIZE_BYTES:
            prefix = self._prefix
            if prefix is not None:
                items, at = prefix.cut(view, at)
                if items:
                    requests.append(ProduceRun(prefix, items))
                    if end - at < SIZE_BYTES:
                        break
            size = _SIZE.unpack_from(view, at)[0]
            if not 0 < size <= self._service.frame_bytes_max:
                return Fed(
                    at, 0, requests, f"a frame of {size} bytes; 1 to {self._service.frame_bytes_max} are allowed"
                )
            stop = at + SIZE_BYTES + size
            if size > limits.REQUEST_BYTES_MAX and end - at >= _KEYED.size:
                key = _KEYED.unpack_from(view, at)[1]
                if key != _PRODUCE:
                    text = f"a {api_name(key)} request of {size} bytes exceeds the limit of {limits.REQUEST_BYTES_MAX}"
                    return Fed(at, 0, requests, text)
            if stop > end or len(requests) >= REQUESTS_AT_ONCE:
                return Fed(at, SIZE_BYTES + size, requests)
            try:
                requests.append(self._request(view[:stop], at + SIZE_BYTES))
            except ProtocolError as error:
                return Fed(at, 0, requests, str(error))
            at = stop
        return Fed(at, 0, requests)

    def _request(self, view: memoryview, start: int) -> object:
        header = read_header(view, start)
        key, version = header.api_key, header.version
        if key == _PRODUCE and is_served(key, version):
            return self._produce_request(view, start, header)
        if key != _API_VERSIONS and not (key in self._service.handled and is_served(key, version)):
            raise ProtocolError(f"{api_name(key)} version {version} is not served")
        return Call(header, view)

    def _produce_request(self, view: memoryview, start: int, header: RequestHeader) -> object:
        decoding = produce.decode_in_slices(view, header.body_start, header.version)
        try:
            next(decoding)
        except StopIteration as stop:  # the request has at most one partition
            request: ProduceRequest = stop.value
        else:
            call = ProduceCall(header, decoding)
            call.decode_few()
            return call
        prefix = ProducePrefix.of(view, start, header, request)
        if prefix is None:
            return ProduceCall(header, done(request))
        self._prefix = prefix
        records = request.topics[0][1][0][1]
        return ProduceRun(prefix, [(header.correlation_id, _NO_RECORDS if records is None else records)])

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Any) -> Any:
        if type(request) is ProduceRun:
            return self._perform_run(request)
        if type(request) is ProduceCall:
            if request.decoding is None:
                return self._produce_few(request.request)
            finish = partial(_encoded_produce, request)
            return self._service.engine.in_slices(self._produce(request), borrows=True, finish=finish)
        if request.key == _FETCH:
            return perform_fetch(self._service, request)
        result = self._service.perform(request, self)
        return held(result) if request.key in HOLDING else result

    def _perform_run(self, run: ProduceRun) -> list[Appended] | Pending[list[Appended]]:
        engine = self._service.engine
        topic = run.topic
        if isinstance(topic, bytes):
            name = engine.topic_name_of(topic)
            if name is None:
                return [Appended(Fault.UNKNOWN_TOPIC_ID)] * len(run.items)
            topic = name
        if run.acks not in _ACKS:
            return [Appended(Fault.INVALID_REQUIRED_ACKS)] * len(run.items)
        if run.transactional_id is not None:
            appends = [Append(topic, run.partition, records) for _, records in run.items]
            return self._append_transactional(run.transactional_id, run.version, appends, run.acks)
        return engine.append(topic, run.partition, [records for _, records in run.items], run.acks)

    def _append_transactional(
        self, transactional_id: str, version: int, appends: list[Append], acks: int
    ) -> list[Appended] | Pending[list[Appended]]:
        return self._service.engine.append_transactional(
            transactional_id, appends, acks, adds_partitions=version >= _VERSION_THAT_ADDS_PARTITIONS
        )

    def _produce_few(self, request: ProduceRequest) -> list[Appended] | Pending[list[Appended]]:
        engine = self._service.engine
        appends: list[Append] = []
        known: list[bool] = []
        for topic, partitions in request.topics:
            name = engine.topic_name_of(topic) if isinstance(topic, bytes) else topic
            known += [name is not None] * len(partitions)
            if name is not None:
                appends += [
                    Append(name, partition, _NO_RECORDS if records is None else records)
                    for partition, records in partitions
                ]
        if request.acks not in _ACKS:
            return [Appended(Fault.INVALID_REQUIRED_ACKS)] * len(known)
        results = engine.append_many(appends, request.acks)
        return results if len(appends) == len(known) else when(results, partial(_with_unknown, known))

    def _produce(self, call: ProduceCall) -> Work[list[Appended] | Pending[list[Appended]]]:
        engine = self._service.engine
        assert call.decoding is not None
        request = call.request = yield from call.decoding
        appends: list[Append] = []
        known: list[bool] = []
        for topic, partitions in request.topics:
            name = engine.topic_name_of(topic) if isinstance(topic, bytes) else topic
            for partition, records in partitions:
                known.append(name is not None)
                if name is not None:
                    appends.append(Append(name, partition, _NO_RECORDS if records is None else records))
                if len(known) % _APPENDS_AT_ONCE == 0:
                    yield None
            if not partitions:
                yield None
        if request.acks not in _ACKS:
            return [Appended(Fault.INVALID_REQUIRED_ACKS)] * len(known)
        results: list[Appended] | Pending[list[Appended]]
        if request.transactional_id is None:
            results = yield from engine.append_in_slices(appends, request.acks)
        elif len(appends) <= _APPENDS_AT_ONCE:
            results = self._append_transactional(request.transactional_id, call.version, appends, request.acks)
        else:
            results = yield from engine.append_transactional_in_slices(
                request.transactional_id,
                appends,
                request.acks,
                adds_partitions=call.version >= _VERSION_THAT_ADDS_PARTITIONS,
            )
        yield from released(results)
        return results if len(appends) == len(known) else when(results, partial(_with_unknown, known))

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Any, result: Any) -> list[Chunk]:
        if type(request) is ProduceRun:
            return self._answer_run(request, result)
        if type(result) is Encoded:
            return result.chunks
        if type(result) is Failed:
            raise result.error
        if type(request) is ProduceCall:
            return at_once(_encoded_produce(request, result)).chunks
        if request.key == _FETCH:
            return fetch.encode_answer(request.version, request.correlation_id, 0, 0, result)
        if isinstance(result, bytes):
            return [result]
        return [kio_bridge.answer(request.key, request.version, request.correlation_id, result)]

    def _answer_run(self, run: ProduceRun, results: Sequence[Appended]) -> list[Chunk]:
        if run.acks == 0:
            _refuse_silent_failure(results)
            return []
        encode = answer_template(run.version, run.topic, run.partition).encode
        out = []
        for (correlation_id, _), result in zip(run.items, results, strict=True):
            if result.fault is NO_FAULT:
                out.append(encode(correlation_id, result.base_offset, result.append_time_ms, result.log_start_offset))
            else:
                topics = ((run.topic, (_partition_answer(run.partition, result),)),)
                out.append(produce.encode_answer(run.version, correlation_id, topics))
        return [b"".join(out)] if len(out) > 1 else list(out)

    def closed(self) -> None:
        self._prefix = None


def _with_unknown(known: Sequence[bool], found: Sequence[Appended]) -> list[Appended]:
    """The results of all partitions of a request, given those of known topics."""
    rest = iter(found)
    return [next(rest) if is_known else Appended(Fault.UNKNOWN_TOPIC_ID) for is_known in known]


def _encoded_produce(call: ProduceCall, results: Sequence[Appended]) -> Work[Encoded]:
    if call.request.acks == 0:
        _refuse_silent_failure(results)
        return Encoded([])
    rest = iter(results)
    topics: list[tuple[TopicKey, list[PartitionAnswer]]] = []
    for topic, partitions in call.request.topics:
        rows: list[PartitionAnswer] = []
        for first in range(0, len(partitions) or 1, _APPENDS_AT_ONCE):
            some = partitions[first : first + _APPENDS_AT_ONCE]
            rows += [_partition_answer(partition, next(rest)) for partition, _ in some]
            yield None
        topics.append((topic, rows))
    return Encoded([(yield from produce.encode_in_slices(call.version, call.correlation_id, topics))])


def _partition_answer(partition: int, result: Appended) -> PartitionAnswer:
    fault, base_offset, append_time_ms, log_start_offset, text, record_index = result
    if fault is NO_FAULT:
        return PartitionAnswer(partition, 0, base_offset, append_time_ms, log_start_offset)
    errors = ((record_index, text),) if record_index >= 0 else ()
    return PartitionAnswer(partition, CODES[fault], -1, -1, log_start_offset, errors, text or fault.value)


def _refuse_silent_failure(results: Sequence[Appended]) -> None:
    """acks=0 has no answer to carry an error: the closed connection is the only sign a producer gets."""
    for result in results:
        if result.fault is not NO_FAULT:
            raise ProtocolError(f"a produce without acknowledgement failed: {result.text or result.fault.value}")
