"""What all tests share: how long hypothesis looks, and the list of failed tests in reports/tests.json.

`PENSTOCK_HYPOTHESIS=thorough` looks longer, `brief` (for `make check`) less long.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the machine that runs the tests is shared, and a slow example is not a wrong one.
settings.register_profile("brief", max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "quick"))

_OUTCOME = Path(__file__).resolve().parents[1] / "reports" / "tests.json"


class _OutcomeReport:
    """Writes the exit code and the failed tests of a run; scripts/rerun-failed reads them."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        _OUTCOME.parent.mkdir(exist_ok=True)
        outcome = {"exit_status": int(exitstatus), "failed": list(self._failed)}
        _OUTCOME.write_text(json.dumps(outcome, indent=2) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist only the controller sees the whole run
        config.pluginmanager.register(_OutcomeReport(), "penstock-outcome-report")
