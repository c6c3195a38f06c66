"""Large and odd requests of up to 1 MiB in the five small dialects; how they are sent and measured is large_requests.py.

The topics and groups they name are made by `tests.server.filled_broker`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.server.large_requests import FLYMQ_MAGIC, REQUEST_BYTES_MAX, Known, Large

WIDE = "wide"
"""A topic of many partitions."""
WIDE_PARTITIONS = 2_000
TINY = "tiny"
"""A topic of tiny records, in large batches."""
TEXTS = "texts"
"""A topic with JSON texts and long values."""
EVERYTHING = "everything"
"""A group with an offset for each partition of all topics."""
SUBSCRIPTIONS = 10_000
"""Pairs of topic and group that a FlyMQ connection has subscribed to."""
COSTLY = 50
"""Requests in one write of which each alone takes milliseconds."""
SLOW = 5_000
"""Requests in one write of which each alone takes a part of a millisecond."""

_U64_MAX = 2**64 - 1


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(data)) + data


def _sized(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def _raw(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _array(items: Iterable[bytes]) -> bytes:
    rows = list(items)
    return struct.pack(">I", len(rows)) + b"".join(rows)


class _Requests:
    """Collects the requests of one dialect."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.made: list[Large] = []

    def one(self, name: str, frame: bytes) -> None:
        self.made.append(Large(f"{self._dialect}: {name}", frame, 1, self._dialect))

    def each_time(self, name: str, frame: Callable[[int], bytes]) -> None:
        """A request that does its work only once: another one for each try."""
        self.made.append(Large(f"{self._dialect}: {name}", frame(0), 1, self._dialect, frame))

    def many(self, name: str, frames: Iterable[bytes], count_max: int = 100_000) -> None:
        """As many of the frames, over and over, as fit."""
        cycle = list(frames)
        count = min(count_max, REQUEST_BYTES_MAX * len(cycle) // sum(map(len, cycle)))
        data = b"".join(cycle[at % len(cycle)] for at in range(count))
        self.made.append(Large(f"{self._dialect}: {count} times {name}", data, count, self._dialect))


def _fitting(item_bytes: int) -> int:
    """Items that fit one request."""
    return (REQUEST_BYTES_MAX - 1_024) // item_bytes


# ---- FluxGo ------------------------------------------------------------------------------------------------------------


def fluxgo(known: Known) -> Iterator[Large]:
    requests = _Requests("fluxgo")

    def produce(topic: str, partition: int = 0, value: bytes = b"") -> bytes:
        return _sized(b"\x01" + _text(topic) + struct.pack(">Q", partition) + value)

    def consume(topic: str, offset: int) -> bytes:
        return _sized(b"\x02" + _text(topic) + struct.pack(">QQ", 0, offset))

    def commit(group: str, topic: str, partition: int = 0, offset: int = 0) -> bytes:
        return _sized(b"\x04" + _text(group) + _text(topic) + struct.pack(">QQ", partition, offset))

    def fetch(group: str, topic: str, partition: int = 0) -> bytes:
        return _sized(b"\x05" + _text(group) + _text(topic) + struct.pack(">Q", partition))

    names = known.names
    requests.one("a large produce", produce(names[0], value=bytes(_fitting(1))))
    requests.many("an empty produce", [produce(names[0])])
    requests.many("a produce to another topic", [produce(name) for name in names[:1_000]], SLOW)
    requests.many("a produce to another partition", [produce(WIDE, at) for at in range(WIDE_PARTITIONS)], SLOW)
    requests.many("a produce to a topic with a wrong name", [produce("\u00e9" * 30_000)])
    requests.each_time("a produce that makes 1,024 partitions", lambda number: produce(f"grown-fluxgo{number}", 1_023))
    requests.many("a consume", [consume(TINY, 77_777)])
    requests.many("a consume of a large record", [consume(TEXTS, 0)], COSTLY)
    requests.many("a consume of an odd offset", [consume(name, _U64_MAX) for name in names[1_000:]])
    requests.many("a commit", [commit("g", names[0])], SLOW)
    requests.many("a commit to another place", [commit(f"g{at}", WIDE, at % 64, at) for at in range(10_000)], SLOW)
    requests.many("a commit of a wrong group", [commit("g" * 30_000, "t" * 30_000)], SLOW)
    requests.many("an offset fetch", [fetch(name, name) for name in names], SLOW)
    requests.many("an offset fetch of a large group", [fetch(EVERYTHING, WIDE, at) for at in range(100)], SLOW)
    requests.many("an unknown command", [_sized(b"\x09")])
    requests.many("a truncated request", [_sized(b"\x01"), _sized(b"\x02"), _sized(b"\x04"), _sized(b"\x05")])
    yield from requests.made


# ---- MiniKafka ---------------------------------------------------------------------------------------------------------


def minikafka(known: Known) -> Iterator[Large]:
    requests = _Requests("minikafka")

    def produce(topic: str, key: str, value: bytes = b"x") -> bytes:
        return f"TOPIC {topic} {key} {len(value)}\n".encode() + value

    names = known.names
    requests.one("a large produce", produce(names[0], "k", bytes(_fitting(1))))
    requests.many("a produce", [produce(names[0], "k")])
    requests.many("a produce with another key", [produce(WIDE, f"k{at}") for at in range(40_000)])
    requests.many("a produce with a long key", [produce(WIDE, f"{at:064000}") for at in range(16)])
    requests.many("a produce to another topic", [produce(name, "k") for name in names[:1_000]], SLOW)
    requests.many("a produce to a wrong topic", [produce("t" * 60_000, "k")])
    requests.many("a poll", [f"{TINY}:g:0\n".encode()], SLOW)
    requests.many("a poll of all partitions", [f"{WIDE}:{EVERYTHING}:-1\n".encode()], COSTLY)
    requests.many("a poll of all topics", [f"{name}:{name}:-1:1\n".encode() for name in names[1_000:]], SLOW)
    requests.many("a poll of a large record", [f"{TEXTS}:g:0\n".encode()], COSTLY)
    requests.many("a poll of many colons", [b":" * 60_000 + b"\n"])
    requests.many("a poll of a wrong partition", [b"t:g:" + b"9" * 60_000 + b"\n"])
    requests.many("SET_OFFSET of all partitions", [f"SET_OFFSET {WIDE}:g{at} 1\n".encode() for at in range(20)], 20)
    requests.many("SET_OFFSET", [f"SET_OFFSET {name}:g BEGIN\n".encode() for name in names], SLOW)
    requests.many("SET_OFFSET of many spaces", [b"SET_OFFSET " + b" " * 60_000 + b"\n"])
    requests.many("ACK", [b"ACK\n"])
    requests.many("an empty line", [b"\n"])
    requests.many("a wrong TOPIC", [b"TOPIC\n"])
    yield from requests.made


# ---- RustLog -----------------------------------------------------------------------------------------------------------


def rustlog(known: Known) -> Iterator[Large]:
    requests = _Requests("rustlog")

    def produce(topic: str, *records: bytes, partition: int = 0) -> bytes:
        rows = b"".join(map(_raw, records))
        return _sized(b"\x01" + _text(topic) + struct.pack(">II", partition, len(records)) + rows)

    def fetch(topic: str, group: str = "", offset: int = 0, max_bytes: int = 2**31) -> bytes:
        return _sized(b"\x02" + _text(group) + _text(topic) + struct.pack(">IQI", 0, offset, max_bytes))

    def commit(group: str, topic: str, partition: int = 0) -> bytes:
        return _sized(b"\x03" + _text(group) + _text(topic) + struct.pack(">IQ", partition, 1))

    def offset_fetch(group: str, topic: str, partition: int = 0) -> bytes:
        return _sized(b"\x04" + _text(group) + _text(topic) + struct.pack(">I", partition))

    def create(topic: str, partitions: int) -> bytes:
        return _sized(b"\x05" + _text(topic) + struct.pack(">I", partitions))

    names = known.names
    requests.one("a large produce", produce(names[0], bytes(_fitting(1))))
    requests.one("a produce of empty records", produce(names[0], *[b""] * _fitting(4)))
    requests.one("a produce of tiny records", produce(names[0], *[b"x"] * _fitting(5)))
    requests.one("a produce with a wrong count", _sized(b"\x01" + _text("t") + struct.pack(">II", 0, 2**32 - 1)))
    requests.many("a produce", [produce(names[0], b"")])
    requests.many("a produce of nothing", [produce(names[0])])
    requests.many("a produce of two", [produce(names[0], b"", b"")])
    requests.many("a produce to another topic", [produce(name, b"") for name in names[:1_000]], SLOW)
    requests.many("a produce to an unknown topic", [produce("t" * 30_000, b"")])
    requests.one("a fetch of tiny records", fetch(TINY))
    requests.one("a fetch from the middle of a batch", fetch(TINY, offset=33_333))
    requests.many("a fetch of tiny records", [fetch(TINY)], COSTLY)
    requests.many("a fetch of large records", [fetch(TEXTS)], COSTLY)
    requests.many("a fetch of a group", [fetch(TINY, f"g{at}", max_bytes=13) for at in range(2_000)], SLOW)
    requests.many("a fetch past the end", [fetch(TINY, offset=_U64_MAX)])
    requests.many("a commit", [commit("g", names[0])], SLOW)
    requests.many("a commit to another place", [commit(f"g{at}", WIDE, at) for at in range(10_000)], SLOW)
    requests.many("an offset fetch", [offset_fetch(EVERYTHING, WIDE, at) for at in range(1_000)], SLOW)
    requests.many("a wrong CreateTopic", [create("t" * 30_000, 1)])
    requests.many("CreateTopic of too many partitions", [create("many", 2**32 - 1)], SLOW)
    requests.many("CreateTopic of a known name", [create(name, 1) for name in names], COSTLY)
    requests.each_time("CreateTopic of 2,000 partitions", lambda number: create(f"created-rustlog{number}", 2_000))
    requests.many("ListTopics", [_sized(b"\x06")], COSTLY)
    requests.many("DescribeTopic", [_sized(b"\x07" + _text(WIDE))], COSTLY)
    requests.many(
        "DescribePartition", [_sized(b"\x08" + _text(WIDE) + struct.pack(">I", at)) for at in range(100)], SLOW
    )
    requests.many("Metrics", [_sized(b"\x09")], COSTLY)
    requests.many("Ping", [_sized(b"\xff")])
    requests.many("an unknown request", [_sized(b"\x10")])
    requests.many("a wrong string", [_sized(b"\x07" + _text(b"\xff" * 60_000))])
    yield from requests.made


def rustlog_json(known: Known) -> Iterator[Large]:
    requests = _Requests("rustlog")

    def ask(request: Mapping[str, Any]) -> bytes:
        return _sized(json.dumps(request, separators=(",", ":")).encode())

    def produce(records: bytes, topic: bytes = known.names[0].encode()) -> bytes:
        return _sized(b'{"Produce":{"topic":"%b","partition":0,"records":[%b]}}' % (topic, records))

    def fetch(topic: str, group: str | None = None, offset: int = 0, max_bytes: int = 2**40) -> bytes:
        body = {"topic": topic, "partition": 0, "offset": offset, "max_bytes": max_bytes, "group_id": group}
        return ask({"Fetch": body})

    names = known.names
    escaped = b"\\u0074"
    requests.one("JSON, a large produce", produce(b"[" + b"1," * _fitting(2) + b"1]"))
    requests.one("JSON, a large produce of bytes", produce(b"[" + b"255," * _fitting(4) + b"1]"))
    requests.one("JSON, a produce of empty records", produce(b"[]," * _fitting(3) + b"[]"))
    requests.one("JSON, a produce of tiny records", produce(b"[1]," * _fitting(4) + b"[1]"))
    requests.one("JSON, a produce with spaces", produce(b" [ 1 , 2 ] ," * _fitting(12) + b"[1]"))
    requests.one("JSON, a produce with a wrong byte at its end", produce(b"[1]," * _fitting(4) + b"[256]"))
    requests.one("JSON, a produce with a string at its end", produce(b"[1]," * _fitting(4) + b'["]"]'))
    requests.one("JSON, an escaped name and many records", produce(b"[]," * _fitting(3) + b"[]", escaped))
    requests.many("JSON, a produce", [produce(b"[1]")])
    requests.many("JSON, a produce and a wrong one", [produce(b"[1]"), produce(b"[300]")])
    requests.many("JSON, two produces and a wrong one", [produce(b"[1]"), produce(b"[1]"), produce(b"[-1]")])
    requests.many("JSON, a produce to another topic", [produce(b"[1]", name.encode()) for name in names[:1_000]], SLOW)
    requests.one("JSON, a fetch of tiny records", fetch(TINY))
    requests.many("JSON, a fetch of tiny records", [fetch(TINY, offset=33_333)], 20)
    requests.many("JSON, a fetch of large records", [fetch(TEXTS)], 20)
    requests.many("JSON, a fetch of a group", [fetch(TINY, f"g{at}", max_bytes=1) for at in range(2_000)], SLOW)
    body = {"topic": WIDE, "partition": 7, "group_id": "g"}
    requests.many("JSON, a commit", [ask({"OffsetCommit": {**body, "offset": 1}})], SLOW)
    requests.many("JSON, an offset fetch", [ask({"OffsetFetch": {**body, "group_id": EVERYTHING}})], SLOW)
    unknown = b'{"Fetch":{"topic":"%b","partition":0,"offset":1,"max_bytes":1,"x":[%b]}}'
    for name, items in {
        "objects": b"{}," * _fitting(3) + b"{}",
        "lists": b"[]," * _fitting(3) + b"[]",
        "names": b'"Fetch",' * _fitting(8) + b'""',
        "numbers": b"1," * _fitting(2) + b"1",
        "keys": b"{" + b'"":1,' * _fitting(5) + b'"":1}',
    }.items():
        requests.one(f"JSON, an unknown field of many {name}", _sized(unknown % (b"t", items)))
        requests.one(f"JSON, an escaped name and many {name}", _sized(unknown % (escaped, items)))
    requests.one("JSON, a long number", _sized(b'{"Fetch":{"offset":' + b"1" * _fitting(1) + b"}}"))
    requests.one("JSON, a long name", _sized(b'{"' + b"\\u0041" * _fitting(6) + b'":{}}'))
    requests.one("JSON, many requests in one", _sized(b"{" + b'"Fetch":{},' * _fitting(11) + b'"Fetch":{}}'))
    requests.one("JSON, a deep list", _sized(b'{"Fetch":{"x":' + b"[" * _fitting(1)))
    requests.many("JSON, an empty object", [_sized(b"{}")])
    requests.many("JSON, no JSON", [_sized(b"{")])
    yield from requests.made


# ---- FlyMQ -------------------------------------------------------------------------------------------------------------


def opcode(code: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BBBBI", FLYMQ_MAGIC, 1, code, 0, len(payload)) + payload


def _place(topic: str, group: str, partition: int | None = None) -> bytes:
    return _text(topic) + _text(group) + (b"" if partition is None else struct.pack(">i", partition))


def subscribe(topic: str, group: str) -> bytes:
    return opcode(0x05, _place(topic, group, 0) + b"\x08earliest")


FILTERS: Mapping[str, str] = {
    "a deep path": "$." + ".".join("a" * 511),
    "a long name": "$." + "a" * 1_000,
    "a short path": "$.a.b",
    "a wrong path": '$."' * 300,
    "text": "no such text",
    "text of another language": "\u00e9\u00c9" * 200,
    "a large expression": "(x+x+)+y|" * 20 + "[a-f]{40}q",
    "an expression of many states": "(a|b|ab)*c{1,30}(d|e)*[xyz]{1,30}$",
    "an expression that is too large": "((((a{30}){30}){30}))",
    "a small expression": "a[ab]{11}c",
    "any bytes": ".*.*.*x",
}


def flymq(known: Known) -> Iterator[Large]:
    requests = _Requests("flymq")

    def produce(topic: str, key: bytes = b"", value: bytes = b"", partition: int = 0) -> bytes:
        return opcode(0x01, _text(topic) + _raw(key) + _raw(value) + struct.pack(">i", partition))

    def consume(code: int, topic: str, offset: int) -> bytes:
        return opcode(code, _text(topic) + struct.pack(">iQ", 0, offset))

    def fetch(topic: str, offset: int = 0, count: int = 1_000, wanted: str = "", code: int = 0x07) -> bytes:
        filtered = _text(wanted) if wanted else b""
        return opcode(code, _text(topic) + struct.pack(">iQi", 0, offset, count) + filtered)

    names = known.names
    requests.one("PRODUCE of a large value", produce(names[0], value=bytes(_fitting(1))))
    requests.one("PRODUCE with a large key", produce(WIDE, bytes(_fitting(1)), partition=-1))
    requests.many("PRODUCE with long keys", [produce(WIDE, b"%050000d" % at, partition=-1) for at in range(20)])
    requests.many("PRODUCE", [produce(names[0])])
    requests.many("PRODUCE to another partition", [produce(WIDE, partition=at) for at in range(WIDE_PARTITIONS)], SLOW)
    requests.many("PRODUCE to chosen partitions", [produce(WIDE, partition=-1)])
    requests.many("PRODUCE with another key", [produce(WIDE, b"%d" % at, partition=-1) for at in range(30_000)])
    requests.many("PRODUCE to another topic", [produce(name) for name in names[:1_000]], SLOW)
    requests.many("PRODUCE to a wrong topic", [produce("t" * 60_000)])
    requests.many("a PRODUCE that is cut off", [opcode(0x01)])
    for code, name in ((0x02, "CONSUME"), (0x0A, "CONSUME_ZERO_COPY")):
        requests.many(name, [consume(code, TINY, 77_777)])
        requests.many(f"{name} of a large record", [consume(code, TEXTS, 0)], COSTLY)
    requests.many("CREATE_TOPIC of a known name", [opcode(0x03, _text(name) + bytes(4)) for name in names], COSTLY)
    requests.each_time(
        "CREATE_TOPIC of 2,000 partitions",
        lambda number: opcode(0x03, _text(f"made-flymq{number}") + struct.pack(">i", 2_000)),
    )
    requests.many("METADATA of a wide topic", [opcode(0x04, _text(WIDE))], COSTLY)
    requests.many("METADATA", [opcode(0x04, _text(name)) for name in names], SLOW)
    requests.many("SUBSCRIBE", [subscribe(topic, f"s{at}") for at in range(10) for topic in names], SLOW)
    requests.many("COMMIT", [opcode(0x06, _place(WIDE, f"g{at}", at) + bytes(8)) for at in range(2_000)], SLOW)
    for code, name in ((0x07, "FETCH"), (0x0B, "FETCH_BINARY")):
        requests.many(f"{name} of tiny records", [fetch(TINY, 33_333, code=code)], COSTLY)
        requests.many(f"{name} of large records", [fetch(TEXTS, code=code)], COSTLY)
    for name, wanted in FILTERS.items():
        requests.many(f"FETCH of tiny records by {name}", [fetch(TINY, wanted=wanted)], COSTLY)
        requests.many(f"FETCH of texts by {name}", [fetch(TEXTS, wanted=wanted)], COSTLY)
    paths = ["$." + ".".join([f"{at}"] + ["a"] * 500) for at in range(COSTLY)]
    requests.many("FETCH by another path each", [fetch(TINY, wanted=path) for path in paths], COSTLY)
    requests.many(
        "FETCH by another expression", [fetch(TINY, wanted=f"(a|b){{20}}{at}.*") for at in range(COSTLY)], COSTLY
    )
    requests.many("LIST_TOPICS", [opcode(0x08)], COSTLY)
    requests.many("DELETE_TOPIC of no topic", [opcode(0x09, _text(f"no{at}")) for at in range(1_000)], SLOW)
    requests.many("DELETE_TOPIC", [opcode(0x09, _text(name)) for name in known.doomed], 50)
    requests.many("TXN_BEGIN", [opcode(0x40)], COSTLY)
    for code, name in ((0x41, "TXN_COMMIT"), (0x42, "TXN_ABORT")):
        requests.many(name, [opcode(code, _text(f"txn-producer-1-{at}-0")) for at in range(1_000)], SLOW)
    unknown = [opcode(0x43, _text("txn-producer-1-1-1") + _text(names[0]) + _raw(b"x"))]
    requests.many("TXN_PRODUCE", unknown, SLOW)
    requests.many("CLUSTER_METADATA", [opcode(0x53)], 20)
    requests.many("CLUSTER_METADATA of a wide topic", [opcode(0x53, _text(WIDE))], COSTLY)
    requests.many("GET_OFFSET of a large group", [opcode(0x60, _place(WIDE, EVERYTHING, 1))], COSTLY)
    requests.many("GET_OFFSET", [opcode(0x60, _place(name, name, 0)) for name in names], SLOW)
    reset = struct.pack(">B", 8) + b"earliest"
    requests.many("RESET_OFFSET", [opcode(0x61, _place(name, "reset", 0) + reset) for name in names], SLOW)
    requests.many("LIST_GROUPS", [opcode(0x62)], 3)
    requests.many("DESCRIBE_GROUP of a large group", [opcode(0x63, _place(WIDE, EVERYTHING))], COSTLY)
    requests.many("DESCRIBE_GROUP", [opcode(0x63, _place(name, name)) for name in names], SLOW)
    requests.many("GET_LAG of a large group", [opcode(0x64, _place(WIDE, EVERYTHING, 1))], COSTLY)
    requests.many("GET_LAG", [opcode(0x64, _place(name, name, 0)) for name in names], SLOW)
    requests.many("DELETE_GROUP", [opcode(0x65, _place(name, name)) for name in known.doomed], COSTLY)
    requests.many("AUTH", [opcode(0x70)])
    requests.many("WHOAMI", [opcode(0x72)])
    requests.many("an unknown opcode", [opcode(0x7F)])
    yield from requests.made


def api(key: int, payload: bytes, stream: int | None = None) -> bytes:
    if stream is None:
        return _sized(struct.pack(">hh", key, 0) + payload)
    return _sized(struct.pack(">hhI", key, 1, stream) + payload)


def _message(value: bytes = b"", key: bytes = b"", timestamp: int = 0, headers: int = 0) -> bytes:
    named = struct.pack(">i", headers) + bytes(4) * headers
    return _raw(_raw(key) + _raw(value) + named + struct.pack(">q", timestamp))


def _batch(topic: str, *messages: bytes, partition: int = 0) -> bytes:
    packed = _raw(b"".join(messages))
    return _text(topic) + struct.pack(">i", partition) + struct.pack(">qiB", 0, len(messages) - 1, 0) + packed


def flymq_api(known: Known) -> Iterator[Large]:
    requests = _Requests("flymq")
    names = known.names
    message = _message()
    count = _fitting(len(message))
    requests.one("Produce of a large message", api(0, _batch(names[0], _message(bytes(_fitting(1))))))
    requests.one("Produce of tiny messages", api(0, _batch(names[0], *[message] * count)))
    requests.one("Produce to chosen partitions", api(0, _batch(WIDE, *[message] * count, partition=-1)))
    keyed = [_message(key=b"%06d" % at) for at in range(_fitting(len(message) + 6))]
    requests.one("Produce with other keys", api(0, _batch(WIDE, *keyed, partition=-1)))
    timed = [_message(timestamp=1 + at % 3) for at in range(count)]
    requests.one("Produce with other timestamps", api(0, _batch(names[0], *timed)))
    slowly = [_message(timestamp=1 + at // 9) for at in range(count)]
    requests.one("Produce whose timestamp changes slowly", api(0, _batch(names[0], *slowly)))
    headers = _message(headers=10_000)
    requests.one("Produce with headers", api(0, _batch(names[0], *[headers] * _fitting(len(headers)))))
    requests.many("Produce", [api(0, _batch(names[0], message))])
    requests.many("Produce on streams", [api(0, _batch(names[0], message), at) for at in range(1_000)])
    requests.many("Produce of two", [api(0, _batch(names[0], message, message))])
    requests.many(
        "Produce to chosen", [api(0, _batch(WIDE, _message(timestamp=at + 1), partition=-1)) for at in range(99)]
    )
    requests.many("Produce to another topic", [api(0, _batch(name, message)) for name in names[:1_000]], SLOW)
    requests.many("Produce to a wrong topic", [api(0, _batch("t" * 60_000, message))])

    def fetch(topic: str, offset: int, stream: int | None = None) -> bytes:
        return api(1, _text(topic) + struct.pack(">iqiii", 0, offset, 2**31 - 1, 0, 0), stream)

    requests.many("Fetch of tiny records", [fetch(TINY, 33_333)], COSTLY)
    requests.many("Fetch on streams", [fetch(TINY, 1, at) for at in range(COSTLY)], COSTLY)
    requests.many("Fetch of large records", [fetch(TEXTS, 0)], COSTLY)
    requests.many("ListOffsets", [api(2, _text(TINY) + struct.pack(">iq", 0, at)) for at in (-2, -1, 0, 2**40)], SLOW)
    requests.one("Metadata of all topics", api(3, bytes(4)))
    requests.one("Metadata of empty names", api(3, _array([_text("")] * _fitting(2))))
    requests.one("Metadata of unknown names", api(3, _array(_text(f"u{at}") for at in range(_fitting(9)))))
    requests.one("Metadata of a wide topic over and over", api(3, _array([_text(WIDE)] * _fitting(6))))
    requests.one("Metadata of a wide topic 5,000 times", api(3, _array([_text(WIDE)] * 5_000)))
    requests.one("Metadata of known names", api(3, _array(_text(names[at % len(names)]) for at in range(40_000))))
    for group in ("g", EVERYTHING):
        for topic in (names[0], WIDE, "unknown"):
            row = len(_text(topic)) + 4
            rows = [_text(topic) + struct.pack(">i", at) for at in range(_fitting(row))]
            requests.one(f"OffsetFetch of {topic} in {group}", api(9, _text(group) + _array(rows)))
            requests.one(f"OffsetFetch of half of {topic} in {group}", api(9, _text(group) + _array(rows[:40_000])))
            rows = [row + struct.pack(">q", at) + _text("") for at, row in enumerate(rows[: _fitting(row + 10)])]
            lead = _text(group) + struct.pack(">i", -1) + _text("")
            requests.one(f"OffsetCommit of {topic} in {group}", api(8, lead + _array(rows)))
            requests.one(f"OffsetCommit of half of {topic} in {group}", api(8, lead + _array(rows[:40_000])))
    requests.many("OffsetFetch", [api(9, _text(name) + _array([_text(name) + bytes(4)])) for name in names], SLOW)
    requests.many("FindCoordinator", [api(10, _text("g"))])

    def join(group: str, topics: Iterable[str]) -> bytes:
        lead = _text(group) + _text("") + struct.pack(">ii", 10_000, 10_000) + _text("roundrobin")
        return api(11, lead + _array(map(_text, topics)))

    requests.one("JoinGroup with empty names", join("j1", [""] * _fitting(2)))
    requests.one("JoinGroup with unknown names", join("j2", (f"u{at}" for at in range(_fitting(9)))))
    requests.one("JoinGroup with known names", join("j3", (*names, WIDE)))
    requests.one("JoinGroup with known names over and over", join("j4", (names[at % 2_000] for at in range(40_000))))
    requests.one("JoinGroup of a wide topic", join("j5", [WIDE]))
    requests.many("Heartbeat", [api(12, _text(f"g{at}") + bytes(4) + _text("m")) for at in range(1_000)], SLOW)
    requests.many("LeaveGroup", [api(13, _text(f"g{at}") + _text("m")) for at in range(1_000)], SLOW)
    requests.many("SyncGroup", [api(14, _text(f"g{at}") + bytes(4) + _text("m")) for at in range(1_000)], SLOW)
    requests.many("an unknown API key", [api(99, b"")])
    requests.many("a frame without a key", [_sized(b"")])
    yield from requests.made


# ---- Day1 --------------------------------------------------------------------------------------------------------------


def day1(known: Known) -> Iterator[Large]:
    requests = _Requests("day1")

    def produce(topic: str, *records: tuple[bytes, bytes], partition: int = 0, count: int | None = None) -> bytes:
        rows = b"".join(_text(key) + _raw(value) for key, value in records)
        numbers = struct.pack(">HH", partition, len(records) if count is None else count)
        return _sized(b"\x01" + _text(topic) + numbers + rows)

    def fetch(topic: str, offset: int = 0, max_bytes: int = 2**32 - 1) -> bytes:
        return _sized(b"\x02" + _text(topic) + struct.pack(">HqI", 0, offset, max_bytes))

    names = known.names
    none = (b"", b"")
    requests.one("a large produce", produce(names[0], (b"", bytes(_fitting(1)))))
    requests.one("a produce of 65,535 records", produce(names[0], *[none] * 65_535))
    requests.one("a produce of 65,535 keys", produce(names[0], *[(b"k", b"v")] * 65_535))
    requests.one("a produce that is cut off", produce(names[0], *[none] * 65_000, count=65_535))
    requests.each_time(
        "a produce that makes 1,024 partitions", lambda number: produce(f"grown-day1{number}", none, partition=1_023)
    )
    requests.many("a produce", [produce(names[0], none)])
    requests.many("a produce with a key", [produce(names[0], (b"k", b""))])
    requests.many("a produce of nothing", [produce(names[0])])
    requests.many("a produce of two", [produce(names[0], none, none)])
    requests.many("a produce to another topic", [produce(name, none) for name in names[:1_000]], SLOW)
    requests.many("a produce to another partition", [produce(WIDE, none, partition=at) for at in range(2_000)], SLOW)
    requests.many("a produce to a wrong topic", [produce("t" * 60_000, none)])
    requests.one("a fetch of tiny records", fetch(TINY))
    requests.many("a fetch of tiny records", [fetch(TINY, 33_333)], COSTLY)
    requests.many("a fetch of large records", [fetch(TEXTS)], COSTLY)
    requests.many("a small fetch", [fetch(TINY, 77_777, 20)], SLOW)
    requests.many("a fetch of nothing", [fetch(name) for name in names[1_000:]], SLOW)
    requests.many("a fetch of a wrong topic", [fetch("t" * 60_000)])
    requests.many("an empty frame", [_sized(b"")])
    requests.many("an unknown key", [_sized(b"\x09")])
    yield from requests.made


PROVIDERS: Mapping[str, Callable[[Known], Iterator[Large]]] = {
    "fluxgo": fluxgo,
    "minikafka": minikafka,
    "rustlog": rustlog,
    "rustlog_json": rustlog_json,
    "flymq": flymq,
    "flymq_api": flymq_api,
    "day1": day1,
}

PINGS: Mapping[str, bytes] = {
    "fluxgo": _sized(b"\x02" + _text("no") + bytes(16)),
    "minikafka": b"no:g:0\n",
    "rustlog": _sized(b"\xff"),
    "flymq": opcode(0x72),
    "day1": _sized(b"\x02" + _text("no") + bytes(14)),
}
"""A small request of each dialect."""
