"""Day1's requests as bytes, written down from its documents and not from the code under test."""

from __future__ import annotations

import struct

Pairs = list[tuple[bytes, bytes]]


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def name(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">H", len(raw)) + raw


def records(pairs: Pairs) -> bytes:
    return b"".join(struct.pack(">H", len(key)) + key + struct.pack(">I", len(value)) + value for key, value in pairs)


def produce(topic: str | bytes, partition: int, pairs: Pairs) -> bytes:
    return frame(b"\x01" + name(topic) + struct.pack(">HH", partition, len(pairs)) + records(pairs))


def one(topic: str | bytes, partition: int, value: bytes, key: bytes = b"") -> bytes:
    return produce(topic, partition, [(key, value)])


def fetch(topic: str | bytes, partition: int, offset: int, max_bytes: int = 1 << 20) -> bytes:
    return frame(b"\x02" + name(topic) + struct.pack(">HqI", partition, offset, max_bytes))


def base(offset: int) -> bytes:
    return b"\x01\x00" + struct.pack(">q", offset)


def items(*found: tuple[int, bytes, bytes]) -> bytes:
    body = b"".join(struct.pack(">q", offset) + records([(key, value)]) for offset, key, value in found)
    return b"\x02\x00" + struct.pack(">H", len(found)) + body


def error(text: str) -> bytes:
    return b"\xff" + name(text)


NOTHING = items()
EOF = error("invalid request: unexpected EOF")
