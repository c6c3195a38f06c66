"""What the small synchronous clients have in common: one TCP connection that is written to and read from in order.

A failure of the connection is the socket's own OSError (TimeoutError, ConnectionError); the connection is of no use after
it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Self

PIPELINE_BYTES_MAX = 256 * 1024
"""Requests that are sent before their answers are read; the answers to so many are far smaller than a socket's buffers."""


class StreamClient:
    """Connects when it is made; `with` closes it."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def windows(frames: list[bytes]) -> Iterator[list[bytes]]:
    """The frames in pieces of about PIPELINE_BYTES_MAX, at least one each."""
    window: list[bytes] = []
    size = 0
    for frame in frames:
        if window and size + len(frame) > PIPELINE_BYTES_MAX:
            yield window
            window, size = [], 0
        window.append(frame)
        size += len(frame)
    if window:
        yield window
