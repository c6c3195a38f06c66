"""What the small synchronous clients have in common: one TCP connection that is written to and read from in order.

A failure of the connection is the socket's own OSError (TimeoutError, ConnectionError); the connection is of no use after
it. Nothing is sent a second time.

Servers close connections that are quiet, FluxGo's after half a minute. Where a server remembers nothing about a
connection, one that was quiet is not used again: no answer is under way then that could be lost.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar, Self

PIPELINE_BYTES_MAX = 256 * 1024
"""Requests that are sent before their answers are read; the answers to so many are far smaller than a socket's buffers."""
QUIET_S_MAX = 10.0
"""A third of what a FluxGo server waits for the next frame when it is not told."""


class StreamClient:
    """Connects when it is made; `with` closes it."""

    _is_remembered: ClassVar[bool] = False
    """Whether a request means something else on another connection."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._sent_s = time.monotonic()

    def _send(self, data: bytes) -> None:
        """To be called when every earlier request has its answer."""
        if time.monotonic() - self._sent_s > QUIET_S_MAX and not self._is_remembered:
            self.close()
            self._connect()
        self._socket.sendall(data)
        self._sent_s = time.monotonic()

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


@contextmanager
def understood(dialect: str) -> Iterator[None]:
    """Where an answer is taken apart: one that does not fit came from a server of another kind."""
    try:
        yield
    except (struct.error, IndexError, KeyError, TypeError, ValueError) as error:
        text = f"malformed response ({error}): the server does not speak {dialect}"
        raise ConnectionError(text) from None
