"""A consume-transform-produce loop whose clients and broker are killed delivers each input exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.compatibility.transaction_run import BROKER_SETTINGS, TransactionRun

KILLS = 5


@pytest.mark.timeout(400)
def test_each_input_is_in_the_output_exactly_once(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    with Broker(tmp_path / "data", settings=BROKER_SETTINGS) as broker:
        figures = TransactionRun(broker, seed).run(KILLS)
        assert bool(figures), str(figures)
        assert figures.inputs > 100
        assert "Traceback" not in broker.log, broker.log
