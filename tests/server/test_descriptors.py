"""File descriptors: the limit is raised, shared, and never a reason to stop writing."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.model import limits
from penstock.model.errors import StartError
from penstock.records.builder import NewRecord, build_batch
from penstock.server.descriptors import share
from tests.raw_peer import CREATE_TOPICS, PRODUCE, RawPeer, create_topics, produce

BATCH = bytes(build_batch([NewRecord(1_000, b"k", b"v")]))
LIMIT = 320
PARTITIONS = 200


@pytest.fixture
def few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers started from here have LIMIT descriptors and cannot raise the limit."""
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -n {LIMIT}\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(limited))


@pytest.fixture
def broker(few_descriptors: None) -> Iterator[Broker]:
    with Broker(settings={"storage.flush": "acks"}) as broker:
        yield broker
        assert "Traceback" not in broker.log


def produce_to_all(broker: Broker, topic: str) -> list[int]:
    with RawPeer(broker) as peer:
        answers = [peer.ask(PRODUCE, 8, produce(topic, BATCH, partition=at)) for at in range(PARTITIONS)]
    return [answer.responses[0].partition_responses[0].error_code for answer in answers]


def test_more_partitions_than_descriptors_are_all_written(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.ask(CREATE_TOPICS, 4, create_topics("many", PARTITIONS))
    for _ in range(2):
        assert produce_to_all(broker, "many") == [0] * PARTITIONS
    assert f"the open file limit is {LIMIT}" in broker.log


def test_more_connections_than_descriptors_leave_partitions_writable(broker: Broker) -> None:
    with RawPeer(broker) as peer:
        peer.ask(CREATE_TOPICS, 4, create_topics("many", PARTITIONS))
        host, port = broker.bootstrap.rsplit(":", 1)
        with ExitStack() as stack:
            for _ in range(LIMIT):
                stack.enter_context(socket.create_connection((host, int(port))))
            for at in range(PARTITIONS):
                answer = peer.ask(PRODUCE, 8, produce("many", BATCH, partition=at))
                assert answer.responses[0].partition_responses[0].error_code == 0
            assert "refused" in broker.log
    assert produce_to_all(broker, "many") == [0] * PARTITIONS


def test_a_low_soft_limit_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, soft), hard))
    try:
        with Broker(settings={"storage.open_files_max": 64, "net.connections_max": 1_500}) as broker:
            limit_line = next(
                line
                for line in Path(f"/proc/{broker.pid}/limits").read_text().splitlines()
                if line.startswith("Max open files")
            )
            assert int(limit_line.split()[3]) == 64 + 1_500 + limits.DESCRIPTORS_RESERVED
            assert "the open file limit" not in broker.log
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(
    limit=st.integers(limits.DESCRIPTORS_RESERVED + limits.DESCRIPTORS_MIN, 100_000),
    log_files_max=st.integers(16, 10_000),
    connections_max=st.integers(1, 50_000),
    per_ip_max=st.integers(1, 50_000),
)
def test_shares_never_exceed_the_limit(limit: int, log_files_max: int, connections_max: int, per_ip_max: int) -> None:
    shared = share(limit, log_files_max, connections_max, per_ip_max)
    assert shared.log_files + shared.connections + limits.DESCRIPTORS_RESERVED <= limit
    assert 16 <= shared.log_files <= log_files_max
    assert 1 <= shared.connections <= connections_max
    assert 1 <= shared.connections_per_ip <= per_ip_max
    if connections_max + log_files_max + limits.DESCRIPTORS_RESERVED <= limit:
        assert shared == (log_files_max, connections_max, per_ip_max)


def test_a_limit_too_low_for_anything_is_refused_at_start() -> None:
    with pytest.raises(StartError, match="at least 192 are required"):
        share(191, 1_024, 10_000, 5_000)
