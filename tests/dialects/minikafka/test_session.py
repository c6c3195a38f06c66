"""Lines and payloads as they come from a socket: split anywhere, too long, or anything at all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.minikafka.lines import LINE_BYTES_MAX
from penstock.dialects.minikafka.service import MiniKafkaService
from penstock.dialects.minikafka.session import WINDOW_BYTES, MiniKafkaSession
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker
from tests.dialects.minikafka.conftest import Peer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path: Path = tmp_path_factory.mktemp("minikafka")
    with Broker(path / "data", lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"])) as broker:
        yield broker


def test_a_conversation_split_at_every_byte_is_answered_the_same(shared: Broker) -> None:
    expected = b""
    size = len(_conversation(0))
    for at in range(size + 1):
        sent = _conversation(at)
        peer = Peer(shared)
        answers = peer.send(sent[:at]) + peer.send(sent[at:])
        expected = expected or answers
        assert answers == expected, at
        assert peer.half_frame == b""
    assert expected.count(b"\n") > 10


def _conversation(number: int) -> bytes:
    """The same lines for a topic of their own."""
    name = b"t%03d" % number
    return b"TOPIC %b k 5\nab\ncdTOPIC %b  0\nTOPIC %b x\nnonsense\n" % (
        name,
        name,
        name,
    ) + b"%b:g:-1\nACK\n%b:g:0:9\nSET_OFFSET %b:g BEGIN\n%b:g:-1\nACK\nACK\n" % (name, name, name, name)


def test_a_half_line_is_kept_and_a_known_payload_is_asked_for_whole(shared: Broker) -> None:
    session = MiniKafkaSession(shared.service)
    assert session.feed(memoryview(b"")) == (0, 0, [], None)
    assert session.feed(memoryview(b"TOPIC t k")) == (0, 0, [], None)
    assert session.feed(memoryview(b"TOPIC t k 10\nabc")) == (0, 23, [], None)
    fed = session.feed(memoryview(b"ACK\nTOPIC t k 10\nabc"))
    assert (fed.consumed, fed.needed, len(fed.requests)) == (4, 23, 1)


def test_a_line_of_the_greatest_length_is_read_and_a_longer_one_closes(shared: Broker) -> None:
    peer = Peer(shared)
    key = b"k" * (LINE_BYTES_MAX - len(b"TOPIC long  1"))
    assert peer.send(b"TOPIC long %b 1\nx" % key) == b"+OFFSET 0\n"
    assert peer.send(b"TOPIC long %b 1\nx" % (key + b"k")) == b""
    assert peer.fatal is not None
    for sent in (b"x" * (LINE_BYTES_MAX + 1), b"ACK\n" + b"x" * (WINDOW_BYTES + 1)):
        peer = Peer(shared)
        peer.send(sent)
        assert peer.fatal is not None
    peer = Peer(shared)
    assert peer.send(b"x" * LINE_BYTES_MAX) == b""
    assert peer.fatal is None


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 100, WINDOW_BYTES - 30, WINDOW_BYTES, 3 * WINDOW_BYTES]), st.booleans()),
        max_size=6,
    )
)
def test_payloads_of_any_size_are_cut_where_they_end(parts: list[tuple[int, bool]]) -> None:
    sent = b""
    wanted = []
    for number, (size, line_between) in enumerate(parts):
        value = bytes([65 + number]) * size
        wanted.append(value)
        sent += b"TOPIC t k %d\n" % size + value
        if line_between:
            sent += b"ACK\n"
    session = MiniKafkaSession(MiniKafkaService(None, DEFAULTS["minikafka"]))  # type: ignore[arg-type]
    fed = session.feed(memoryview(sent))
    assert fed.consumed == len(sent)
    assert [bytes(value) for request in fed.requests for value in getattr(request, "values", ())] == wanted


def test_a_session_is_small(shared: Broker) -> None:
    session = MiniKafkaSession(shared.service)
    assert not hasattr(session, "__dict__")
    assert sys.getsizeof(session) <= 64


ANSWER = re.compile(rb"\+OFFSET \d+\n|\+EMPTY\n|\+OK\n|\+END \d+\n|-ERR [^\n]+\n|\+MSG \d+ (\d+) \d+ [^\n]*\n")

words = st.sampled_from([b"fuzz", b"", b"g", b"0", b"-1", b"4", b"99", b"BEGIN", b"../x", b"\xff", b"1", b"9" * 20])
pieces = st.one_of(
    st.builds(lambda t, k, v: b"TOPIC %b %b %d\n%b" % (t, k, len(v), v), words, words, st.binary(max_size=20)),
    st.builds(lambda parts: b":".join(parts) + b"\n", st.lists(words, min_size=2, max_size=5)),
    st.builds(lambda t, g, n: b"SET_OFFSET %b:%b %b\n" % (t, g, n), words, words, words),
    st.just(b"ACK\n"),
    st.builds(lambda line: line + b"\n", st.binary(max_size=20)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=st.lists(pieces, max_size=15), noise=st.binary(max_size=10), cuts=st.lists(st.integers(1, 50), max_size=5))
def test_any_bytes_get_documented_answers_and_nothing_else(
    shared: Broker, parts: list[bytes], noise: bytes, cuts: list[int]
) -> None:
    conversation = b"".join(parts) + noise
    peer = Peer(shared)
    out = b""
    at = 0
    for cut in [*cuts, len(conversation)]:
        if peer.fatal is None and at < len(conversation):
            out += peer.send(conversation[at : at + cut])
            at += cut
    while out:
        match = ANSWER.match(out)
        assert match is not None, out[:100]
        size = match.end()
        if match[1] is not None:
            size += int(match[1]) + 1
            assert out[size - 1 : size] == b"\n"
        out = out[size:]
    peer.close()
