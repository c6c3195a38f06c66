"""A small protocol to try the network with, and a server for it that runs on a thread of its own.

A frame is a u32 length and that many bytes, of which the first is a command: see `FakeSession.perform`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import ProtocolError
from penstock.model.pending import Hold, Pending
from penstock.net.listener import Listener
from penstock.net.loop import loop_factory
from penstock.net.network import Network
from penstock.net.session import Fed, Peer
from penstock.net.settings import Deadlines, NetSettings

T = TypeVar("T")

FRAME_BYTES_MAX = 64 * 1024 * 1024
WAIT_S = 30


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def file_request(position: int, length: int) -> bytes:
    return frame(struct.pack(">cQQ", b"f", position, length))


class FakeSession:
    """Commands: e echo, p park, h hold up, r release both, f a range of `file`, b bytes, n no answer, and failures."""

    file: Any = None

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.parked: list[Pending[bytes]] = []
        self.performed: list[bytes] = []
        self.abandoned = 0
        self.closings = 0

    def feed(self, view: memoryview) -> Fed:
        at, end, requests = 0, len(view), []
        while end - at >= 4:
            size = 4 + int.from_bytes(view[at : at + 4], "big")
            if size == 4:
                return Fed(at, 0, requests, "an empty frame\r\nforged line \x1b[31m")
            if size > FRAME_BYTES_MAX + 4:
                return Fed(at, 0, requests, f"a frame of {size} bytes")
            if end - at < size:
                return Fed(at, size, requests)
            if view[at + 4 : at + 5] == b"F":
                raise RuntimeError("feed failed on purpose")
            requests.append(view[at + 4 : at + size])
            at += size
        return Fed(at, 0, requests)

    def perform(self, request: memoryview) -> Any:
        payload = bytes(request)
        self.performed.append(payload)
        command = payload[:1]
        if command in (b"p", b"h"):
            pending: Pending[bytes] = (Hold if command == b"h" else Pending)(self._on_abandon)
            self.parked.append(pending)
            return pending
        if command == b"d":
            done: Pending[bytes] = Pending()
            done.complete(payload)
            return done
        if command == b"r":
            self.release()
        if command == b"x":
            raise RuntimeError("perform failed on purpose")
        if command == b"P":
            raise ProtocolError("not allowed")
        return payload

    def answer(self, request: memoryview, result: bytes) -> list[Chunk]:
        command = result[:1]
        if command == b"a":
            raise RuntimeError("answer failed on purpose")
        if command == b"n":
            return []
        if command == b"f":
            _, position, length = struct.unpack(">cQQ", result)
            return [struct.pack(">I", length + 5), b"<", FileRange(self.file, position, length), b"done"]
        if command == b"b":
            size = int.from_bytes(result[1:9], "big")
            return [struct.pack(">I", size), bytes(size)]
        return [frame(result)]

    def closed(self) -> None:
        self.closings += 1

    def release(self, count: int | None = None) -> None:
        """Complete parked requests, the last first: answers must leave in order all the same."""
        going = self.parked[:count]
        del self.parked[:count]
        for number, pending in reversed(list(enumerate(going))):
            pending.complete(b"parked %d" % number)

    def _on_abandon(self) -> None:
        self.abandoned += 1


class LineSession(FakeSession):
    """Echoes lines: frames whose size is not known before their end."""

    def feed(self, view: memoryview) -> Fed:
        data = bytes(view)
        end = data.rfind(b"\n") + 1
        return Fed(end, 0, [b"e" + line for line in data[:end].split(b"\n")[:-1]])

    def answer(self, request: Any, result: bytes) -> list[Chunk]:
        return [result[1:], b"\n"]


class OneByOne(FakeSession):
    """Cuts one frame a call: a dialect whose next frame depends on how the last one went."""

    def feed(self, view: memoryview) -> Fed:
        size = 4 + int.from_bytes(view[:4], "big")
        if len(view) < 4:
            return Fed(0, 0, [])
        if len(view) < size:
            return Fed(0, size, [])
        rest = view[size:]
        needed = 4 + int.from_bytes(rest[:4], "big") if len(rest) >= 4 else 0
        return Fed(size, needed, [view[4:size]])


class Clock:
    """Stands in for the loop of a network: its time goes on when a test says so, and not while the machine is busy."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._now_ms = int(loop.time() * 1_000)

    def time(self) -> float:
        return (self._now_ms + 0.5) / 1_000

    def move(self, ms: int) -> None:
        self._now_ms += ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Server:
    """A listener with fake sessions on a loop in a thread; `call` runs a function there."""

    def __init__(
        self,
        settings: NetSettings,
        session_factory: Callable[[Peer], Any] = FakeSession,
        host: str = "127.0.0.1",
        deadlines: Deadlines | None = None,
    ) -> None:
        self.sessions: list[Any] = []
        self._deadlines = deadlines
        self._others: list[Listener] = []
        self._make = session_factory
        self._settings = settings
        self._host = host
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fake-server")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(WAIT_S)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._settings.uvloop)) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.network = Network(self._settings)
        try:
            self.listener = await self._listen(self._deadlines)
            self._started.set()
            await self._stop.wait()
            for listener in (self.listener, *self._others):
                await listener.stop()
        finally:
            self.network.close()
        assert not self.errors, self.errors
        assert self.network.connections == 0
        assert not self.network.connections_by_ip
        assert self.network.in_flight.bytes_held == 0

    async def _listen(self, deadlines: Deadlines | None) -> Listener:
        listener = Listener("fake", self._host, 0, self._session, self.network, deadlines)
        await listener.start()
        return listener

    def listen_too(self, deadlines: Deadlines) -> Listener:
        """Another listener of the same network."""
        listener = asyncio.run_coroutine_threadsafe(self._listen(deadlines), self.loop).result(WAIT_S)
        self._others.append(listener)
        return listener

    def _session(self, peer: Peer) -> Any:
        session = self._make(peer)
        self.sessions.append(session)
        return session

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    def stop_clock(self) -> None:
        """From now on time passes, and deadlines are checked, by `pass_ms` alone."""

        def stop() -> None:
            self.network._timer.cancel()
            self.network.loop = Clock(self.loop)  # type: ignore[assignment]

        self.call(stop)
        self.pass_ms(0)

    def pass_ms(self, ms: int) -> None:
        """It is so much later, and the deadlines have been checked."""

        def go_on() -> None:
            cast(Clock, self.network.loop).move(ms)
            self.network._sweep()
            self.network._timer.cancel()

        self.call(go_on)

    def connect(self, receive_bytes: int | None = None, listener: Listener | None = None) -> Client:
        return Client(self._host, (listener or self.listener).port, receive_bytes)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds on the loop."""
        until(lambda: self.call(lambda: bool(condition())))  # looked at here, a list might have grown meanwhile


class Client:
    """A blocking socket that reads whole frames."""

    def __init__(self, host: str, port: int, receive_bytes: int | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WAIT_S)
        try:
            self.socket.connect((host, port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = self.socket.recv_into(view)
            if got == 0:
                raise EOFError
            view = view[got:]
        return bytes(data)

    def read(self) -> bytes:
        return self.exactly(int.from_bytes(self.exactly(4), "big"))

    def is_ended_by_peer(self) -> bool:
        """Like `is_closed_by_peer`, but in order: no reset that could have destroyed answers on their way."""
        while self.socket.recv(65536):
            pass
        return True

    def is_closed_by_peer(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def reset(self) -> None:
        """Vanish: no orderly end, the peer gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.002)
