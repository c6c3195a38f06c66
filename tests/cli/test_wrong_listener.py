"""A small client at the port of another dialect: it ends with a reason, and neither hangs nor crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock import Broker
from penstock.cli.dialect_clients import CLIENTS, DialectClient, Pair
from tests.cli.conftest import Run

TIMEOUT_S = 0.3
"""For those who may get no answer at all."""
WAIT_S = 30.0
PAIRS = [(dialect, listener) for dialect in CLIENTS for listener in ("kafka", *CLIENTS) if dialect != listener]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listen = tuple(f"{name}=127.0.0.1:0" for name in ("kafka", *CLIENTS))
    with Broker(listen=listen, settings={"storage.flush": "os"}) as broker:
        with closing(connected(broker, "fluxgo", "fluxgo", WAIT_S)) as client:
            client.produce("orders", 0, [Pair(b"", b"v")])
        yield broker


def connected(broker: Broker, dialect: str, listener: str, timeout_s: float = TIMEOUT_S) -> DialectClient:
    host, _, port = broker.addresses[listener].rpartition(":")
    return CLIENTS[dialect]([(host, int(port))], timeout_s)


@pytest.mark.parametrize(("dialect", "listener"), PAIRS)
def test_reading_at_the_wrong_port_is_an_error(broker: Broker, dialect: str, listener: str) -> None:
    with closing(connected(broker, dialect, listener)) as client, pytest.raises((client.failure, OSError)):
        list(client.read("orders", None, "g" if dialect == "minikafka" else None, 0))


@pytest.mark.parametrize(("dialect", "listener"), PAIRS)
def test_writing_at_the_wrong_port_is_an_error(broker: Broker, dialect: str, listener: str) -> None:
    with closing(connected(broker, dialect, listener)) as client, pytest.raises((client.failure, OSError)):
        client.produce("orders", None if dialect == "minikafka" else 0, [Pair(b"k", b"v"), Pair(b"k", b"w")])


def test_what_a_server_says_cannot_drive_the_terminal(broker: Broker, penstock: Run) -> None:
    ended = penstock("consume", "orders", "--dialect", "fluxgo", "-b", broker.addresses["rustlog"])
    assert ended.code == 1
    assert ended.err.rstrip("\n").isprintable(), ended.err
    assert "Decode error" in ended.err


@pytest.mark.parametrize("listener", CLIENTS)
def test_a_kafka_command_at_another_listener_says_so_at_once(broker: Broker, penstock: Run, listener: str) -> None:
    address = broker.addresses[listener]
    for command in (("topics", "list"), ("produce", "orders"), ("consume", "orders", "-n", "1")):
        ended = penstock(*command, "-b", address)
        assert ended.code == 1
        assert ended.err.startswith(f"penstock: no broker at {address}: the server does not speak the Kafka protocol (")
        assert ended.err.count("\n") == 1
