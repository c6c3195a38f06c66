"""What this machine can do at all: five servers that do the least that the work demands.

`sink`: recv + CRC-32C + write, a blocking loop over whole frames. `sendfile`: a small request, answered with 1 MiB of a
warm file. `echo`: E, a uvloop server that cuts frames and writes one fixed answer for each. `greet`: a uvloop server that
answers whatever came, for clients that connect, ask once and go. `json`: E with its frames parsed and its answers printed
by msgspec. They know no protocol: but for that one, an answer is a fixed string of the length that the broker's would have.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import uvloop
from crc32c import crc32c

FETCH_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">I")
_FRAME_BYTES_MAX = 16 * 1024 * 1024


def _listen() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=128)


def _say(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    print(f"listening reference {host}:{port}", flush=True)


def _fill(connection: socket.socket, view: memoryview) -> bool:
    """Receive until `view` is full; False when the peer closed."""
    have = 0
    while have < len(view):
        got = connection.recv_into(view[have:])
        if got == 0:
            return False
        have += got
    return True


def sink(workspace: Path, batch_start: int, answer: bytes) -> None:
    """One connection at a time, each with a file of its own that goes when it ends."""
    listener = _listen()
    _say(listener)
    memory = memoryview(bytearray(_FRAME_BYTES_MAX))
    prefix = memoryview(bytearray(4))
    path = workspace / "sink.data"
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        with connection:
            while _fill(connection, prefix):
                view = memory[: _LENGTH.unpack(prefix)[0]]
                if not _fill(connection, view):
                    break
                batch = view[batch_start:-3]
                crc32c(batch[21:])
                os.write(file, batch)
                connection.send(answer)
        os.close(file)
        path.unlink()


def sendfile(workspace: Path, size: int) -> None:
    """Each MiB of the file starts with the length of the rest of it, so the file alone is a row of frames."""
    path = workspace / "sendfile.data"
    with path.open("wb") as out:
        for _ in range(size // FETCH_BYTES):
            out.write(_LENGTH.pack(FETCH_BYTES - 4) + os.urandom(FETCH_BYTES - 4))
    file = os.open(path, os.O_RDONLY)
    listener = _listen()
    _say(listener)
    buffer = memoryview(bytearray(64 * 1024))
    place = 0
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out_fd = connection.fileno()
        have = 0
        with connection:
            while got := connection.recv_into(buffer[have:]):
                have += got
                start = 0
                while have - start >= 4 and have - start >= (frame := 4 + _LENGTH.unpack_from(buffer, start)[0]):
                    start += frame
                    end = place + FETCH_BYTES
                    while place < end:
                        place += os.sendfile(out_fd, file, place, end - place)
                    if place >= size:
                        place = 0
                buffer[: have - start] = bytes(buffer[start:have])
                have -= start


class Echo(asyncio.Protocol):
    """E: bytes in, frames cut, one write of the same answer a frame. A frame's head ends with the length of the rest."""

    __slots__ = ("_answer", "_head_bytes", "_rest", "_write")

    def __init__(self, answer: bytes, head_bytes: int) -> None:
        self._answer = answer
        self._head_bytes = head_bytes
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        unpack = _LENGTH.unpack_from
        write = self._write
        answer = self._answer
        head_bytes = self._head_bytes
        length_at = head_bytes - 4
        start = 0
        size = len(data)
        while size - start >= head_bytes:
            end = start + head_bytes + unpack(data, start + length_at)[0]
            if end > size:
                break
            write(answer)
            start = end
        self._rest = data[start:]


class Produce(msgspec.Struct):
    topic: str
    partition: int
    records: list[list[int]]


class JsonRequest(msgspec.Struct):
    Produce: Produce


class Offsets(msgspec.Struct):
    offsets: list[int]


class JsonAnswer(msgspec.Struct):
    Produce: Offsets


class JsonEcho(asyncio.Protocol):
    """E for JSON: each frame is parsed into structs, and its answer is printed; the offset counts the records."""

    __slots__ = ("_decode", "_encode", "_offset", "_rest", "_write")

    def __init__(self, offset: int) -> None:
        self._decode = msgspec.json.Decoder(JsonRequest).decode
        self._encode = msgspec.json.Encoder().encode
        self._offset = offset
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        start = 0
        while len(data) - start >= 4:
            end = start + 4 + _LENGTH.unpack_from(data, start)[0]
            if end > len(data):
                break
            request = self._decode(data[start + 4 : end])
            answer = self._encode(JsonAnswer(Offsets([self._offset])))
            self._offset += len(request.Produce.records)
            self._write(_LENGTH.pack(len(answer)) + answer)
            start = end
        self._rest = data[start:]


class Greet(asyncio.Protocol):
    """An answer to whatever came."""

    __slots__ = ("_answer", "_write")

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._write(self._answer)


async def _serve(make: Callable[[], asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    listener = _listen()
    server = await loop.create_server(make, sock=listener)
    _say(listener)
    async with server:
        await server.serve_forever()


def main(arguments: list[str]) -> None:
    kind, workspace = arguments[0], Path(arguments[1])
    if kind == "sink":
        sink(workspace, int(arguments[2]), bytes.fromhex(arguments[3]))
    elif kind == "sendfile":
        sendfile(workspace, int(arguments[2]))
    elif kind == "echo":
        answer, head_bytes = bytes.fromhex(arguments[2]), int(arguments[3]) if len(arguments) > 3 else 4
        uvloop.run(_serve(lambda: Echo(answer, head_bytes)))
    elif kind == "greet":
        answer = bytes.fromhex(arguments[2])
        uvloop.run(_serve(lambda: Greet(answer)))
    elif kind == "json":
        offset = int(arguments[2])
        uvloop.run(_serve(lambda: JsonEcho(offset)))
    else:
        raise SystemExit(f"no reference named {kind!r}: sink, sendfile, echo, greet, json")


if __name__ == "__main__":
    main(sys.argv[1:])
