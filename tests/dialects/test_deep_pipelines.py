"""As many requests in flight as a client likes, of those whose answers need no disk but come from a coordinator."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from penstock import Broker
from tests.raw_peer import request

COUNT = 5_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    dialects = ("kafka", "fluxgo", "rustlog", "flymq")
    with Broker(listen=tuple(f"{dialect}=127.0.0.1:0" for dialect in dialects)) as running:
        yield running


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


FIND_COORDINATOR = request(10, 0, text(b"g"))
FLUXGO_COMMIT = framed(b"\x04" + text(b"g") + text(b"t") + struct.pack(">QQ", 0, 0))
FLUXGO_FETCH_OFFSET = framed(b"\x05" + text(b"g") + text(b"t") + struct.pack(">Q", 0))
RUSTLOG_COMMIT = framed(b"\x03" + text(b"g") + text(b"t") + struct.pack(">IQ", 0, 0))
RUSTLOG_OFFSET_FETCH = framed(b"\x04" + text(b"g") + text(b"t") + struct.pack(">I", 0))
RUSTLOG_JSON = framed(b'{"OffsetFetch":{"topic":"t","partition":0,"group_id":"g"}}')
RUSTLOG_GROUP_FETCH = framed(b"\x02" + text(b"g") + text(b"t") + struct.pack(">IQI", 0, 0, 100))


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        ("kafka", FIND_COORDINATOR),
        ("fluxgo", FLUXGO_COMMIT),
        ("fluxgo", FLUXGO_FETCH_OFFSET),
        ("rustlog", RUSTLOG_COMMIT),
        ("rustlog", RUSTLOG_OFFSET_FETCH),
        ("rustlog", RUSTLOG_JSON),
        ("rustlog", RUSTLOG_GROUP_FETCH),
    ],
)
def test_every_one_of_many_requests_in_one_write_is_answered(broker: Broker, dialect: str, asked: bytes) -> None:
    host, _, port = broker.addresses[dialect].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        made = framed(b"\x01" + text(b"t") + struct.pack(">III", 0, 1, 1) + b"x")
        if dialect == "rustlog":
            peer.sendall(made)
        with peer.makefile("rb") as answers:

            def answer() -> bytes:
                return answers.read(struct.unpack(">I", answers.read(4))[0])

            if dialect == "rustlog":
                answer()
            peer.sendall(asked * COUNT)
            for _ in range(COUNT):
                assert answer()
