"""The frames of the dialects that the load sends, encoded ahead of time, and the answers it checks.

Own code and independent of the product's, like `bench.wire` for Kafka: a produce of one record, a read of one record, and
for each what a broker answers when all is well, which E sends, fixed.
"""

from __future__ import annotations

import json
import struct
import time
from abc import ABC, abstractmethod
from functools import partial

from bench.load import Receive, receive_frame
from bench.wire import WireError

FLYMQ_PRODUCE, FLYMQ_CONSUME = 1, 2
_FLYMQ_HEADER = struct.Struct(">BBBBI")


def _short(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def _long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


class Frames(ABC):
    """One kind of frames. What they have in common: a head that ends with the length of the rest."""

    name: str
    listener: str
    head_bytes = 4

    @property
    def receive(self) -> Receive:
        return partial(receive_frame, head_bytes=self.head_bytes)

    @abstractmethod
    def produce(self, topic: str, value: bytes) -> bytes:
        """One record for partition 0."""

    @abstractmethod
    def produced(self, topic: str, value: bytes) -> bytes:
        """The answer, with offset 0."""

    @abstractmethod
    def check_produced(self, frame: memoryview, index: int) -> None:
        """Raises unless the answer to `produce` says success."""

    @abstractmethod
    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        """The record at `offset` of partition 0, which has a value of that size, and no other one."""

    @abstractmethod
    def found(self, offset: int, value: bytes) -> bytes:
        """The answer that has it."""

    @abstractmethod
    def value_of(self, frame: memoryview) -> bytes:
        """The value in such an answer; raises when it is another one."""

    def _expect(self, frame: memoryview, start: bytes) -> bytes:
        """The payload behind `start`."""
        payload = bytes(frame[self.head_bytes :])
        if not payload.startswith(start):
            raise WireError(f"{self.name} answered {bytes(frame[:80])!r}")
        return payload[len(start) :]


class FluxGo(Frames):
    name = listener = "fluxgo"

    def produce(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x01" + _short(topic) + struct.pack(">Q", 0) + value)

    def produced(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x00" + bytes(8))

    def check_produced(self, frame: memoryview, index: int) -> None:
        self._expect(frame, b"\x00")

    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        return _long(b"\x02" + _short(topic) + struct.pack(">QQ", 0, offset))

    def found(self, offset: int, value: bytes) -> bytes:
        return _long(b"\x00" + value)

    def value_of(self, frame: memoryview) -> bytes:
        return self._expect(frame, b"\x00")


class RustLog(Frames):
    name = "rustlog binary"
    listener = "rustlog"

    def produce(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x01" + _short(topic) + struct.pack(">II", 0, 1) + _long(value))

    def produced(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x01" + struct.pack(">QI", 0, 1))

    def check_produced(self, frame: memoryview, index: int) -> None:
        self._expect(frame, b"\x01")

    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        return _long(b"\x02" + _short("") + _short(topic) + struct.pack(">IQI", 0, offset, 1))

    def found(self, offset: int, value: bytes) -> bytes:
        return _long(struct.pack(">BI", 2, 1) + _long(value) + struct.pack(">Q", offset + 1))

    def value_of(self, frame: memoryview) -> bytes:
        return self._expect(frame, struct.pack(">BI", 2, 1))[4:-8]


class Day1(Frames):
    name = listener = "day1"

    def produce(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x01" + _short(topic) + struct.pack(">HHH", 0, 1, 0) + _long(value))

    def produced(self, topic: str, value: bytes) -> bytes:
        return _long(b"\x01\x00" + bytes(8))

    def check_produced(self, frame: memoryview, index: int) -> None:
        self._expect(frame, b"\x01\x00")

    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        return _long(b"\x02" + _short(topic) + struct.pack(">HqI", 0, offset, 14 + value_bytes))

    def found(self, offset: int, value: bytes) -> bytes:
        return _long(struct.pack(">BBHqH", 2, 0, 1, offset, 0) + _long(value))

    def value_of(self, frame: memoryview) -> bytes:
        return self._expect(frame, struct.pack(">BBH", 2, 0, 1))[14:]


class FlyMQOpcodes(Frames):
    name = "flymq opcodes"
    listener = "flymq"
    head_bytes = 8

    @staticmethod
    def _frame(opcode: int, payload: bytes) -> bytes:
        return _FLYMQ_HEADER.pack(0xAF, 1, opcode, 1, len(payload)) + payload

    def produce(self, topic: str, value: bytes) -> bytes:
        return self._frame(FLYMQ_PRODUCE, _short(topic) + _long(b"") + _long(value) + struct.pack(">i", -1))

    def produced(self, topic: str, value: bytes) -> bytes:
        return self._frame(FLYMQ_PRODUCE, _short(topic) + struct.pack(">iQqii", 0, 0, 0, -1, len(value)))

    def check_produced(self, frame: memoryview, index: int) -> None:
        if frame[2] != FLYMQ_PRODUCE:
            raise WireError(f"{self.name} answered {bytes(frame[:80])!r}")

    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        return self._frame(FLYMQ_CONSUME, _short(topic) + struct.pack(">iQ", 0, offset))

    def found(self, offset: int, value: bytes) -> bytes:
        return self._frame(FLYMQ_CONSUME, _long(b"") + _long(value))

    def value_of(self, frame: memoryview) -> bytes:
        if frame[2] != FLYMQ_CONSUME:
            raise WireError(f"{self.name} answered {bytes(frame[:80])!r}")
        return self._expect(frame, bytes(4))[4:]


class FlyMQApi(Frames):
    name = "flymq API keys"
    listener = "flymq"

    @staticmethod
    def _message(value: bytes, timestamp_ms: int) -> bytes:
        return _long(_long(b"") + _long(value) + struct.pack(">iq", 0, timestamp_ms))

    def _batch(self, offset: int, value: bytes, timestamp_ms: int) -> bytes:
        return struct.pack(">qiB", offset, 0, 0) + _long(self._message(value, timestamp_ms))

    def produce(self, topic: str, value: bytes) -> bytes:
        batch = self._batch(0, value, time.time_ns() // 1_000_000)
        return _long(struct.pack(">hh", 0, 0) + _short(topic) + struct.pack(">i", -1) + batch)

    def produced(self, topic: str, value: bytes) -> bytes:
        return _long(struct.pack(">hhhIiq", 0, 0, 0, 1, 0, 0))

    def check_produced(self, frame: memoryview, index: int) -> None:
        self._expect(frame, struct.pack(">hhhI", 0, 0, 0, 1))

    def read(self, topic: str, offset: int, value_bytes: int) -> bytes:
        return _long(struct.pack(">hh", 1, 0) + _short(topic) + struct.pack(">iqiii", 0, offset, 1, 0, 0))

    def found(self, offset: int, value: bytes) -> bytes:
        return _long(struct.pack(">hhhqI", 1, 0, 0, 0, 1) + self._batch(offset, value, 0))

    def value_of(self, frame: memoryview) -> bytes:
        batch = self._expect(frame, struct.pack(">hhh", 1, 0, 0))[12:]
        return batch[17 + 4 + 4 + 4 : -12]


FRAMES: tuple[Frames, ...] = (FluxGo(), RustLog(), Day1(), FlyMQOpcodes(), FlyMQApi())


# ------------------------------------------------------------------------------------- answers that grow with the offset


def minikafka_produce(topic: str, key: str, value: bytes) -> bytes:
    return f"TOPIC {topic} {key} {len(value)}\n".encode() + value


def minikafka_produced(offset: int) -> bytes:
    return b"+OFFSET %d\n" % offset


def check_minikafka(frame: memoryview, index: int) -> None:
    if bytes(frame[:8]) != b"+OFFSET ":
        raise WireError(f"minikafka answered {bytes(frame[:80])!r}")


def json_produce(topic: str, value: bytes) -> bytes:
    """RustLog's JSON form, as serde prints it."""
    body = {"Produce": {"topic": topic, "partition": 0, "records": [list(value)]}}
    return _long(json.dumps(body, separators=(",", ":")).encode())


def check_json(frame: memoryview, index: int) -> None:
    if not bytes(frame[4:]).startswith(b'{"Produce":{"offsets":['):
        raise WireError(f"rustlog answered {bytes(frame[:80])!r}")
