"""Deadlines, checked by a sweep: for half-sent frames, idle peers, and answers that nobody takes."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from penstock.net.settings import Deadlines
from tests.net.fakes import FakeSession, LineSession, frame, until

SLACK_MS = 20
"""The interval of the checks, which every deadline is given in addition."""


def reason(line: str) -> str:
    return line.split("closed: ")[1]


def is_open(server):
    return bool(server.call(lambda: len(server.listener.connections)))


def test_a_half_sent_frame_is_closed_at_its_deadline(serve, lines):
    server = serve(frame_deadline_ms=100)
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"e" * 100)[:10])
        server.until(lambda: server.listener.bytes_received == 10)
        server.pass_ms(100 + SLACK_MS)
        assert is_open(server)
        server.pass_ms(1)
        assert client.is_closed_by_peer()
    assert [reason(line) for line in lines()] == ["incomplete frame after 100 ms: 10 of 104 bytes received"]


@pytest.mark.parametrize("session", [FakeSession, LineSession])
def test_a_frame_that_drips_is_closed_though_it_is_never_silent(serve, lines, session):
    server = serve(session, frame_deadline_ms=150)
    server.stop_clock()
    data = frame(b"e" * 100_000)
    sent = 0
    with server.connect() as client:
        while sent < 50 and (not sent or is_open(server)):
            client.send(data[sent : sent + 1])
            sent += 1
            server.until(lambda sent=sent: server.listener.bytes_received == sent)
            server.pass_ms(10)
        assert client.is_closed_by_peer()
    assert 150 < 10 * sent <= 150 + SLACK_MS + 20
    assert "incomplete frame after 150 ms" in reason(lines()[0])


def test_frames_that_each_keep_the_deadline_may_go_on_for_ever(serve):
    server = serve(frame_deadline_ms=200, idle_deadline_ms=200)
    server.stop_clock()
    data = frame(b"e kept")
    with server.connect() as client:
        # The cut moves through the frames, so that there is always one under way and never one that is old.
        client.send(data[:5])
        for sent in range(20):
            server.until(lambda sent=sent: server.listener.bytes_received == sent * len(data) + 5)
            server.pass_ms(150)
            client.send(data[5:] + data[:5])
            assert client.read() == b"e kept"


def test_an_idle_peer_is_closed_at_its_deadline(serve, lines):
    server = serve(idle_deadline_ms=100)
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"e"))
        assert client.read() == b"e"
        server.pass_ms(100 + SLACK_MS)
        assert is_open(server)
        server.pass_ms(1)
        assert client.is_closed_by_peer()
    assert [reason(line) for line in lines()] == ["idle for 100 ms"]
    assert server.sessions[0].closings == 1


def test_a_peer_that_waits_for_a_parked_answer_is_not_idle(serve):
    server = serve(idle_deadline_ms=100)
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"p"))
        server.until(lambda: server.sessions and server.sessions[0].parked)
        for _ in range(5):
            server.pass_ms(100)
        server.call(server.sessions[0].release)
        assert client.read() == b"parked 0"
        server.pass_ms(100 + SLACK_MS + 1)
        assert client.is_closed_by_peer()


def test_a_peer_that_takes_nothing_is_closed_at_the_write_deadline(serve, lines):
    server = serve(write_deadline_ms=200)
    server.stop_clock()
    with server.connect(receive_bytes=4_096) as client:
        client.send(frame(struct.pack(">cQ", b"b", 30_000_000)))
        server.until(lambda: any(connection._bytes_unsent() for connection in server.listener.connections))
        until(lambda: server.pass_ms(100) or not is_open(server))
    (line,) = lines()
    assert reason(line).startswith("the peer read none of ")
    assert reason(line).endswith(" pending bytes for 200 ms")


def test_a_peer_that_takes_a_little_at_a_time_is_kept(serve):
    server = serve(write_deadline_ms=300)
    server.stop_clock()
    size = 20_000_000
    with server.connect() as client:
        client.send(frame(struct.pack(">cQ", b"b", size)))
        assert client.exactly(4) == struct.pack(">I", size)

        def unsent():
            return server.call(lambda: sum(connection._bytes_unsent() for connection in server.listener.connections))

        taken = 0
        while taken < size:
            before = unsent()
            server.pass_ms(250)
            # the system's buffers hold some megabytes: as little as the server can notice
            while taken < size and unsent() in (before, 0):
                taken += len(client.exactly(min(100_000, size - taken)))


def test_a_frame_is_not_to_blame_while_its_socket_is_not_read(serve):
    server = serve(frame_deadline_ms=100, in_flight_requests_max=2)
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"p") * 2 + frame(b"e late")[:6])
        server.until(lambda: server.sessions and len(server.sessions[0].parked) == 2)
        client.send(frame(b"e late")[6:])
        for _ in range(5):
            server.pass_ms(100)
        server.call(server.sessions[0].release)
        assert [client.read() for _ in range(3)] == [b"parked 0", b"parked 1", b"e late"]


PATIENT = Deadlines()
SHORT_MS = 100
LONG_MS = 400
OVERDUE = {
    "frame_deadline_ms": (frame(b"e" * 100)[:10], "incomplete frame after {} ms: 10 of 104 bytes received"),
    "idle_deadline_ms": (b"", "idle for {} ms"),
    "write_deadline_ms": (frame(struct.pack(">cQ", b"b", 30_000_000)), " pending bytes for {} ms"),
}
"""What to send, and then to do nothing, to run into each deadline; and what is said of it."""


@pytest.mark.parametrize("field", OVERDUE)
def test_each_listener_keeps_its_own_deadline(serve, lines, field):
    data, said = OVERDUE[field]
    server = serve(**{field: SHORT_MS})
    later = server.listen_too(replace(PATIENT, **{field: LONG_MS}))
    patient = server.listen_too(PATIENT)
    server.stop_clock()
    start_ms = server.call(lambda: server.network.now_ms)
    closed_ms = {}

    def both_are_closed() -> bool:
        server.pass_ms(10)
        return server.call(look)

    def look() -> bool:
        for listener in (server.listener, later):
            if listener not in closed_ms and listener.connections_accepted and not listener.connections:
                closed_ms[listener] = server.network.now_ms
        return len(closed_ms) == 2

    with (
        server.connect(4_096) as first,
        server.connect(4_096, later) as second,
        server.connect(4_096, patient) as kept,
    ):
        for client in (first, second, kept):
            client.send(data)
        for listener in (server.listener, later, patient):
            server.until(lambda listener=listener: listener.connections_accepted)
            server.until(lambda listener=listener: listener.bytes_received == len(data))
        until(both_are_closed)
        assert server.call(lambda: len(patient.connections)) == 1
    assert closed_ms[server.listener] - start_ms > SHORT_MS
    assert closed_ms[later] - start_ms > LONG_MS
    ends = [reason(line) for line in lines()][:2]
    assert [end.endswith(said.format(ms)) for end, ms in zip(ends, (SHORT_MS, LONG_MS), strict=True)] == [True, True]


def test_a_deadline_of_one_kind_does_not_stand_in_for_another(serve, lines):
    """The shortest are those of the other two kinds: neither a half frame nor a slow reader is idle."""
    server = serve(idle_deadline_ms=250, write_deadline_ms=250, frame_deadline_ms=700)
    slow = server.listen_too(Deadlines(idle_deadline_ms=250, frame_deadline_ms=250, write_deadline_ms=700))
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"e" * 100)[:10])
        reader = server.connect(4_096, slow)
        reader.send(frame(struct.pack(">cQ", b"b", 30_000_000)))
        server.until(lambda: server.listener.bytes_received == 10)
        server.until(lambda: any(connection._bytes_unsent() for connection in slow.connections))
        until(lambda: server.pass_ms(50) or (not server.call(lambda: len(slow.connections)) and not is_open(server)))
        reader.socket.close()
    said = sorted(reason(line) for line in lines())
    assert len(said) == 2
    assert said[0] == "incomplete frame after 700 ms: 10 of 104 bytes received"
    assert said[1].endswith(" pending bytes for 700 ms")


def test_the_shortest_deadlines_there_are_still_serve_a_peer_that_keeps_them(serve, lines):
    server = serve(frame_deadline_ms=1, idle_deadline_ms=1, write_deadline_ms=1, sweep_interval_ms=500)
    server.stop_clock()
    with server.connect() as client:
        client.send(frame(b"e in time"))
        assert client.read() == b"e in time"
        server.pass_ms(501)
        assert is_open(server)
        server.pass_ms(1)
        assert client.is_closed_by_peer()
    assert [reason(line) for line in lines()] == ["idle for 1 ms"]
