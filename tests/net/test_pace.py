"""One turn of the loop performs requests for a few milliseconds; what is left goes on after other connections."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.model.pending import Hold
from penstock.net.pace import PERFORM_S
from penstock.net.session import Fed, Peer
from tests.net.fakes import FakeSession, OneByOne, Server, frame
from tests.net.test_turn import connected, one_turn

STEP_S = PERFORM_S / 4
REQUESTS = 100
PER_TURN_MAX = 5
"""Requests of `STEP_S` that one turn has time for, and the one during which its time ends."""


class SlowBroker:
    """A clock that each request moves, and what was performed in which turn of the loop."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.turn = 0
        self.performed: list[tuple[int, bytes]] = []

    def work(self, request: bytes) -> None:
        self.now_s += STEP_S
        self.performed.append((self.turn, request))

    def per_turn(self) -> list[int]:
        turns = [turn for turn, _ in self.performed]
        return [turns.count(turn) for turn in sorted(set(turns))]

    def start(self, server: Server) -> None:
        def count_turns() -> None:
            self.turn += 1
            if server.loop.is_running():
                server.loop.call_soon(count_turns)

        def start() -> None:
            server.network.pace.clock = lambda: self.now_s
            count_turns()

        server.call(start)


def slow_session(broker: SlowBroker, base: type[FakeSession] = FakeSession) -> Callable[[Peer], FakeSession]:
    class Session(base):  # type: ignore[misc, valid-type]
        def perform(self, request: memoryview) -> Any:
            broker.work(bytes(request))
            return super().perform(request)

    return Session


@pytest.fixture
def broker() -> SlowBroker:
    return SlowBroker()


@pytest.mark.parametrize("base", [FakeSession, OneByOne])
def test_one_read_with_many_requests_leaves_time_for_others(
    serve: Callable[..., Server], broker: SlowBroker, base: type[FakeSession]
) -> None:
    server = serve(slow_session(broker, base))
    broker.start(server)
    with ExitStack() as stack:
        many, other = connected(server, stack, 2)
        with one_turn(server):
            many.send(b"".join(frame(b"e %d" % number) for number in range(REQUESTS)))
            other.send(frame(b"e other"))
        assert other.read() == b"e other"
        assert [many.read() for _ in range(REQUESTS)] == [b"e %d" % number for number in range(REQUESTS)]
    assert max(broker.per_turn()) <= 2 * PER_TURN_MAX
    requests = [request for _, request in broker.performed]
    assert requests.index(b"e other") <= 2 * PER_TURN_MAX


def test_many_connections_with_one_request_each_share_the_turn(
    serve: Callable[..., Server], broker: SlowBroker
) -> None:
    server = serve(slow_session(broker))
    broker.start(server)
    with ExitStack() as stack:
        clients = connected(server, stack, REQUESTS)
        with one_turn(server):
            for number, client in enumerate(clients):
                client.send(frame(b"e %d" % number))
        for number, client in enumerate(clients):
            assert client.read() == b"e %d" % number
        assert max(broker.per_turn()) <= 2 * PER_TURN_MAX
        assert server.call(lambda: len(server.network.scratch)) == server.network.settings.scratch_bytes


def test_connections_that_wait_take_turns(serve: Callable[..., Server], broker: SlowBroker) -> None:
    server = serve(slow_session(broker))
    broker.start(server)
    with ExitStack() as stack:
        first, second = connected(server, stack, 2)
        with one_turn(server):
            first.send(frame(b"e first") * REQUESTS)
            second.send(frame(b"e second") * REQUESTS)
        for _ in range(REQUESTS):
            assert first.read() == b"e first"
            assert second.read() == b"e second"
    requests = [request for _, request in broker.performed]
    assert requests[:REQUESTS].count(b"e second") > REQUESTS // 3


def test_a_request_that_waits_for_time_is_not_overwritten_by_later_reads(
    serve: Callable[..., Server], broker: SlowBroker
) -> None:
    server = serve(slow_session(broker), scratch_bytes=100 * 1024)
    broker.start(server)
    with ExitStack() as stack:
        clients = connected(server, stack, 40)
        for _ in range(3):
            with one_turn(server):
                for number, client in enumerate(clients):
                    client.send(frame(b"e" + bytes([number]) * 9_000))
            for number, client in enumerate(clients):
                assert set(client.read()[1:]) == {number}


def test_more_bytes_of_a_connection_that_waits_perform_its_request_first(
    serve: Callable[..., Server], broker: SlowBroker
) -> None:
    server = serve(slow_session(broker))
    broker.start(server)
    with ExitStack() as stack:
        clients = connected(server, stack, 60)
        with one_turn(server):
            for number, client in enumerate(clients):
                client.send(frame(b"e %d" % number))
        for number, client in enumerate(clients):
            client.send(frame(b"e more %d" % number))
        for number, client in enumerate(clients):
            assert [client.read(), client.read()] == [b"e %d" % number, b"e more %d" % number]


def test_many_simultaneous_answers_are_sent_in_several_turns(serve: Callable[..., Server], broker: SlowBroker) -> None:
    class Session(FakeSession):
        def answer(self, request: memoryview, result: bytes) -> Any:
            broker.work(result)
            return super().answer(request, result)

    server = serve(Session)
    with server.connect() as client:
        client.send(frame(b"p") * REQUESTS)
        server.until(lambda: server.sessions and len(server.sessions[0].parked) == REQUESTS)
        broker.start(server)
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(REQUESTS)] == [b"parked %d" % number for number in range(REQUESTS)]
    assert max(broker.per_turn()) <= 2 * PER_TURN_MAX


class SomeAtOnce(FakeSession):
    """Cuts eight frames per call, as a dialect does that bounds the work of one call."""

    def feed(self, view: memoryview) -> Fed:
        fed = super().feed(view)
        if len(fed.requests) <= 8:
            return fed
        consumed = sum(4 + len(request) for request in fed.requests[:8])
        return Fed(consumed, 4 + len(fed.requests[8]), fed.requests[:8])


def test_all_requests_are_answered_when_the_peer_ends_after_the_last(
    serve: Callable[..., Server], broker: SlowBroker
) -> None:
    server = serve(slow_session(broker, SomeAtOnce))
    broker.start(server)
    with server.connect() as client:
        client.send(b"".join(frame(b"e %d" % number) for number in range(REQUESTS)) + frame(b"e")[:3])
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.read() for _ in range(REQUESTS)] == [b"e %d" % number for number in range(REQUESTS)]
        assert client.is_ended_by_peer()


# ---- holds that borrow -------------------------------------------------------------------------------------------------


class Borrower(FakeSession):
    """`w`: a hold whose work reads the request's bytes later."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.work: list[tuple[Hold[bytes], memoryview]] = []

    def perform(self, request: memoryview) -> Any:
        if bytes(request[:1]) != b"w":
            return super().perform(request)
        hold: Hold[bytes] = Hold(borrows=True)
        self.work.append((hold, request))
        return hold

    def finish(self) -> None:
        hold, request = self.work.pop(0)
        assert hold.over is not None
        hold.over()
        hold.complete(bytes(request))


@pytest.mark.parametrize("size", [100, 100_000, 2_000_000])
@pytest.mark.parametrize("follows", [b"", frame(b"e behind"), frame(b"e behind")[:6]], ids=["none", "frame", "half"])
@pytest.mark.parametrize("before", [b"", frame(b"h")], ids=["first", "behind a hold"])
def test_work_of_a_hold_keeps_the_bytes_of_its_request(
    serve: Callable[..., Server], size: int, follows: bytes, before: bytes
) -> None:
    server = serve(Borrower, frame_bytes_max=16_000_000)
    with server.connect() as client, server.connect() as other:
        for round_number in range(3):
            payload = b"w" + bytes([round_number + 65]) * size
            client.send(before + frame(payload) + follows)
            if before:
                server.until(lambda: server.sessions and server.sessions[0].parked)
                server.call(server.sessions[0].release)
                assert client.read() == b"parked 0"
            server.until(lambda: server.sessions and server.sessions[0].work)
            assert server.call(lambda: server.network.in_flight.bytes_held) >= size
            for _ in range(20):
                other.send(frame(b"e" + b"z" * 50_000))
                other.read()
            server.call(server.sessions[0].finish)
            assert client.read() == payload
            if follows:
                client.send(frame(b"e behind")[len(follows) :])
                assert client.read() == b"e behind"
            server.until(lambda: server.network.in_flight.bytes_held == 0)


def test_borrowed_bytes_are_counted_until_the_work_is_over(serve: Callable[..., Server]) -> None:
    server = serve(Borrower)
    with server.connect() as client:
        client.send(frame(b"w" + bytes(100_000)))
        server.until(lambda: server.sessions and server.sessions[0].work)
        server.call(lambda: next(iter(server.listener.connections)).abort())
        server.until(lambda: not server.listener.connections)
    assert server.call(lambda: server.network.in_flight.bytes_held) >= 100_000
    server.call(server.sessions[0].finish)
    assert server.call(lambda: server.network.in_flight.bytes_held) == 0
