from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.minikafka.service import MiniKafkaService
from penstock.dialects.minikafka.session import MiniKafkaSession
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker, InProcessPeer


class Peer(InProcessPeer):
    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, MiniKafkaSession(broker.service, "peer"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", lambda engine: MiniKafkaService(engine, DEFAULTS["minikafka"])) as broker:
        yield broker


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return Peer(broker)
