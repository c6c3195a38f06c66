"""FluxGo's requests as bytes, written down from its documents and not from the code under test."""

from __future__ import annotations

import struct

PRODUCE, CONSUME, COMMIT, FETCH = b"\x01", b"\x02", b"\x04", b"\x05"


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def name(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">H", len(raw)) + raw


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def produce(topic: str | bytes, partition: int, value: bytes) -> bytes:
    return frame(PRODUCE + name(topic) + u64(partition) + value)


def consume(topic: str | bytes, partition: int, offset: int) -> bytes:
    return frame(CONSUME + name(topic) + u64(partition) + u64(offset))


def commit(group: str | bytes, topic: str | bytes, partition: int, offset: int) -> bytes:
    return frame(COMMIT + name(group) + name(topic) + u64(partition) + u64(offset))


def fetch(group: str | bytes, topic: str | bytes, partition: int) -> bytes:
    return frame(FETCH + name(group) + name(topic) + u64(partition))


def ok(payload: bytes = b"") -> bytes:
    return b"\x00" + payload


def offset(number: int) -> bytes:
    return ok(u64(number))


def error(code: int, text: bytes = b"") -> bytes:
    return bytes([code]) + text
