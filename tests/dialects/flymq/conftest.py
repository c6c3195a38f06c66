from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dialects.flymq.broker import Broker, Wire


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path) as started:
        yield started


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with broker.connect() as connected:
        yield connected
