"""FlyMQ's transactions and groups under kill -9, at full length. `PENSTOCK_RESULTS=1` keeps the figures in results/."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.dialects.flymq.kills import BROKER_SETTINGS, LISTEN, MemberKills, TransactionKills
from tests.soak.test_kill_soak import keep

ROUNDS = 200

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


def seed() -> int:
    return int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))


def test_200_kills_in_the_states_of_a_transaction_keep_all_of_each_or_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", listen=LISTEN, settings=BROKER_SETTINGS) as broker:
        figures = TransactionKills(broker, seed()).run(ROUNDS)
        log = broker.log
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep("flymq-transactions", figures.as_json())
    assert figures, f"{figures.as_json()}: {figures}"
    assert "Traceback" not in log, log


def test_200_kills_and_pauses_of_members_give_no_partition_two_owners(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", listen=LISTEN, settings=BROKER_SETTINGS) as broker:
        figures = MemberKills(broker, tmp_path, seed()).run(ROUNDS)
        log = broker.log
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep("flymq-members", figures.as_json())
    assert figures, figures.as_json()
    assert "Traceback" not in log, log
