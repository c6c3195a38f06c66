"""No request, however large or odd, keeps other clients waiting: their pings take less than 50 ms of broker CPU time.

`make test` sends a few requests of each API, in a version and of kinds that another seed chooses each day; tests/soak sends
them all.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.service import HANDLERS
from penstock.model import limits
from tests.dialects.kafka.oracle import decode_answer, request_body
from tests.raw_peer import METADATA, RawPeer, api_versions, metadata, request
from tests.server.large_requests import (
    Known,
    Large,
    Ping,
    kafka_frame,
    kafka_odd_requests,
    kafka_requests,
    too_long,
)

TOPICS = 2_000
DOOMED = 500
TRANSACTIONS = 200
REQUESTS_PER_API = 2
SEED = int(os.environ.get("PENSTOCK_SEED") or dt.datetime.now(tz=dt.UTC).toordinal())
SETTINGS = {"storage.flush": "os", "groups.initial_rebalance_delay_ms": 0}
SERVED = sorted({*HANDLERS, ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA})


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


def filled(broker: Broker) -> Known:
    """Make topics, groups and transactional ids."""
    names = [f"n{number:05}" for number in range(TOPICS)]
    doomed = [f"d{number:05}" for number in range(DOOMED)]
    ids: list[bytes] = []
    with RawPeer(broker) as peer:
        for first in range(0, len(names) + len(doomed), 500):
            topics = [
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                for name in (names + doomed)[first : first + 500]
            ]
            tree = {"topics": topics, "timeout": 60_000, "validate_only": False}
            peer.send(kafka_frame(ApiKey.CREATE_TOPICS, 7, request_body(ApiKey.CREATE_TOPICS, 7, tree)))
            frame = peer.read_frame()
            assert frame is not None
            ids += [topic.topic_id.bytes for topic in decode_answer(ApiKey.CREATE_TOPICS, 7, frame).topics]
        asked = [commit(name) for name in (*names, *doomed)] + [init(name) for name in names[:TRANSACTIONS]]
        for first in range(0, len(asked), 100):
            some = asked[first : first + 100]
            peer.send(b"".join(some))
            for _ in some:
                assert peer.read_frame() is not None
    return Known(names, doomed, ids[:TOPICS])


def commit(name: str) -> bytes:
    tree = {
        "group_id": name,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
            }
        ],
    }
    return kafka_frame(ApiKey.OFFSET_COMMIT, 2, request_body(ApiKey.OFFSET_COMMIT, 2, tree))


def init(name: str) -> bytes:
    body = request_body(ApiKey.INIT_PRODUCER_ID, 0, {"transactional_id": name, "transaction_timeout": 10_000})
    return kafka_frame(ApiKey.INIT_PRODUCER_ID, 0, body)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running
        broker.kill()  # thousands of logs would be flushed


@pytest.fixture(scope="module")
def known(broker: Broker) -> Known:
    return filled(broker)


@pytest.fixture(scope="module")
def pings(broker: Broker, known: Known) -> Iterator[list[Ping]]:
    frames = (api_versions(), metadata(known.names[1]))
    with Ping(address(broker), broker.pid, frames[0]) as one, Ping(address(broker), broker.pid, frames[1]) as other:
        yield [one, other]


@pytest.mark.parametrize("key", SERVED, ids=[APIS[key].name for key in SERVED])
def test_pings_do_not_wait_for_large_requests(broker: Broker, known: Known, pings: list[Ping], key: int) -> None:
    pick = random.Random(SEED * 1_000 + key)
    api = APIS[key]
    made = [
        make
        for version in (pick.randint(api.version_min, api.version_max), api.version_max)
        for make in kafka_requests(key, version, pick, known)
    ]
    for make in pick.sample(made, min(REQUESTS_PER_API, len(made))):
        complaint = too_long(pick.choice(pings), address(broker), make())
        assert complaint is None, f"{complaint} (PENSTOCK_SEED={SEED})"


ODD = [large.name for large in kafka_odd_requests(Known(("n",), ("d",), (bytes(16),)))]


@pytest.mark.parametrize("number", range(len(ODD)), ids=ODD)
def test_pings_do_not_wait_for_odd_requests(broker: Broker, known: Known, pings: list[Ping], number: int) -> None:
    large = list(kafka_odd_requests(known))[number]
    complaint = too_long(pings[number % 2], address(broker), large)
    assert complaint is None, complaint


def test_many_large_requests_at_once_leave_time_for_pings(broker: Broker, known: Known, pings: list[Ping]) -> None:
    pick = random.Random(SEED)
    large = next(kafka_requests(ApiKey.DESCRIBE_GROUPS, 5, pick, known))()
    peers = [socket.create_connection(address(broker), 60) for _ in range(8)]
    try:
        for peer in peers:
            peer.sendall(large.data)
        complaint = too_long(pings[0], address(broker), large)
        assert complaint is None, complaint
    finally:
        for peer in peers:
            peer.close()


# ---- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("too_many", [0, 1])
def test_a_request_with_more_elements_than_allowed_closes_the_connection(broker: Broker, too_many: int) -> None:
    count = limits.REQUEST_ELEMENTS_MAX + too_many
    large = Large("DeleteGroups", kafka_frame(ApiKey.DELETE_GROUPS, 0, struct.pack(">i", count) + bytes(2 * count)))
    with RawPeer(broker) as peer:
        peer.send_if_open(large.data)
        answer = peer.read_frame()
        assert (answer is None) == bool(too_many)
        if too_many:
            assert str(limits.REQUEST_ELEMENTS_MAX) in peer.wait_for_log_line()[0]


def test_a_request_for_10000_partitions_is_answered(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        tree = {
            "replica_id": -1,
            "topics": [
                {"name": "wide", "partitions": [{"partition_index": n, "timestamp": -1} for n in range(10_000)]}
            ],
        }
        answer = peer.ask(2, 1, request(2, 1, request_body(2, 1, tree)))
        assert len(answer.topics[0].partitions) == 10_000


def test_a_request_that_is_too_large_closes_the_connection_at_its_first_bytes(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.send(struct.pack(">ih", limits.REQUEST_BYTES_MAX + 1, METADATA))
        assert peer.read(1) == b""
        assert str(limits.REQUEST_BYTES_MAX) in peer.wait_for_log_line()[0]
