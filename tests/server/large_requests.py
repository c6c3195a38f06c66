"""Large and odd requests of up to 1 MiB, and how long other clients wait for them.

The requests of the other dialects are in large_dialect_requests.py. `Known` names what the broker under test holds; topics,
groups and transactional ids share their names, so that one name serves for all. `longest_ping` sends a request over a socket
while another client pings in a closed loop. A ping costs what the broker process spends on the CPU between the ping and its
answer, so a machine that is busy with other things makes little difference.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Self

from penstock.dialects.kafka.apis import APIS, ApiKey, is_flexible
from penstock.dialects.kafka.kio_schema import FIXED_BYTES, Field, Shape, request_shape
from penstock.dialects.kafka.wire import uvarint
from penstock.model import limits
from penstock.records.builder import NewRecord, build_batch

REQUEST_BYTES_MAX = 1024 * 1024
ANSWER_S_MAX = 60.0
PING_CPU_MS_MAX = 50.0
TRIES = 3
"""A ping that was measured while its own client did not run looks long once, and not three times in a row."""


class Large(NamedTuple):
    name: str
    data: bytes
    """Whole frames."""
    answers: int = 1
    dialect: str = "kafka"
    again: Callable[[int], bytes] | None = None
    """The frames of a later try, for a request that does its work only once: a topic can be created one time."""


class Known(NamedTuple):
    """What the broker holds."""

    names: Sequence[str]
    """Of topics with one partition, of groups with an offset for it, and of transactional ids."""
    doomed: Sequence[str]
    """The same, for requests that delete."""
    ids: Sequence[bytes]
    """Of the topics in `names`."""


# ---- Kafka: requests made from the schemas -----------------------------------------------------------------------------

NAMES = ("unknown", "repeated", "known", "known repeated", "empty", "long")
NUMBERS = ("zero", "counting", "edges")

_DELETING = frozenset({ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE, ApiKey.DELETE_RECORDS})
_BATCH = bytes(build_batch([NewRecord(1, None, b"")]))
_EDGES = (-(2**63), -(2**31), -2, -1, 0, 1, 2**15, 2**31 - 1, 2**63 - 1)
_FIXED_VALUES = {
    # times that the client would wait for, and switches that would make thousands of topics each time
    "max_wait": 100,
    "timeout": 1_000,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "transaction_timeout": 10_000,
    "allow_auto_topic_creation": 0,
    "validate_only": 1,
    "acks": -1,
    "count": 2,
}


class _Builder:
    """The bytes of one request: how many elements each array has, and how its names and numbers are chosen."""

    def __init__(self, known: Known, key: int, names: str, numbers: str, counts: Mapping[str, int]) -> None:
        self._names = known.doomed if key in _DELETING else known.names
        self._ids = known.ids
        self._mode = names
        self._numbers = numbers
        self._counts = counts
        self._at = 0

    def message(self, shape: Shape, path: str = "") -> bytes:
        parts = [
            self._field(field, shape.is_flexible, path + field.name) for field in shape.fields if field.tag is None
        ]
        if shape.is_flexible:
            parts.append(b"\x00")
        return b"".join(parts)

    def _field(self, field: Field, flexible: bool, path: str) -> bytes:
        if not field.is_array:
            if field.nested is not None and field.is_nullable:
                return b"\x01" + self.message(field.nested, path + ".")
            return self._one(field, flexible, path)
        count = self._counts.get(path, 0)
        head = uvarint(count + 1) if flexible else struct.pack(">i", count)
        return head + b"".join([self._one(field, flexible, path) for _ in range(count)])

    def _one(self, field: Field, flexible: bool, path: str) -> bytes:
        self._at += 1
        if field.nested is not None:
            return self.message(field.nested, path + ".")
        is_known = self._mode.startswith("known")
        if field.kind == "string":
            data = self._name().encode()
            return (uvarint(len(data) + 1) if flexible else struct.pack(">h", len(data))) + data
        if field.kind in ("bytes", "records"):
            data = _BATCH if field.kind == "records" and is_known else b""
            return (uvarint(len(data) + 1) if flexible else struct.pack(">i", len(data))) + data
        if field.kind == "uuid":
            return self._ids[self._at % len(self._ids)] if is_known else self._at.to_bytes(16, "big")
        return self._number(field)

    def _name(self) -> str:
        match self._mode:
            case "unknown":
                return f"u{self._at}"
            case "repeated":
                return "unknown"
            case "known":
                return self._names[self._at % len(self._names)]
            case "known repeated":
                return self._names[0]
            case "long":
                return f"{self._at:030000d}"
        return ""

    def _number(self, field: Field) -> bytes:
        size = FIXED_BYTES[field.kind]
        if field.name in _FIXED_VALUES:
            value = _FIXED_VALUES[field.name]
        elif field.kind == "bool" or self._numbers == "zero":
            value = 0
        elif self._numbers == "counting":
            value = self._at
        else:
            value = _EDGES[self._at % len(_EDGES)]
        if field.kind == "timedelta_i64":
            value = max(-1, min(value, 2**40))
        low, high = -(1 << 8 * size - 1), (1 << 8 * size - 1) - 1
        return max(low, min(high, value)).to_bytes(size, "big", signed=True)


def _arrays(shape: Shape, path: str = "", above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every array of the request with those that it lies in, outermost first."""
    for field in shape.fields:
        if field.tag is not None:
            continue
        here = (*above, path + field.name) if field.is_array else above
        if field.is_array:
            yield here
        if field.nested is not None:
            yield from _arrays(field.nested, f"{path}{field.name}.", here)


def kafka_frame(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, 1, -1) + (b"\x00" if is_flexible(key, version) else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def kafka_requests(key: int, version: int, pick: random.Random, known: Known) -> Iterator[Callable[[], Large]]:
    """Each array of the request once with as many elements as fit, in one and in many of those above it, with every kind
    of name: how to make the requests, because each takes a while."""
    for above in _arrays(request_shape(key, version)):
        for names in NAMES:
            for is_wide in (False, True) if len(above) > 1 else (False,):
                numbers = pick.choice(NUMBERS)
                yield lambda a=above, n=names, w=is_wide, m=numbers: _kafka_request(key, version, known, a, n, m, w)  # type: ignore[misc]


def _kafka_request(
    key: int, version: int, known: Known, above: tuple[str, ...], names: str, numbers: str, is_wide: bool
) -> Large:
    shape = request_shape(key, version)

    def body(count: int) -> bytes:
        """`count` elements in the innermost array, or in the outermost with one in each below it."""
        counts = dict.fromkeys(above, 1)
        counts[above[0] if is_wide else above[-1]] = count
        return _Builder(known, key, names, numbers, counts).message(shape)

    each = max(1, (len(body(24)) - len(body(8))) // 16)
    count_max = limits.REQUEST_ELEMENTS_MAX // (len(above) if is_wide else 1) - len(above)
    data = kafka_frame(key, version, body(min(REQUEST_BYTES_MAX // (each + 2), count_max)))
    how = f"{'many' if is_wide else 'one'} {above[-1]}, {names} names, {numbers}"
    return Large(f"{APIS[key].name} {version}: {how}", data)


def kafka_odd_requests(known: Known) -> Iterator[Large]:
    """Many requests in one write, topics that are made, and patterns."""
    tiny = kafka_frame(ApiKey.API_VERSIONS, 0, b"")
    count = REQUEST_BYTES_MAX // len(tiny)
    yield Large(f"{count} requests for ApiVersions", tiny * count, count)
    listed = struct.pack(">iih2s", -1, 1, 2, b"no") + struct.pack(">iiq", 1, 0, -1)
    small = kafka_frame(ApiKey.LIST_OFFSETS, 1, listed)
    count = REQUEST_BYTES_MAX // 4 // len(small)
    yield Large(f"{count} requests for ListOffsets", small * count, count)
    yield _each_time("Metadata that makes 1,000 topics", _metadata_of_new_topics)
    yield _each_time("CreateTopics of 1,000 topics", lambda number: _create_topics(f"made{number}-", 1_000, 1))
    yield _each_time("CreateTopics of 2,000 partitions", lambda number: _create_topics(f"wide{number}-", 1, 2_000))
    yield _each_time("DeleteTopics", lambda number: _delete_topics(known.doomed[number::TRIES]))
    for pattern in ("(((((n?){9}){9}){9}))+", "n" * 30_000, "|".join(f"n{number}x" for number in range(3_000))):
        data = pattern.encode()
        filters = b"\x01\x01" + struct.pack(">q", -1) + uvarint(len(data) + 1) + data + b"\x00"
        yield Large(f"ListTransactions by {pattern[:20]}", kafka_frame(ApiKey.LIST_TRANSACTIONS, 2, filters))


def _each_time(name: str, frame: Callable[[int], bytes]) -> Large:
    return Large(name, frame(0), again=frame)


def _metadata_of_new_topics(number: int) -> bytes:
    names = b"".join(struct.pack(">h9s", 9, b"new%d-%04d" % (number, at)) for at in range(1_000))
    return kafka_frame(ApiKey.METADATA, 1, struct.pack(">i", 1_000) + names)


def _create_topics(prefix: str, topics: int, partitions: int) -> bytes:
    names = [f"{prefix}{at:04}".encode() for at in range(topics)]
    rows = b"".join(struct.pack(f">h{len(name)}sihii", len(name), name, partitions, 1, 0, 0) for name in names)
    return kafka_frame(ApiKey.CREATE_TOPICS, 2, struct.pack(">i", topics) + rows + struct.pack(">i?", 60_000, False))


def _delete_topics(names: Sequence[str]) -> bytes:
    rows = b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    return kafka_frame(ApiKey.DELETE_TOPICS, 1, struct.pack(">i", len(names)) + rows + struct.pack(">i", 60_000))


# ---- pings -------------------------------------------------------------------------------------------------------------


def cpu_ns(pid: int) -> int:
    """What a process has spent on the CPU, in all its threads."""
    return time.clock_gettime_ns((~pid << 3) | 2)  # Linux: the clock of that process, CPUCLOCK_SCHED


class Ping:
    """A client with one small request after the other."""

    def __init__(self, address: tuple[str, int], pid: int, frame: bytes, dialect: str = "kafka") -> None:
        self._socket = socket.create_connection(address, ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._pid = pid
        self._frame = frame
        self._read_answer = ANSWER_READERS[dialect]

    def ping(self) -> float:
        """Milliseconds of the broker's CPU time until the answer."""
        start = cpu_ns(self._pid)
        self._socket.sendall(self._frame)
        self._read_answer(self._answers)
        return (cpu_ns(self._pid) - start) / 1e6

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()


def _read(answers: BinaryIO, count: int) -> bytes:
    data = answers.read(count)
    if len(data) < count:
        raise ConnectionError("the broker closed the connection")
    return data


def _read_sized(answers: BinaryIO) -> None:
    _read(answers, int.from_bytes(_read(answers, 4), "big"))


def _read_minikafka(answers: BinaryIO) -> None:
    line = answers.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError("the broker closed the connection")
    if line.startswith(b"+MSG "):
        _read(answers, int(line.split()[2]) + 1)


def _read_flymq(answers: BinaryIO) -> None:
    head = _read(answers, 4)
    if head[0] == FLYMQ_MAGIC:
        head = _read(answers, 4)
    _read(answers, int.from_bytes(head, "big"))


FLYMQ_MAGIC = 0xAF
ANSWER_READERS: Mapping[str, Callable[[BinaryIO], None]] = {
    "kafka": _read_sized,
    "fluxgo": _read_sized,
    "minikafka": _read_minikafka,
    "rustlog": _read_sized,
    "flymq": _read_flymq,
    "day1": _read_sized,
}


class Served(NamedTuple):
    """What became of a large request."""

    outcome: str
    """`answered`, `closed`, or `unanswered` when neither came in time."""
    longest_ping_ms: float
    pings: int


def longest_ping(ping: Ping, address: tuple[str, int], request: Large) -> Served:
    """Send the request and ping until it is answered, or its connection closed."""
    outcome = "unanswered"
    read_answer = ANSWER_READERS[request.dialect]

    def attack() -> None:
        nonlocal outcome
        with socket.create_connection(address, ANSWER_S_MAX) as peer, contextlib.suppress(TimeoutError):
            sender = threading.Thread(target=_send_all, args=(peer, request.data))
            sender.start()
            try:
                with peer.makefile("rb") as answers:
                    for _ in range(request.answers):
                        read_answer(answers)
                outcome = "answered"
            except ConnectionError:
                outcome = "closed"
            finally:
                sender.join()

    thread = threading.Thread(target=attack)
    thread.start()
    longest, pings, is_last = 0.0, 0, False
    while not is_last:
        is_last = not thread.is_alive()
        longest = max(longest, ping.ping())
        pings += 1
    thread.join()
    return Served(outcome, longest, pings)


def _send_all(peer: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        peer.sendall(data)


def too_long(ping: Ping, address: tuple[str, int], request: Large) -> str | None:
    """What to complain about, if other clients waited too long for the request each time that it was sent."""
    seen = []
    for number in range(TRIES):
        if number and request.again is not None:
            request = request._replace(data=request.again(number))
        served = longest_ping(ping, address, request)
        if served.outcome == "unanswered":
            return f"{request.name}: {served}"
        if served.longest_ping_ms <= PING_CPU_MS_MAX:
            return None
        seen.append(round(served.longest_ping_ms))
    return f"{request.name}: pings took {seen} ms of CPU time"
