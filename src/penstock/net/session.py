"""The port between the network and a dialect: what a session is asked, and what it gives.

A session knows one protocol and no I/O. `net` feeds it what the socket delivered; the session cuts it into requests,
performs each against the broker, and turns results into bytes. Net owns the socket, the buffers, the deadlines and the
order of answers: requests are performed in arrival order without waiting for earlier answers, except behind a `Hold`, and
answers leave in the order of the requests.

A session of a protocol with streams has `multiplexes = True`, and each of its requests an `unordered_key`: the order of
answers then holds among requests of one key (None is a key too), and a request that waits holds up no other key.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from penstock.model.chunks import Chunk
from penstock.model.fed import Fed

__all__ = ["Fed", "Peer", "Session"]


class Session(Protocol):
    def feed(self, view: memoryview) -> Fed:
        """Cut `view` into requests. The requests may borrow `view` until they have been performed."""
        ...

    def perform(self, request: Any) -> Any:
        """Do it: a result, or a `Pending` that completes with one; a `Hold` if what is behind it must not be performed
        before. Raises ProtocolError to close the connection."""
        ...

    def answer(self, request: Any, result: Any) -> list[Chunk]:
        """The bytes of the answer; an empty list where the protocol has none (acks=0)."""
        ...

    def closed(self) -> None:
        """The connection is gone; nothing will be asked any more."""
        ...


class Peer(NamedTuple):
    """Who is on the other end, for log lines and for the addresses that a dialect names."""

    host: str
    port: int
    local_host: str
    local_port: int
