"""Every way in which the small dialects produce and read records, as bytes, for promises that all of them keep."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.broker.embedded import EmbeddedEngine
from penstock.broker.engine import Acks
from penstock.dialects.day1.service import Day1Service
from penstock.dialects.day1.session import Day1Session
from penstock.dialects.fluxgo.service import FluxGoService
from penstock.dialects.fluxgo.session import FluxGoSession
from penstock.dialects.flymq.service import FlyMQService
from penstock.dialects.flymq.session import FlyMQSession
from penstock.dialects.minikafka.service import MiniKafkaService
from penstock.dialects.minikafka.session import MiniKafkaSession
from penstock.dialects.rustlog.service import RustLogService
from penstock.dialects.rustlog.session import RustLogSession
from penstock.model.chunks import Chunk, FileRange
from penstock.model.listeners import DEFAULTS
from penstock.net.session import Session
from tests.broker.failing_disk import answer_of
from tests.dialects.day1 import frames as day1
from tests.dialects.flymq import broker as flymq
from tests.dialects.rustlog import peer as rustlog

MAKERS: dict[str, Callable[[EmbeddedEngine, Any], Session]] = {
    "fluxgo": lambda engine, settings: FluxGoSession(FluxGoService(engine, settings)),
    "minikafka": lambda engine, settings: MiniKafkaSession(MiniKafkaService(engine, settings)),
    "rustlog": lambda engine, settings: RustLogSession(RustLogService(engine, settings)),
    "flymq": lambda engine, settings: FlyMQSession(FlyMQService(engine, settings)),
    "day1": lambda engine, settings: Day1Session(Day1Service(engine, settings)),
}


class Failed(Exception):
    """The text of an error answer."""


class Form(NamedTuple):
    """Requests for topic `t`, partition 0. `values` takes an answer apart, and raises Failed when it is an error."""

    dialect: str
    produce: Callable[[bytes], bytes]
    read: Callable[[int], bytes]
    """From that offset on: one record, or as many as there are."""
    values: Callable[[bytes], list[bytes]]
    reads_one: bool = False

    def session(self, engine: EmbeddedEngine) -> Session:
        """One that acknowledges produces before their flush."""
        return MAKERS[self.dialect](engine, replace(DEFAULTS[self.dialect], acks=Acks.LEADER))


def performed(session: Session, data: bytes) -> list[tuple[Any, Any]]:
    """Each request with its result, which may be pending."""
    return [(request, session.perform(request)) for request in session.feed(memoryview(bytearray(data))).requests]


async def answered(session: Session, asked: list[tuple[Any, Any]]) -> bytes:
    """The answer to the last request, when all have come."""
    answer = b""
    for request, result in asked:
        answer = b"".join(map(_bytes_of, session.answer(request, await answer_of(result))))
    return answer


async def ask(session: Session, data: bytes) -> bytes:
    return await answered(session, performed(session, data))


def _bytes_of(chunk: Chunk) -> bytes:
    if isinstance(chunk, FileRange):
        return os.pread(chunk.file.fileno(), chunk.length, chunk.position)
    return bytes(chunk)


# ---- FluxGo and MiniKafka -------------------------------------------------------------------------------------------


def _fluxgo_frame(command: int, *fields: bytes) -> bytes:
    payload = bytes([command]) + struct.pack(">H", 1) + b"t" + struct.pack(">Q", 0) + b"".join(fields)
    return struct.pack(">I", len(payload)) + payload


def _fluxgo_values(answer: bytes) -> list[bytes]:
    if answer[4]:
        raise Failed(answer[5:].decode())
    return [answer[5:]]


def _minikafka_values(answer: bytes) -> list[bytes]:
    line, _, rest = answer.partition(b"\n")
    if line.startswith(b"-ERR "):
        raise Failed(line[5:].decode())
    assert line.startswith(b"+MSG "), line
    return [rest[: int(line.split()[2])]]


# ---- RustLog --------------------------------------------------------------------------------------------------------


def _rustlog_values(answer: bytes) -> list[bytes]:
    fields = flymq.Fields(answer[4:])
    if fields.number("B") == 0xFE:
        fields.number("H")
        raise Failed(fields.s())
    return fields.array(fields.b)


def _json(request: dict[str, Any]) -> bytes:
    return rustlog.frame(json.dumps(request).encode())


def _json_fetch(offset: int) -> bytes:
    return _json({"Fetch": {"topic": "t", "partition": 0, "offset": offset, "max_bytes": 1_000_000}})


def _json_values(answer: bytes) -> list[bytes]:
    body = json.loads(answer[4:])
    if "Error" in body:
        raise Failed(body["Error"]["message"])
    return [bytes(record["payload"]) for record in body["Fetch"]["records"]]


# ---- FlyMQ ----------------------------------------------------------------------------------------------------------


def _opcode_payload(answer: bytes) -> flymq.Fields:
    fields = flymq.Fields(answer[8:])
    if answer[2] == 0xFF:
        fields.number("i")
        raise Failed(fields.s())
    return fields


def _flymq_consumed(answer: bytes) -> list[bytes]:
    fields = _opcode_payload(answer)
    fields.b()
    return [fields.b()]


def _flymq_rows(answer: bytes) -> list[bytes]:
    fields = _opcode_payload(answer)
    count, _ = fields.number("I"), fields.number("Q")
    return [(fields.number("Q"), fields.b(), fields.b())[2] for _ in range(count)]


def _flymq_messages(answer: bytes) -> list[bytes]:
    head = struct.Struct(">Ihhh")
    if head.unpack_from(answer)[3]:
        raise Failed(flymq.Fields(answer[head.size :]).s())
    return [message.value for message in flymq.fetched(answer[head.size :])[1]]


def _api_fetch(offset: int) -> bytes:
    return flymq.api(1, flymq.api_fetch_payload("t", 0, offset))


# ---- Day1 -----------------------------------------------------------------------------------------------------------


def _day1_values(answer: bytes) -> list[bytes]:
    fields = flymq.Fields(answer[4:])
    if fields.number("B") == 0xFF:
        raise Failed(fields.s())
    assert fields.number("B") == 0, answer
    count = fields.number("H")
    return [(fields.number("q"), fields.take(fields.number("H")), fields.b())[2] for _ in range(count)]


FORMS = {
    "fluxgo": Form(
        "fluxgo",
        lambda value: _fluxgo_frame(1, value),
        lambda offset: _fluxgo_frame(2, struct.pack(">Q", offset)),
        _fluxgo_values,
        reads_one=True,
    ),
    "minikafka": Form(
        "minikafka",
        lambda value: b"TOPIC t k %d\n" % len(value) + value,
        lambda offset: b"SET_OFFSET t:g %d\nt:g:0\n" % offset,
        _minikafka_values,
        reads_one=True,
    ),
    "rustlog binary": Form(
        "rustlog",
        lambda value: rustlog.produce(value, topic="t"),
        lambda offset: rustlog.fetch(offset, topic="t"),
        _rustlog_values,
    ),
    "rustlog json": Form(
        "rustlog",
        lambda value: _json({"Produce": {"topic": "t", "partition": 0, "records": [list(value)]}}),
        _json_fetch,
        _json_values,
    ),
    "flymq CONSUME": Form(
        "flymq",
        lambda value: flymq.produce("t", value),
        lambda offset: flymq.consume("t", 0, offset),
        _flymq_consumed,
        reads_one=True,
    ),
    "flymq FETCH": Form(
        "flymq",
        lambda value: flymq.produce("t", value),
        lambda offset: flymq.fetch("t", 0, offset, 100),
        _flymq_rows,
    ),
    "flymq Fetch": Form(
        "flymq", lambda value: flymq.api_produce("t", 0, flymq.message(value)), _api_fetch, _flymq_messages
    ),
    "flymq Fetch that may wait": Form(
        "flymq",
        lambda value: flymq.api_produce("t", 0, flymq.message(value)),
        lambda offset: flymq.api(1, flymq.api_fetch_payload("t", 0, offset, least=1, wait_ms=60_000)),
        _flymq_messages,
    ),
    "day1": Form(
        "day1", lambda value: day1.one("t", 0, value), lambda offset: day1.fetch("t", 0, offset), _day1_values
    ),
}
