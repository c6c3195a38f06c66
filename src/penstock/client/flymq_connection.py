"""Connections of a FlyMQ client: opcode frames over sockets, a bounded pool for each server, and rotation between servers.

A request goes to one server until it dies or names another as the leader. A connection that failed is thrown away with all
idle ones to the same server, since they are likely to be dead too. What the server answers is an answer: it is never tried
again, except where it says that another server leads.
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.client.stream import StreamClient

MAGIC = 0xAF
VERSION = 1
BINARY_FLAG = 0x01
ERROR = 0xFF
AUTH, AUTH_ANSWER = 0x70, 0x71
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024

_HEADER = struct.Struct(">BBBBI")
_CODE_AND_LENGTH = struct.Struct(">iH")
_LEADER = re.compile(r"not (?:partition )?leader\b.*\bleader_addr=(\S+)")
_NOT_LEADER = re.compile(r"not (?:partition )?leader\b")

Address = tuple[str, int]


class FlyMQError(Exception):
    """The server answered with an error; `code` is its number (servers send 1), `text` what it says. 0: the client's own."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


def address_of(text: str, port: int) -> Address:
    """`HOST:PORT`, `[V6]:PORT` or a bare host."""
    host, colon, number = text.rpartition(":")
    if not colon or "]" in number or (":" in host and not host.startswith("[")):
        return text.strip("[]"), port
    return host.strip("[]"), int(number)


class Connection(StreamClient):
    """One socket: requests in, answers out, in order."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        super().__init__(*address, timeout_s)
        self.address = address

    def send(self, data: bytes) -> None:
        self._send(data)

    def answer(self, opcode: int) -> bytes:
        """The payload of the next answer; raises FlyMQError for an error."""
        magic, version, answered, _, length = _HEADER.unpack(self._exactly(_HEADER.size))
        if (magic, version) != (MAGIC, VERSION) or length > PAYLOAD_BYTES_MAX:
            raise ConnectionError("the server does not speak FlyMQ's opcode frames")
        payload = self._exactly(length)
        if answered == ERROR:
            raise _error(payload)
        if answered != (AUTH_ANSWER if opcode == AUTH else opcode):
            raise ConnectionError(f"opcode {answered:#04x} answered {opcode:#04x}")
        return payload


def frame(opcode: int, payload: bytes) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes is more than FlyMQ's {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MAGIC, VERSION, opcode, BINARY_FLAG, len(payload)) + payload


def _error(payload: bytes) -> FlyMQError:
    """Coded, as this broker sends it; or the bare text of the original."""
    if len(payload) >= _CODE_AND_LENGTH.size:
        code, length = _CODE_AND_LENGTH.unpack_from(payload)
        if length == len(payload) - _CODE_AND_LENGTH.size:
            return FlyMQError(code, payload[_CODE_AND_LENGTH.size :].decode("utf-8", "replace"))
    return FlyMQError(1, payload.decode("utf-8", "replace"))


class Pool:
    """At most so many connections to a server; who wants one more waits for one to come back."""

    def __init__(self, address: Address, connections_max: int, timeout_s: float) -> None:
        self._address = address
        self._room = connections_max
        self._timeout_s = timeout_s
        self._idle: deque[Connection] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def take(self) -> Connection:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while not self._idle and not self._room:
                if self._closed or not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"no connection came back within {self._timeout_s} s")
            if self._closed:
                raise ConnectionError("the client is closed")
            if self._idle:
                return self._idle.pop()
            self._room -= 1
        try:
            return Connection(self._address, self._timeout_s)
        except BaseException:
            self._make_room()
            raise

    def give(self, connection: Connection) -> None:
        with self._changed:
            if not self._closed:
                self._idle.append(connection)
                self._changed.notify()
                return
        connection.close()

    def drop(self, connection: Connection) -> None:
        """It failed; the idle ones go with it."""
        connection.close()
        with self._changed:
            idle, self._idle = self._idle, deque()
        for other in idle:
            other.close()
        self._make_room(1 + len(idle))

    def _make_room(self, count: int = 1) -> None:
        with self._changed:
            self._room += count
            self._changed.notify(count)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, deque()
            self._changed.notify_all()
        for connection in idle:
            connection.close()


class Servers:
    """Several servers of one cluster, one of them in use. Threads may share it."""

    def __init__(
        self, addresses: Sequence[Address], *, connections_max: int, attempts_max: int, timeout_s: float
    ) -> None:
        if not addresses:
            raise ValueError("a FlyMQ client needs at least one server")
        if connections_max < 1 or attempts_max < 1:
            raise ValueError("at least one connection and one attempt")
        self._addresses = list(dict.fromkeys(addresses))
        self._current = 0
        self._connections_max = connections_max
        self._attempts_max = attempts_max
        self._timeout_s = timeout_s
        self._pools: dict[Address, Pool] = {}
        self._lock = threading.Lock()

    @property
    def current(self) -> Address:
        with self._lock:
            return self._addresses[self._current]

    def ask(self, opcode: int, payload: bytes) -> bytes:
        """The answer of whichever server can give it. Connection failures are tried again elsewhere, so a request may
        reach a server twice; what a server answers is never tried again."""
        data = frame(opcode, payload)
        failure: Exception | None = None
        for _ in range(self._attempts_max):
            address = self.current
            try:
                with self.connection(address) as connection:
                    connection.send(data)
                    return connection.answer(opcode)
            except FlyMQError as error:
                if _NOT_LEADER.match(error.text) is None:
                    raise
                failure = error
                self._follow(error.text, address)
            except OSError as error:
                failure = error
        if isinstance(failure, FlyMQError):
            raise failure
        raise ConnectionError(f"no answer after {self._attempts_max} attempts, the last: {failure}") from failure

    @contextmanager
    def connection(self, address: Address) -> Iterator[Connection]:
        """A connection for a while. One on which anything but an answered error went wrong is thrown away, and when the
        server is to blame the next one is used from then on."""
        with self._lock:
            pool = self._pools.get(address)
            if pool is None:
                pool = self._pools[address] = Pool(address, self._connections_max, self._timeout_s)
        try:
            connection = pool.take()
            try:
                yield connection
            except FlyMQError:
                pool.give(connection)
                raise
            except BaseException:
                pool.drop(connection)
                raise
            pool.give(connection)
        except OSError:
            self._rotate(address)
            raise

    def _rotate(self, failed: Address) -> None:
        with self._lock:
            if self._addresses[self._current] == failed:
                self._current = (self._current + 1) % len(self._addresses)

    def _follow(self, text: str, asked: Address) -> None:
        """Go to the leader that an answer names; to the next server when it names none."""
        named = _LEADER.match(text)
        if named is None:
            self._rotate(asked)
            return
        leader = address_of(named[1], asked[1])
        with self._lock:
            if leader not in self._addresses:
                self._addresses.append(leader)
            self._current = self._addresses.index(leader)

    def close(self) -> None:
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()
