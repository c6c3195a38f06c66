"""Conversations thrown by dice, under bounds so tight that each is met all the time: every answer comes, in its order."""

from __future__ import annotations

import asyncio
import random
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.pending import Hold, Pending
from penstock.net.session import Peer
from penstock.storage.files import Disk
from tests.net.fakes import Client, FakeSession, OneByOne, Server, file_request, frame
from tests.net.test_multiplexing import StreamSession

FILE_BYTES = 300_000
ROUNDS = 12


class _Later(FakeSession):
    """`p` and `h` are answered with themselves, by a timer; nothing may be performed while an `h` waits."""

    hold: Hold[bytes] | None = None

    def perform(self, request: Any) -> Any:
        assert self.hold is None or self.hold.done, "performed behind a hold"
        result = super().perform(request)
        if isinstance(result, Pending) and not result.done:
            if isinstance(result, Hold):
                self.hold = result
            payload = self.performed[-1]
            asyncio.get_running_loop().call_later(payload[-1] % 4 / 1_000, result.complete, payload)
        return result


class LaterOneByOne(OneByOne, _Later):
    pass


class LaterStreams(StreamSession, _Later):
    pass


@pytest.fixture(scope="module")
def file() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(random.Random(1).randbytes(FILE_BYTES))
        yield Disk().open(path)


def thrown(dice: random.Random, content: bytes, kinds: str) -> tuple[bytes, bytes]:
    """A request, and its answer."""
    kind = dice.choice(kinds)
    if kind == "f":
        position = dice.randrange(FILE_BYTES)
        length = dice.randrange(1, min(100_000, FILE_BYTES - position) + 1)
        return file_request(position, length), b"<" + content[position : position + length] + b"done"
    if kind == "b":
        size = dice.choice((0, 10, 5_000, 70_000))
        return frame(struct.pack(">cQ", b"b", size)), bytes(size)
    body = b"A" + dice.randbytes(dice.choice((1, 1, 20, 3_000)))
    payload = kind.encode() + body
    return frame(payload), payload


def chunks_of(dice: random.Random, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = dice.choice((1, 3, 50, 1_000, 20_000, 200_000))
        yield data[at : at + size]
        at += size


def send(client: Client, said: list[tuple[bytes, bytes]], dice: random.Random) -> None:
    for chunk in chunks_of(dice, b"".join(request for request, _ in said)):
        client.send(chunk)
        if dice.random() < 0.05:
            time.sleep(0.001)


@pytest.mark.parametrize("session", [_Later, LaterOneByOne, LaterStreams], ids=["runs", "one by one", "streams"])
def test_every_answer_of_a_conversation_comes_in_its_order(
    serve: Callable[..., Server], session: type[FakeSession], file: Any
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    content = Path(file.path).read_bytes()

    def made(peer: Peer) -> FakeSession:
        one = session(peer)
        one.file = file
        return one

    server = serve(
        made,
        in_flight_requests_max=dice.choice((1, 2, 7)),
        write_buffer_bytes_high=dice.choice((1_000, 20_000)),
        in_flight_bytes_max=400_000,
        scratch_bytes=dice.choice((4_096, 65_536)),
        frame_bytes_max=200_000,
    )
    for _ in range(ROUNDS):
        kinds = dice.choice(("ed", "edp", "pd", "edph", "eeeeeh", "edpbh", "edpbfh", "fb"))
        if session is LaterStreams:
            kinds = dice.choice(("edp", "edph", "eeeeeh"))
        said = [thrown(dice, content, kinds) for _ in range(dice.choice((5, 60, 400)))]
        with server.connect(receive_bytes=dice.choice((None, 8_192))) as client:
            sender = threading.Thread(target=send, args=(client, said, random.Random(seed)))
            sender.start()
            for number, (_, answer) in enumerate(said):
                if dice.random() < 0.02:
                    time.sleep(0.003)
                assert client.read() == answer, (seed, number)
            sender.join(10)
            assert not sender.is_alive()
