"""The Day1 client against a broker of this process, and against servers that do not behave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from penstock.broker.engine import Acks
from penstock.client.day1 import Day1Client, Day1Error, Day1Record
from penstock.client.stream import PIPELINE_BYTES_MAX
from tests.dialects.day1.conftest import day1
from tests.dialects.fluxgo.in_process import Serving


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("day1-client") / "data", day1()) as serving:
        yield serving


@pytest.fixture
def client(broker: Serving) -> Iterator[Day1Client]:
    with Day1Client(port=broker.port) as client:
        yield client


def test_what_is_produced_is_fetched(client: Day1Client) -> None:
    assert client.produce("one", 0, [(b"k", b"a"), (b"", b"b")]) == 0
    assert client.produce("one", 0, []) == 2
    assert client.fetch("one", 0, 0) == [Day1Record(0, b"k", b"a"), Day1Record(1, b"", b"b")]
    assert client.fetch("one", 0, 1) == [Day1Record(1, b"", b"b")]
    assert client.fetch("one", 0, 0, 15) == []
    assert client.fetch("missing", 0, 0) == []


def test_many_are_produced_without_waiting_for_each(client: Day1Client) -> None:
    pairs = [(b"%d" % at, b"%d" % at * 100) for at in range(3_000)]
    assert sum(len(value) for _, value in pairs) > 2 * PIPELINE_BYTES_MAX
    assert client.produce_many("many", 2, pairs) == list(range(3_000))
    assert list(client.records("many", 2)) == [Day1Record(at, *pair) for at, pair in enumerate(pairs)]
    assert client.produce_many("many", 2, []) == []


def test_a_large_record_is_found_and_one_that_no_answer_holds_is_stepped_over(
    broker: Serving, client: Day1Client
) -> None:
    client.produce("large", 0, [(b"", b"a")])
    for size in (3 << 20, 9 << 20):
        broker.call(partial(broker.engine.append_run, "large", 0, [b"v" * size], None, Acks.ALL))
    client.produce("large", 0, [(b"", b"z")])
    assert [(record.offset, len(record.value)) for record in client.records("large", 0)] == [
        (0, 1),
        (1, 3 << 20),
        (3, 1),
    ]
    with pytest.raises(Day1Error, match="fetch error: the record at offset 2 ") as unfit:
        client.fetch("large", 0, 2)
    assert unfit.value.unfit_offset == 2


def test_an_error_is_raised_with_its_text_and_the_client_stays_of_use(client: Day1Client) -> None:
    with pytest.raises(Day1Error, match="topic name 'a/b'") as refused:
        client.produce("a/b", 0, [(b"", b"")])
    assert (refused.value.code, refused.value.unfit_offset) == (255, None)
    with pytest.raises(Day1Error, match="past the 1024"):
        client.produce_many("t", 5_000, [(b"", b"x")] * 10)
    with pytest.raises(Day1Error, match="topic name"):
        list(client.records("..", 0))
    assert client.produce("after", 0, [(b"", b"")]) == 0


def test_what_does_not_fit_the_protocol_is_not_sent(client: Day1Client) -> None:
    with pytest.raises(ValueError, match="exceeds Day1's limit of 8388608"):
        client.produce("t", 0, [(b"", bytes(8 << 20))])
    with pytest.raises(ValueError, match="a key of 65536 bytes"):
        client.produce("t", 0, [(bytes(65_536), b"")])
    with pytest.raises(ValueError, match="65536 records"):
        client.produce("t", 0, [(b"", b"")] * 65_536)
    with pytest.raises(ValueError, match="a name of 65536 bytes"):
        client.fetch("t" * 65_536, 0, 0)


@pytest.fixture
def scripted() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, server.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (struct.pack(">IBB", 10, 1, 0), "closed the connection"),
        (bytes(4), "does not speak Day1"),
        (struct.pack(">IB", 1, 7), "unexpected response type 07"),
    ],
)
def test_a_server_that_is_none_is_a_connection_error(
    scripted: tuple[socket.socket, int], answer: bytes, message: str
) -> None:
    server, port = scripted

    def serve() -> None:
        accepted, _ = server.accept()
        with accepted:
            accepted.recv(1_000)
            accepted.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with Day1Client(port=port) as client, pytest.raises(ConnectionError, match=message):
        client.produce("t", 0, [(b"", b"a")])
    thread.join()


def test_a_server_that_says_nothing_is_a_timeout(scripted: tuple[socket.socket, int]) -> None:
    with Day1Client(port=scripted[1], timeout_s=0.05) as client, pytest.raises(TimeoutError):
        client.fetch("t", 0, 0)
