"""Answers of one connection that could not leave by a plain write: ranges of log files, and what waits behind them.

Bytes leave in one order by two ways. Bytes in memory go through the transport. A range of 64 KB or more goes from the
file to the socket by sendfile, on a duplicate of the transport's descriptor, because event loops refuse to watch a
descriptor that a transport owns. The two ways cannot overtake each other:

1. the transport's high-water mark is 0, so it is empty unless it has called `pause_writing` (the owner's `stalled`);
2. nothing is written directly while the owner is stalled, and nothing is given to the transport while a direct write
   is under way: it waits here.

A range that is not in the page cache is read by a thread, at most a megabyte at a time, and sent from memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from typing import Protocol

from penstock.model.chunks import Chunk, FileRange, OpenFile
from penstock.net.network import Network
from penstock.net.residency import read_range, read_resident

PIECE_BYTES = 1024 * 1024
"""Looked at, read or sent in one go: bounds memory for cold data and the time between two looks at the page cache."""
PIECE_BYTES_TIGHT = 64 * 1024
"""The same when the account of in-flight bytes is full."""
TURN_BYTES = 4 * 1024 * 1024
"""Sent before other connections have their turn: a fast peer could take for ever."""
JOIN_BYTES_MAX = 64 * 1024
"""Pieces in memory are joined up to here; above, copying costs more than another element in a writev."""

_MORE: int = getattr(socket, "MSG_MORE", 0)
_CORK: int | None = getattr(socket, "TCP_CORK", None)
_PEER_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN})

_NOTHING, _SOCKET, _DISK, _TURN = range(4)


class Owner(Protocol):
    """The connection that the answers belong to."""

    stalled: bool

    def answers_moved(self) -> None:
        """Something left, outside of a call of the owner."""
        ...

    def answer_failed(self, reason: str, peer_gone: bool) -> None:
        """The rest can never leave in order: the connection has to go."""
        ...


class Outbox:
    __slots__ = (
        "_chunks",
        "_closed",
        "_corked",
        "_direct",
        "_disk_bytes",
        "_file",
        "_network",
        "_owner",
        "_position",
        "_range_left",
        "_socket",
        "_transport",
        "_used",
        "_waits_for",
        "_watching",
        "bytes_in_memory",
        "bytes_unsent",
    )

    def __init__(self, network: Network, transport: asyncio.Transport, owner: Owner) -> None:
        self._network = network
        self._transport = transport
        self._owner = owner
        self._chunks: deque[Chunk] = deque()
        self._file: OpenFile | None = None
        self._position = 0
        self._range_left = 0
        self._direct = False
        self._disk_bytes = 0
        self._socket: socket.socket | None = None
        self._waits_for = _NOTHING
        self._watching = False
        self._used = False
        self._closed = False
        self._corked = False
        self.bytes_unsent = 0
        """File ranges included; what the transport holds is not."""
        self.bytes_in_memory = 0

    def push(self, chunks: list[Chunk], size: int) -> None:
        """Queue chunks of `size` bytes in all, and send what can leave now."""
        self._chunks.extend(chunks)
        self.bytes_unsent += size
        for chunk in chunks:
            if not isinstance(chunk, FileRange):
                self.bytes_in_memory += len(chunk)
        self.pump()

    def pump(self) -> None:
        """Send until nothing is left or something has to be waited for."""
        self._used = True
        turn_end = self.bytes_unsent - TURN_BYTES
        owner = self._owner
        try:
            while self._waits_for == _NOTHING and not owner.stalled and not self._closed:
                if self._range_left:
                    self._send_range()
                elif self._chunks:
                    self._send_chunks()
                else:
                    break
                if self.bytes_unsent < turn_end and self._waits_for == _NOTHING:
                    self._waits_for = _TURN
                    self._network.loop.call_soon(self._go_on)
            if self._corked and not self._chunks and not self._range_left:
                self._uncork()
        except OSError as error:
            peer_gone = error.errno in _PEER_GONE
            text = f"{error.strerror or error}"
            if not peer_gone:
                text = f"cannot read a log file: {text} ({self._place()})"
            self._fail(text, peer_gone)
        if self._waits_for == _SOCKET and not self._watching and not self._closed:
            self._network.loop.add_writer(self._descriptor().fileno(), self._go_on)
            self._watching = True

    @property
    def waits_for_disk(self) -> bool:
        return self._waits_for == _DISK

    def release_when_unused(self) -> bool:
        """True when there is nothing in it and was nothing since the last call: an idle connection holds no outbox."""
        if self.bytes_unsent or self._waits_for != _NOTHING or self._used:
            self._used = False
            return False
        self.close()
        return True

    def close(self) -> None:
        self._closed = True
        self._chunks.clear()
        self._file = None
        self._range_left = 0
        self.bytes_unsent = self.bytes_in_memory = 0
        self._unwatch()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send_chunks(self) -> None:
        """Send what is in memory up to the next range that has a way of its own, or begin that range."""
        chunks = self._chunks
        lead: list[bytes | bytearray | memoryview] = []
        size = 0
        by_sendfile = False
        while chunks and size < PIECE_BYTES:
            chunk = chunks[0]
            if isinstance(chunk, FileRange):
                if chunk.length >= self._network.settings.sendfile_bytes_min:
                    by_sendfile = self._network.sendfile is not None
                    break
                data = read_resident(chunk.file, chunk.position, chunk.length)
                if data is None:
                    break
                chunks.popleft()
                self.bytes_in_memory += len(data)
                lead.append(data)
                size += len(data)
            else:
                chunks.popleft()
                lead.append(chunk)
                size += len(chunk)
        if not lead:
            if chunks:
                self._begin_range(by_sendfile)
            return
        self.bytes_in_memory -= size
        if by_sendfile and chunks and size <= JOIN_BYTES_MAX:
            self._cork()
            self._send_lead(lead[0] if len(lead) == 1 else b"".join(lead), size)
        else:
            self.bytes_unsent -= size
            write(self._network, self._transport, lead, size)

    def _cork(self) -> None:
        """Hold back what does not fill a packet until the answer is whole: bytes before and behind a range share packets
        with it, and the peer is not woken for the last few of them."""
        if _CORK is not None and not self._corked:
            self._descriptor().setsockopt(socket.IPPROTO_TCP, _CORK, 1)
            self._corked = True

    def _uncork(self) -> None:
        if _CORK is not None and not self._closed:
            self._descriptor().setsockopt(socket.IPPROTO_TCP, _CORK, 0)
        self._corked = False

    def _begin_range(self, by_sendfile: bool) -> None:
        chunk = self._chunks.popleft()
        assert isinstance(chunk, FileRange)
        self._file = chunk.file
        self._position = chunk.position
        self._range_left = chunk.length
        self._direct = by_sendfile

    def _send_lead(self, lead: bytes | bytearray | memoryview, size: int) -> None:
        """The bytes before a range, held back by the kernel so that they share a packet with its beginning."""
        assert self._transport.get_write_buffer_size() == 0
        try:
            sent = self._descriptor().send(lead, _MORE)
        except BlockingIOError:
            sent = 0
        self.bytes_unsent -= sent
        if sent < size:
            self._chunks.appendleft(memoryview(lead)[sent:])
            self.bytes_in_memory += size - sent
            self._waits_for = _SOCKET

    def _send_range(self) -> None:
        file = self._file
        assert file is not None
        network = self._network
        size = min(self._range_left, PIECE_BYTES)
        fd = file.fileno()
        if not network.resident(fd, self._position, size):
            if network.in_flight.pressed:
                size = min(size, PIECE_BYTES_TIGHT)
            self._waits_for = _DISK
            self._disk_bytes = size
            future = network.loop.run_in_executor(network.readers, read_range, file, self._position, size)
            future.add_done_callback(self._disk_answered)
            return
        if not self._direct:
            self._send_read(read_range(file, self._position, size), size)
            return
        assert network.sendfile is not None
        assert self._transport.get_write_buffer_size() == 0
        try:
            sent = network.sendfile(self._descriptor().fileno(), fd, self._position, size)
        except BlockingIOError:
            self._waits_for = _SOCKET
            return
        if sent == 0:
            self._fail_short()
            return
        self._moved(sent)
        if sent < size:
            self._waits_for = _SOCKET

    def _send_read(self, data: bytes, size: int) -> None:
        if len(data) < size:
            self._fail_short()
            return
        self._moved(size)
        write(self._network, self._transport, [data], size)

    def _moved(self, size: int) -> None:
        self._position += size
        self._range_left -= size
        self.bytes_unsent -= size
        if not self._range_left:
            self._file = None

    def _descriptor(self) -> socket.socket:
        if self._socket is None:
            original = self._transport.get_extra_info("socket")
            duplicate = os.dup(original.fileno())
            self._socket = socket.socket(original.family, original.type, original.proto, fileno=duplicate)
            self._socket.setblocking(False)
        return self._socket

    def _unwatch(self) -> None:
        if self._watching and self._socket is not None:
            self._network.loop.remove_writer(self._socket.fileno())
            self._watching = False

    def _go_on(self) -> None:
        if self._closed:
            return
        self._waits_for = _NOTHING
        self.pump()
        if self._waits_for != _SOCKET:
            self._unwatch()
        if not self._closed:
            self._owner.answers_moved()

    def _disk_answered(self, future: asyncio.Future[bytes]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if self._closed:
            return
        self._waits_for = _NOTHING
        if error is not None:
            text = getattr(error, "strerror", None) or error
            self._fail(f"cannot read a log file: {text} ({self._place()})", False)
            return
        self._send_read(future.result(), self._disk_bytes)
        self.pump()
        if not self._closed:
            self._owner.answers_moved()

    def _fail_short(self) -> None:
        text = f"a log file ends {self._range_left} bytes before the end of the range to send"
        self._fail(f"{text} ({self._place()})", False)

    def _place(self) -> str:
        """Where in which file the next bytes are, for the log."""
        return f"position {self._position} of {getattr(self._file, 'path', 'a file')}"

    def _fail(self, reason: str, peer_gone: bool) -> None:
        if not self._closed:
            self._owner.answer_failed(reason, peer_gone)


def write(
    network: Network, transport: asyncio.Transport, pieces: list[bytes | bytearray | memoryview], size: int
) -> None:
    """Hand pieces of memory to the transport as one write."""
    if len(pieces) == 1:
        transport.write(pieces[0])
    elif size > JOIN_BYTES_MAX and network.vectored:
        transport.writelines(pieces)
    else:
        transport.write(b"".join(pieces))
