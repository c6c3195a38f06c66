"""One FluxGo connection: frames in, requests to the broker, frames out. No I/O and no clock.

Consecutive produces to one partition become one `ProduceRun`: the broker appends the whole run in one write, and its
answers leave in one buffer. A produce has its topic and partition in the same bytes as the one before it, so a run is
cut by comparing bytes.

FluxGo handles a request after the one before it. Here a request is performed when it arrives, which looks the same as
long as the broker takes it at once; where it cannot (the topic has to be made first, committed offsets are being
loaded), all later requests of the connection are held until it has.

A length that the protocol does not allow closes the connection without an answer, as FluxGo does. Everything else has
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.engine import Bytes, RecordsRead, RunAppended
from penstock.coordination.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitResult,
    FetchOffsets,
    FetchResult,
    OffsetToCommit,
)
from penstock.dialects.fluxgo import errors
from penstock.dialects.fluxgo.frames import (
    LENGTH,
    LENGTH_BYTES,
    OFFSET_MAX,
    PARTITION_MAX,
    Code,
    CommitOffset,
    Consume,
    FetchOffset,
    Malformed,
    Produce,
    answer,
    answer_header,
    offset_answers,
    read_request,
)
from penstock.dialects.fluxgo.service import FluxGoService
from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.fed import CUT_AT_ONCE, REQUEST_COST, Fed
from penstock.model.ids import is_group_name, topic_name
from penstock.model.pending import Pending, held, in_turn, when

COPY_BYTES_MAX = 512 * 1024
"""Up to here a read is copied once and cut as bytes, which is faster than views; larger ones are mostly one record."""
JOIN_BYTES_MAX = 16 * 1024
"""A larger record leaves by itself, behind its header."""
_GROUP_NAME_REFUSED = ("..", "/", "\\")
"""As FluxGo refuses them: it makes file names of groups."""


Consumed = tuple[Code, bytes | FileRange]
"""What a consume is answered: a record, or what is wrong."""


class ProduceRun:
    """Produces in a row to one partition."""

    __slots__ = ("partition", "topic", "values")

    def __init__(self, topic: str, partition: int, values: list[Bytes]) -> None:
        self.topic = topic
        self.partition = partition
        self.values = values


class FluxGoSession:
    __slots__ = ("_head", "_partition", "_service", "_topic", "client_host")

    def __init__(self, service: FluxGoService, client_host: str = "") -> None:
        self._service = service
        self.client_host = client_host
        self._head = b""
        """Command, topic and partition of the last produce, as they came."""
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
            if self._head and type(data) is bytes:
                values, at = self._cut(data, at, frame_bytes_max, left)
                if values:
                    left -= len(values)
                    if run is None:
                        run = ProduceRun(self._topic, self._partition, values)
                        requests.append(run)
                    else:
                        run.values += values
                    if end - at < LENGTH_BYTES:
                        break
            size = LENGTH.unpack_from(data, at)[0]
            if not 0 < size <= frame_bytes_max:
                return Fed(at, 0, requests, f"a frame of {size} bytes; 1 to {frame_bytes_max} are allowed")
            stop = at + LENGTH_BYTES + size
            if stop > end or left <= 0:
                return Fed(at, LENGTH_BYTES + size, requests)
            request = read_request(data[at + LENGTH_BYTES : stop])
            left -= REQUEST_COST
            if type(request) is not Produce:
                run = None
                requests.append(request)
            elif run is not None and request.head == self._head:
                run.values.append(request.value)
            else:
                self._head, self._topic, self._partition, value = request
                run = ProduceRun(self._topic, self._partition, [value])
                requests.append(run)
            at = stop
        return Fed(at, 0, requests)

    def _cut(self, data: bytes, at: int, frame_bytes_max: int, count_max: int) -> tuple[list[Bytes], int]:
        """The records of the whole produces from `at` on that go where the last one went, and where they end."""
        head = self._head
        head_bytes = len(head)
        start = LENGTH_BYTES + head_bytes
        end = len(data)
        unpack_from = LENGTH.unpack_from
        values: list[Bytes] = []
        for _ in range(count_max):
            if not data.startswith(head, at + LENGTH_BYTES):
                break
            (size,) = unpack_from(data, at)
            stop = at + LENGTH_BYTES + size
            if stop > end or not head_bytes <= size <= frame_bytes_max:
                break
            values.append(data[at + start : stop])
            at = stop
        return values, at

    # ------------------------------------------------------------------------------------------------ broker

    def perform(self, request: Any) -> Any:
        if type(request) is ProduceRun:
            return self._produce(request)
        if type(request) is Consume:
            return self._consume(request)
        if type(request) is CommitOffset:
            return self._commit(request)
        if type(request) is FetchOffset:
            return self._fetch(request)
        assert type(request) is Malformed
        return None

    def _produce(self, run: ProduceRun) -> RunAppended | Pending[RunAppended]:
        service = self._service
        append_run, acks = service.engine.append_run, service.settings.acks
        result = append_run(run.topic, run.partition, run.values, None, acks)
        if isinstance(result, Pending) or result.fault is not Fault.UNKNOWN_TOPIC_OR_PARTITION:
            return result
        making = service.make_partition(run.topic, run.partition)
        if isinstance(making, BrokerError):
            return RunAppended(making.fault, text=making.text)

        def made(refusal: BrokerError | None) -> RunAppended | Pending[RunAppended]:
            if refusal is not None:
                return RunAppended(refusal.fault, text=refusal.text)
            return append_run(run.topic, run.partition, run.values, None, acks)

        return held(in_turn(making, made), borrows=True)

    def _consume(self, request: Consume) -> Consumed | Pending[Consumed]:
        topic, partition, offset = request
        if offset > OFFSET_MAX:
            offset = OFFSET_MAX
        engine = self._service.engine
        frame_bytes_max = self._service.settings.frame_bytes_max
        found = engine.read_records(topic, partition, offset, 1, frame_bytes_max, large=True, headers=False)
        if not isinstance(found, Pending):
            if not _is_before_start(found, offset):
                return _consumed(found, offset, frame_bytes_max)
            found = engine.read_records(
                topic, partition, found.log_start_offset, 1, frame_bytes_max, large=True, headers=False
            )
        return when(found, lambda read: _consumed(read, offset, frame_bytes_max))

    def _commit(self, request: CommitOffset) -> Any:
        group = _group_name(request.group)
        if (
            group is None
            or not _is_topic_name(request.topic)
            or request.partition > PARTITION_MAX
            or request.offset > OFFSET_MAX
        ):
            return Fault.INVALID_REQUEST
        offset = OffsetToCommit(request.topic, request.partition, request.offset, -1, None)
        command = CommitOffsets(group, NO_MEMBER, None, NO_GENERATION, (offset,))
        groups, acks = self._service.engine.groups, self._service.settings.acks
        return self._ask(lambda: groups.commit(command, acks))

    def _fetch(self, request: FetchOffset) -> Any:
        group = _group_name(request.group)
        if group is None or not _is_topic_name(request.topic):
            return Fault.INVALID_REQUEST
        if not self._service.engine.groups.shards:
            return FetchResult(NO_FAULT)  # no offsets have ever been committed
        command = FetchOffsets(group, {request.topic: (request.partition,)})
        return self._ask(lambda: self._service.engine.groups.ask(group, command))

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """What the group's coordinator answers; it is waited for where a Kafka client would come again."""
        engine = self._service.engine
        groups = engine.groups
        if not groups.shards:
            return held(in_turn(groups.ensure(), lambda fault: ask() if fault is NO_FAULT else fault))
        asked = ask()
        if asked is Fault.COORDINATOR_LOADING:
            loading: Pending[Any] = engine.spawn(groups.loaded(), lambda _: None)
            return held(in_turn(loading, lambda _: ask()))
        return asked

    # ------------------------------------------------------------------------------------------------ bytes out

    def answer(self, request: Any, result: Any) -> list[Chunk]:
        if type(request) is ProduceRun:
            return [_answer_run(len(request.values), result)]
        if type(request) is Consume:
            code, payload = result
            if len(payload) > JOIN_BYTES_MAX and code is Code.NONE:
                return [answer_header(len(payload)), payload]
            return [answer(code, payload)]
        if type(request) is CommitOffset:
            return [_answer_commit(result)]
        if type(request) is FetchOffset:
            return [_answer_fetch(request, result)]
        assert type(request) is Malformed
        return [answer(*request)]

    def closed(self) -> None:
        """Nothing is kept for it."""


def _answer_run(count: int, result: RunAppended) -> bytes:
    if result.written >= count:
        return offset_answers(result.base_offset, count)
    refused = answer(*errors.produce_error(result.fault, result.text))
    return offset_answers(result.base_offset, result.written) + refused * (count - result.written)


def _consumed(read: RecordsRead, offset: int, frame_bytes_max: int) -> Consumed:
    if read.fault is not NO_FAULT:
        if _is_before_start(read, offset):
            return _gone(offset, read.log_start_offset)
        return errors.consume_error(read.fault, read.text)
    record = read.first
    if record is not None:
        if record.offset != offset:
            return _gone(offset, record.offset)
        value = b"" if record.value is None else record.value
        if len(value) >= frame_bytes_max:
            text = f"the record at offset {offset} has {len(value)} bytes, more than a frame of {frame_bytes_max} holds"
            return errors.consume_error(Fault.MESSAGE_TOO_LARGE, text)
        return Code.NONE, value
    if offset < read.next_offset:
        return _gone(offset, read.next_offset)
    return errors.consume_error(Fault.OFFSET_OUT_OF_RANGE)


def _is_before_start(read: RecordsRead, offset: int) -> bool:
    return read.fault is Fault.OFFSET_OUT_OF_RANGE and offset < read.log_start_offset


def _gone(offset: int, next_offset: int) -> tuple[Code, bytes]:
    """Deleted, compacted away, or never visible: not the end of the log, so the reader is told where to go on."""
    return Code.CONSUME_READ_FAILED, b"no record at offset %d; next is %d" % (offset, next_offset)


def _answer_commit(result: CommitResult | Fault) -> bytes:
    if isinstance(result, CommitResult) and result.fault is NO_FAULT and not result.refused:
        return answer(Code.NONE)
    return answer(Code.OFFSET_COMMIT_FAILED, errors.COMMIT_FAILED)


def _answer_fetch(request: FetchOffset, result: FetchResult | Fault) -> bytes:
    if not isinstance(result, FetchResult) or result.fault is not NO_FAULT:
        return answer(Code.OFFSET_FETCH_FAILED, errors.FETCH_FAILED)
    found = result.offsets.get(request.topic, {}).get(request.partition)
    if found is None or found.value is None or found.value.offset < 0:
        return answer(Code.OFFSET_NOT_FOUND)
    return offset_answers(found.value.offset, 1)


def _group_name(raw: bytes) -> str | None:
    """The name, if a group can be called that."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    if not is_group_name(name) or any(part in name for part in _GROUP_NAME_REFUSED):
        return None
    return name


def _is_topic_name(text: str) -> bool:
    try:
        topic_name(text)
    except BrokerError:
        return False
    return True
