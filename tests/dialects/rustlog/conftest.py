from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.dialects.rustlog.service import RustLogService
from penstock.model.listeners import DEFAULTS
from tests.dialects.in_process import Broker
from tests.dialects.rustlog.peer import Peer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with the topic `orders` of two partitions."""
    with Broker(tmp_path / "data", lambda engine: RustLogService(engine, DEFAULTS["rustlog"])) as broker:
        broker.make_topic("orders", 2)
        yield broker


@pytest.fixture
def durable_broker(tmp_path: Path) -> Iterator[Broker]:
    """As it is shipped: nobody reads what is not flushed, and a produce is answered before."""
    with Broker(tmp_path / "d", lambda engine: RustLogService(engine, DEFAULTS["rustlog"]), flush="acks") as broker:
        broker.make_topic("orders", 2)
        yield broker


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return Peer(broker)
