"""pytest fixtures of Penstock: `penstock_broker`, one broker for the whole test session.

def test_orders(penstock_broker):
    producer = Producer({"bootstrap.servers": penstock_broker.bootstrap})
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.server.embedding import Broker


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    """A running broker with a temporary data directory; use topic names of your own in each test."""
    with Broker() as broker:
        yield broker
