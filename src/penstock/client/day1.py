"""A small synchronous Day1 client: one connection, one request after the other, or many produces in flight.

It speaks to this broker or to mini-kafka itself, and raises `Day1Error` for every error answer. A failure of the connection
is the socket's own OSError (TimeoutError, ConnectionError); the client is of no use after it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.client.stream import StreamClient, understood, windows

PRODUCE, FETCH, ERROR = 1, 2, 255

PORT = 9096
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""The largest frame that a Day1 server takes, without its length field."""
FETCH_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">I")
_U16 = struct.Struct(">H")
_BASE_OFFSET = struct.Struct(">Bq")
_FETCH = struct.Struct(">HqI")
_FETCHED = struct.Struct(">BH")
_ITEM = struct.Struct(">qH")
_UNFIT = re.compile(r"fetch error: the record at offset (\d+) .*more than an answer holds")


class Day1Error(Exception):
    """The server answered with an error. Day1 has one kind, 255; the text tells them apart."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)

    @property
    def unfit_offset(self) -> int | None:
        """The record that no answer can hold, when that is what the error is about."""
        found = _UNFIT.fullmatch(self.text)
        return None if found is None else int(found[1])


class Day1Record(NamedTuple):
    offset: int
    key: bytes
    value: bytes


class Day1Client(StreamClient):
    """Connects when it is made; `with` closes it."""

    def __init__(self, host: str = "127.0.0.1", port: int = PORT, timeout_s: float = 30.0) -> None:
        super().__init__(host, port, timeout_s)

    def produce(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes]]) -> int:
        """Append (key, value) pairs in one request; the offset of the first."""
        self._send(_produce_frame(topic, partition, records))
        return self._base_offset()

    def produce_many(self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Append many, each in a request of its own, without waiting for each; their offsets. At an error the records
        behind it may be there or not."""
        offsets: list[int] = []
        failure: Day1Error | None = None
        for window in windows([_produce_frame(topic, partition, (record,)) for record in records]):
            self._send(b"".join(window))
            for _ in window:
                try:
                    offsets.append(self._base_offset())
                except Day1Error as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return offsets

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = FETCH_BYTES) -> list[Day1Record]:
        """The records from `offset` on that fit into `max_bytes`; none at the end, and none when the first is larger."""
        self._send(_frame(bytes((FETCH,)) + _text(topic) + _FETCH.pack(partition, offset, max_bytes)))
        answer = self._answer(FETCH)
        records = []
        with understood("Day1"):
            _, count = _FETCHED.unpack_from(answer)
            at = _FETCHED.size
            for _ in range(count):
                record_offset, key_bytes = _ITEM.unpack_from(answer, at)
                at += _ITEM.size
                key = answer[at : at + key_bytes]
                at += key_bytes
                (value_bytes,) = _LENGTH.unpack_from(answer, at)
                at += _LENGTH.size
                records.append(Day1Record(record_offset, key, answer[at : at + value_bytes]))
                at += value_bytes
            if at > len(answer):
                raise ValueError("its last record is truncated")
        return records

    def records(self, topic: str, partition: int, offset: int = 0) -> Iterator[Day1Record]:
        """Every record from `offset` to the end of the log, over those that no answer can hold."""
        while True:
            try:
                # An empty answer may be a record larger than what was asked for: then a whole frame is.
                found = self.fetch(topic, partition, offset) or self.fetch(topic, partition, offset, FRAME_BYTES_MAX)
            except Day1Error as error:
                if error.unfit_offset is None:
                    raise
                offset = error.unfit_offset + 1
                continue
            if not found:
                return
            yield from found
            offset = found[-1].offset + 1

    # ------------------------------------------------------------------------------------------------ connection

    def _base_offset(self) -> int:
        answer = self._answer(PRODUCE)
        with understood("Day1"):
            _, offset = _BASE_OFFSET.unpack(answer)
        return int(offset)

    def _answer(self, wanted: int) -> bytes:
        """What follows the key of the answer; raises Day1Error."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        answer = self._exactly(length)
        if answer[:1] == bytes((ERROR,)):
            raise Day1Error(ERROR, answer[1 + _U16.size :].decode("utf-8", "replace"))
        if answer[:1] != bytes((wanted,)):
            raise ConnectionError(f"unexpected response type {answer[:1].hex()}: the server does not speak Day1")
        return answer[1:]


def _produce_frame(topic: str, partition: int, records: Sequence[tuple[bytes, bytes]]) -> bytes:
    if len(records) > 0xFFFF:
        raise ValueError(f"{len(records)} records exceed Day1's limit of 65535 per request")
    parts = [bytes((PRODUCE,)), _text(topic), _U16.pack(partition), _U16.pack(len(records))]
    for key, value in records:
        if len(key) > 0xFFFF:
            raise ValueError(f"a key of {len(key)} bytes exceeds Day1's limit of 65535")
        parts += (_U16.pack(len(key)), key, _LENGTH.pack(len(value)), value)
    return _frame(b"".join(parts))


def _frame(payload: bytes) -> bytes:
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {len(payload)} bytes exceeds Day1's limit of {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(payload)) + payload


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"a name of {len(raw)} bytes exceeds Day1's limit of 65535")
    return _U16.pack(len(raw)) + raw
