"""What all tests share: how long hypothesis looks. `PENSTOCK_HYPOTHESIS=thorough` looks longer."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: the machine that runs the tests is shared, and a slow example is not a wrong one.
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("PENSTOCK_HYPOTHESIS", "quick"))
