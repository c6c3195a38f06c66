"""The rebalance run at full length: a thousand rebalances over three protocols."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.compatibility.rebalance_run import BROKER_SETTINGS, PROTOCOLS, RebalanceRun
from tests.soak.test_kill_soak import keep

REBALANCES = {"eager": 334, "cooperative": 333, "consumer": 333}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_1000_rebalances_leave_every_partition_one_owner(tmp_path: Path, protocol: str) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    with Broker(tmp_path / "data", settings=BROKER_SETTINGS) as broker:
        findings = RebalanceRun(broker, protocol, tmp_path, seed).run(REBALANCES[protocol])
        log = broker.log
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep(f"rebalances-{protocol}", {"seed": seed, **findings.as_json()})
    assert bool(findings), f"seed {seed}\n{findings}"
    assert findings.rebalances >= REBALANCES[protocol]
    assert "Traceback" not in log, log
