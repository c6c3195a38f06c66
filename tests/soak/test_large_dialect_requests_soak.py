"""Every large request of every small dialect: no ping of another client takes 50 ms of broker CPU time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock import Broker
from tests.raw_peer import api_versions
from tests.server.large_dialect_requests import PINGS, PROVIDERS
from tests.server.large_requests import Known, Ping, too_long
from tests.server.test_large_dialect_requests import LISTEN, SETTINGS, address_of, prepared

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=LISTEN, settings=SETTINGS) as broker:
        yield broker
        assert "Traceback" not in broker.log, broker.log
        assert broker.running
        broker.kill()


@pytest.fixture(scope="module")
def known(broker: Broker) -> Iterator[Known]:
    with prepared(broker) as known:
        yield known


@pytest.mark.parametrize("pings_in", ["kafka", "the same dialect"])
@pytest.mark.parametrize("form", PROVIDERS)
def test_pings_do_not_wait_for_any_large_request(broker: Broker, known: Known, form: str, pings_in: str) -> None:
    complaints = []
    for large in PROVIDERS[form](known):
        dialect = "kafka" if pings_in == "kafka" else large.dialect
        frame = api_versions() if dialect == "kafka" else PINGS[dialect]
        with Ping(address_of(broker, dialect), broker.pid, frame, dialect) as ping:
            complaints.append(too_long(ping, address_of(broker, large.dialect), large))
    assert not [complaint for complaint in complaints if complaint is not None]
