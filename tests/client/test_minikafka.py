"""The MiniKafka client against a broker behind a socket, and against servers that do not behave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.client.minikafka import Message, MiniKafkaClient, MiniKafkaError
from penstock.client.stream import PIPELINE_BYTES_MAX
from penstock.dialects.minikafka.service import MiniKafkaService
from penstock.dialects.minikafka.session import MiniKafkaSession
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import SocketBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SocketBroker]:
    with SocketBroker(
        tmp_path_factory.mktemp("minikafka-client") / "data",
        "minikafka",
        lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"]),
        MiniKafkaSession,
    ) as broker:
        yield broker


@pytest.fixture
def client(broker: SocketBroker) -> Iterator[MiniKafkaClient]:
    with MiniKafkaClient(*broker.address) as client:
        yield client


def test_what_is_produced_is_consumed_once_it_is_acknowledged(client: MiniKafkaClient) -> None:
    assert client.produce("one", b"k", b"first") == 0
    assert client.produce("one", b"k", b"") == 1
    first = client.consume("one", "g")
    assert first is not None
    assert (first.offset, first.key, first.value) == (0, b"k", b"first")
    assert client.consume("one", "g") == first
    client.ack()
    assert client.consume("one", "g", first.partition) == Message(1, first.partition, b"k", b"")
    client.ack()
    assert client.consume("one", "g") is None
    with pytest.raises(MiniKafkaError, match="no outstanding msg"):
        client.ack()


def test_a_connection_for_each_message_is_fine(broker: SocketBroker) -> None:
    offsets = []
    for at in range(30):
        with MiniKafkaClient(*broker.address) as client:
            offsets.append(client.produce("short", b"k", b"%d" % at))
    assert offsets == list(range(30))


def test_many_are_produced_without_waiting_and_read_back_whole(client: MiniKafkaClient) -> None:
    messages = [(b"k%d" % (at % 7), b"%d " % at * 100) for at in range(1_000)]
    assert sum(len(value) for _, value in messages) > PIPELINE_BYTES_MAX
    offsets = client.produce_many("many", messages)
    assert len(offsets) == 1_000
    assert client.produce_many("many", []) == []
    found = list(client.records("many", "readers"))
    assert sorted((message.key, message.value) for message in found) == sorted(messages)
    for key in {key for key, _ in messages}:
        ours = [message.value for message in found if message.key == key]
        assert ours == [value for name, value in messages if name == key]


def test_an_upper_bound_ends_and_an_offset_can_be_set(client: MiniKafkaClient) -> None:
    client.produce_many("bounded", [(b"", b"a"), (b"", b"b"), (b"", b"c")])
    client.set_offset("bounded", "g", 1)
    message = client.consume("bounded", "g", 0, to_offset=1)
    assert message is not None
    assert message.value == b"b"
    client.ack()
    assert client.consume("bounded", "g", 0, to_offset=1) is None
    client.set_offset("bounded", "g", None)
    assert [message.value for message in client.records("bounded", "g")] == [b"a", b"b", b"c"]


def test_an_error_is_raised_with_its_text_and_the_client_stays_of_use(client: MiniKafkaClient) -> None:
    with pytest.raises(MiniKafkaError, match="topic name"):
        client.produce("../x", b"k", b"v")
    with pytest.raises(MiniKafkaError, match="topic name"):
        client.produce_many("a/b", [(b"k", b"v")] * 5)
    with pytest.raises(ValueError, match="blank"):
        client.produce("t", b"a b", b"v")
    with pytest.raises(ValueError, match="line feed"):
        client.consume("t", "a\nb")
    assert client.consume("nowhere", "g") is None


@pytest.mark.parametrize("answer", [b"", b"+OFF", b"HTTP/1.1 400\n", b"\xff\n"])
def test_a_server_that_does_not_speak_minikafka_is_a_connection_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1_000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        with MiniKafkaClient(port=port, timeout_s=10) as client, pytest.raises(ConnectionError):
            client.produce("t", b"k", b"v")
        with MiniKafkaClient(port=port, timeout_s=10) as client, pytest.raises(ConnectionError):
            client.consume("t", "g")
        with MiniKafkaClient(port=port, timeout_s=10) as client, pytest.raises(ConnectionError):
            client.ack()
        thread.join()


def test_a_server_that_says_nothing_is_a_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        MiniKafkaClient(port=server.getsockname()[1], timeout_s=0.05) as client,
        pytest.raises(TimeoutError),
    ):
        client.ack()
