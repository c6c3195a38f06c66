"""What one turn of the event loop reads: the requests of many connections, one each, performed and answered together.

With one request in flight on each of many connections a turn finds several sockets ready. To append each request by
itself costs a write to the log and, for a peer that serves several of the connections, a wake-up each. So a connection that
has read a single whole request, and has nothing else under way, leaves it here. When every ready socket has been read the
turn runs: all requests are performed while the broker gathers, the broker settles, and then all answers leave.

The requests borrow from the scratch buffer, whose used part is not read into again before the turn has run. Anything else
that happens to a connection with a request here (more bytes, an end) runs the turn first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.net.exchange import Exchange
    from penstock.net.network import Network

REQUEST_BYTES_MAX = 16 * 1024
"""Larger reads fill the log's writes by themselves."""
SPACE_BYTES_MIN = 64 * 1024
"""With less of the scratch buffer left the turn runs at once."""


class Gatherer(Protocol):
    """The broker, which may put off what it is asked between the two calls."""

    def gather(self) -> None: ...

    def settle(self) -> None: ...


class Turn:
    __slots__ = ("_network", "_requests", "gatherer")

    def __init__(self, network: Network) -> None:
        self._network = network
        self._requests: list[tuple[Exchange, Any]] = []
        self.gatherer: Gatherer | None = None

    def add(self, connection: Exchange, request: Any, nbytes: int) -> None:
        """Take the request that a read of `nbytes` into the scratch buffer delivered."""
        network = self._network
        requests = self._requests
        requests.append((connection, request))
        if len(requests) == 1:
            network.loop.call_soon(self.run)
        network.scratch = rest = network.scratch[nbytes:]
        if len(rest) < SPACE_BYTES_MIN:
            self.run()

    def run(self) -> None:
        requests = self._requests
        if not requests:
            return
        self._requests = []
        gatherer = self.gatherer
        if gatherer is None or len(requests) == 1:
            performed = [(connection, request, connection.perform_in_turn(request)) for connection, request in requests]
        else:
            gatherer.gather()
            try:
                performed = [
                    (connection, request, connection.perform_in_turn(request)) for connection, request in requests
                ]
            finally:
                gatherer.settle()
        self._network.renew_scratch()
        for connection, request, result in performed:
            connection.answer_in_turn(request, result)
