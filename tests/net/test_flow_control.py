"""Back-pressure both ways: what is not taken is not made, and what has no room is not read."""

from __future__ import annotations

import struct

import pytest

from penstock.net.buffers import InFlight
from tests.net.fakes import FakeSession, OneByOne, file_request, frame, until

MB = 1024 * 1024


@pytest.fixture
def held_back(monkeypatch):
    """The readers that were told to wait for memory; a turn comes too soon for the queue itself to be looked at."""
    readers = []
    may_read = InFlight.may_read

    def noted(self, reader, mid_frame):
        allowed = may_read(self, reader, mid_frame)
        if not allowed:
            readers.append(reader)
        return allowed

    monkeypatch.setattr(InFlight, "may_read", noted)
    return readers


def big(size: int) -> bytes:
    return frame(struct.pack(">cQ", b"b", size))


def test_a_slow_reader_stops_being_read_and_gets_everything_in_the_end(serve):
    server = serve()
    with server.connect(receive_bytes=65_536) as client:
        client.send(big(300_000) * 200)
        server.until(lambda: server.listener.connections and not next(iter(server.listener.connections))._reading)
        session = server.sessions[0]
        connection = server.call(lambda: next(iter(server.listener.connections)))
        # At most the bound plus one answer waits here, and the system's buffers hold a few megabytes.
        performed = server.call(lambda: len(session.performed))
        assert performed < 100
        assert server.call(connection._bytes_unsent) <= MB + 300_000
        assert server.call(lambda: server.network.in_flight.bytes_held) >= MB // 2
        client.send(frame(b"e after"))
        for _ in range(200):
            assert client.read() == bytes(300_000)
        assert client.read() == b"e after"
        server.until(lambda: server.network.in_flight.bytes_held == 0)


def test_the_backlog_of_one_read_keeps_the_bytes_that_it_borrows(serve):
    server = serve()
    requests = b"".join(big(400_000) + frame(b"e %d" % n * 20) for n in range(40))
    with server.connect(receive_bytes=65_536) as slow, server.connect() as other:
        slow.send(requests)
        server.until(lambda: any(connection._backlog for connection in server.listener.connections))
        # Others overwrite the scratch buffer meanwhile.
        for n in range(50):
            other.send(frame(b"e" + bytes([n]) * 100_000))
            assert other.read() == b"e" + bytes([n]) * 100_000
        for n in range(40):
            assert slow.read() == bytes(400_000)
            assert slow.read() == b"e %d" % n * 20


@pytest.mark.parametrize("first", [b"d", b"e", b"p"])
def test_answers_that_come_at_once_as_pendings_leave_beyond_the_bound_of_parked_requests(serve, first):
    """Such a pending wakes nobody later: what is parked must leave while the requests behind it are performed."""
    server = serve()
    count = 3 * server.network.settings.in_flight_requests_max + 7
    with server.connect() as client:
        client.send(frame(first) + frame(b"d at once") * count)
        if first == b"p":
            server.until(lambda: server.sessions and server.sessions[0].parked)
            server.call(server.sessions[0].release)
        assert client.read()[:1] == first
        assert [client.read() for _ in range(count)] == [b"d at once"] * count


def test_a_fatal_frame_behind_a_backlog_closes_after_all_answers(serve, lines):
    server = serve()
    with server.connect(receive_bytes=65_536) as client:
        client.send(big(400_000) * 40 + b"\0\0\0\0")
        server.until(lambda: any(connection._backlog for connection in server.listener.connections))
        assert lines() == []
        for _ in range(40):
            assert client.read() == bytes(400_000)
        assert client.is_closed_by_peer()
    assert len(lines()) == 1


def test_no_more_requests_are_performed_than_may_be_parked(serve):
    server = serve(in_flight_requests_max=10)
    with server.connect() as client:
        client.send(frame(b"p") * 25 + frame(b"e end"))
        server.until(lambda: server.sessions and len(server.sessions[0].parked) == 10)
        client.send(frame(b"e really"))
        session = server.sessions[0]
        assert server.call(lambda: len(session.performed)) == 10
        assert server.call(lambda: next(iter(server.listener.connections))._reading) is False
        answers = []
        while len(answers) < 25:
            server.until(lambda: session.parked)
            count = server.call(lambda: len(session.parked))
            assert count <= 10
            server.call(session.release)
            answers += [client.read() for _ in range(count)]
        assert client.read() == b"e end"
        assert client.read() == b"e really"


def test_a_socket_is_not_read_while_as_many_requests_are_parked_as_may_be(serve):
    server = serve(in_flight_requests_max=10)
    with server.connect() as client:
        client.send(frame(b"p") * 10)
        server.until(lambda: server.sessions and len(server.sessions[0].parked) == 10)
        assert server.call(lambda: next(iter(server.listener.connections))._reading) is False
        client.send(frame(b"e later"))
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(10)] == [b"parked %d" % n for n in range(10)]
        assert client.read() == b"e later"


def test_a_session_that_cuts_one_frame_a_call_is_bounded_by_what_the_peer_takes(serve):
    server = serve(OneByOne)
    with server.connect(receive_bytes=65_536) as client:
        client.send(b"".join(big(400_000) + frame(b"e %d" % n) for n in range(40)) + frame(b"e end")[:5])
        server.until(lambda: any(not connection._reading for connection in server.listener.connections))
        assert server.call(lambda: server.network.in_flight.bytes_held) <= MB + 400_000 + 3_000
        client.send(frame(b"e end")[5:])
        for n in range(40):
            assert client.read() == bytes(400_000)
            assert client.read() == b"e %d" % n
        assert client.read() == b"e end"


def test_a_session_that_cuts_one_frame_a_call_parks_no_more_than_it_may(serve):
    server = serve(OneByOne, in_flight_requests_max=10)
    with server.connect() as client:
        client.send(frame(b"p") * 25 + frame(b"e end"))
        for count in (10, 10, 5):
            server.until(lambda count=count: server.sessions and len(server.sessions[0].parked) == count)
            server.call(server.sessions[0].release)
            assert [client.read() for _ in range(count)] == [b"parked %d" % n for n in range(count)]
        assert client.read() == b"e end"


def test_ready_answers_behind_a_parked_one_are_bounded_too(serve):
    server = serve(in_flight_requests_max=10)
    with server.connect() as client:
        client.send(frame(b"p") + frame(b"e") * 50)
        server.until(lambda: server.sessions and len(server.sessions[0].performed) == 10)
        server.call(server.sessions[0].release)
        assert client.read() == b"parked 0"
        assert [client.read() for _ in range(50)] == [b"e"] * 50


def test_many_large_answers_that_come_at_once_leave_within_the_bound(serve):
    server = serve(in_flight_requests_max=1_000)
    with server.connect(receive_bytes=65_536) as client:
        client.send(frame(b"p") + big(200_000) * 100)
        server.until(lambda: server.sessions and len(server.sessions[0].performed) == 101)
        server.call(server.sessions[0].release)
        server.until(lambda: server.network.in_flight.bytes_held > MB // 2)
        assert server.call(lambda: server.network.in_flight.bytes_held) <= MB + 300_000
        assert client.read() == b"parked 0"
        for _ in range(100):
            assert client.read() == bytes(200_000)


def test_above_the_bound_of_all_bytes_no_new_frame_is_read_until_some_are_free(serve, held_back):
    server = serve(in_flight_bytes_max=500_000)
    with server.connect() as holder, server.connect() as small, server.connect() as waiter:
        holder.send(frame(b"e" * 1_000_000)[:800_000])
        server.until(lambda: server.network.in_flight.bytes_held == 800_000)
        # The first to come has the turn and may go on; whoever begins a frame meanwhile waits.
        waiter.send(frame(b"e" * 100_000)[:50_000])
        until(lambda: held_back)
        small.send(frame(b"e whole frames are still answered once"))
        assert small.read() == b"e whole frames are still answered once"
        holder.send(frame(b"e" * 1_000_000)[800_000:])
        assert holder.read() == b"e" * 1_000_000
        waiter.send(frame(b"e" * 100_000)[50_000:])
        assert waiter.read() == b"e" * 100_000
        small.send(frame(b"e again"))
        assert small.read() == b"e again"
        server.until(lambda: not server.network.in_flight.readers_waiting and not server.network.in_flight.pressed)


def test_half_received_frames_that_fill_the_account_all_become_whole(serve, held_back):
    server = serve(in_flight_bytes_max=300_000)
    clients = [server.connect() for _ in range(12)]
    payload = frame(b"e" * 200_000)
    try:
        for client in clients:
            client.send(payload[:60_000])
        until(lambda: held_back)
        for client in clients:
            client.socket.setblocking(False)
        left = {client: memoryview(payload)[60_000:] for client in clients}

        def send_some() -> bool:
            for client, rest in list(left.items()):
                try:
                    left[client] = rest[client.socket.send(rest) :]
                except BlockingIOError:
                    continue
                if not left[client]:
                    del left[client]
            return not left

        until(send_some)
        for client in clients:
            client.socket.settimeout(30)
            assert client.read() == b"e" * 200_000
    finally:
        for client in clients:
            client.socket.close()


def test_a_connection_that_closes_while_it_waits_for_memory_is_forgotten(serve, held_back):
    server = serve(in_flight_bytes_max=100_000, sweep_interval_ms=60_000)
    with server.connect() as holder, server.connect() as waiter:
        holder.send(frame(b"e" * 300_000)[:200_000])
        server.until(lambda: server.network.in_flight.bytes_held == 200_000)
        waiter.send(frame(b"e" * 300_000)[:50_000])
        server.until(lambda: server.network.in_flight.readers_waiting == 1)
        server.call(held_back[0].abort)
        assert server.call(lambda: server.network.in_flight.readers_waiting) == 0
        holder.send(frame(b"e" * 300_000)[200_000:])
        assert holder.read() == b"e" * 300_000


@pytest.mark.parametrize("count", [1, 40])
def test_pipelined_file_answers_are_bounded_by_what_the_peer_takes(serve, tmp_path, count):
    data = bytes(range(256)) * 4_096
    path = tmp_path / "log"
    path.write_bytes(data)
    with path.open("rb") as file:
        file_session = type("FileSession", (FakeSession,), {"file": file})
        server = serve(file_session)
        with server.connect(receive_bytes=65_536) as client:
            client.send(file_request(0, len(data)) * count)
            server.until(lambda: server.sessions and server.sessions[0].performed)
            for _ in range(count):
                assert client.read() == b"<" + data + b"done"
