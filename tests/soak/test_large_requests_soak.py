"""Every large request of every API in every version: no ping of another client takes 50 ms of broker CPU time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from penstock import Broker
from penstock.dialects.kafka.apis import APIS
from tests.raw_peer import api_versions, metadata
from tests.server.large_requests import Known, Ping, kafka_requests, too_long
from tests.server.test_large_requests import SERVED, SETTINGS, address, filled

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running
        broker.kill()


@pytest.fixture(scope="module")
def known(broker: Broker) -> Known:
    return filled(broker)


@pytest.mark.parametrize("key", SERVED, ids=[APIS[key].name for key in SERVED])
def test_pings_do_not_wait_for_any_large_request(broker: Broker, known: Known, key: int) -> None:
    pick = random.Random(key)
    with (
        Ping(address(broker), broker.pid, api_versions()) as one,
        Ping(address(broker), broker.pid, metadata(known.names[1])) as other,
    ):
        complaints = [
            too_long(pick.choice((one, other)), address(broker), make())
            for version in range(APIS[key].version_min, APIS[key].version_max + 1)
            for make in kafka_requests(key, version, pick, known)
        ]
    assert not [complaint for complaint in complaints if complaint is not None]
