"""Frames in, answers out in order, and one bad connection that touches nobody else."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.connection import Connection
from penstock.net.listener import Listener
from penstock.net.network import Network
from penstock.net.session import Fed
from penstock.net.settings import NetSettings
from tests.net.fakes import FakeSession, LineSession, OneByOne, frame, until

NOBODY = b"e nobody else is touched"


def test_one_frame_is_answered(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e hello"))
        assert client.read() == b"e hello"


def test_a_frame_split_at_every_byte_is_answered(serve):
    server = serve()
    data = frame(b"e first") + frame(b"e second")
    with server.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(data)):
            before = server.listener.bytes_received
            client.send(data[:cut])
            server.until(lambda before=before, cut=cut: server.listener.bytes_received == before + cut)
            client.send(data[cut:])
            assert [client.read(), client.read()] == [b"e first", b"e second"]
        assert server.call(lambda: server.network.in_flight.bytes_held) == 0


def test_frames_sent_byte_by_byte_are_answered(serve):
    server = serve()
    data = frame(b"e slow") * 3
    with server.connect() as client:
        for at in range(len(data)):
            client.send(data[at : at + 1])
            server.until(lambda at=at: server.listener.bytes_received == at + 1)
        assert [client.read() for _ in range(3)] == [b"e slow"] * 3


def test_many_frames_in_one_segment_are_answered_in_order(serve):
    server = serve()
    with server.connect() as client:
        client.send(b"".join(frame(b"e %d" % n) for n in range(5_000)))
        assert [client.read() for _ in range(5_000)] == [b"e %d" % n for n in range(5_000)]


@pytest.mark.parametrize("size", [40_000, 110_000, 262_144, 300_000, 1_100_000, 5_000_000, 20_000_000])
def test_large_frames_arrive_whole_and_their_buffers_go_back(serve, size):
    server = serve()
    payloads = [b"e" + bytes([n]) * (size - n) for n in range(3)]
    with server.connect() as client:
        client.send(b"".join(frame(payload) for payload in payloads[:1]))
        assert client.read() == payloads[0]
        for payload in payloads:
            client.send(frame(payload) + frame(b"e small"))
            assert client.read() == payload
            assert client.read() == b"e small"
        assert server.call(lambda: server.network.in_flight.bytes_held) == 0
        connection = server.call(lambda: next(iter(server.listener.connections)))
        server.until(lambda: connection._half.buffer is None)


def test_requests_without_an_answer_leave_no_gap(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"n") + frame(b"e 1") + frame(b"n") + frame(b"e 2"))
        assert [client.read(), client.read()] == [b"e 1", b"e 2"]


def test_answers_wait_behind_a_parked_one_and_leave_in_request_order(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e before") + frame(b"p") + frame(b"e between") + frame(b"p") + frame(b"d after"))
        assert client.read() == b"e before"
        server.until(lambda: len(server.sessions[0].performed) == 5)
        session = server.sessions[0]
        server.call(lambda: session.parked[1].complete(b"parked later"))
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.read()
        client.socket.settimeout(30)
        server.call(lambda: session.parked[0].complete(b"parked first"))
        assert [client.read() for _ in range(4)] == [b"parked first", b"e between", b"parked later", b"d after"]


def test_a_later_request_of_the_same_read_can_release_a_parked_one(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"p") + frame(b"p") + frame(b"r"))
        assert [client.read() for _ in range(3)] == [b"parked 0", b"parked 1", b"r"]


def test_a_completed_pending_is_an_answer_like_any_other(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"d at once") + frame(b"e next"))
        assert [client.read(), client.read()] == [b"d at once", b"e next"]


def test_a_fatal_frame_closes_after_the_answers_before_it_with_one_printable_line(serve, lines):
    server = serve(stop_grace_ms=20_000)
    with server.connect() as other, server.connect() as client:
        client.send(frame(b"e last words") + b"\0\0\0\0" + b"more bytes that nobody reads" * 10_000)
        assert client.read() == b"e last words"
        assert client.is_ended_by_peer()
        port = client.socket.getsockname()[1]
        other.send(frame(NOBODY))
        assert other.read() == NOBODY
    until(lambda: server.call(lambda: not server.listener.connections))
    assert lines() == [f"fake connection from 127.0.0.1:{port} closed: an empty frame\\r\\nforged line \\x1b[31m"]
    assert server.sessions[1].closings == 1


def test_a_fatal_frame_waits_for_parked_answers_before_it(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"p") + b"\0\0\0\0")
        server.until(lambda: server.sessions and server.sessions[0].parked)
        server.call(server.sessions[0].release)
        assert client.read() == b"parked 0"
        assert client.is_closed_by_peer()


def test_a_peer_that_does_not_close_after_a_fatal_frame_is_cut_after_the_grace(serve):
    server = serve()
    with server.connect() as client:
        client.send(b"\0\0\0\0")
        server.until(lambda: server.listener.connections_accepted and not server.listener.connections)
        assert client.is_closed_by_peer()


def test_a_frame_that_is_too_large_is_refused_before_memory_is_taken(serve, lines):
    server = serve()
    with server.connect() as client:
        client.send(b"\x7f\xff\xff\xff")
        assert client.is_closed_by_peer()
        assert len(lines()) == 1
        assert "a frame of 2147483651 bytes" in lines()[0]


def test_a_session_that_does_not_refuse_large_frames_is_helped(serve, lines):
    server = serve(frame_bytes_max=1_000)
    with server.connect() as client:
        client.send(frame(b"e" * 1_000)[:500])
        assert client.is_closed_by_peer()
    assert "a frame of 1004 bytes exceeds the limit of 1000" in lines()[0]


def test_a_protocol_error_closes_after_the_answers_before_it(serve, lines):
    server = serve()
    with server.connect() as other, server.connect() as client:
        client.send(frame(b"e 1") + frame(b"P") + frame(b"e never"))
        assert client.read() == b"e 1"
        assert client.is_closed_by_peer()
        other.send(frame(NOBODY))
        assert other.read() == NOBODY
        assert b"e never" not in server.sessions[1].performed
    assert [line.split("closed: ")[1] for line in lines()] == ["not allowed"]


@pytest.mark.parametrize("command", [b"x", b"a", b"F"])
def test_an_exception_in_a_session_closes_its_connection_and_is_logged_once(serve, lines, caplog, command):
    server = serve()
    with server.connect() as other, server.connect() as client:
        client.send(frame(b"e 1"))
        assert client.read() == b"e 1"
        client.send(frame(b"p") + frame(b"p"))
        server.until(lambda: len(server.sessions[1].parked) == 2)
        server.call(lambda: server.sessions[1].release(1))
        assert client.read() == b"parked 0"
        if command == b"a":
            server.call(lambda: server.sessions[1].parked[0].complete(b"a"))
        else:
            client.send(frame(command))
        assert client.is_closed_by_peer()
        other.send(frame(NOBODY))
        assert other.read() == NOBODY
        assert server.sessions[1].closings == 1
        assert server.sessions[1].abandoned == (0 if command == b"a" else 1)
    (line,) = lines()
    assert "unexpected error in the session" in line
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "on purpose" in str(record.exc_info[1])


def test_a_session_that_cannot_be_made_closes_the_connection(serve, lines):
    def refuse(peer: Any) -> Any:
        raise RuntimeError("no session")

    server = serve(refuse)
    with server.connect() as client:
        assert client.is_closed_by_peer()
    server.until(lambda: not server.listener.connections)
    assert len(lines()) == 1


class Measured(FakeSession):
    sizes: ClassVar[list[int]] = []

    def feed(self, view: memoryview) -> Fed:
        self.sizes.append(len(view))
        return super().feed(view)


def test_bytes_of_one_read_are_limited(serve):
    Measured.sizes.clear()
    server = serve(Measured, scratch_bytes=4_096)
    with server.connect() as client:
        client.send(frame(b"e 1234") * 5_000)
        assert [client.read() for _ in range(5_000)] == [b"e 1234"] * 5_000
    assert max(Measured.sizes) <= 4_096


class Stuck(FakeSession):
    def feed(self, view: memoryview) -> Fed:
        return Fed(0, len(view), [])


def test_a_session_that_takes_nothing_of_a_whole_frame_is_stopped(serve, lines):
    server = serve(Stuck)
    with server.connect() as client:
        client.send(b"12345678")
        assert client.is_closed_by_peer()
    assert "consumed nothing" in lines()[0]


def test_lines_of_any_length_in_any_pieces_are_answered(serve):
    server = serve(LineSession)
    lines = [b"x" * size for size in (0, 1, 700, 1_023, 1_024, 1_025, 5_000, 300_000, 3)]
    data = b"".join(line + b"\n" for line in lines)
    with server.connect() as client:
        sent = 0
        for piece_bytes in (len(data), 997, 65_536):
            for at in range(0, len(data), piece_bytes):
                piece = data[at : at + piece_bytes]
                client.send(piece)
                sent += len(piece)
                server.until(lambda sent=sent: server.listener.bytes_received == sent)
            assert client.exactly(len(data)) == data


def test_a_line_without_an_end_is_refused_at_the_bound(serve, lines):
    server = serve(LineSession, frame_bytes_max=50_000)
    with server.connect() as client:
        client.send(b"x" * 60_000)
        assert client.is_closed_by_peer()
    assert "bytes exceeds the limit of 50000" in lines()[0]


def test_a_session_may_cut_one_frame_a_call(serve):
    server = serve(OneByOne)
    payloads = [b"e%d" % n * (1 + n * 37 % 3_000) for n in range(300)]
    with server.connect() as client:
        client.send(b"".join(map(frame, payloads)))
        assert [client.read() for _ in payloads] == payloads


def test_a_peer_that_closes_in_the_middle_of_a_frame_leaves_one_line(serve, lines):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e whole frame")[:7])
        server.until(lambda: server.listener.bytes_received == 7)
    server.until(lambda: not server.listener.connections)
    assert [line.split("closed: ")[1] for line in lines()] == [
        "the peer closed the connection after 7 bytes of a frame"
    ]
    assert server.sessions[0].closings == 1


def test_a_peer_that_comes_and_goes_in_order_leaves_no_line(serve, lines):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"e"))
        client.read()
    server.until(lambda: not server.listener.connections)
    assert lines() == []


def test_a_half_closed_peer_gets_its_parked_answers(serve):
    server = serve()
    with server.connect() as client:
        client.send(frame(b"p") + frame(b"e after"))
        client.socket.shutdown(socket.SHUT_WR)
        server.until(lambda: server.sessions and server.sessions[0].parked)
        server.call(server.sessions[0].release)
        assert [client.read(), client.read()] == [b"parked 0", b"e after"]
        assert client.is_closed_by_peer()


@pytest.mark.parametrize(
    "sent", [b"", frame(b"e 1"), frame(b"e 1")[:6], frame(b"p")], ids=["nothing", "all", "half", "parked"]
)
@pytest.mark.parametrize("way", ["close", "reset"])
def test_disconnect_logs_at_most_one_debug_line_without_errno(serve, caplog, sent, way):
    server = serve()
    client = server.connect()
    client.send(sent)
    server.until(lambda: server.sessions and server.listener.bytes_received == len(sent))
    if way == "close":
        client.socket.close()
    else:
        client.reset()
    server.until(lambda: not server.listener.connections)
    records = [record for record in caplog.records if "connection" in record.getMessage()]
    assert [record.levelno for record in records] in ([], [logging.DEBUG])
    assert not any("Errno" in record.getMessage() for record in records)


def test_parked_requests_of_a_vanished_peer_are_abandoned(serve):
    server = serve()
    client = server.connect()
    client.send(frame(b"p") * 3)
    server.until(lambda: server.sessions and len(server.sessions[0].parked) == 3)
    client.reset()
    server.until(lambda: not server.listener.connections)
    assert server.sessions[0].abandoned == 3
    assert server.sessions[0].closings == 1


class DeafTransport:
    """Stands in for a socket that takes everything: what was written, in how many writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1) if name in ("peername", "sockname") else None

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        assert low == 0 <= high

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...


def _play(data: bytes, cuts: list[int], settings: NetSettings) -> DeafTransport:
    """Give a connection the data in reads that end at the cuts or where its buffer ends."""

    async def play() -> DeafTransport:
        network = Network(settings)
        network.pace.clock = lambda: 0.0  # the loop does not turn here
        try:
            connection = Connection(Listener("fake", "", 0, FakeSession, network))
            transport = DeafTransport()
            connection.connection_made(transport)
            at = 0
            for cut in [*cuts, len(data)]:
                while at < cut:
                    space = connection.get_buffer(-1)
                    count = min(len(space), cut - at)
                    space[:count] = data[at : at + count]
                    connection.buffer_updated(count)
                    at += count
            assert connection._half.buffer is None
            assert network.in_flight.bytes_held == 0
            connection.connection_lost(None)
            return transport
        finally:
            network.close()

    return asyncio.run(play())


@given(
    sizes=st.lists(
        st.one_of(st.integers(1, 300), st.sampled_from([5_000, 70_000, 140_000, 300_000])), min_size=1, max_size=12
    ),
    cuts=st.lists(st.floats(0, 1), max_size=30),
    scratch_bytes=st.sampled_from([7, 64, 1_000, 65_536]),
)
def test_any_frames_cut_anywhere_come_back_in_order(sizes, cuts, scratch_bytes):
    payloads = [b"e" + bytes([n]) * (size - 1) for n, size in enumerate(sizes)]
    data = b"".join(map(frame, payloads))
    ends = sorted({int(cut * len(data)) for cut in cuts})
    transport = _play(data, ends, NetSettings(scratch_bytes=scratch_bytes))
    assert b"".join(transport.writes) == data


def test_all_answers_of_one_read_leave_in_one_write():
    data = frame(b"e" * 166) * 100
    assert _play(data, [], NetSettings()).writes == [data]
