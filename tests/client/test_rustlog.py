"""The RustLog client, in both forms, against a broker behind a socket, and against servers that do not behave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from penstock.client.rustlog import NO_PARTITION, TOPIC_EXISTS, RustLogClient, RustLogError
from penstock.dialects.rustlog.service import RustLogService
from penstock.dialects.rustlog.session import RustLogSession
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import SocketBroker

_NUMBERS = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBroker]:
    with SocketBroker(
        tmp_path_factory.mktemp("rustlog-client") / "data",
        "rustlog",
        lambda engine: RustLogService(engine, DEFAULTS["rustlog"]),
        RustLogSession,
    ) as broker:
        yield broker


@pytest.fixture(params=["binary", "json"])
def client(broker: SocketBroker, request: pytest.FixtureRequest) -> Iterator[RustLogClient]:
    with RustLogClient(*broker.address, json=request.param == "json") as client:
        yield client


@pytest.fixture
def topic(client: RustLogClient) -> str:
    name = f"topic-{next(_NUMBERS)}"
    client.create_topic(name, 2)
    return name


def test_what_is_produced_is_fetched_with_its_offset(client: RustLogClient, topic: str) -> None:
    assert client.produce(topic, 0, b"a") == 0
    assert client.produce_many(topic, 0, [b"", bytes(range(256))]) == [1, 2]
    assert client.produce_many(topic, 0, []) == []
    assert client.fetch(topic, 0, 1) == ([(1, b""), (2, bytes(range(256)))], 3)
    assert list(client.records(topic, 0)) == [(0, b"a"), (1, b""), (2, bytes(range(256)))]
    assert client.fetch(topic, 1, 0) == ([], 0)


def test_many_are_cut_into_frames_and_read_back_in_several_fetches(client: RustLogClient, topic: str) -> None:
    values = [bytes([at % 256]) * 500_000 for at in range(24)]
    assert client.produce_many(topic, 1, values) == list(range(24))
    assert [value for _, value in client.records(topic, 1)] == values


def test_offsets_are_committed_and_fetched(client: RustLogClient, topic: str) -> None:
    assert client.fetch_offset("g", topic, 0) is None
    client.produce_many(topic, 0, [b"a", b"b", b"c"])
    client.commit("g", topic, 0, 2)
    assert client.fetch_offset("g", topic, 0) == 2
    assert client.fetch(topic, 0, 0, group="g") == ([(2, b"c")], 3)
    with pytest.raises(RustLogError):
        client.commit("", topic, 0, 2)


def test_topics_are_made_listed_and_described(client: RustLogClient, topic: str) -> None:
    assert client.topics()[topic] == 2
    with pytest.raises(RustLogError, match="already exists") as exists:
        client.create_topic(topic)
    assert exists.value.code == TOPIC_EXISTS
    client.produce(topic, 1, b"a")
    flushed = list(client.records(topic, 1))
    assert len(flushed) == 1
    assert client.high_watermarks(topic) == {0: 0, 1: 1}
    assert client.high_watermark(topic, 1) == 1
    client.ping()
    assert "messages_produced_total" in client.metrics()


def test_an_error_is_raised_with_its_text_and_the_client_stays_of_use(client: RustLogClient, topic: str) -> None:
    with pytest.raises(RustLogError, match="topic=missing, partition=0") as missing:
        client.fetch("missing", 0, 0)
    assert missing.value.code in (NO_PARTITION, 0)
    assert client.produce(topic, 0, b"a") == 0
    with pytest.raises(ValueError, match="exceeds RustLog's limit of"):
        client.produce(topic, 0, b"x" * (10 * 1024 * 1024))
    assert client.produce(topic, 0, b"b") == 1


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\0", b"\0\0\0\x05\x07abc", b"\0\0\0\x02\x55\x55"])
@pytest.mark.parametrize("json", [False, True])
def test_a_server_that_does_not_speak_rustlog_is_a_connection_error(answer: bytes, json: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            RustLogClient(port=server.getsockname()[1], timeout_s=10, json=json) as client,
            pytest.raises(ConnectionError),
        ):
            client.produce("t", 0, b"a")
        thread.join()


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        RustLogClient(port=server.getsockname()[1], timeout_s=0.05) as client,
        pytest.raises(TimeoutError),
    ):
        client.ping()
