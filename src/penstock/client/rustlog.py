"""A small synchronous RustLog client: one connection, the binary form or the JSON form, one request after the other.

It speaks with this broker or with RustLog itself, and raises `RustLogError` for every answer that is not a success. A
failure of the connection is the socket's own OSError (TimeoutError, ConnectionError); the client is of no use after it. The
administrative requests and ping exist in the binary form only and are sent so by a JSON client too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client.stream import StreamClient, understood

_NAME = "RustLog"
PORT = 9094
FRAME_BYTES_MAX = 10 * 1024 * 1024
"""The largest payload of a frame."""
JSON_BYTES_OF_A_BYTE_MAX = 4
FETCH_BYTES = 1024 * 1024

PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH = 0x01, 0x02, 0x03, 0x04
CREATE_TOPIC, LIST_TOPICS, DESCRIBE_TOPIC, DESCRIBE_PARTITION, METRICS = 0x05, 0x06, 0x07, 0x08, 0x09
ERROR, PING = 0xFE, 0xFF

NO_CODE = 0
"""Of an error in the JSON form, which has texts only, and of a commit without success."""
OFFSET_COMMIT_FAILED = 5
NO_PARTITION = 10
TOPIC_EXISTS = 11

_LENGTH = struct.Struct(">I")
_JSON_HEAD_BYTES = 1_000


class RustLogError(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{text} (code {code})" if code else text)


class Fetched(NamedTuple):
    records: list[tuple[int, bytes]]
    """Offsets and values."""
    next_offset: int


class RustLogClient(StreamClient):
    """Connects when it is made; `with` closes it. `json` chooses the form of the four requests that have both."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = PORT, timeout_s: float = 30.0, *, json: bool = False
    ) -> None:
        self._json = json
        super().__init__(host, port, timeout_s)

    # ------------------------------------------------------------------------------------------------ records

    def produce(self, topic: str, partition: int, value: bytes) -> int:
        """Append one record; its offset."""
        return self._produce(topic, partition, [value])[0]

    def produce_many(self, topic: str, partition: int, values: Sequence[bytes]) -> list[int]:
        """Append many, in as few requests as frames hold; their offsets."""
        room = FRAME_BYTES_MAX // JSON_BYTES_OF_A_BYTE_MAX if self._json else FRAME_BYTES_MAX
        room -= len(topic.encode()) + _JSON_HEAD_BYTES
        offsets: list[int] = []
        window: list[bytes] = []
        size = 0
        for value in values:
            weight = len(value) + 8
            if window and size + weight > room:
                offsets += self._produce(topic, partition, window)
                window, size = [], 0
            window.append(value)
            size += weight
        return offsets + self._produce(topic, partition, window) if window else offsets

    def _produce(self, topic: str, partition: int, values: Sequence[bytes]) -> list[int]:
        if self._json:
            records = [list(value) for value in values]
            body = {"topic": topic, "partition": partition, "records": records}
            answer = self._ask_json("Produce", body)
            with understood(_NAME):
                offsets: list[int] = answer["offsets"]
            return offsets
        parts = [_text(topic), struct.pack(">II", partition, len(values))]
        for value in values:
            parts += (_LENGTH.pack(len(value)), value)
        data = self._ask(PRODUCE, *parts)
        with understood(_NAME):
            base_offset, count = struct.unpack(">QI", data)
        return list(range(base_offset, base_offset + count))

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES, group: str = "") -> Fetched:
        """Records from `offset` on, or from where the group committed: see the dialect's page for the two forms."""
        if self._json:
            body: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset, "max_bytes": max_bytes}
            answer = self._ask_json("Fetch", {**body, "group_id": group or None})
            with understood(_NAME):
                rows = [(row["offset"], bytes(row["payload"])) for row in answer["records"]]
                return Fetched(rows, answer["next_offset"])
        place = struct.pack(">IQI", partition, offset, min(max_bytes, 2**32 - 1))
        data = self._ask(FETCH, _text(group), _text(topic), place)
        with understood(_NAME):
            (count,) = _LENGTH.unpack_from(data)
            values = []
            at = 4
            for _ in range(count):
                stop = at + 4 + _LENGTH.unpack_from(data, at)[0]
                values.append(data[at + 4 : stop])
                at = stop
            (next_offset,) = struct.unpack_from(">Q", data, at)
        # The answer has no gaps, so its end tells the offset of each record.
        return Fetched(list(zip(range(next_offset - count, next_offset), values, strict=True)), next_offset)

    def records(self, topic: str, partition: int, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """(offset, value) from `offset` to the end of the log, over offsets that are gone."""
        while True:
            fetched = self.fetch(topic, partition, offset)
            yield from fetched.records
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset

    # ------------------------------------------------------------------------------------------------ offsets

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember for the group where to go on: the offset behind the last record it is done with."""
        if self._json:
            body = {"topic": topic, "partition": partition, "group_id": group, "offset": offset}
            answer = self._ask_json("OffsetCommit", body)
            with understood(_NAME):
                success = answer["success"]
        else:
            place = struct.pack(">IQ", partition, offset)
            success = self._ask(OFFSET_COMMIT, _text(group), _text(topic), place) != b"\0"
        if not success:
            raise RustLogError(NO_CODE, f"the offset of group {group!r} for {topic}-{partition} was not committed")

    def fetch_offset(self, group: str, topic: str, partition: int) -> int | None:
        """Where the group goes on; None when it committed nothing."""
        if self._json:
            body = {"topic": topic, "partition": partition, "group_id": group}
            answer = self._ask_json("OffsetFetch", body)
            with understood(_NAME):
                offset: int | None = answer["offset"]
            return offset
        data = self._ask(OFFSET_FETCH, _text(group), _text(topic), _LENGTH.pack(partition))
        with understood(_NAME):
            return int(struct.unpack_from(">Q", data, 1)[0]) if data[0] else None

    # ------------------------------------------------------------------------------------------------ topics

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        self._ask(CREATE_TOPIC, _text(topic), _LENGTH.pack(partitions))

    def topics(self) -> dict[str, int]:
        """Names and their numbers of partitions."""
        data = self._ask(LIST_TOPICS)
        found = {}
        at = 4
        with understood(_NAME):
            for _ in range(_LENGTH.unpack_from(data)[0]):
                name, at = _read_text(data, at)
                found[name] = _LENGTH.unpack_from(data, at)[0]
                at += 4
        return found

    def high_watermarks(self, topic: str) -> dict[int, int]:
        """Of every partition of the topic."""
        data = self._ask(DESCRIBE_TOPIC, _text(topic))
        with understood(_NAME):
            _, at = _read_text(data, 0)
            return dict(struct.iter_unpack(">IQ", data[at + 8 :]))

    def high_watermark(self, topic: str, partition: int) -> int:
        data = self._ask(DESCRIBE_PARTITION, _text(topic), _LENGTH.pack(partition))
        return int.from_bytes(data[-8:], "big")

    def metrics(self) -> str:
        """The server's counts, in Prometheus' text form."""
        return self._ask(METRICS)[4:].decode()

    def ping(self) -> None:
        self._ask(PING)

    # ------------------------------------------------------------------------------------------------ connection

    def _ask(self, kind: int, *parts: bytes) -> bytes:
        """The fields of the answer to a binary request."""
        payload = self._exchange(b"".join((bytes((kind,)), *parts)))
        if payload[0] == ERROR:
            with understood(_NAME):
                code, length = struct.unpack_from(">HH", payload, 1)
            raise RustLogError(code, payload[5 : 5 + length].decode("utf-8", "replace"))
        if payload[0] != kind:
            raise ConnectionError(f"the server answered {kind:#04x} with {payload[0]:#04x}: it does not speak RustLog")
        return payload[1:]

    def _ask_json(self, kind: str, body: dict[str, Any]) -> Any:
        payload = self._exchange(msgspec.json.encode({kind: body}))
        try:
            answer = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ConnectionError("the server did not answer in JSON: it does not speak RustLog's document") from None
        with understood(_NAME):
            if "Error" not in answer:
                return answer[kind]
            message = answer["Error"]["message"]
        raise RustLogError(NO_CODE, message)

    def _exchange(self, payload: bytes) -> bytes:
        if len(payload) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {len(payload)} bytes exceeds RustLog's limit of {FRAME_BYTES_MAX}")
        self._send(_LENGTH.pack(len(payload)) + payload)
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not length:
            raise ConnectionError("the server sent an empty frame: it does not speak RustLog")
        return self._exactly(length)


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"a name of {len(raw)} bytes exceeds RustLog's limit of 65535")
    return len(raw).to_bytes(2, "big") + raw


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : stop].decode(), stop
