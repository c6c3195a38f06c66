"""What a fuzzer needs to know of each dialect: how its sessions are made, sound requests to begin with, how a payload is
framed, and what its documented answers look like."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from kio.index import load_request_schema

from penstock.broker.embedded import EmbeddedEngine
from penstock.dialects.day1.frames import ERROR_KEY, FETCH_KEY, PRODUCE_KEY
from penstock.dialects.fluxgo.frames import Code as FluxGoCode
from penstock.dialects.flymq.service import API_KEYS as FLYMQ_KEYS
from penstock.dialects.flymq.service import OPCODES as FLYMQ_OPCODES
from penstock.dialects.kafka.apis import APIS
from penstock.dialects.kafka.service import KafkaService
from penstock.dialects.kafka.session import KafkaSession
from penstock.dialects.rustlog.errors import Code as RustLogCode
from penstock.model.fault_tables import KAFKA_CODES
from penstock.model.listeners import DEFAULTS
from penstock.net.session import Session
from penstock.records.builder import NewRecord, build_batch
from penstock.server.dialects import SERVICES
from tests import raw_peer as kafka
from tests.dialects.day1 import frames as day1
from tests.dialects.fluxgo import frames as fluxgo
from tests.dialects.flymq import broker as flymq
from tests.dialects.kafka.oracle import request_body, sample
from tests.dialects.rustlog import peer as rustlog

TOPIC = "t"
FRAME_BYTES_MAX = 64 * 1024
"""Of the listeners here, so that the limit is in a fuzzer's reach."""
MEMBER_TIMEOUT_MS = 20
"""A member that joins waits so long for one that is there and says nothing."""
_U32 = struct.Struct(">I")

Wrap = Callable[[bytes], bytes]
Check = Callable[[bytes], list[Any]]


class Target(NamedTuple):
    make_service: Callable[[EmbeddedEngine], Any]
    make_session: Callable[[Any], Session]
    seeds: Sequence[bytes]
    """Requests as they are sent."""
    wrap: Wrap
    """A frame around a payload."""
    unwrap: Wrap
    check: Check
    """What kinds of answers these are, in order; an AssertionError when one is none of the documented ones."""
    answers_each: bool
    """Whether every request has its answer soon: none waits for somebody else, and none is silent."""


def _service(dialect: str) -> Callable[[EmbeddedEngine], Any]:
    settings = replace(DEFAULTS[dialect], partitions_max=4, frame_bytes_max=FRAME_BYTES_MAX)
    make: Any = getattr(import_module(f"penstock.dialects.{dialect}.service"), f"{SERVICES[dialect]}Service")
    return lambda engine: make(engine, settings)


def _session(dialect: str) -> Callable[[Any], Session]:
    make: Any = getattr(import_module(f"penstock.dialects.{dialect}.session"), f"{SERVICES[dialect]}Session")
    return lambda service: make(service, "fuzz")


def _prefixed(payload: bytes) -> bytes:
    return _U32.pack(len(payload)) + payload


def _bare(frame: bytes) -> bytes:
    return frame[4:]


def _frames(out: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(out):
        (size,) = _U32.unpack_from(out, at)
        frame = out[at + 4 : at + 4 + size]
        assert len(frame) == size, "an answer is cut off"
        found.append(frame)
        at += 4 + size
    return found


# ---- the five ---------------------------------------------------------------------------------------------------------


def _check_fluxgo(out: bytes) -> list[Any]:
    return [FluxGoCode(frame[0]) for frame in _frames(out)]


FLUXGO = [
    fluxgo.produce(TOPIC, 0, b"value") * 2 + fluxgo.consume(TOPIC, 0, 0),
    fluxgo.produce(TOPIC, 1, b"") + fluxgo.consume(TOPIC, 1, 2**64 - 1),
    fluxgo.commit("group", TOPIC, 0, 5) + fluxgo.fetch("group", TOPIC, 0),
    fluxgo.produce("new", 3, b"v") + fluxgo.frame(b"\x03") + fluxgo.consume("none", 0, 0),
]


def _check_day1(out: bytes) -> list[Any]:
    frames = _frames(out)
    for frame in frames:
        assert frame[0] in (PRODUCE_KEY, FETCH_KEY, ERROR_KEY)
        if frame[0] == ERROR_KEY:
            assert len(frame) == 3 + struct.unpack_from(">H", frame, 1)[0]
    return [frame[0] for frame in frames]


DAY1 = [
    day1.one(TOPIC, 0, b"value", b"key") + day1.one(TOPIC, 0, b"value") * 3 + day1.fetch(TOPIC, 0, 0),
    day1.produce(TOPIC, 1, [(b"a", b"1"), (b"", b"2")]) + day1.produce(TOPIC, 0, []) + day1.fetch(TOPIC, 1, -5, 40),
    day1.one("new", 3, b"v") + day1.fetch("none", 0, 0) + day1.frame(b"\x07"),
]

_MINIKAFKA_ANSWER = re.compile(
    rb"\+OFFSET \d+\n|\+EMPTY\n|\+OK\n|\+END \d+\n|-ERR [^\n]+\n|\+MSG \d+ (\d+) \d+ [^\n]*\n"
)


def _check_minikafka(out: bytes) -> list[Any]:
    kinds = []
    while out:
        match = _MINIKAFKA_ANSWER.match(out)
        assert match is not None, out[:100]
        size = match.end()
        if match[1] is not None:
            size += int(match[1]) + 1
            assert out[size - 1 : size] == b"\n"
        kinds.append(match[0].split()[0])
        out = out[size:]
    return kinds


MINIKAFKA = [
    b"TOPIC t key 5\nvalueTOPIC t k2 0\nTOPIC t key 2\nxy",
    b"t:0:group\nACK\nt:-1:group\nACK\nACK\n",
    b"t:2:group:0\nSET_OFFSET t:group 3\nSET_OFFSET t:group BEGIN\nt:0:g\n",
    b"TOPIC new k 1\nvnew:0:g\nTOPIC t\nnonsense\nTOPIC t k x\n",
]

_RUSTLOG_VARIANTS = {"Produce", "Fetch", "OffsetCommit", "OffsetFetch", "Error"}


def _check_rustlog(out: bytes) -> list[Any]:
    kinds: list[Any] = []
    for frame in _frames(out):
        if frame[:1] == b"{":
            [variant] = json.loads(frame)
            assert variant in _RUSTLOG_VARIANTS
            kinds.append(variant)
        else:
            assert frame[0] in (*range(1, 10), 0xFE, 0xFF)
            kinds.append(RustLogCode(struct.unpack_from(">H", frame, 1)[0]) if frame[0] == 0xFE else frame[0])
    return kinds


def _json(**body: Any) -> bytes:
    return _prefixed(json.dumps(body, separators=(",", ":")).encode())


RUSTLOG = [
    rustlog.produce(b"a", topic=TOPIC) * 3 + rustlog.produce(b"a", b"b", topic=TOPIC, partition=1),
    rustlog.fetch(0, 1000, topic=TOPIC) + rustlog.fetch(0, 1000, group="g", topic=TOPIC),
    rustlog.commit("g", 3, topic=TOPIC) + rustlog.offset_fetch("g", topic=TOPIC),
    _prefixed(b"\x05" + rustlog.text("new") + _U32.pack(2)) + _prefixed(b"\x06") + _prefixed(b"\x07\x00\x01t"),
    _prefixed(b"\x08\x00\x01t" + _U32.pack(0)) + _prefixed(b"\x09") + _prefixed(b"\xff"),
    _json(Produce={"topic": TOPIC, "partition": 0, "records": [[1, 2], []]})
    + _json(Produce={"topic": TOPIC, "partition": 0, "records": [[104, 105]]}) * 3,
    _json(Fetch={"topic": TOPIC, "partition": 0, "offset": 0, "max_bytes": 100, "group_id": "g"}),
    _json(OffsetCommit={"topic": TOPIC, "partition": 0, "group_id": "g", "offset": 1})
    + _json(OffsetFetch={"topic": TOPIC, "partition": 0, "group_id": "g"}),
]


def _check_flymq(out: bytes) -> list[Any]:
    at = 0
    kinds: list[Any] = []
    while at < len(out):
        if out[at] == 0xAF:
            _, version, opcode, flags, length = struct.unpack_from(">BBBBI", out, at)
            assert (version, flags) == (1, 1)
            assert opcode in FLYMQ_OPCODES or opcode in (0x01, 0xFF)
            if opcode == 0xFF:
                assert struct.unpack_from(">iH", out, at + 8) == (1, length - 6)
            kinds.append(opcode)
            at += 8 + length
        else:
            length, key, version = struct.unpack_from(">Ihh", out, at)
            (error,) = struct.unpack_from(">h", out, at + (12 if version == 1 else 8))
            assert error in KAFKA_CODES.values()
            assert error in (35, 42) or key in FLYMQ_KEYS or key == 0
            kinds.append((key, error))
            at += 4 + length
    assert at == len(out)
    return kinds


def _unwrap_flymq(frame: bytes) -> bytes:
    """The first byte says of which kind the frame is to be, an opcode frame by its opcode and flags."""
    return frame[2:4] + frame[8:] if frame[0] == 0xAF else b"\x00\x00" + frame[4:]


def _wrap_flymq(payload: bytes) -> bytes:
    if len(payload) < 2 or payload[:2] == b"\x00\x00":
        return _prefixed(payload[2:])
    return struct.pack(">BBBBI", 0xAF, 1, payload[0], payload[1], len(payload) - 2) + payload[2:]


def _flymq_seeds() -> list[bytes]:
    s, s8, i32, u64, i64, arr, op, api = (
        getattr(flymq, name) for name in ("s", "s8", "i32", "u64", "i64", "arr", "op", "api")
    )
    place = s(TOPIC) + s("g") + i32(0)
    two = flymq.message(b"v", b"k", {"h": "x"}, 5)
    return [
        flymq.produce(TOPIC, b"v") * 3,
        flymq.produce(TOPIC, b"v", b"k", 0),
        flymq.consume(TOPIC, 0, 0),
        flymq.consume(TOPIC, 0, 99, 0x0A),
        flymq.fetch(TOPIC, 0, 0, 10, "v"),
        flymq.fetch(TOPIC, 0, 0, 10, "$.a.b", 0x0B),
        op(3, s("new") + i32(2)),
        op(4, s(TOPIC)),
        op(5, place + s8("earliest")),
        op(6, place + u64(1)),
        op(8),
        op(9, s("new")),
        op(0x40),
        op(0x41, s("txn-producer-0-1-1")),
        op(0x42, s("txn-producer-0-1-1")),
        op(0x43, s("txn-producer-0-1-1") + s(TOPIC) + flymq.b(b"v")),
        op(0x53, s(TOPIC)),
        op(0x60, place),
        op(0x61, place + s8("offset") + u64(1)),
        op(0x62),
        op(0x63, s(TOPIC) + s("g")),
        op(0x64, place),
        op(0x65, s(TOPIC) + s("g")),
        op(0x70),
        op(0x72),
        flymq.api_produce(TOPIC, -1, flymq.message(b"v")) * 2,
        flymq.api_produce(TOPIC, 0, two, two, version=1, stream=7),
        *(api(0, s(TOPIC) + i32(0) + flymq.batch(compression=kind, packed=b"\x00" * 20)) for kind in range(5)),
        api(1, flymq.api_fetch_payload(TOPIC, 0, 0, 1000)),
        api(2, s(TOPIC) + i32(0) + i64(-1)),
        api(3, arr(s(TOPIC)), 1, 3),
        api(8, s("g") + i32(-1) + s("") + arr(s(TOPIC) + i32(0) + i64(1) + s("m"))),
        api(9, s("g") + arr(s(TOPIC) + i32(0))),
        api(10, s("g")),
        api(11, s("members") + s("") + i32(MEMBER_TIMEOUT_MS) + i32(MEMBER_TIMEOUT_MS) + s("range") + arr(s(TOPIC))),
        api(12, s("members") + i32(1) + s("m")),
        api(13, s("members") + s("m")),
        api(14, s("members") + i32(1) + s("m")),
    ]


# ---- Kafka ------------------------------------------------------------------------------------------------------------


def _check_kafka(out: bytes) -> list[Any]:
    """Their correlation ids."""
    return [frame[:4] for frame in _frames(out) if struct.unpack_from(">i", frame)]


def _kafka_seeds() -> list[bytes]:
    batch = bytes(build_batch([NewRecord(1_000, b"k", b"v", (("h", b"x"),))]))
    seeds = [
        kafka.produce(TOPIC, batch) * 2 + kafka.fetch(TOPIC, max_wait_ms=0),
        kafka.produce(TOPIC, batch, acks=1) + kafka.produce("none", batch, acks=0),
    ]
    for key, api in APIS.items():
        for version in {api.version_min, api.version_max}:
            body = request_body(key, version, sample(load_request_schema(key, version)))
            header = struct.pack(">hhih", key, version, 7, 1) + b"f"
            if api.first_flexible is not None and version >= api.first_flexible:
                header += b"\x00"
            seeds.append(_prefixed(header + body))
    return seeds


def _kafka_service(engine: EmbeddedEngine) -> KafkaService:
    return KafkaService(engine, "127.0.0.1", 9092, FRAME_BYTES_MAX)


# ---- all --------------------------------------------------------------------------------------------------------------


def target_of(dialect: str) -> Target:
    if dialect == "kafka":
        return Target(
            _kafka_service, lambda service: KafkaSession(service, "fuzz"), _kafka_seeds(), _prefixed, _bare,
            _check_kafka, answers_each=False,
        )  # fmt: skip
    service, session = _service(dialect), _session(dialect)
    if dialect == "flymq":
        return Target(service, session, _flymq_seeds(), _wrap_flymq, _unwrap_flymq, _check_flymq, answers_each=False)
    if dialect == "minikafka":
        return Target(service, session, MINIKAFKA, bytes, bytes, _check_minikafka, answers_each=True)
    seeds, check = {
        "fluxgo": (FLUXGO, _check_fluxgo),
        "rustlog": (RUSTLOG, _check_rustlog),
        "day1": (DAY1, _check_day1),
    }[dialect]
    return Target(service, session, seeds, _prefixed, _bare, check, answers_each=True)
