"""A record that was acknowledged before a read is in its answer, in every dialect, though its flush is still under way."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
from penstock.model.listeners import DEFAULTS
from penstock.model.pending import Pending
from penstock.net.session import Session
from penstock.storage.files import LogFile
from tests.broker.failing_disk import CueDisk, answer_of, engine_on, turns, until
from tests.dialects.day1 import frames as day1
from tests.dialects.flymq import broker as flymq
from tests.dialects.rustlog import peer as rustlog

VALUES = [b"first", b"second", b"third"]


class TopicWaits(CueDisk):
    """Only the syncs of the topic wait: groups go on."""

    def sync(self, file: LogFile) -> None:
        if "/t-0/" in str(file.path):
            super().sync(file)


class Form(NamedTuple):
    """One way to produce and to read, on a session of its own."""

    dialect: str
    make: Callable[[EmbeddedEngine, Any], Session]
    produce: Callable[[bytes], bytes]
    read: bytes
    values: Callable[[bytes], list[bytes]]


def _fluxgo_produce(value: bytes) -> bytes:
    payload = b"\x01" + struct.pack(">H", 1) + b"t" + struct.pack(">Q", 0) + value
    return struct.pack(">I", len(payload)) + payload


def _json(request: dict[str, Any]) -> bytes:
    return rustlog.frame(json.dumps(request).encode())


def _rustlog_binary_values(answer: bytes) -> list[bytes]:
    fields = flymq.Fields(answer[4:])
    assert fields.number("B") == 2
    return fields.array(fields.b)


def _rustlog_json_values(answer: bytes) -> list[bytes]:
    return [bytes(record["payload"]) for record in json.loads(answer[4:])["Fetch"]["records"]]


def _flymq_rows(answer: bytes) -> list[bytes]:
    fields = flymq.Fields(answer[8:])
    count, _ = fields.number("I"), fields.number("Q")
    return [(fields.number("Q"), fields.b(), fields.b())[2] for _ in range(count)]


def _flymq_messages(answer: bytes) -> list[bytes]:
    head = struct.Struct(">Ihhh")
    assert head.unpack_from(answer)[3] == 0, answer
    return [message.value for message in flymq.fetched(answer[head.size :])[1]]


def _day1_values(answer: bytes) -> list[bytes]:
    fields = flymq.Fields(answer[4:])
    assert (fields.number("B"), fields.number("B")) == (2, 0), answer
    count = fields.number("H")
    return [(fields.number("q"), fields.take(fields.number("H")), fields.b())[2] for _ in range(count)]


FORMS = {
    "rustlog binary": Form(
        "rustlog",
        lambda engine, settings: RustLogSession(RustLogService(engine, settings)),
        lambda value: rustlog.produce(value, topic="t"),
        rustlog.fetch(topic="t"),
        _rustlog_binary_values,
    ),
    "rustlog json": Form(
        "rustlog",
        lambda engine, settings: RustLogSession(RustLogService(engine, settings)),
        lambda value: _json({"Produce": {"topic": "t", "partition": 0, "records": [list(value)]}}),
        _json({"Fetch": {"topic": "t", "partition": 0, "offset": 0, "max_bytes": 10_000}}),
        _rustlog_json_values,
    ),
    "flymq FETCH": Form(
        "flymq",
        lambda engine, settings: FlyMQSession(FlyMQService(engine, settings)),
        lambda value: flymq.produce("t", value),
        flymq.fetch("t", 0, 0, 100),
        _flymq_rows,
    ),
    "flymq Fetch": Form(
        "flymq",
        lambda engine, settings: FlyMQSession(FlyMQService(engine, settings)),
        lambda value: flymq.api_produce("t", 0, flymq.message(value)),
        flymq.api(1, flymq.api_fetch_payload("t", 0, 0)),
        _flymq_messages,
    ),
    "flymq Fetch that may wait": Form(
        "flymq",
        lambda engine, settings: FlyMQSession(FlyMQService(engine, settings)),
        lambda value: flymq.api_produce("t", 0, flymq.message(value)),
        flymq.api(1, flymq.api_fetch_payload("t", 0, 0, least=1, wait_ms=60_000)),
        _flymq_messages,
    ),
    "day1": Form(
        "day1",
        lambda engine, settings: Day1Session(Day1Service(engine, settings)),
        lambda value: day1.one("t", 0, value),
        day1.fetch("t", 0, 0),
        _day1_values,
    ),
}


def performed(session: Session, frame: bytes) -> tuple[Any, Any]:
    [request] = session.feed(memoryview(bytearray(frame))).requests
    return request, session.perform(request)


@pytest.mark.parametrize("flushed_before", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_fetch_has_every_record_acknowledged_before_it(tmp_path: Path, form: Form, flushed_before: int) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            session = form.make(engine, replace(DEFAULTS[form.dialect], acks=Acks.LEADER))
            partition = engine.partition("t", 0)
            assert partition is not None
            for at, value in enumerate(VALUES):
                if at == flushed_before:
                    await until(lambda: partition.high_watermark == flushed_before)
                    disk.hold()
                _, acknowledged = performed(session, form.produce(value))
                assert not isinstance(acknowledged, Pending)
            request, waiting = performed(session, form.read)
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.release()
            answer = b"".join(map(bytes, session.answer(request, await answer_of(waiting))))  # type: ignore[arg-type]
            assert form.values(answer) == VALUES

    asyncio.run(run())


@pytest.mark.parametrize("form", [form for name, form in FORMS.items() if "may wait" not in name])
def test_fetch_has_no_record_of_a_later_request(tmp_path: Path, form: Form) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            session = form.make(engine, replace(DEFAULTS[form.dialect], acks=Acks.LEADER))
            disk.hold()
            performed(session, form.produce(VALUES[0]))
            request, waiting = performed(session, form.read)
            performed(session, form.produce(b"later"))
            assert isinstance(waiting, Pending)
            assert not waiting.done
            disk.release()
            answer = b"".join(map(bytes, session.answer(request, await answer_of(waiting))))  # type: ignore[arg-type]
            assert form.values(answer) == VALUES[:1]

    asyncio.run(run())


def test_single_reads_have_every_record_acknowledged_before_them(tmp_path: Path) -> None:
    disk = TopicWaits()

    async def run() -> None:
        async with engine_on(tmp_path, disk, flush="acks") as engine:
            fluxgo = FluxGoSession(FluxGoService(engine, replace(DEFAULTS["fluxgo"], acks=Acks.LEADER)))
            minikafka = MiniKafkaSession(MiniKafkaService(engine, DEFAULTS["minikafka"]))
            opcodes = FlyMQSession(FlyMQService(engine, DEFAULTS["flymq"]))
            await answer_of(engine.groups.ensure())
            disk.hold()
            performed(fluxgo, _fluxgo_produce(b"first"))
            consume = struct.pack(">IBH", 1 + 2 + 1 + 16, 2, 1) + b"t" + struct.pack(">QQ", 0, 0)
            reads = [(fluxgo, consume), (minikafka, b"t:g:0\n"), (opcodes, flymq.consume("t", 0, 0))]
            asked = [(session, *performed(session, frame)) for session, frame in reads]
            await until(lambda: disk.syncs_waiting)
            await turns()
            assert all(isinstance(waiting, Pending) and not waiting.done for _, _, waiting in asked)
            disk.release()
            for session, request, waiting in asked:
                answer = b"".join(map(bytes, session.answer(request, await answer_of(waiting))))  # type: ignore[arg-type]
                assert b"first" in answer

    asyncio.run(run())
