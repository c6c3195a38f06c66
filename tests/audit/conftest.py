from __future__ import annotations

from tests.cli.conftest import penstock  # noqa: F401 - a fixture for the tests here
