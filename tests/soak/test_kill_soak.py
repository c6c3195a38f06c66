"""The kill run at full length. `PENSTOCK_RESULTS=1` keeps its figures in results/kill.json."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
from pathlib import Path

import pytest

from penstock import Broker
from tests.kill_run import kill_run

RESULTS = Path(__file__).parent / "results"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


def test_25_kills_lose_double_and_move_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    cycles = int(os.environ.get("PENSTOCK_CYCLES", "25"))
    with Broker(tmp_path / "data", settings={"storage.checkpoint_interval_ms": 500}) as broker:
        figures = kill_run(broker, cycles, seed)
        log = broker.log
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep("kill", figures.as_json())
    assert figures.verdict, f"seed {seed}\n{figures.verdict}"
    assert figures.unknown == 0
    assert figures.polled >= figures.acknowledged > 1_000 * cycles
    assert "Traceback" not in log, log


def keep(name: str, figures: dict[str, object]) -> None:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, cwd=RESULTS.parent
    )
    where = {"commit": commit.stdout.strip(), "python": platform.python_version(), "machine": platform.machine()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**where, **figures}, indent=2) + "\n")
