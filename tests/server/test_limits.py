"""Limits with a config key: a real broker with small values, and raw peers that reach them and exceed them by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock import Broker
from penstock.records.builder import NewRecord, build_batch
from tests.raw_peer import API_VERSIONS, METADATA, PRODUCE, RawPeer, api_versions, metadata, produce

FRAME_BYTES_MAX = 4_096
CONNECTIONS_MAX = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "storage.flush": "os",
        "log.level": "debug",
        "net.frame_bytes_max": FRAME_BYTES_MAX,
        "net.connections_max": CONNECTIONS_MAX,
    }
    with Broker(settings=settings) as broker:
        with RawPeer(broker) as peer:
            peer.ask(METADATA, 9, metadata("t", create=True))
        yield broker
        assert "Traceback" not in broker.log, broker.log


def _produce_of(frame_bytes: int) -> bytes:
    """A Produce request whose frame has so many bytes after its size."""
    value_bytes = frame_bytes - 200
    while True:
        frame = produce("t", bytes(build_batch([NewRecord(1, None, b"x" * value_bytes)])))
        missing = frame_bytes - (len(frame) - 4)
        if not missing:
            return frame
        value_bytes += missing


def test_request_of_the_maximum_size_is_answered(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        [topic] = peer.ask(PRODUCE, 8, _produce_of(FRAME_BYTES_MAX)).responses
        assert topic.partition_responses[0].error_code == 0


def test_request_above_the_maximum_size_closes_the_connection(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.send_if_open(_produce_of(FRAME_BYTES_MAX + 1))
        assert peer.read_frame() is None
        assert f"a frame of {FRAME_BYTES_MAX + 1} bytes" in peer.wait_for_log_line()[0]


def test_connection_above_the_limit_is_closed_at_once(broker: Broker) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(broker)) for _ in range(CONNECTIONS_MAX)]
        for peer in peers:
            peer.ask(API_VERSIONS, 0, api_versions())
        with RawPeer(broker) as refused:
            assert refused.read(1) == b""
        for peer in peers:
            peer.ask(API_VERSIONS, 0, api_versions())
    assert f"the limit of {CONNECTIONS_MAX} connections is reached" in broker.log
