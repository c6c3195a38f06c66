"""The fuzzer over every session at full length. `PENSTOCK_RESULTS=1` keeps its figures in results/fuzz.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.model.listeners import PORTS
from tests.dialects.test_fuzz_sessions import fuzz
from tests.soak.test_kill_soak import keep

SECONDS_EACH = 120
RUNS_MIN = 5_000
"""Fewer inputs in that time would mean that the sessions became slow, or that the fuzzer did not fuzz."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


def test_two_minutes_of_inputs_make_no_session_fail_hang_or_grow(tmp_path: Path) -> None:
    figures: dict[str, Any] = {"seconds_each": SECONDS_EACH}
    for dialect in PORTS:
        # whatever a session does wrong ends the fuzzer, and `fuzz` with it
        fuzzed = fuzz(dialect, tmp_path / dialect, SECONDS_EACH)
        assert fuzzed.runs > RUNS_MIN, f"{dialect}: {fuzzed}"
        figures[dialect] = fuzzed._asdict()
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep("fuzz", figures)
