"""What the small clients do with a connection that was quiet: a broker would close it sooner or later."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock import Broker
from penstock.client import stream
from penstock.client.day1 import Day1Client
from penstock.client.fluxgo import FluxGoClient
from penstock.client.minikafka import MiniKafkaClient
from penstock.client.rustlog import RustLogClient

DIALECTS = ("fluxgo", "rustlog", "day1", "minikafka")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listen = ("kafka=127.0.0.1:0", *(f"{dialect}=127.0.0.1:0" for dialect in DIALECTS))
    with Broker(listen=listen, settings={"storage.flush": "os"}) as broker:
        with FluxGoClient(*address(broker, "fluxgo")) as client:
            client.produce("quiet", 0, b"makes the topic")  # RustLog's produce makes none
        yield broker


def address(broker: Broker, dialect: str) -> tuple[str, int]:
    host, _, port = broker.addresses[dialect].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("dialect", "make", "produce"),
    [
        ("fluxgo", FluxGoClient, lambda client, value: client.produce("quiet", 0, value)),
        ("rustlog", RustLogClient, lambda client, value: client.produce("quiet", 0, value)),
        ("day1", Day1Client, lambda client, value: client.produce("quiet", 0, [(b"", value)])),
    ],
)
def test_a_quiet_connection_is_not_used_again(
    broker: Broker,
    dialect: str,
    make: Callable[..., Any],
    produce: Callable[[Any, bytes], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(make(*address(broker, dialect))) as client:
        first = produce(client, b"a")
        client._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionError):
            produce(client, b"not sent")
        monkeypatch.setattr(stream, "QUIET_S_MAX", 0.0)
        assert produce(client, b"b") == first + 1


def test_what_a_connection_is_remembered_for_is_not_given_up(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(MiniKafkaClient(*address(broker, "minikafka"))) as client:
        client.produce("remembered", b"k", b"v")
        monkeypatch.setattr(stream, "QUIET_S_MAX", 0.0)
        assert client.consume("remembered", "g") is not None
        client.ack()
        assert client.consume("remembered", "g") is None
