"""A small synchronous FluxGo client: one connection, one request after the other, or many produces in flight.

It speaks V1 frames, with this broker or with FluxGo itself, and raises `FluxGoError` for every answer that is not a
success. A failure of the connection is the socket's own OSError (TimeoutError, ConnectionError); the client is of no use
after it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from penstock.client.stream import StreamClient, windows

PRODUCE, CONSUME, COMMIT_OFFSET, FETCH_OFFSET = 0x01, 0x02, 0x04, 0x05

NOT_FOUND = 0x22
OFFSET_INVALID = 0x23
READ_FAILED = 0x24
OFFSET_NOT_FOUND = 0x34

PORT = 9898
FRAME_BYTES_MAX = 10 * 1024 * 1024
"""The largest frame that a FluxGo server takes, without its length field."""

MEANINGS = {
    0xFF: "Unknown error",
    0xFE: "Unknown command code",
    0xFD: "Invalid request format",
    0xFC: "Payload too short",
    0xFB: "Message too large",
    0x11: "Produce Error: Invalid topic length",
    0x12: "Produce Error: Missing data",
    0x13: "Produce Error: Failed to access log",
    0x14: "Produce Error: Failed to append message",
    0x21: "Consume Error: Invalid topic length",
    0x22: "Consume Error: Topic or partition not found",
    0x23: "Consume Error: No record at that offset",
    0x24: "Consume Error: Failed to read message",
    0x30: "Offset Error: Invalid group length",
    0x31: "Offset Error: Invalid topic length",
    0x32: "Offset Error: Failed to commit offset",
    0x33: "Offset Error: Failed to fetch offset",
    0x34: "Offset Info: No offset committed for group/topic/partition",
}

_LENGTH = struct.Struct(">I")
_NEXT_OFFSET = re.compile(r"no record at offset \d+; next is (\d+)")


class FluxGoError(Exception):
    """The server answered with an error code; the text is the server's, or what the code means."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text or MEANINGS.get(code, f"error {code:#04x}")
        super().__init__(f"{self.text} (code {code:#04x})")


class FluxGoClient(StreamClient):
    """Connects when it is made; `with` closes it."""

    def __init__(self, host: str = "127.0.0.1", port: int = PORT, timeout_s: float = 30.0) -> None:
        super().__init__(host, port, timeout_s)

    # ------------------------------------------------------------------------------------------------ records

    def produce(self, topic: str, partition: int, value: bytes) -> int:
        """Append one record; its offset."""
        self._send(_frame(PRODUCE, _text(topic) + _u64(partition), value))
        return int.from_bytes(self._answer(), "big")

    def produce_many(self, topic: str, partition: int, values: Sequence[bytes]) -> list[int]:
        """Append many, without waiting for each; their offsets. At an error the records behind it may be there or not."""
        head = _text(topic) + _u64(partition)
        offsets: list[int] = []
        failure: FluxGoError | None = None
        for window in windows([_frame(PRODUCE, head, value) for value in values]):
            self._send(b"".join(window))
            for _ in window:
                try:
                    offsets.append(int.from_bytes(self._answer(), "big"))
                except FluxGoError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
        return offsets

    def consume(self, topic: str, partition: int, offset: int) -> bytes:
        """The record at `offset`; FluxGoError OFFSET_INVALID at the end of the log."""
        self._send(_frame(CONSUME, _text(topic) + _u64(partition) + _u64(offset)))
        return self._answer()

    def records(self, topic: str, partition: int, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """(offset, record) from `offset` to the end of the log, over offsets that are gone."""
        while True:
            try:
                value = self.consume(topic, partition, offset)
            except FluxGoError as error:
                if error.code == OFFSET_INVALID:
                    return
                gone = _NEXT_OFFSET.fullmatch(error.text) if error.code == READ_FAILED else None
                if gone is None:
                    raise
                offset = int(gone[1])
            else:
                yield offset, value
                offset += 1

    # ------------------------------------------------------------------------------------------------ offsets

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember for the group where to go on: by convention the offset behind the last record it is done with."""
        self._send(_frame(COMMIT_OFFSET, _text(group) + _text(topic) + _u64(partition) + _u64(offset)))
        self._answer()

    def fetch_offset(self, group: str, topic: str, partition: int) -> int | None:
        """Where the group goes on; None when it committed nothing."""
        self._send(_frame(FETCH_OFFSET, _text(group) + _text(topic) + _u64(partition)))
        try:
            return int.from_bytes(self._answer(), "big")
        except FluxGoError as error:
            if error.code == OFFSET_NOT_FOUND:
                return None
            raise

    # ------------------------------------------------------------------------------------------------ connection

    def _answer(self) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if not length:
            raise ConnectionError("the server sent an empty frame: it does not speak FluxGo")
        code = self._exactly(1)[0]
        payload = self._exactly(length - 1)
        if code:
            raise FluxGoError(code, payload.decode("utf-8", "replace"))
        return payload


def _frame(command: int, *parts: bytes) -> bytes:
    length = 1 + sum(map(len, parts))
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes exceeds FluxGo's limit of {FRAME_BYTES_MAX}")
    return b"".join((_LENGTH.pack(length), bytes((command,)), *parts))


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise ValueError(f"a name of {len(raw)} bytes exceeds FluxGo's limit of 65535")
    return len(raw).to_bytes(2, "big") + raw


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")
