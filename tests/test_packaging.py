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


def test_every_runtime_dependency_has_a_decision_record() -> None:
    records = "".join(page.read_text() for page in (ROOT / "docs/adr").glob("0*.md"))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(name for extra in extras.keys() - {"test"} for name in extras[extra])]
    names = {re.match(r"[\w.-]+", name)[0].lower() for name in wanted} - {PROJECT["name"]}  # type: ignore[index]
    assert {name for name in names if f"`{name}`" not in records} == set()


def test_versions_and_pythons_agree() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/penstock/model/version.py").read_text())
    assert version
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
    pythons = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = ", ".join(f'"{python}"' for python in pythons)
    assert f"python: [{matrix}]" in (ROOT / ".github/workflows/check.yml").read_text()
