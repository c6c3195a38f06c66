"""Large values leave from the log's file by sendfile: every dialect gets them whole, among small and compressed ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from penstock import Broker
from penstock.cli.dialect_clients import Pair
from penstock.model.listeners import PORTS
from tests.dialects.test_matrix import ALL, carries_keys, make_topic, read

RECORDS = [Pair(b"k%d" % at, (b"%07d" % at * size)[:size]) for at, size in enumerate(
    [10, 262_143, 262_144, 262_145, 300_000, 5, 900_000, 270_000, 270_000, 270_000, 1]
)]  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=tuple(f"{dialect}=127.0.0.1:0" for dialect in PORTS)) as running:
        yield running


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "in batches"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_values_of_every_size_come_whole(broker: Broker, codec: str, batched: bool) -> None:
    topic = f"large-{codec}-{batched}"
    make_topic(broker, topic)
    settings = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 200 if batched else 0}
    producer = Producer(settings)
    for key, value in RECORDS:
        producer.produce(topic, value, key, partition=0)
        if not batched:
            assert producer.flush(20) == 0
    assert producer.flush(20) == 0
    for reader in ALL:
        wanted = [Pair(key if carries_keys(reader) else b"", value) for key, value in RECORDS]
        found = read(broker, reader, topic)
        assert [len(value) for _, value in found] == [len(value) for _, value in wanted], reader
        assert found == wanted, reader
    assert "Traceback" not in broker.log
