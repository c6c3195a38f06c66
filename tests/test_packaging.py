"""The package's metadata and the texts and files that refer to it agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_install_hints_name_the_distribution_and_an_existing_extra() -> None:
    hints = [hint for source in SOURCES for hint in re.findall(r"pip install '([^']*)'", source.read_text())]
    assert hints
    for hint in hints:
        name, extra = re.fullmatch(r"([\w.-]*)\[(\w+)\]", hint).groups()  # type: ignore[union-attr]
        assert name == PROJECT["name"]
        assert extra in PROJECT["optional-dependencies"]


def test_the_package_carries_the_marker_for_type_checkers() -> None:
    assert (ROOT / "src/penstock/py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]
