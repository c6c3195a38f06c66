"""Sessions with streams: a request that waits holds up its own key and no other; the order within a key stays."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.chunks import Chunk
from penstock.model.pending import Pending
from penstock.net.parked import bring_forward
from penstock.net.session import Fed
from tests.net.fakes import FakeSession, frame

_PER_PARKED_MAX = 1_000


class Keyed:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.unordered_key = None if payload[1:2] == b"-" else payload[1]


class StreamSession(FakeSession):
    """As FakeSession, and the second byte of a request is its key; "-" is None."""

    multiplexes = True

    def feed(self, view: memoryview) -> Fed:
        fed = super().feed(view)
        return fed._replace(requests=[Keyed(bytes(request)) for request in fed.requests])

    def perform(self, request: Any) -> Any:
        result = super().perform(memoryview(request.payload))
        if isinstance(result, Pending) and not result.done:
            answer: Pending[bytes] = type(result)(result.abandon)
            result.then(lambda _: answer.complete(request.payload))
            return answer
        return result

    def answer(self, request: Any, result: bytes) -> list[Chunk]:
        return [frame(result)]


def test_a_waiting_request_holds_up_its_own_key_and_no_other(serve):
    server = serve(StreamSession)
    with server.connect() as client:
        client.send(b"".join(map(frame, (b"pA wait", b"eA behind", b"eB", b"e- none", b"eC"))))
        assert [client.read() for _ in range(3)] == [b"eB", b"e- none", b"eC"]
        client.send(frame(b"eB later"))
        assert client.read() == b"eB later"
        client.send(frame(b"rD release"))
        assert sorted(client.read() for _ in range(3)) == [b"eA behind", b"pA wait", b"rD release"]


def test_the_order_within_a_key_stays(serve):
    server = serve(StreamSession)
    with server.connect() as client:
        client.send(b"".join(frame(b"%c%c %d" % (b"pe"[n % 2], b"AB"[n % 4 // 2], n)) for n in range(20)))
        client.send(frame(b"rC"))
        answers = [client.read() for _ in range(21)]
        for key in b"AB":
            of_key = [int(answer.split()[1]) for answer in answers if answer[1] == key]
            assert of_key == sorted(of_key)
            assert len(of_key) == 10


def test_requests_without_a_key_stay_in_order_among_themselves(serve):
    server = serve(StreamSession)
    with server.connect() as client:
        client.send(frame(b"p- 1") + frame(b"e- 2") + frame(b"eA 3"))
        assert client.read() == b"eA 3"
        client.send(frame(b"rA"))
        rest = [client.read() for _ in range(3)]
        assert [answer for answer in rest if answer[1:2] == b"-"] == [b"p- 1", b"e- 2"]


def test_more_requests_than_may_be_parked_pass_a_waiting_one(serve):
    server = serve(StreamSession)
    with server.connect() as client:
        client.send(frame(b"pA wait"))
        count = 3 * _PER_PARKED_MAX
        client.send(b"".join(frame(b"eB %d" % n) for n in range(count)))
        assert [client.read() for _ in range(count)] == [b"eB %d" % n for n in range(count)]
        client.send(frame(b"rA"))
        assert [client.read(), client.read()] == [b"pA wait", b"rA"]


def test_waiting_requests_are_bounded_and_go_on_when_one_is_answered(serve):
    server = serve(StreamSession, in_flight_requests_max=10)
    with server.connect() as client:
        client.send(b"".join(frame(b"p%c" % (65 + n)) for n in range(15)))
        server.until(lambda: server.sessions and len(server.sessions[0].parked) == 10)
        server.call(server.sessions[0].release)
        assert {client.read() for _ in range(10)} == {b"p%c" % (65 + n) for n in range(10)}
        server.until(lambda: len(server.sessions[0].parked) == 5)
        server.call(server.sessions[0].release)
        assert {client.read() for _ in range(5)} == {b"p%c" % (75 + n) for n in range(5)}


def test_what_waits_is_abandoned_when_the_connection_goes(serve):
    server = serve(StreamSession)
    with server.connect() as client:
        client.send(frame(b"pA") + frame(b"pB") + frame(b"eC"))
        assert client.read() == b"eC"
    server.until(lambda: server.sessions and server.sessions[0].abandoned == 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_what_may_leave_comes_forward_and_nothing_overtakes_within_its_key(entries):
    from collections import deque

    def entry(at, key, waits):
        return Keyed(b"e%c%d" % (65 + key, at)), Pending() if waits else at

    parked = deque(entry(at, key, waits) for at, (key, waits) in enumerate(entries))
    before = list(parked)
    bring_forward(parked)
    assert sorted(map(id, parked)) == sorted(map(id, before))
    for key in range(4):
        assert [e for e in parked if e[0].unordered_key == 65 + key] == [
            e for e in before if e[0].unordered_key == 65 + key
        ]
    blocked = set()
    free = []
    for request, result in before:
        if isinstance(result, Pending):
            blocked.add(request.unordered_key)
        elif request.unordered_key not in blocked:
            free.append(result)
    assert [result for _, result in list(parked)[: len(free)]] == free
