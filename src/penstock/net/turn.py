"""What one turn of the event loop reads: the requests of many connections, one each, performed and answered together.

With one request in flight on each of many connections a turn finds several sockets ready. To append each request by
itself costs a write to the log and, for a peer that serves several of the connections, a wake-up each. So a connection that
has read a single whole request, and has nothing else under way, leaves it here. When every ready socket has been read the
turn runs: all requests are performed while the broker gathers, the broker settles, and then all answers leave.

The requests borrow from the scratch buffer, whose used part is not read into again before the turn has run. Anything else
that happens to a connection with a request here (more bytes, an end) performs that request first. A turn that runs out of
time leaves the remaining requests to the next turn of the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.net.pace import PERFORM_S

if TYPE_CHECKING:
    from penstock.net.exchange import Exchange
    from penstock.net.network import Network

REQUEST_BYTES_MAX = 16 * 1024
"""Larger reads fill the log's writes by themselves."""
PERFORMED_AT_ONCE = 8
"""Requests performed between two readings of the clock: long requests run in slices anyway."""
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
        self._requests: dict[Exchange, Any] = {}
        """In the order of arrival, at most one per connection."""
        self.gatherer: Gatherer | None = None

    def add(self, connection: Exchange, request: Any, nbytes: int) -> None:
        """Take the request that a read of `nbytes` into the scratch buffer delivered."""
        network = self._network
        requests = self._requests
        requests[connection] = request
        if len(requests) == 1:
            network.loop.call_soon(self.run)
        network.scratch = rest = network.scratch[nbytes:]
        if len(rest) < SPACE_BYTES_MIN:
            # Requests for which the turn has no time keep the buffer; other connections read into a new one.
            self.run()
            if self._requests:
                network.replace_scratch()

    def run(self) -> None:
        if not self._requests:
            return
        requests, self._requests = list(self._requests.items()), {}
        count = self._perform(requests)
        if count < len(requests):
            self._requests = dict(requests[count:]) | self._requests
            self._network.loop.call_soon(self.run)
        elif not self._requests:
            self._network.renew_scratch()

    def run_for(self, connection: Exchange) -> None:
        """Perform the request of this connection now."""
        self._perform([(connection, self._requests.pop(connection))])
        if not self._requests:
            self._network.renew_scratch()

    def _perform(self, requests: list[tuple[Exchange, Any]]) -> int:
        """Perform and answer as many requests as time allows; return their number."""
        gatherer = self.gatherer
        if len(requests) == 1:
            ((connection, request),) = requests
            connection.answer_in_turn(request, connection.perform_in_turn(request))
            return 1
        if gatherer is not None:
            gatherer.gather()
        performed: list[tuple[Exchange, Any, Any]] = []
        try:
            if len(requests) <= PERFORMED_AT_ONCE:
                performed = [
                    (connection, request, connection.perform_in_turn(request)) for connection, request in requests
                ]
            else:
                clock = self._network.pace.clock
                end_s = clock() + PERFORM_S
                for first in range(0, len(requests), PERFORMED_AT_ONCE):
                    if first and clock() >= end_s:
                        break
                    performed += [
                        (connection, request, connection.perform_in_turn(request))
                        for connection, request in requests[first : first + PERFORMED_AT_ONCE]
                    ]
        finally:
            if gatherer is not None:
                gatherer.settle()
        for connection, request, result in performed:
            connection.answer_in_turn(request, result)
        return len(performed)
