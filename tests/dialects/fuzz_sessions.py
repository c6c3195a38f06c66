"""A fuzzer over one dialect's session: `python -m tests.dialects.fuzz_sessions DIALECT FOLDER SECONDS [INPUT]`.

atheris mutates conversations, guided by which branches of the dialect they reach; every one goes to a new session of a
real broker in this process. What must hold of each: no exception but ProtocolError, only documented answers, one for each
request, within bounded time and memory; and when it is over nothing of the session is left. The first input that breaks
one of these ends the process with an exit code that is not 0 and stays in FOLDER as `crash-...`; INPUT runs just that.

An input is a byte that says how it is meant (bit 0: payloads that get their frames here, each behind a u8 length, instead of
bytes to send as they are; the rest: how large the pieces are that the session is fed), and the bytes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["penstock.dialects", "penstock.records", "penstock.model"]):
    from penstock.model.errors import ProtocolError
    from tests.dialects.fuzz_targets import FRAME_BYTES_MAX, MEMBER_TIMEOUT_MS, TOPIC, Target, target_of

from penstock.coordination.group_commands import GroupSettings
from penstock.model import limits
from penstock.model.chunks import FileRange
from penstock.model.pending import Hold, Pending
from penstock.net.session import Session
from tests.dialects.in_process import Broker

INPUTS_PER_BROKER = 1_000
"""Then a new one begins: what inputs produce and make is not what must not grow."""
INPUT_BYTES_MAX = 2_048
TURNS = 20
"""Turns of the loop that bring most answers."""
ANSWER_S_MAX = 15.0
"""For answers that depend on nobody else: topics may have to be made on a busy disk."""
WAIT_S_MAX = 0.05
"""For others: a fetch may wait for records, a member for other members."""
PENDINGS_MAX = 2_000
"""Alive in a broker that nobody is connected to: its own timers and coordinators have some."""
PARTITIONS_MAX = 16
"""Of a topic: ten thousand are allowed and take their seconds."""
_PIECES = (0, 1, 2, 3, 5, 8, 21, 144)


class World:
    """A broker that is replaced now and then, and what is checked when it is."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._inputs = 0
        self._session_type: type | None = None
        self._open()

    def _open(self) -> None:
        data = self._folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        groups = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=MEMBER_TIMEOUT_MS)
        self.broker = Broker(data, self._target.make_service, groups=groups)
        self.broker.make_topic(TOPIC, 2)
        self.broker.append(TOPIC, 0, b"value", key=b"key")

    def session(self) -> Session:
        self._inputs += 1
        if self._inputs % INPUTS_PER_BROKER == 0:
            self._check_growth()
            self.broker.__exit__()
            self._open()
        session = self._target.make_session(self.broker.service)
        self._session_type = type(session)
        return session

    def _check_growth(self) -> None:
        self.turns(5)
        gc.collect()
        alive = [type(each) for each in gc.get_objects()]
        assert self._session_type not in alive, "a session outlives its connection"
        pendings = sum(1 for each in alive if each is Pending)
        assert pendings < PENDINGS_MAX, f"{pendings} answers are waited for by nobody"

    def turns(self, count: int) -> None:
        async def several() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.broker._loop.run_until_complete(several())

    def settle(self, result: Any, must: bool = False) -> bool:
        """Whether the answer came within the time that it may take."""
        if not isinstance(result, Pending) or result.done:
            return True
        self.turns(TURNS)
        if result.done:
            return True
        deadline = time.monotonic() + (ANSWER_S_MAX if must or self._target.answers_each else WAIT_S_MAX)
        while not result.done and time.monotonic() < deadline:
            time.sleep(0.001)  # a thread of the broker's may be at it
            self.turns(1)
        return result.done


class Conversation:
    """One connection, as the network has it."""

    def __init__(self, world: World, target: Target) -> None:
        self._world = world
        self._target = target
        self._session = world.session()
        self._rest = b""
        self._parked: list[tuple[Any, Any]] = []
        self.out = bytearray()
        self.ended = False
        self.waits = False

    def send(self, data: bytes) -> None:
        buffer = bytearray(self._rest + data)
        view = memoryview(buffer)
        at = 0
        while not self.ended:
            consumed, needed, requests, fatal = self._session.feed(view[at:])
            left = len(view) - at
            assert 0 <= consumed <= left
            assert not needed or consumed + needed > left, "a whole frame was left"
            assert needed <= FRAME_BYTES_MAX + 100 * 1024, "a frame above the limit is waited for"
            at += consumed
            self.ended = fatal is not None or self._perform(requests)
            if not consumed or at == len(view):
                break
        self._rest = bytes(view[at:])
        buffer[:] = bytes(len(buffer))  # who borrows longer than it may reads zeros
        self._leave()

    def _perform(self, requests: list[Any]) -> bool:
        for request in requests:
            try:
                result = self._session.perform(request)
            except ProtocolError:
                return True
            assert not isinstance(result, Hold) or self._world.settle(result, must=True), (
                f"{request} holds up others for ever"
            )
            self._parked.append((request, result))
        return False

    def _leave(self) -> None:
        """Answers leave in the order of the requests, as far as they are there."""
        parked, self._parked = self._parked, []
        for at, (request, result) in enumerate(parked):
            if not self._world.settle(result):
                assert not self._target.answers_each, f"{request} is never answered"
                self.waits = True
                self._parked = parked[at:]
                return
            value = result.result if isinstance(result, Pending) else result
            with suppress(ProtocolError):
                for chunk in self._session.answer(request, value):
                    self.out += _bytes_of(chunk)

    def close(self) -> None:
        self._session.closed()
        for _, result in self._parked:
            if isinstance(result, Pending):
                result.abandon()


def _bytes_of(chunk: Any) -> bytes:
    if isinstance(chunk, FileRange):
        return os.pread(chunk.file.fileno(), chunk.length, chunk.position)
    return bytes(chunk)


def payloads(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = data[at]
        yield data[at + 1 : at + 1 + size]
        at += 1 + size


def inputs_of(target: Target) -> Iterator[bytes]:
    """The corpus to begin with: what the dialect's own tests send."""
    for seed in target.seeds:
        yield b"\x00" + seed
        payload = target.unwrap(seed)
        if len(payload) < 256:
            yield b"\x01" + bytes((len(payload),)) + payload


def run_one(world: World, target: Target, data: bytes) -> None:
    if not data:
        return
    frames = [target.wrap(payload) for payload in payloads(data[1:])] if data[0] & 1 else None
    stream = data[1:] if frames is None else b"".join(frames)
    step = _PIECES[data[0] >> 1 & 7] or max(1, len(stream))
    conversation = Conversation(world, target)
    try:
        for at in range(0, len(stream), step):
            if conversation.ended:
                break
            conversation.send(stream[at : at + step])
        count = len(target.check(bytes(conversation.out)))
        whole = frames is not None and not conversation.ended and target.wrap is not bytes
        if whole and target.answers_each:
            assert frames is not None
            assert count == len(frames), f"{len(frames)} requests have {count} answers"
    finally:
        conversation.close()


def main() -> None:
    dialect, folder, seconds, *only = sys.argv[1:]
    warnings.simplefilter("ignore")
    limits.PARTITIONS_PER_TOPIC_MAX = PARTITIONS_MAX
    target = target_of(dialect)
    corpus = Path(folder, "corpus")
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs_of(target)):
        (corpus / f"seed-{number}").write_bytes(data)
    world = World(target, Path(folder))
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=20",
        "-rss_limit_mb=1500",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup([sys.argv[0], *flags, *(only or [str(corpus)])], lambda data: run_one(world, target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
