"""No request of a small dialect, however large or odd, keeps other clients waiting: their pings take less than 50 ms of
broker CPU time.

`make test` sends a few requests of each form, which another seed chooses each day; tests/soak sends them all.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.dialects.kafka.apis import ApiKey
from tests.dialects.kafka.oracle import request_body
from tests.raw_peer import RawPeer, api_versions, create_topics
from tests.server.large_dialect_requests import (
    EVERYTHING,
    PINGS,
    PROVIDERS,
    SUBSCRIPTIONS,
    TEXTS,
    TINY,
    WIDE,
    WIDE_PARTITIONS,
    subscribe,
)
from tests.server.large_requests import ANSWER_READERS, Known, Ping, kafka_frame, too_long
from tests.server.test_large_requests import filled

REQUESTS_PER_FORM = 4
SEED = int(os.environ.get("PENSTOCK_SEED") or dt.datetime.now(tz=dt.UTC).toordinal())
SETTINGS = {"storage.flush": "os", "groups.initial_rebalance_delay_ms": 0}
LISTEN = tuple(f"{dialect}=127.0.0.1:0" for dialect in ("kafka", *PINGS))


def address_of(broker: Broker, dialect: str) -> tuple[str, int]:
    host, _, port = broker.addresses[dialect].rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def prepared(broker: Broker) -> Iterator[Known]:
    """Topics, records, groups and subscriptions for the requests to find."""
    known = filled(broker)
    with RawPeer(broker) as peer:
        for topic, partitions in ((WIDE, WIDE_PARTITIONS), (TINY, 1), (TEXTS, 1)):
            peer.send(create_topics(topic, partitions))
            assert peer.read_frame() is not None
        peer.send(kafka_frame(ApiKey.OFFSET_COMMIT, 2, _commit_of_everything(known)))
        assert peer.read_frame() is not None
    nested = b'{"a":' * 300 + b"{}" + b"}" * 300
    texts = [b'{"a":[%b0]}' % (b"0," * 400_000), b"ab" * 400_000, *[nested] * 500]
    tiny = [b"x"] * 80_000
    _exchange(
        broker, "rustlog", [_produce(TINY, tiny), _produce(TINY, tiny), *(_produce(TEXTS, [text]) for text in texts)]
    )
    with socket.create_connection(address_of(broker, "flymq")) as subscriber:
        groups = [f"s{at}" for at in range(SUBSCRIPTIONS // len(known.names))]
        _ask(subscriber, "flymq", [subscribe(topic, group) for group in groups for topic in known.names])
        yield known


def _commit_of_everything(known: Known) -> bytes:
    def rows(count: int) -> list[dict[str, object]]:
        return [{"partition_index": at, "committed_offset": 1, "committed_metadata": ""} for at in range(count)]

    topics = [{"name": name, "partitions": rows(1)} for name in known.names]
    tree = {
        "group_id": EVERYTHING,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [*topics, {"name": WIDE, "partitions": rows(WIDE_PARTITIONS)}],
    }
    return request_body(ApiKey.OFFSET_COMMIT, 2, tree)


def _produce(topic: str, records: list[bytes]) -> bytes:
    rows = b"".join(struct.pack(">I", len(record)) + record for record in records)
    body = struct.pack(">BH", 1, len(topic)) + topic.encode() + struct.pack(">II", 0, len(records)) + rows
    return struct.pack(">I", len(body)) + body


def _exchange(broker: Broker, dialect: str, frames: list[bytes]) -> None:
    with socket.create_connection(address_of(broker, dialect)) as peer:
        _ask(peer, dialect, frames)


def _ask(peer: socket.socket, dialect: str, frames: list[bytes]) -> None:
    with peer.makefile("rb") as answers:
        for first in range(0, len(frames), 100):
            some = frames[first : first + 100]
            peer.sendall(b"".join(some))
            for _ in some:
                ANSWER_READERS[dialect](answers)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=LISTEN, settings=SETTINGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running
        broker.kill()  # thousands of logs would be flushed


@pytest.fixture(scope="module")
def known(broker: Broker) -> Iterator[Known]:
    with prepared(broker) as known:
        yield known


@pytest.mark.parametrize("form", PROVIDERS)
def test_pings_do_not_wait_for_large_requests(broker: Broker, known: Known, form: str) -> None:
    pick = random.Random(f"{SEED} {form}")
    made = list(PROVIDERS[form](known))
    for large in pick.sample(made, REQUESTS_PER_FORM):
        dialect = pick.choice(("kafka", large.dialect))
        frame = api_versions() if dialect == "kafka" else PINGS[dialect]
        with Ping(address_of(broker, dialect), broker.pid, frame, dialect) as ping:
            complaint = too_long(ping, address_of(broker, large.dialect), large)
        assert complaint is None, f"{complaint} (PENSTOCK_SEED={SEED})"
