"""A broker of this process that speaks FlyMQ on a real socket, and a peer that sends it any bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.broker.clock import Clock
from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.coordination.group_commands import GroupSettings
from penstock.dialects.flymq.service import FlyMQService
from penstock.dialects.flymq.session import FlyMQSession
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from penstock.net.listener import Listener
from penstock.net.loop import loop_factory
from penstock.net.network import Network
from penstock.net.session import Peer
from penstock.net.settings import NetSettings
from penstock.records.builder import NewRecord
from penstock.storage.data_directory import DataDirectory

WAIT_S = 30.0


class MovedClock(Clock):
    """A clock that stands still until the test moves it."""

    __slots__ = ("time_ms",)

    def __init__(self) -> None:
        self.time_ms = 1_800_000_000_000
        super().__init__(lambda: self.time_ms, lambda: self.time_ms)


class Broker:
    """An engine and a listener on a loop of their own; leaving the context stops them cleanly."""

    def __init__(
        self,
        path: Path,
        *,
        flush: str = "os",
        engine: dict[str, Any] | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self._path = path
        self._clock = clock
        self._settings = replace(DEFAULTS["flymq"], **settings)
        groups = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=50)
        self._engine_settings = EngineSettings(flush=flush, **{"groups": groups, **(engine or {})})
        self._net = NetSettings(sweep_interval_ms=20, stop_grace_ms=500)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flymq-broker")
        self.errors: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(WAIT_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        assert not self.errors, self.errors

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._net.uvloop)) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self._stop = asyncio.Event()
        self.engine = EmbeddedEngine(DataDirectory(self._path), self._engine_settings, self._clock)
        self.engine.start()
        network = Network(self._net)
        try:
            self.service = FlyMQService(self.engine, self._settings)
            self.sessions: list[FlyMQSession] = []
            self.listener = Listener("flymq", "127.0.0.1", 0, self._session, network)
            await self.listener.start()
            self.service.settings = replace(self._settings, advertised_port=self.listener.port)
            other_service = FlyMQService(self.engine, self._settings)
            self.other_listener = Listener(
                "flymq", "127.0.0.1", 0, lambda peer: FlyMQSession(other_service, peer.host), network
            )
            await self.other_listener.start()
            self._started.set()
            await self._stop.wait()
            await self.listener.stop()
            await self.other_listener.stop()
        finally:
            await self.engine.stop()
            network.close()
        assert network.connections == 0
        assert network.in_flight.bytes_held == 0

    def _session(self, peer: Peer) -> FlyMQSession:
        session = FlyMQSession(self.service, peer.host)
        self.sessions.append(session)
        return session

    @property
    def port(self) -> int:
        return self.listener.port

    def call(self, function: Callable[[], Any]) -> Any:
        """What the function gives on the loop; a Pending is waited for."""

        async def run() -> Any:
            result = function()
            if isinstance(result, Pending):
                done = self.loop.create_future()
                result.then(done.set_result)
                return await done
            return result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.call(condition):
            assert time.monotonic() < deadline, "the condition never came"
            time.sleep(0.001)

    def connect(self) -> Wire:
        return Wire(self.port)

    def connect_to_other_listener(self) -> Wire:
        """Of the same broker, for the same dialect."""
        return Wire(self.other_listener.port)

    def append(self, topic: str, partition: int, *records: NewRecord) -> int:
        """As another dialect would; the first offset."""
        appended = self.call(lambda: self.engine.append_new(topic, partition, records, -1))
        assert appended.written == len(records), appended
        return int(appended.base_offset)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """The records below `offset` are gone; those before are flushed first, for only they may go."""
        found = self.call(lambda: self.engine.partition(topic, partition))
        self.until(lambda: found.high_watermark == found.log.log_end_offset)
        assert self.call(lambda: self.engine.delete_records(topic, partition, offset))[1] == offset


# ---- fields -------------------------------------------------------------------------------------------------------


def s(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(data)) + data


def s8(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def b(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def i64(number: int) -> bytes:
    return struct.pack(">q", number)


def arr(*items: bytes) -> bytes:
    return struct.pack(">I", len(items)) + b"".join(items)


def op(opcode: int, payload: bytes = b"", flags: int = 1) -> bytes:
    return struct.pack(">BBBBI", 0xAF, 1, opcode, flags, len(payload)) + payload


def produce_payload(topic: str, value: bytes, key: bytes = b"", partition: int = -1) -> bytes:
    return s(topic) + b(key) + b(value) + i32(partition)


def produce(topic: str, value: bytes, key: bytes = b"", partition: int = -1) -> bytes:
    return op(0x01, produce_payload(topic, value, key, partition))


def consume(topic: str, partition: int, offset: int, opcode: int = 0x02) -> bytes:
    return op(opcode, s(topic) + i32(partition) + u64(offset))


def fetch(topic: str, partition: int, offset: int, most: int, wanted: str | None = None, opcode: int = 0x07) -> bytes:
    payload = s(topic) + i32(partition) + u64(offset) + i32(most)
    return op(opcode, payload + (s(wanted) if wanted is not None else b""))


def coded(text: str) -> bytes:
    """The whole error frame with this text."""
    return op(0xFF, i32(1) + s(text))


class Fields:
    """A payload taken apart."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "the answer is too short"
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(">" + form, self.take(struct.calcsize(">" + form)))[0])

    def s(self) -> str:
        return self.take(self.number("H")).decode()

    def b(self) -> bytes:
        return self.take(self.number("I"))

    def array(self, item: Callable[[], Any]) -> list[Any]:
        return [item() for _ in range(self.number("I"))]

    def end(self) -> None:
        assert self.at == len(self.data), self.data[self.at :]


class Metadata(NamedTuple):
    """RecordMetadata."""

    topic: str
    partition: int
    offset: int
    unix_ms: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, payload: bytes) -> Metadata:
        fields = Fields(payload)
        found = cls(fields.s(), *(fields.number(form) for form in ("i", "Q", "q", "i", "i")))
        fields.end()
        return found


class Answer(NamedTuple):
    opcode: int
    flags: int
    payload: bytes

    @property
    def text(self) -> str:
        """Of a coded error."""
        assert (self.opcode, self.flags) == (0xFF, 1), self
        fields = Fields(self.payload)
        assert fields.number("i") == 1
        text = fields.s()
        fields.end()
        return text


class ApiAnswer(NamedTuple):
    key: int
    version: int
    stream: int | None
    error: int
    payload: bytes

    @property
    def text(self) -> str:
        assert self.error
        fields = Fields(self.payload)
        text = fields.s()
        fields.end()
        return text


def api(key: int, payload: bytes = b"", version: int = 0, stream: int = 0) -> bytes:
    head = struct.pack(">hh", key, version) + (struct.pack(">I", stream) if version == 1 else b"")
    return b(head + payload)


def message(value: bytes, key: bytes = b"", headers: dict[str, str] | None = None, timestamp: int = 0) -> bytes:
    pairs = [s(name) + s(text) for name, text in (headers or {}).items()]
    return b(b(key) + b(value) + i32(len(pairs)) + b"".join(pairs) + i64(timestamp))


def batch(*messages: bytes, compression: int = 0, packed: bytes | None = None) -> bytes:
    data = b"".join(messages) if packed is None else packed
    return struct.pack(">qiB", 0, len(messages) - 1, compression) + b(data)


def api_produce(topic: str, partition: int, *messages: bytes, version: int = 0, stream: int = 0) -> bytes:
    return api(0, s(topic) + i32(partition) + batch(*messages), version, stream)


def api_fetch_payload(
    topic: str, partition: int, offset: int, most: int = 1 << 20, least: int = 0, wait_ms: int = 0
) -> bytes:
    return s(topic) + i32(partition) + i64(offset) + i32(most) + i32(least) + i32(wait_ms)


class Message(NamedTuple):
    offset: int
    key: bytes
    value: bytes
    headers: dict[str, str]
    timestamp: int


def fetched(payload: bytes) -> tuple[int, list[Message]]:
    """High watermark and messages of a Fetch answer."""
    fields = Fields(payload)
    high_watermark = fields.number("q")
    messages: list[Message] = []

    def one_batch() -> None:
        first, last_delta, compression = fields.number("q"), fields.number("i"), fields.number("B")
        assert compression == 0
        inside = Fields(fields.b())
        count = 0
        while inside.at < len(inside.data):
            body = Fields(inside.b())
            key, value = body.b(), body.b()
            headers = {body.s(): body.s() for _ in range(body.number("i"))}
            messages.append(Message(first + count, key, value, headers, body.number("q")))
            body.end()
            count += 1
        assert count == last_delta + 1

    fields.array(one_batch)
    fields.end()
    return high_watermark, messages


class Wire:
    """A blocking socket that reads whole answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            got = self.socket.recv(min(count - len(data), 1 << 20))
            if not got:
                raise EOFError(bytes(data))
            data += got
        return bytes(data)

    def answer(self) -> Answer:
        magic, version, opcode, flags, length = struct.unpack(">BBBBI", self.exactly(8))
        assert (magic, version) == (0xAF, 1)
        return Answer(opcode, flags, self.exactly(length))

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def good(self, data: bytes) -> bytes:
        """The payload of an answer that echoes the opcode."""
        answer = self.ask(data)
        assert (answer.opcode, answer.flags) == (data[2], 1), answer
        return answer.payload

    def api_answer(self) -> ApiAnswer:
        fields = Fields(self.exactly(struct.unpack(">I", self.exactly(4))[0]))
        key, version = fields.number("h"), fields.number("h")
        stream = fields.number("I") if version == 1 else None
        return ApiAnswer(key, version, stream, fields.number("h"), fields.data[fields.at :])

    def api(self, key: int, payload: bytes = b"", version: int = 0, stream: int = 0) -> ApiAnswer:
        self.send(api(key, payload, version, stream))
        return self.api_answer()

    def api_good(self, key: int, payload: bytes = b"") -> bytes:
        answer = self.api(key, payload)
        assert answer.error == 0, answer
        return answer.payload

    def is_closed_by_peer(self) -> bytes:
        """Wait for the end; what came before it."""
        data = b""
        try:
            while got := self.socket.recv(65536):
                data += got
        except ConnectionError:
            pass
        return data
