"""What the pages about the dialects say is proved is proved: the tests that they name exist, and no row is empty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.dialects import SERVICES

TESTS = Path(__file__).parents[1]
PAGES = TESTS.parent / "docs/dialects"
COVERAGE = (PAGES / "coverage.md").read_text()

_NAME = re.compile(r"`(test_\w+)`")
_FILE = re.compile(r"tests/[\w/]+(?:\.py)?")


def known_tests(dialect: str) -> set[str]:
    return names_in([*(TESTS / "dialects" / dialect).glob("test_*.py"), TESTS / f"client/test_{dialect}.py"])


def names_in(files: list[Path]) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", "".join(path.read_text() for path in files), re.MULTILINE))


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of the tables, without their heads."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---") and "answered by" not in line:
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("dialect", SERVICES)
def test_every_section_of_a_document_is_answered_by_tests_that_exist_or_says_why_not(dialect: str) -> None:
    part = re.search(rf"^## {SERVICES[dialect]}\n(.*?)(?=^## |\Z)", COVERAGE, re.MULTILINE | re.DOTALL)
    assert part is not None
    there = known_tests(dialect)
    found = list(rows(part.group(1)))
    assert len(found) >= 10
    for section, answered_by, why_not in found:
        named = set(_NAME.findall(answered_by))
        places = [TESTS.parent / place for place in _FILE.findall(answered_by)]
        assert all(place.exists() for place in places), section
        elsewhere = names_in([place for place in places if place.suffix == ".py"])
        assert named <= there | elsewhere, f"{section}: {named - there - elsewhere}"
        assert named or places or why_not, section


@pytest.mark.parametrize("dialect", SERVICES)
def test_every_row_of_a_conformance_table_names_tests_that_exist(dialect: str) -> None:
    table = (PAGES / f"{dialect}.md").read_text().split("## Conformance")[1]
    there = known_tests(dialect)
    found = [cells for cells in rows(table) if cells[-1] != "test"]
    assert len(found) > 20
    for *_, tests in found:
        named = set(_NAME.findall(tests))
        files = re.findall(r"`(?:tests/[\w/]+/)?(test_\w+\.py)`", tests)
        assert named or files, tests
        assert named <= there, named - there
        assert all(any(TESTS.rglob(file)) for file in files), files
