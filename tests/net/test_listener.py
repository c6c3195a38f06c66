"""Accepting within limits, the address of a listener, and a stop that cuts no started answer."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from penstock.model.errors import StartError
from penstock.net.listener import Listener
from penstock.net.network import Network
from penstock.net.settings import NetSettings
from tests.net.fakes import FakeSession, Server, frame


def test_connections_of_one_address_are_limited_with_one_line_for_many(serve, lines):
    server = serve(connections_per_ip_max=3)
    server.stop_clock()
    clients = [server.connect() for _ in range(3)]
    for client in clients:
        client.send(frame(b"e in"))
        assert client.read() == b"e in"
    for _ in range(5):
        with server.connect() as refused:
            assert refused.is_closed_by_peer()
    assert server.listener.connections_refused == 5
    assert len(lines()) == 1, "one line a second"
    assert "refused: the limit of 3 connections from 127.0.0.1 is reached" in lines()[0]
    clients.pop().socket.close()
    server.until(lambda: len(server.listener.connections) == 2)
    with server.connect() as client:
        client.send(frame(b"e again"))
        assert client.read() == b"e again"
    for client in clients:
        client.socket.close()


def test_another_address_has_places_of_its_own(serve):
    server = serve(connections_per_ip_max=1)
    with server.connect() as client, socket.socket() as other:
        client.send(frame(b"e"))
        client.read()
        other.bind(("127.0.0.2", 0))
        other.settimeout(30)
        other.connect(("127.0.0.1", server.listener.port))
        other.sendall(frame(b"e"))
        assert other.recv(5) == frame(b"e")


def test_connections_in_all_are_limited(serve, lines):
    server = serve(connections_max=2)
    with server.connect() as one, server.connect() as two:
        for client in (one, two):
            client.send(frame(b"e"))
            client.read()
        with server.connect() as refused:
            assert refused.is_closed_by_peer()
    assert "the limit of 2 connections is reached" in lines()[0]


def test_a_refused_connection_never_has_a_session(serve):
    server = serve(connections_max=0)
    with server.connect() as refused:
        assert refused.is_closed_by_peer()
    assert server.sessions == []


def test_accept_backlog_is_limited(monkeypatch):
    """Beyond the backlog the system itself ignores or refuses them, so the number handed over is what counts."""
    backlogs = []
    create_server = asyncio.BaseEventLoop.create_server

    async def noted(self, *arguments, backlog, **options):
        backlogs.append(backlog)
        return await create_server(self, *arguments, backlog=backlog, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", noted)
    with Server(NetSettings(uvloop=False)) as server, server.connect() as client:
        client.send(frame(b"e"))
        assert client.read() == b"e"
    assert backlogs == [1_024]


def test_sockets_send_small_answers_at_once(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e"))
        client.read()
        transport = server.call(lambda: next(iter(server.listener.connections))._transport)
        accepted = server.call(lambda: transport.get_extra_info("socket"))
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_counts_are_true(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e 123") * 2)
        client.read()
        client.read()
        assert server.listener.bytes_received == 18
        assert server.listener.bytes_sent == 18
        assert server.listener.connections_accepted == 1
        assert len(server.listener.connections) == server.network.connections == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_can_be_listened_on(serve, lines):
    server = serve(host="::1")
    with server.connect() as client:
        client.send(frame(b"e six"))
        assert client.read() == b"e six"
        assert server.sessions[0].peer.host == "::1"
        assert server.sessions[0].peer.local_port == server.listener.port
        client.send(b"\0\0\0\0")
        assert client.is_closed_by_peer()
    assert lines()[0].startswith("fake connection from [::1]:")


def test_the_session_learns_who_its_peer_is(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e"))
        client.read()
        peer = server.sessions[0].peer
        assert (peer.host, peer.port) == client.socket.getsockname()
        assert (peer.local_host, peer.local_port) == ("127.0.0.1", server.listener.port)


def test_a_name_with_any_port_listens_where_it_says(serve):
    server = serve(host="localhost")
    with socket.create_connection(("localhost", server.listener.port), timeout=30) as client:
        client.sendall(frame(b"e"))
        assert client.recv(5) == frame(b"e")


def test_an_address_in_use_is_one_clear_line():
    async def start_two() -> None:
        network = Network(NetSettings())
        first = Listener("fake", "127.0.0.1", 0, FakeSession, network)
        await first.start()
        try:
            second = Listener("fake", "127.0.0.1", first.port, FakeSession, network)
            with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{first.port} for fake: ") as failure:
                await second.start()
            assert str(failure.value).endswith(" for fake: Address already in use")
        finally:
            await first.stop()
            network.close()

    asyncio.run(start_two())


def test_several_listeners_share_one_limit():
    async def run() -> None:
        network = Network(NetSettings(connections_max=1))
        listeners = [Listener(name, "127.0.0.1", 0, FakeSession, network) for name in ("one", "two")]
        for listener in listeners:
            await listener.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", listeners[0].port)
        writer.write(frame(b"e"))
        assert await reader.readexactly(5) == frame(b"e")
        refused, other = await asyncio.open_connection("127.0.0.1", listeners[1].port)
        assert await refused.read() == b""
        other.close()
        writer.close()
        for listener in listeners:
            await listener.stop()
        network.close()

    asyncio.run(run())


def test_a_stop_lets_started_answers_leave(uvloop):
    size = 20_000_000
    with Server(NetSettings(uvloop=uvloop, stop_grace_ms=20_000)) as server:
        client = server.connect(receive_bytes=65_536)
        client.send(frame(struct.pack(">cQ", b"b", size)))
        idle = server.connect()
        idle.send(frame(b"e"))
        idle.read()
        server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
        stopping = asyncio.run_coroutine_threadsafe(server.listener.stop(), server.loop)
        assert idle.is_closed_by_peer()
        assert client.read() == bytes(size)
        assert client.is_closed_by_peer()
        stopping.result(30)
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        client.socket.close()
        idle.socket.close()


def test_a_stop_does_not_wait_for_ever(uvloop):
    with Server(NetSettings(uvloop=uvloop, stop_grace_ms=100)) as server:
        client = server.connect()
        client.send(frame(b"p"))
        server.until(lambda: server.sessions and server.sessions[0].parked)
        asyncio.run_coroutine_threadsafe(server.listener.stop(), server.loop).result(10)
        assert server.sessions[0].abandoned == 1
        assert server.sessions[0].closings == 1
        assert client.is_closed_by_peer()
        client.socket.close()
