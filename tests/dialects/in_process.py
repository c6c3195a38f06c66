"""A broker in this process and peers that speak raw bytes to sessions of a dialect, without a socket between.

A peer does what the network does: it keeps the start of a frame until the rest is there, performs requests as they come,
none behind a hold, and lets answers leave in their order. It is stricter in one thing: what a session was fed is wiped as
soon as the requests are performed, so that whoever still borrows from it reads zeros.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.broker.embedded import EmbeddedEngine, EngineSettings
from penstock.broker.engine import Acks, NewTopic, RunAppended
from penstock.coordination.group_commands import FetchOffsets, JoinGroup
from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import Fault
from penstock.model.pending import Hold, Pending
from penstock.net.listener import Listener
from penstock.net.network import Network
from penstock.net.session import Session
from penstock.records.builder import NewRecord, build_batch
from penstock.records.control import Marker, MarkerKind
from penstock.storage.data_directory import DataDirectory

WAIT_S = 30.0


class Broker:
    """An engine on a loop that runs only while somebody waits for an answer."""

    def __init__(self, path: Path, make_service: Callable[[EmbeddedEngine], Any], **settings: Any) -> None:
        self._path = path
        self._make_service = make_service
        self._settings = {"flush": "os", **settings}
        self._loop = asyncio.new_event_loop()
        self._open()

    def _open(self) -> None:
        async def start() -> EmbeddedEngine:
            engine = EmbeddedEngine(DataDirectory(self._path), EngineSettings(**self._settings))
            engine.start()
            await engine.groups.loaded()
            return engine

        self.engine = self._loop.run_until_complete(start())
        self.service = self._make_service(self.engine)

    def restart(self) -> None:
        self._loop.run_until_complete(self.engine.stop())
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self.engine.stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def wait(self, result: Any) -> Any:
        """The answer, however long the broker takes."""
        if not isinstance(result, Pending):
            return result
        self.until(lambda: result.done)
        return result.result

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "the condition never came"
            self._loop.run_until_complete(asyncio.sleep(0.0005))

    def load_groups_again(self, after_s: float) -> None:
        """As after a start: the coordinators answer when that time is over."""
        for shard in self.engine.groups.shards.values():
            shard.load(asyncio.sleep(after_s))

    # ------------------------------------------------------------------------------------------- what others did

    def make_topic(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        topic = NewTopic(name, partitions, 1, configs or {})
        [made] = self.wait(self.engine.create_topics([topic], validate_only=False))
        assert made.fault is Fault.NONE, made

    def append(
        self, topic: str, partition: int, *values: bytes | None, key: bytes | None = None, compression: int = 0
    ) -> int:
        """Records from elsewhere; the offset of the first."""
        records = [NewRecord(1, key, value) for value in values]
        done = self.wait(self.engine.append_new(topic, partition, records, Acks.ALL, compression))
        assert isinstance(done, RunAppended)
        assert done.fault is Fault.NONE, done
        return done.base_offset

    def values(self, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of every committed record."""
        partition_now = self.engine.partition(topic, partition)
        assert partition_now is not None
        assert partition_now.log is not None
        self.until(lambda: partition_now.high_watermark == partition_now.log.log_end_offset)
        start = partition_now.log.log_start_offset
        found = self.wait(self.engine.read_records(topic, partition, start, 10**9, 10**9))
        return [(record.key, record.value) for record in found.records]

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        fault, _ = self.wait(self.engine.delete_records(topic, partition, offset))
        assert fault is Fault.NONE

    def transaction(self, topic: str, partition: int, *values: bytes, commits: bool | None) -> None:
        """A transaction that commits, aborts, or (None) stays open; its marker takes an offset."""
        found = self.engine.partition(topic, partition)
        assert found is not None
        now_ms = self.engine.now_ms()
        producer_id = self._loop.run_until_complete(self.engine.new_producer_id())
        batch = build_batch(
            [NewRecord(now_ms, None, value) for value in values],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        found.append_own(batch, now_ms)
        if commits is not None:
            kind = MarkerKind.COMMIT if commits else MarkerKind.ABORT
            found.append_marker(Marker(kind, 0), producer_id, 0, 1, now_ms)

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """What Kafka's clients see as the committed offset."""
        found = self.wait(self.engine.groups.ask(group, FetchOffsets(group, {topic: (partition,)})))
        value = found.offsets[topic][partition].value
        return None if value is None else int(value.offset)

    def join(self, group: str) -> None:
        """Somebody joins as a member, and stays for as long as the test takes."""
        protocols = (("range", b""),)
        member = JoinGroup(group, "", None, "other", "host", 30_000, 30_000, "consumer", protocols)
        self.wait(self.engine.groups.ensure())
        self.engine.groups.ask(group, member)


class InProcessPeer:
    """One connection; `fatal` is why the session wants it closed."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self._broker = broker
        self.session = session
        self.fatal: str | None = None
        self._rest = b""

    def send(self, data: bytes) -> bytes:
        """The answers to what was sent; a half frame stays for the next call."""
        return b"".join(self.frames(data))

    def frames(self, data: bytes) -> list[bytes]:
        """The same, in as many pieces as there were requests or runs of them."""
        assert self.fatal is None, self.fatal
        buffer = bytearray(self._rest + data)
        view = memoryview(buffer)
        at = 0
        answers: list[tuple[Any, Any]] = []
        while True:
            consumed, needed, requests, self.fatal = self.session.feed(view[at:])
            for request in requests:
                result = self.session.perform(request)
                if isinstance(result, Hold):
                    self._broker.wait(result)
                answers.append((request, result))
            at += consumed
            if self.fatal is not None or not 0 < needed <= len(view) - at:
                break
            assert consumed, "the session consumed nothing of a complete frame"
        self._rest = bytes(view[at:])
        buffer[:] = bytes(len(buffer))
        out = []
        for request, result in answers:
            chunks = self.session.answer(request, self._broker.wait(result))
            out.append(b"".join(map(_bytes_of, chunks)))
        return out

    @property
    def half_frame(self) -> bytes:
        return self._rest

    def close(self) -> None:
        self.session.closed()


def _bytes_of(chunk: Chunk) -> bytes:
    if isinstance(chunk, FileRange):
        return os.pread(chunk.file.fileno(), chunk.length, chunk.position)
    return bytes(chunk)


class SocketBroker:
    """The same broker behind a real listener, on a thread of its own: `address` is where clients connect."""

    def __init__(
        self,
        path: Path,
        dialect: str,
        make_service: Callable[[EmbeddedEngine], Any],
        make_session: Callable[[Any, str], Session],
        **settings: Any,
    ) -> None:
        self._path = path
        self._dialect = dialect
        self._make_service = make_service
        self._make_session = make_session
        self._settings = settings
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"{dialect}-broker")
        self.address = ("", 0)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        if self._failure is not None:
            raise self._failure

    def make_topic(self, name: str, partitions: int = 1) -> None:
        made = threading.Event()

        def make() -> None:
            topic = NewTopic(name, partitions)
            self.engine.create_topics([topic], validate_only=False).then(lambda _: made.set())

        self.loop.call_soon_threadsafe(make)
        assert made.wait(WAIT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.engine = EmbeddedEngine(DataDirectory(self._path), EngineSettings(**self._settings))
        self.engine.start()
        await self.engine.groups.loaded()
        service = self._make_service(self.engine)
        network = Network()
        listener = Listener(self._dialect, "127.0.0.1", 0, lambda peer: self._make_session(service, peer.host), network)
        await listener.start()
        self.address = ("127.0.0.1", listener.port)
        self._ready.set()
        await self._stop.wait()
        await listener.stop()
        await self.engine.stop()
        network.close()
