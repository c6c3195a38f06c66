"""The pages that name a test for each promise name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(?:tests/)?([a-z0-9_/]+\.py)(?:::(test_\w+))?`")


@pytest.mark.parametrize("page", ["guarantees.md", "guarantees-kafka.md"])
def test_every_named_test_exists(page: str) -> None:
    named = NAMED.findall((ROOT / "docs" / page).read_text())
    assert len(named) > 20
    for path, test in named:
        text = (ROOT / "tests" / path).read_text()
        assert f"def {test}(" in text if test else "def test_" in text, (path, test)
