"""A small synchronous MiniKafka client: one connection for producing, polling and acknowledging, or many produces in flight.

It speaks with this broker or with MiniKafka itself, and raises `MiniKafkaError` for every `-ERR`. A failure of the
connection is the socket's own OSError (TimeoutError, ConnectionError); the client is of no use after it. Keys and names
are bytes on the wire; strings are sent as UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.client.stream import StreamClient, windows

PORT = 9093
ALL_PARTITIONS = -1
LINE_BYTES_MAX = 16 * 1024 * 1024
"""The longest line that is read; a key comes in a line and may be long when another dialect wrote it."""

NO_CODE = 0
"""MiniKafka's errors are texts."""


class MiniKafkaError(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class Message(NamedTuple):
    offset: int
    partition: int
    key: bytes
    value: bytes


class MiniKafkaClient(StreamClient):
    """Connects when it is made; `with` closes it."""

    _is_remembered = True  # what an ACK acknowledges

    def __init__(self, host: str = "127.0.0.1", port: int = PORT, timeout_s: float = 30.0) -> None:
        super().__init__(host, port, timeout_s)

    # ------------------------------------------------------------------------------------------------ records

    def produce(self, topic: str, key: bytes, value: bytes) -> int:
        """Append one message to the partition that its key chooses; its offset there."""
        self._send(_produce(topic, key, value))
        return self._appended()

    def produce_many(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> list[int]:
        """Append many (key, value), without waiting for each; their offsets, each in its partition. At an error the
        messages behind it may be there or not."""
        offsets: list[int] = []
        failure: MiniKafkaError | None = None
        for window in windows([_produce(topic, key, value) for key, value in messages]):
            self._send(b"".join(window))
            for _ in window:
                try:
                    offsets.append(self._appended())
                except MiniKafkaError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return offsets

    def consume(
        self, topic: str, group: str, partition: int = ALL_PARTITIONS, to_offset: int | None = None
    ) -> Message | None:
        """The next message for the group, the same one until it is acknowledged; None when there is none, or none up to
        `to_offset`."""
        bound = "" if to_offset is None else f":{to_offset}"
        self._send_line(f"{topic}:{group}:{partition}{bound}".encode())
        words = self._line().split(b" ", 4)
        if words[0] in (b"+EMPTY", b"+END"):
            return None
        if words[0] != b"+MSG" or len(words) != 5:
            raise ConnectionError(f"the server answered a poll with {words[0]!r}: it does not speak MiniKafka")
        offset, length, at = map(int, words[1:4])
        value = self._exactly(length + 1)[:-1]
        return Message(offset, at, words[4], value)

    def records(self, topic: str, group: str, partition: int = ALL_PARTITIONS) -> Iterator[Message]:
        """Every message up to the end, each acknowledged when the next one is asked for."""
        while (message := self.consume(topic, group, partition)) is not None:
            yield message
            self.ack()

    # ------------------------------------------------------------------------------------------------ offsets

    def ack(self) -> None:
        """Move the group behind the message that was consumed last."""
        self._ask_ok(b"ACK")

    def set_offset(self, topic: str, group: str, offset: int | None) -> None:
        """Move the group in all partitions; None: to the beginning."""
        self._ask_ok(f"SET_OFFSET {topic}:{group} {'BEGIN' if offset is None else offset}".encode())

    # ------------------------------------------------------------------------------------------------ connection

    def _appended(self) -> int:
        word, _, number = self._line().partition(b" ")
        if word != b"+OFFSET":
            raise ConnectionError(f"the server answered a produce with {word!r}: it does not speak MiniKafka")
        return int(number)

    def _ask_ok(self, line: bytes) -> None:
        self._send_line(line)
        answer = self._line()
        if answer != b"+OK":
            raise ConnectionError(f"the server answered {answer!r}, expected +OK: it does not speak MiniKafka")

    def _send_line(self, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("a name must not contain a line feed")
        self._send(line + b"\n")

    def _line(self) -> bytes:
        line = self._stream.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise ConnectionError(
                "the server closed the connection" if len(line) < LINE_BYTES_MAX else "a line too long"
            )
        if line.startswith(b"-ERR"):
            raise MiniKafkaError(NO_CODE, line[5:-1].decode("latin-1"))
        return line[:-1]


def _produce(topic: str, key: bytes, value: bytes) -> bytes:
    name = topic.encode()
    for word in (name, key):
        if b" " in word or b"\n" in word:
            raise ValueError(f"{word!r} contains a blank or a line feed, which MiniKafka does not support")
    return b"TOPIC %b %b %d\n%b" % (name, key, len(value), value)
