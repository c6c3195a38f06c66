"""A request that holds up those behind it: they wait in the buffer they came in, which is counted, and in the socket."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from tests.net.fakes import Client, FakeSession, OneByOne, Server, frame, until

MB = 1024 * 1024


def frames(*payloads: bytes) -> bytes:
    return b"".join(map(frame, payloads))


def reads(server: Server, number: int) -> bool:
    """Whether the socket of the connection that came as this one is read."""
    connections = {connection._session: connection for connection in server.listener.connections}
    return connections[server.sessions[number]]._reading


@pytest.mark.parametrize("session", [FakeSession, OneByOne])
def test_nothing_behind_a_hold_is_performed_before_it_has_its_answer(
    serve: Callable[..., Server], session: type[FakeSession]
) -> None:
    server = serve(session)
    with server.connect() as client, server.connect() as other:
        client.send(frames(b"e first", b"h", b"e second", b"h", b"e third"))
        assert client.read() == b"e first"
        client.send(frame(b"e fourth"))
        other.send(frame(b"e other"))
        assert other.read() == b"e other"
        held = server.sessions[0]
        assert held.performed == [b"e first", b"h"]
        server.call(held.release)
        assert [client.read() for _ in range(2)] == [b"parked 0", b"e second"]
        server.until(lambda: held.parked)
        assert held.performed == [b"e first", b"h", b"e second", b"h"]
        server.call(held.release)
        assert [client.read() for _ in range(3)] == [b"parked 0", b"e third", b"e fourth"]


def test_a_request_alone_holds_up_the_next_read(serve: Callable[..., Server]) -> None:
    """The way of most requests, through the turn of the loop."""
    server = serve()
    with server.connect() as client, server.connect() as other:
        client.send(frame(b"h"))
        server.until(lambda: server.sessions and server.sessions[0].parked)
        assert not server.call(lambda: reads(server, 0)), "what comes behind it stays in the socket"
        client.send(frames(b"e behind", b"e it"))
        other.send(frame(b"e other"))
        assert other.read() == b"e other"
        assert server.sessions[0].performed == [b"h"]
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(3)] == [b"parked 0", b"e behind", b"e it"]
        server.until(lambda: reads(server, 0))


def test_a_second_read_before_the_turn_has_run_waits_too(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e there"))
        assert client.read() == b"e there"
        [connection] = server.listener.connections

        def read_twice() -> None:
            for sent in (frame(b"h"), frame(b"e behind")):
                connection.get_buffer(-1)[: len(sent)] = sent
                connection.buffer_updated(len(sent))

        server.call(read_twice)
        server.until(lambda: server.sessions[0].parked)
        assert server.sessions[0].performed == [b"e there", b"h"]
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(2)] == [b"parked 0", b"e behind"]


def test_what_waits_behind_a_hold_is_accounted_for_and_the_rest_stays_in_the_socket(
    serve: Callable[..., Server],
) -> None:
    server = serve(in_flight_bytes_max=4 * MB, frame_bytes_max=2 * MB)
    sent = frame(b"h") + frame(b"e" + bytes(MB)) * 64
    with server.connect() as client:
        sender = threading.Thread(target=client.send, args=(sent,))
        sender.start()
        server.until(lambda: server.sessions and server.sessions[0].parked)
        time.sleep(0.2)
        assert sender.is_alive(), "64 MB were taken"
        assert 0 < server.call(lambda: server.network.in_flight.bytes_held) <= 4 * MB
        assert server.sessions[0].performed == [b"h"]
        server.call(server.sessions[0].release)
        assert client.read() == b"parked 0"
        for _ in range(64):
            assert len(client.read()) == MB + 1
        sender.join(10)


def test_who_sent_everything_and_ended_is_served(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as client:
        client.send(frames(b"h", b"e second", b"h", b"e last"))
        client.socket.shutdown(1)
        for _ in range(2):
            server.until(lambda: server.sessions and server.sessions[0].parked)
            server.call(server.sessions[0].release)
        assert [client.read() for _ in range(4)] == [b"parked 0", b"e second", b"parked 0", b"e last"]
        assert client.is_ended_by_peer()


def test_a_connection_that_is_gone_forgets_what_waited(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as client:
        client.send(frames(b"h", b"e gone"))
        server.until(lambda: server.sessions and server.sessions[0].parked)
        session = server.sessions[0]
        server.call(lambda: next(iter(server.listener.connections)).abort())
        server.call(session.release)
        assert client.is_closed_by_peer()
        server.until(lambda: not server.listener.connections)
        assert session.performed == [b"h"]
        assert session.abandoned == 1
        assert session.closings == 1


def reset(client: Client) -> None:
    """Close so that the system tells the other side of an error."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


@pytest.mark.parametrize("session", [FakeSession, OneByOne])
@pytest.mark.parametrize("end", ["reset", "close"])
def test_requests_after_several_holds_are_performed_after_a_disconnect(
    serve: Callable[..., Server], session: type[FakeSession], end: str
) -> None:
    server = serve(session)
    client = server.connect()
    client.send(frames(b"h first", b"e second", b"h third", b"p fourth", b"h fifth", b"e last"))
    server.until(lambda: server.sessions and server.sessions[0].parked)
    held = server.sessions[0]
    if end == "reset":
        reset(client)  # noticed when the first answer is written: the socket is not read meanwhile
    else:
        client.socket.close()
    for behind in (b"h third", b"h fifth"):
        server.call(lambda: held.release(1))
        server.until(lambda behind=behind: behind in held.performed)  # type: ignore[misc]
        assert held.closings == 0
        del held.parked[:-1]  # what is only parked has no one to take its answer
    assert b"e last" not in held.performed
    server.call(lambda: held.release(1))
    server.until(lambda: held.closings)
    assert held.performed == [b"h first", b"e second", b"h third", b"p fourth", b"h fifth", b"e last"]
    assert held.closings == 1
    server.until(lambda: not server.network.in_flight.bytes_held and not server.listener.connections)


def test_requests_of_disconnected_peer_stay_counted_until_performed(serve: Callable[..., Server]) -> None:
    server = serve()
    client = server.connect()
    client.send(frames(b"h", b"e small", b"h", b"e" + bytes(100_000)))
    server.until(lambda: server.sessions and server.sessions[0].parked)
    [connection] = server.listener.connections
    server.until(lambda: connection._backlog is not None and server.network.in_flight.bytes_held >= 100_000)
    reset(client)
    server.call(server.sessions[0].release)
    server.until(lambda: not server.listener.connections)
    assert server.call(lambda: server.network.in_flight.bytes_held) >= 100_000
    assert len(server.sessions[0].performed) == 3
    server.call(server.sessions[0].release)
    server.until(lambda: len(server.sessions[0].performed) == 4)
    server.until(lambda: not server.network.in_flight.bytes_held)


@pytest.mark.parametrize("bad", [b"x", b"P", b""])
def test_invalid_request_of_disconnected_peer_drops_later_ones(serve: Callable[..., Server], bad: bytes) -> None:
    server = serve()
    client = server.connect()
    client.send(frames(b"h", b"e small", b"h", b"e before", bad, b"e behind"))
    server.until(lambda: server.sessions and server.sessions[0].parked)
    reset(client)
    server.call(server.sessions[0].release)
    server.until(lambda: not server.listener.connections)
    server.call(server.sessions[0].release)
    server.until(lambda: server.sessions[0].closings)
    assert b"e before" in server.sessions[0].performed
    assert b"e behind" not in server.sessions[0].performed


def test_a_broken_frame_behind_a_hold_ends_the_connection_after_the_answers(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.connect() as client:
        client.send(frames(b"h", b"e before", b""))
        server.until(lambda: server.sessions and server.sessions[0].parked)
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(2)] == [b"parked 0", b"e before"]
        assert client.is_ended_by_peer()


def test_holds_of_many_connections_in_one_turn(serve: Callable[..., Server]) -> None:
    server = serve()
    dice = random.Random(5)
    clients: list[Client] = [server.connect() for _ in range(20)]
    try:
        for number, client in enumerate(clients):
            client.send(frame(b"h %d" % number) + frame(b"e %d" % number) * dice.choice((1, 2)))
        until(lambda: len(server.sessions) == 20 and server.call(lambda: all(s.parked for s in server.sessions)))
        for session in dice.sample(server.sessions, 20):
            server.call(session.release)
        for number, client in enumerate(clients):
            assert client.read() == b"parked 0"
            assert client.read() == b"e %d" % number
    finally:
        for client in clients:
            client.socket.close()


def test_what_is_left_of_a_read_does_not_get_deeper_with_every_hold(serve: Callable[..., Server]) -> None:
    """Each hold stops the read that it came in; a read may have hundreds of thousands."""
    server = serve()
    with server.connect() as client:
        client.send(frame(b"h") * 100)
        for _ in range(50):
            server.until(lambda: server.sessions and server.sessions[0].parked)
            server.call(server.sessions[0].release)
            assert client.read() == b"parked 0"
        server.until(lambda: server.sessions[0].parked)
        [connection] = server.listener.connections
        left = server.call(lambda: connection._backlog)
        assert left is not None
        _, behind = left.requests
        assert behind.__length_hint__() == 48, "a plain iterator of the read's list"
