"""A peer that speaks RustLog's frames byte by byte: nothing here is taken from the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from penstock.dialects.rustlog.session import RustLogSession
from tests.dialects.in_process import Broker, InProcessPeer

FRAME_BYTES_MAX = 10_485_760


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def produce(*records: bytes, topic: str = "orders", partition: int = 0) -> bytes:
    rows = b"".join(struct.pack(">I", len(record)) + record for record in records)
    return frame(b"\x01" + text(topic) + struct.pack(">II", partition, len(records)) + rows)


def fetch(
    offset: int = 0, max_bytes: int = 1_000_000, *, group: str = "", topic: str = "orders", partition: int = 0
) -> bytes:
    return frame(b"\x02" + text(group) + text(topic) + struct.pack(">IQI", partition, offset, max_bytes))


def commit(group: str, offset: int, *, topic: str = "orders", partition: int = 0) -> bytes:
    return frame(b"\x03" + text(group) + text(topic) + struct.pack(">IQ", partition, offset))


def offset_fetch(group: str, *, topic: str = "orders", partition: int = 0) -> bytes:
    return frame(b"\x04" + text(group) + text(topic) + struct.pack(">I", partition))


def error(code: int, message: str) -> bytes:
    return frame(b"\xfe" + struct.pack(">HH", code, len(message.encode())) + message.encode())


def produced(base_offset: int, count: int = 1) -> bytes:
    return frame(b"\x01" + struct.pack(">QI", base_offset, count))


def fetched(values: Sequence[bytes], next_offset: int) -> bytes:
    rows = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return frame(b"\x02" + struct.pack(">I", len(values)) + rows + struct.pack(">Q", next_offset))


class Peer(InProcessPeer):
    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, RustLogSession(broker.service, "peer"))

    def ask(self, request: dict[str, Any] | bytes) -> Any:
        """A JSON request, and the answer, which must be one frame of JSON."""
        payload = request if isinstance(request, bytes) else json.dumps(request).encode()
        answer = self.send(frame(payload))
        assert answer[4:5] == b"{", answer[:80]
        size = int.from_bytes(answer[:4], "big")
        assert size == len(answer) - 4
        assert size <= FRAME_BYTES_MAX
        return json.loads(answer[4:])
