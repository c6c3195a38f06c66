"""The transaction run at full length. `PENSTOCK_RESULTS=1` keeps its figures in results/transactions.json."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.compatibility.transaction_run import BROKER_SETTINGS, TransactionRun
from tests.soak.test_kill_soak import keep

KILLS = 50

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


def test_50_kills_leave_each_input_in_the_output_exactly_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    with Broker(tmp_path / "data", settings=BROKER_SETTINGS) as broker:
        figures = TransactionRun(broker, seed).run(KILLS)
        log = broker.log
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep("transactions", figures.as_json())
    assert bool(figures), str(figures)
    assert "Traceback" not in log, log
