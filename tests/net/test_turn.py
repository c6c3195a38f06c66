"""Requests that one turn of the loop reads from many connections: performed together, then answered, each its own way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from penstock.model.pending import Pending
from penstock.net import turn
from tests.net.fakes import WAIT_S, Client, FakeSession, Server, frame, until


class Gatherer:
    """Puts off what is performed while it gathers, as the broker does, and writes down what it was asked."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._noted: list[tuple[Pending[bytes], bytes]] = []
        self._gathers = False

    def gather(self) -> None:
        self._gathers = True
        self.events.append("gather")

    def settle(self) -> None:
        self._gathers = False
        self.events.append("settle")
        noted, self._noted = self._noted, []
        for pending, payload in noted:
            pending.complete(payload)

    def perform(self, payload: bytes) -> bytes | Pending[bytes]:
        self.events.append(payload)
        if not self._gathers:
            return payload
        pending: Pending[bytes] = Pending()
        self._noted.append((pending, payload))
        return pending


def gathered(server: Server, gatherer: Gatherer) -> None:
    server.call(lambda: setattr(server.network.turn, "gatherer", gatherer))


def session_of(gatherer: Gatherer) -> Callable[[Any], FakeSession]:
    class Session(FakeSession):
        def perform(self, request: memoryview) -> Any:
            if bytes(request[:1]) == b"e":
                return gatherer.perform(bytes(request))
            return super().perform(request)

        def answer(self, request: memoryview, result: bytes) -> Any:
            gatherer.events.append("answer")
            return super().answer(request, result)

    return Session


@contextmanager
def one_turn(server: Server) -> Iterator[None]:
    """What is sent inside is found by one look at the sockets."""
    began, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    server.loop.call_soon_threadsafe(stand_still)
    assert began.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()


def connected(server: Server, stack: ExitStack, count: int) -> list[Client]:
    clients = [stack.enter_context(server.connect()) for _ in range(count)]
    server.until(lambda: len(server.sessions) == count)
    return clients


def test_requests_of_many_connections_are_performed_before_the_first_is_answered(serve: Callable[..., Server]) -> None:
    gatherer = Gatherer()
    server = serve(session_of(gatherer))
    gathered(server, gatherer)
    with ExitStack() as stack:
        clients = connected(server, stack, 8)
        with one_turn(server):
            for number, client in enumerate(clients):
                client.send(frame(b"e %d" % number))
        for number, client in enumerate(clients):
            assert client.read() == b"e %d" % number
    assert gatherer.events[0] == "gather"
    assert sorted(gatherer.events[1:9]) == [b"e %d" % number for number in range(8)]
    assert gatherer.events[9:] == ["settle"] + ["answer"] * 8


def test_what_waits_is_not_overwritten_by_the_next_read(serve: Callable[..., Server]) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = connected(server, stack, 40)
        for round_number in range(5):
            with one_turn(server):
                for number, client in enumerate(clients):
                    client.send(frame(b"e" + bytes([number]) * (turn.REQUEST_BYTES_MAX - 100 * round_number - 5)))
            for number, client in enumerate(clients):
                assert set(client.read()[1:]) == {number}
        assert server.call(lambda: len(server.network.scratch)) == server.network.settings.scratch_bytes


def test_more_bytes_of_a_connection_wait_for_its_first_request(serve: Callable[..., Server]) -> None:
    server = serve(scratch_bytes=100 * 1024)
    with ExitStack() as stack:
        first, second = connected(server, stack, 2)
        for _ in range(3):
            with one_turn(server):
                first.send(frame(b"e one"))
                second.send(b"".join(frame(b"e %d" % n) for n in range(9_000)))
                first.send(frame(b"p") + frame(b"r"))
            assert [second.read() for _ in range(9_000)] == [b"e %d" % n for n in range(9_000)]
            assert [first.read() for _ in range(3)] == [b"e one", b"parked 0", b"r"]


def test_a_request_before_an_end_is_performed_and_answered(serve: Callable[..., Server]) -> None:
    gatherer = Gatherer()
    server = serve(session_of(gatherer))
    gathered(server, gatherer)
    with ExitStack() as stack:
        clients = connected(server, stack, 4)
        with one_turn(server):
            for client in clients:
                client.send(frame(b"e last"))
                client.socket.shutdown(socket.SHUT_WR)
        for client in clients:
            assert client.read() == b"e last"
            assert client.is_ended_by_peer()


def test_a_request_before_a_reset_is_performed(serve: Callable[..., Server]) -> None:
    gatherer = Gatherer()
    server = serve(session_of(gatherer))
    gathered(server, gatherer)
    with ExitStack() as stack:
        first, second = connected(server, stack, 2)
        with one_turn(server):
            first.send(frame(b"e gone"))
            first.socket.close()
            second.send(frame(b"e here"))
        assert second.read() == b"e here"
    until(lambda: b"e gone" in gatherer.events)


@pytest.mark.parametrize("bad", [b"x", b"P", b"a"])
def test_an_error_of_one_touches_no_other(serve: Callable[..., Server], bad: bytes) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = connected(server, stack, 3)
        with one_turn(server):
            for client, payload in zip(clients, (b"e before", bad, b"e after"), strict=True):
                client.send(frame(payload))
        assert clients[0].read() == b"e before"
        assert clients[2].read() == b"e after"
        assert clients[1].is_closed_by_peer()


def test_parked_requests_are_answered_when_their_answer_comes(serve: Callable[..., Server]) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = connected(server, stack, 3)
        with one_turn(server):
            for client in clients:
                client.send(frame(b"p"))
        server.until(lambda: all(session.parked for session in server.sessions))
        for session in server.sessions:
            server.call(session.release)
        assert [client.read() for client in clients] == [b"parked 0"] * 3


def test_a_parked_request_is_abandoned_with_its_connection(serve: Callable[..., Server]) -> None:
    server = serve()
    with ExitStack() as stack:
        clients = connected(server, stack, 2)
        with one_turn(server):
            for client in clients:
                client.send(frame(b"p"))
        server.until(lambda: all(session.parked for session in server.sessions))
        clients[0].socket.close()
        server.until(lambda: sum(session.abandoned for session in server.sessions) == 1)


def test_what_was_read_before_the_stop_is_answered(serve: Callable[..., Server]) -> None:
    class Stopping(Gatherer):
        def gather(self) -> None:
            super().gather()
            for connection in list(server.listener.connections):
                connection.stop()

    gatherer = Stopping()
    server = serve(session_of(gatherer), stop_grace_ms=20_000)
    gathered(server, gatherer)
    with ExitStack() as stack:
        clients = connected(server, stack, 3)
        with one_turn(server):
            for client in clients:
                client.send(frame(b"e stop"))
        for client in clients:
            assert client.read() == b"e stop"
            assert client.is_ended_by_peer()
