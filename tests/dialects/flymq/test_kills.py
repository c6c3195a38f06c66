"""kill -9 in each state of a transaction, and members of a group killed and paused: twenty rounds of each.

Two hundred of each run with `make soak`; what they found is in tests/soak/results.
"""

from __future__ import annotations

from pathlib import Path

from penstock import Broker
from tests.dialects.flymq.kills import BROKER_SETTINGS, LISTEN, STATES, MemberKills, TransactionKills

ROUNDS = 20
SEED = 20


def test_a_broker_that_is_killed_in_any_state_of_a_transaction_keeps_all_of_it_or_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", listen=LISTEN, settings=BROKER_SETTINGS) as broker:
        figures = TransactionKills(broker, SEED).run(ROUNDS)
        log = broker.log
    assert figures, f"{figures.as_json()}: {figures}"
    assert set(figures.kills) == set(STATES)
    assert figures.records > ROUNDS
    assert "Traceback" not in log, log


def test_members_that_are_killed_and_paused_never_share_a_partition_in_a_generation(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", listen=LISTEN, settings=BROKER_SETTINGS) as broker:
        figures = MemberKills(broker, tmp_path, SEED).run(ROUNDS)
        log = broker.log
    assert figures, figures.as_json()
    assert min(figures.done["killed"], figures.done["paused"]) > 4
    assert figures.generations >= 2 * ROUNDS
    assert "Traceback" not in log, log
