"""A broker of this process that serves one dialect on a real socket, and a peer that sends it any bytes."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks
from penstock.model.errors import Fault
from penstock.model.pending import Pending
from penstock.net.listener import Listener
from penstock.net.loop import loop_factory
from penstock.net.network import Network
from penstock.net.session import Peer
from penstock.net.settings import NetSettings
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Disk

WAIT_S = 30.0


class Serving:
    """An engine and a listener on a loop of its own. `make` gives the session factory of a started engine."""

    def __init__(
        self,
        path: Path,
        make: Callable[[EmbeddedEngine], Callable[[Peer], Any]],
        *,
        disk: Disk | None = None,
        flush: str = "acks",
        topic_defaults: dict[str, str] | None = None,
        net: NetSettings | None = None,
    ) -> None:
        self._path = path
        self._make = make
        self._disk = disk or Disk()
        self._net = net or NetSettings(sweep_interval_ms=20, stop_grace_ms=1_000)
        self._engine_settings = EngineSettings(flush=flush, topic_defaults=topic_defaults)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="serving")
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
        self.engine = EmbeddedEngine(DataDirectory(self._path, disk=self._disk), self._engine_settings)
        self.engine.start()
        self.network = Network(self._net)
        try:
            self.listener = Listener("tested", "127.0.0.1", 0, self._make(self.engine), self.network)
            await self.listener.start()
            self._started.set()
            await self._stop.wait()
            await self.listener.stop()
        finally:
            await self.engine.stop()
            self.network.close()
        assert self.network.connections == 0
        assert self.network.in_flight.bytes_held == 0

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

    def connect(self) -> RawPeer:
        return RawPeer(self.port)


class RawPeer:
    """A socket that sends bytes and reads frames that begin with a u32 length."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> bytes:
        """The next answer, without its length."""
        length = self._stream.read(4)
        assert len(length) == 4, "the broker closed the connection"
        (size,) = struct.unpack(">I", length)
        body = self._stream.read(size)
        assert len(body) == size, "the broker closed the connection within an answer"
        return body

    def exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        assert len(data) == count, "the broker closed the connection"
        return data

    def is_silent(self) -> bool:
        """Whether nothing has come that was not read."""
        return not select.select([self.socket], [], [], 0)[0]

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.read()

    def end_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def rest(self) -> bytes:
        """All that comes until the broker closes."""
        return self._stream.read()


PRODUCER_ID = 77


def begin_transaction(broker: Serving, topic: str, value: bytes, sequence: int = 0) -> None:
    """A record of a transaction that is open on partition 0."""
    partition = broker.call(lambda: broker.engine.partition(topic, 0))
    assert partition is not None
    record = NewRecord(broker.engine.now_ms(), b"key", value)
    batch = build_batch([record], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence, transactional=True)
    broker.call(lambda: partition.producers.verified(PRODUCER_ID, 0))
    [appended] = broker.call(lambda: broker.engine.append(topic, 0, [memoryview(batch)], Acks.ALL))
    assert appended.fault is Fault.NONE


def end_transaction(broker: Serving, topic: str, kind: MarkerKind) -> None:
    partition = broker.call(lambda: broker.engine.partition(topic, 0))
    assert partition is not None
    end = broker.call(lambda: partition.append_marker(Marker(kind, 0), PRODUCER_ID, 0, 1, broker.engine.now_ms()))
    broker.until(lambda: partition.high_watermark >= end)


def frames_of(data: bytes) -> list[bytes]:
    """The answers in `data`, without their lengths; nothing may be left over."""
    frames = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        assert at + 4 + size <= len(data), "an answer is cut off"
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return frames


def lines_of(caplog: Any) -> list[str]:
    """What the network said at warning or worse."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "penstock.net" and record.levelno >= logging.WARNING
    ]
