"""A listening address of one dialect: accepts within the limits, counts, and stops without cutting started answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from penstock.model.errors import StartError
from penstock.net.connection import Connection
from penstock.net.log_lines import RareLine, endpoint
from penstock.net.network import Network
from penstock.net.session import Peer, Session
from penstock.net.settings import Deadlines

logger = logging.getLogger("penstock.net")


class Listener:
    """`name` is the dialect; the counts are plain attributes for whoever measures."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        session_factory: Callable[[Peer], Session],
        network: Network,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        """The bound port once started, where 0 was asked for."""
        self.session_factory = session_factory
        self.network = network
        self.deadlines = deadlines or Deadlines()
        """Those of its connections."""
        self.connections: set[Connection] = set()
        self.connections_accepted = 0
        self.connections_refused = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self._server: asyncio.Server | None = None
        self._stopping = False
        self._refusals = RareLine(logger)
        self._emptied = asyncio.Event()

    async def start(self) -> None:
        try:
            self._server = await self._bind()
        except OSError as error:
            # an event loop's own text names the address again
            code = error.errno or 0
            why = os.strerror(code) if code in errno.errorcode else error.strerror or error
            raise StartError(f"cannot listen on {endpoint(self.host, self.port)} for {self.name}: {why}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def _bind(self) -> asyncio.Server:
        loop, settings = self.network.loop, self.network.settings
        listen = partial(
            loop.create_server,
            self._connection,
            backlog=settings.accept_backlog,
            reuse_port=settings.share_ports or None,
        )
        if self.port:
            return await listen(self.host or None, self.port)
        # Each address of a name would get a free port of its own: the first that can be bound is the address.
        found = await loop.getaddrinfo(self.host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        failure: OSError | None = None
        for *_, address in found:
            try:
                return await listen(str(address[0]), 0)
            except OSError as error:
                failure = failure or error
        raise failure or OSError(f"host {self.host} has no address")

    def _connection(self) -> Connection:
        return Connection(self)

    async def stop(self) -> None:
        """Stop accepting, let started answers leave for the grace, then close every connection."""
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        for connection in list(self.connections):
            connection.stop()
        if not await self._is_empty(self.network.settings.stop_grace_ms):
            for connection in list(self.connections):
                connection.abort()
            await self._is_empty(self.network.settings.stop_grace_ms)
        await self._server.wait_closed()
        self._server = None

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, or refuse it."""
        network = self.network
        settings = network.settings
        host = connection.peer.host
        of_host = network.connections_by_ip.get(host, 0)
        reason = None
        if self._stopping:
            reason = "the listener is stopping"
        elif network.connections >= settings.connections_max:
            reason = f"the limit of {network.connections} connections is reached"
        elif of_host >= settings.connections_per_ip_max:
            reason = f"the limit of {of_host} connections from {host} is reached"
        if reason is not None:
            self.connections_refused += 1
            peer = endpoint(host, connection.peer.port)
            now_ms = int(network.loop.time() * 1_000)
            self._refusals.write(now_ms, f"{self.name} connection from {peer} refused: {reason}")
            return False
        network.connections += 1
        network.connections_by_ip[host] = of_host + 1
        network.watch(connection)
        self.connections.add(connection)
        self.connections_accepted += 1
        return True

    def forget(self, connection: Connection) -> None:
        """Count a connection out; one that was refused was never in."""
        if connection not in self.connections:
            return
        network = self.network
        self.connections.discard(connection)
        network.unwatch(connection)
        network.connections -= 1
        host = connection.peer.host
        of_host = network.connections_by_ip[host] - 1
        if of_host:
            network.connections_by_ip[host] = of_host
        else:
            del network.connections_by_ip[host]
        if not self.connections:
            self._emptied.set()

    async def _is_empty(self, within_ms: int) -> bool:
        if not self.connections:
            return True
        self._emptied.clear()
        try:
            await asyncio.wait_for(self._emptied.wait(), within_ms / 1_000)
        except TimeoutError:
            return False
        return True
