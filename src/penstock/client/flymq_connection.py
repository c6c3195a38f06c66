"""Connections of a FlyMQ client: opcode frames over sockets, a bounded pool for each server, and rotation between servers.

A request goes to one server until it dies or names another as the leader. A connection that failed is thrown away with all
idle ones to the same server, since they are likely to be dead too. What the server answers is an answer: it is never tried
again, except where it says that another server leads. A server whose connections are all in use is not dead: who gets none
in time is told so.
"""

from __future__ import annotations

import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

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

_CLOSED = "the FlyMQ client is closed"
_NO_HOST = ("", "0.0.0.0", "::")
"""What a server that listens on all its addresses may call itself; FlyMQ listens on :9092 unless told."""

Address = tuple[str, int]
T = TypeVar("T")


class FlyMQError(Exception):
    """The server answered with an error; `code` is its number (servers send 1), `text` what it says. 0: the client's own."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class NotLeader(FlyMQError):
    """The server did nothing, since another one leads."""


class PoolExhausted(TimeoutError):
    """Every connection that the client may have to a server was in use for too long. The server is not to blame."""


def address_of(text: str, port: int) -> Address:
    """`HOST:PORT`, `[V6]:PORT` or a bare host. Raises ValueError when the port is none."""
    text = text.strip()
    host, colon, number = text.rpartition(":")
    if not colon or "]" in number or (":" in host and not host.startswith("[")):
        return text.strip("[]"), port
    if not number.isascii() or not number.isdigit() or int(number) > 65_535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(number)


class Connection(StreamClient):
    """One socket: requests in, answers out, in order."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        try:
            super().__init__(*address, timeout_s)
        except ValueError as error:  # of the resolver, about a name that no host can have
            raise ConnectionError(f"{address[0]!r} is not a host: {error}") from None
        self._unanswered = 0

    @property
    def is_answered(self) -> bool:
        """Whether every request has its answer, so that the connection can be used again."""
        return not self._unanswered

    def send(self, data: bytes, requests: int = 1) -> None:
        self._unanswered += requests
        self._send(data)

    def answer(self, opcode: int) -> bytes:
        """The payload of the next answer; raises FlyMQError for an error."""
        magic, version, answered, _, length = _HEADER.unpack(self._exactly(_HEADER.size))
        if (magic, version) != (MAGIC, VERSION) or length > PAYLOAD_BYTES_MAX:
            raise ConnectionError("the server does not speak FlyMQ's opcode frames")
        payload = self._exactly(length)
        if answered not in (ERROR, AUTH_ANSWER if opcode == AUTH else opcode):
            raise ConnectionError(f"opcode {answered:#04x} in the response to {opcode:#04x}")
        self._unanswered -= 1
        if answered == ERROR:
            raise _error(payload)
        return payload


def frame(opcode: int, payload: bytes) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes exceeds FlyMQ's limit of {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MAGIC, VERSION, opcode, BINARY_FLAG, len(payload)) + payload


def _error(payload: bytes) -> FlyMQError:
    """Coded, as this broker sends it; or the bare text of the original."""
    code, said = 1, payload
    if len(payload) >= _CODE_AND_LENGTH.size:
        number, length = _CODE_AND_LENGTH.unpack_from(payload)
        if length == len(payload) - _CODE_AND_LENGTH.size:
            code, said = number, payload[_CODE_AND_LENGTH.size :]
    text = said.decode("utf-8", "replace")
    return NotLeader(code, text) if _NOT_LEADER.match(text) else FlyMQError(code, text)


def _leader(text: str, asked: Address) -> Address | None:
    """Whom an error names. Without a host it is the one that was asked, at another port."""
    named = _LEADER.match(text)
    if named is None:
        return None
    try:
        host, port = address_of(named[1], asked[1])
    except ValueError:
        return None
    return asked[0] if host in _NO_HOST else host, port


class Pool:
    """At most so many connections to a server; who wants one more waits for one to come back."""

    def __init__(self, address: Address, connections_max: int, timeout_s: float) -> None:
        self._address = address
        self._room = self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._idle: deque[Connection] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def take(self) -> Connection:
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._idle or self._room, self._timeout_s):
                host, port = self._address
                raise PoolExhausted(
                    f"no connection to {host}:{port} came back within {self._timeout_s} s: all {self._connections_max} "
                    "are in use (connections_max)"
                )
            if self._closed:
                raise RuntimeError(_CLOSED)
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
            raise ValueError("a FlyMQ client requires at least one server")
        if connections_max < 1 or attempts_max < 1:
            raise ValueError("connections_max and attempts_max must be at least 1")
        self._addresses = list(dict.fromkeys(addresses))
        self._current = self._addresses[0]
        self._connections_max = connections_max
        self._attempts_max = attempts_max
        self._timeout_s = timeout_s
        self._pools: dict[Address, Pool] = {}
        self._closed = False
        self._lock = threading.Lock()

    @property
    def current(self) -> Address:
        with self._lock:
            return self._current

    def ask(self, opcode: int, payload: bytes) -> bytes:
        """The answer of whichever server can give it."""
        data = frame(opcode, payload)

        def exchange(connection: Connection) -> bytes:
            connection.send(data)
            return connection.answer(opcode)

        return self.use(exchange)

    def use(self, exchange: Callable[[Connection], T]) -> T:
        """What `exchange` makes of a connection to whichever server can serve it.

        When the connection fails, or the server says that another one leads, it is called again with the next: once for
        each known server, and `attempts_max - 1` times more. So a server may be told the same thing twice. What a server
        answers else is never tried again.
        """
        asked: list[Address] = []
        failure: Exception | None = None
        with self._lock:
            attempts_max = self._attempts_max + len(self._addresses) - 1
        for _ in range(attempts_max):
            address = self._next(asked)
            asked.append(address)
            try:
                with self.connection(address) as connection:
                    return exchange(connection)
            except NotLeader as error:
                failure = error
                self._follow(error.text, address)
            except PoolExhausted:
                raise
            except OSError as error:
                failure = error
                self._rotate(address)
        if isinstance(failure, NotLeader):
            raise failure
        raise ConnectionError(f"no response after {attempts_max} attempts; last error: {failure}") from failure

    @contextmanager
    def connection(self, address: Address) -> Iterator[Connection]:
        """A connection for a while. One that is left with an answer to come is thrown away."""
        with self._lock:
            if self._closed:
                raise RuntimeError(_CLOSED)
            pool = self._pools.get(address)
            if pool is None:
                pool = self._pools[address] = Pool(address, self._connections_max, self._timeout_s)
        connection = pool.take()
        try:
            yield connection
        finally:
            if connection.is_answered:
                pool.give(connection)
            else:
                pool.drop(connection)

    def _next(self, asked: Sequence[Address]) -> Address:
        """The server in use; if that was asked already, one that was not."""
        with self._lock:
            if self._current in asked:
                others = (address for address in self._addresses if address not in asked)
                self._current = next(others, self._current)
            return self._current

    def _rotate(self, failed: Address) -> None:
        with self._lock:
            if self._current == failed:
                at = self._addresses.index(failed) + 1
                self._current = self._addresses[at % len(self._addresses)]

    def _follow(self, text: str, asked: Address) -> None:
        """Go to the leader that an answer names; to the next server when it names none."""
        leader = _leader(text, asked)
        if leader is None:
            self._rotate(asked)
            return
        with self._lock:
            if leader not in self._addresses:
                self._addresses.append(leader)
            self._current = leader

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()
