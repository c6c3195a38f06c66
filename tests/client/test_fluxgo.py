"""The FluxGo client against a broker of this process, and against servers that do not behave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from penstock.client.fluxgo import OFFSET_INVALID, FluxGoClient, FluxGoError
from penstock.client.stream import PIPELINE_BYTES_MAX
from tests.dialects.fluxgo.conftest import fluxgo
from tests.dialects.fluxgo.in_process import Serving


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("fluxgo-client") / "data", fluxgo()) as serving:
        yield serving


@pytest.fixture
def client(broker: Serving) -> Iterator[FluxGoClient]:
    with FluxGoClient(port=broker.port) as client:
        yield client


def test_what_is_produced_is_consumed(client: FluxGoClient) -> None:
    assert client.produce("one", 0, b"a") == 0
    assert client.produce("one", 0, b"") == 1
    assert client.consume("one", 0, 0) == b"a"
    assert client.consume("one", 0, 1) == b""
    assert list(client.records("one", 0)) == [(0, b"a"), (1, b"")]
    assert list(client.records("one", 0, 1)) == [(1, b"")]


def test_many_are_produced_without_waiting_for_each(client: FluxGoClient) -> None:
    values = [b"%d" % at * 100 for at in range(3_000)]
    assert sum(map(len, values)) > 2 * PIPELINE_BYTES_MAX
    assert client.produce_many("many", 2, values) == list(range(3_000))
    assert client.consume("many", 2, 2_999) == values[-1]
    assert client.produce_many("many", 2, []) == []


def test_an_error_is_raised_with_code_and_text_and_the_client_stays_of_use(client: FluxGoClient) -> None:
    with pytest.raises(FluxGoError, match="Topic or partition not found") as missing:
        client.consume("missing", 0, 0)
    assert missing.value.code == 0x22
    with pytest.raises(FluxGoError, match="topic name") as refused:
        client.produce("../x", 0, b"")
    assert refused.value.code == 0x13
    with pytest.raises(FluxGoError) as many:
        client.produce_many("a/b", 0, [b"x"] * 10)
    assert many.value.code == 0x13
    client.produce("there", 0, b"")
    with pytest.raises(FluxGoError, match="No record at that offset") as past:
        client.consume("there", 0, 1)
    assert past.value.code == OFFSET_INVALID


def test_offsets_are_committed_and_fetched(client: FluxGoClient) -> None:
    assert client.fetch_offset("g", "one", 0) is None
    client.commit("g", "one", 0, 5)
    assert client.fetch_offset("g", "one", 0) == 5
    with pytest.raises(FluxGoError, match="Failed to commit offset"):
        client.commit("", "one", 0, 5)
    with pytest.raises(FluxGoError, match="Failed to fetch offset"):
        client.fetch_offset("", "one", 0)


def test_records_that_are_gone_are_stepped_over(broker: Serving, client: FluxGoClient) -> None:
    client.produce_many("gone", 0, [b"a", b"b", b"c"])
    broker.call(lambda: broker.engine.delete_records("gone", 0, 2))
    assert list(client.records("gone", 0)) == [(2, b"c")]
    with pytest.raises(FluxGoError, match="not found"):
        list(client.records("gone", 7))


def test_what_does_not_fit_the_protocol_is_not_sent(client: FluxGoClient) -> None:
    with pytest.raises(ValueError, match="exceeds FluxGo's limit of 10485760"):
        client.produce("t", 0, bytes(10 * 1024 * 1024))
    with pytest.raises(ValueError, match="exceeds FluxGo's limit of 65535"):
        client.produce("t" * 65_536, 0, b"")


@pytest.fixture
def scripted() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, server.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b"\0\0", "closed the connection"),
        (struct.pack(">IB", 9, 0) + b"\0", "closed"),
        (bytes(4), "does not speak FluxGo"),
    ],
)
def test_a_server_that_breaks_off_is_a_connection_error(
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
    with FluxGoClient(port=port) as client, pytest.raises(ConnectionError, match=message):
        client.produce("t", 0, b"a")
    thread.join()


def test_a_server_that_says_nothing_is_a_timeout(scripted: tuple[socket.socket, int]) -> None:
    with FluxGoClient(port=scripted[1], timeout_s=0.05) as client, pytest.raises(TimeoutError):
        client.consume("t", 0, 0)
