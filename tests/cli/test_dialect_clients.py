"""The adapters of the small clients: what they do when the broker has closed a quiet connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock import Broker
from penstock.cli.dialect_clients import CLIENTS, DialectClient, Pair
from penstock.client import stream

WAIT_S = 30
DIALECTS = ("fluxgo", "rustlog")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    listen = ("kafka=127.0.0.1:0", *(f"{dialect}=127.0.0.1:0" for dialect in DIALECTS))
    with Broker(listen=listen, settings={"net.idle_deadline_ms": 1, "storage.flush": "os"}) as broker:
        yield broker


def connected(broker: Broker, dialect: str) -> DialectClient:
    host, _, port = broker.addresses[dialect].rpartition(":")
    return CLIENTS[dialect]([(host, int(port))], 10.0)


def wait_until_closed(broker: Broker, dialect: str, before: int) -> None:
    end = time.monotonic() + WAIT_S
    while closings(broker, dialect) <= before:
        assert time.monotonic() < end, broker.log
        time.sleep(0.02)


def closings(broker: Broker, dialect: str) -> int:
    return sum(f"{dialect} connection" in line and "closed: idle" in line for line in broker.log.splitlines())


def make_topic(broker: Broker, topic: str) -> None:
    with closing(connected(broker, "fluxgo")) as client:
        client.produce(topic, 0, [Pair(b"", b"first"), Pair(b"", b"second")])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_lines_that_come_late_are_sent_over_a_new_connection(
    broker: Broker, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"late-{dialect}"
    make_topic(broker, topic)
    monkeypatch.setattr(stream, "QUIET_S_MAX", 0.0)
    before = closings(broker, dialect)
    with closing(connected(broker, dialect)) as client:
        client.produce(topic, 0, [Pair(b"", b"third")])
        wait_until_closed(broker, dialect, before)
        client.produce(topic, 0, [Pair(b"", b"fourth")])
        values = [found.value for found in client.read(topic, [0], None, 0)]
    assert values == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("who_connects", ["the commit", "the reader"])
def test_a_reader_that_was_held_up_goes_on_where_it_was(
    broker: Broker, dialect: str, who_connects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"held-{dialect}-{who_connects[4:]}"
    make_topic(broker, topic)
    monkeypatch.setattr(stream, "QUIET_S_MAX", 0.0)
    before = closings(broker, dialect)
    with closing(connected(broker, dialect)) as client:
        reading = client.read(topic, None, topic, 0)
        assert next(reading).value == b"first"
        wait_until_closed(broker, dialect, before)
        if who_connects == "the commit":
            client.commit()
            monkeypatch.setattr(stream, "QUIET_S_MAX", 1_000.0)
        assert [found.value for found in reading] == [b"second"]
        client.commit()
        assert list(client.read(topic, None, topic, 0)) == []
