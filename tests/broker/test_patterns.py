"""Patterns of consumer groups: which topics they stand for, and what it costs to ask again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import patterns
from penstock.broker.patterns import Patterns
from penstock.model import limits
from penstock.model.errors import BrokerError, Fault
from penstock.model.slices import at_once


class Catalogue:
    """Topics that come and go."""

    def __init__(self, *names: str) -> None:
        self.names = dict.fromkeys(names)
        self.searches = 0
        self.patterns = Patterns(self._existing)

    def _existing(self) -> dict[str, None]:
        self.searches += 1
        return self.names

    def change(self, *names: str) -> None:
        for name in names:
            if name in self.names:
                del self.names[name]
            else:
                self.names[name] = None
        self.patterns.changed(names)


def test_pattern_matches_whole_names_and_no_internal_topics() -> None:
    catalogue = Catalogue("a", "ab", "ba", "__consumer_offsets")
    assert catalogue.patterns.matching("a.*") == {"a", "ab"}
    assert catalogue.patterns.matching(".*") == {"a", "ab", "ba"}


def test_a_bad_pattern_is_an_error() -> None:
    with pytest.raises(BrokerError) as error:
        Catalogue("a").patterns.matching("(")
    assert error.value.fault is Fault.INVALID_REGULAR_EXPRESSION


@given(
    st.lists(st.tuples(st.sampled_from(["a.*", ".*b", "c|d"]), st.lists(st.sampled_from(["a", "ab", "b", "c", "d"]))))
)
def test_created_and_deleted_topics_are_detected(steps: list[tuple[str, list[str]]]) -> None:
    catalogue = Catalogue("a", "d")
    for pattern, changed in steps:
        catalogue.change(*changed)
        assert catalogue.patterns.matching(pattern) == Patterns(lambda: catalogue.names).matching(pattern)


def test_known_pattern_checks_only_changes() -> None:
    catalogue = Catalogue(*(f"t{number}" for number in range(1_000)))
    first = sum(1 for _ in catalogue.patterns.matching_in_slices("t.*"))
    catalogue.change("t1", "new")
    again = sum(1 for _ in catalogue.patterns.matching_in_slices("t.*"))
    assert (first > 10, again) == (True, 0)


def test_changes_and_patterns_that_are_kept_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "CHANGES_MAX", 3)
    monkeypatch.setattr(patterns, "KEPT_MAX", 2)
    catalogue = Catalogue("a")
    assert catalogue.patterns.matching("a.*") == {"a"}
    catalogue.change("ab", "ac", "b", "a")
    assert catalogue.patterns.matching("a.*") == {"ab", "ac"}
    for pattern in ("x", "y", "z"):
        catalogue.patterns.matching(pattern)
    assert sum(1 for _ in catalogue.patterns.matching_in_slices("a.*")) > 0, "it was forgotten"


def test_changes_during_a_search_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "CHANGES_MAX", 3)
    for changes in (["ab"], ["ab", "ac", "ad", "ae"]):
        catalogue = Catalogue(*(f"a{number}" for number in range(200)))
        search = catalogue.patterns.matching_in_slices("a.*")
        next(search)
        catalogue.change("a1", *changes)
        assert at_once(search) == set(catalogue.names)


@pytest.mark.parametrize("too_many", [0, 1])
def test_a_pattern_may_fit_a_limited_number_of_topics(too_many: int) -> None:
    most = limits.CONSUMER_GROUP_TOPICS_MAX
    catalogue = Catalogue(*(f"t{number}" for number in range(most)))
    catalogue.patterns.matching("t.*")
    if too_many:
        catalogue.change("t-new")
        with pytest.raises(BrokerError, match=str(most)):
            catalogue.patterns.matching("t.*")
        catalogue.change("t-new")
    assert len(catalogue.patterns.matching("t.*")) == most
