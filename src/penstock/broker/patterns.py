"""The topics that clients' patterns stand for.

The first search looks at every topic, in slices. What it found is kept, and each later question looks only at the topics
that came or went since, so that a consumer group can ask for all its patterns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from penstock.model import limits
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import is_internal
from penstock.model.slices import Work, at_once

KEPT_MAX = 256
"""Patterns whose topics are kept; the one that was asked for longest ago goes first."""
CHANGES_MAX = 10_000
"""Changes that are kept; all patterns are forgotten beyond it."""
_SEARCHED_AT_ONCE = 64
"""Names looked at between two pauses: some 100 us."""


class _Found:
    __slots__ = ("fits", "names", "seen")

    def __init__(self, fits: Callable[[str], object], seen: int) -> None:
        self.fits = fits
        self.names: set[str] = set()
        self.seen = seen
        """How many changes it knows of."""


class Patterns:
    def __init__(self, names: Callable[[], Collection[str]]) -> None:
        self._names = names
        self._kept: dict[str, _Found] = {}
        self._changes: list[str] = []
        self._forgotten = 0
        """Changes before the first in `_changes`."""

    def changed(self, names: Iterable[str]) -> None:
        """These topics came or went."""
        self._changes.extend(names)
        if len(self._changes) > CHANGES_MAX:
            self._forgotten += len(self._changes)
            self._changes.clear()
            self._kept.clear()

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name fits a client's RE2 pattern; raises BrokerError when it is none, or fits too many."""
        return at_once(self.matching_in_slices(pattern))

    def matching_in_slices(self, pattern: str) -> Work[frozenset[str]]:
        found = self._kept.pop(pattern, None)
        while found is None or found.seen < self._forgotten:
            found = _Found(_compiled(pattern), self._forgotten + len(self._changes))
            for number, name in enumerate(tuple(self._names())):
                self._look_at(found, name, pattern)
                if number % _SEARCHED_AT_ONCE == 0:
                    yield None
        names = self._names()
        for name in self._changes[found.seen - self._forgotten :]:
            if name in names:
                self._look_at(found, name, pattern)
            else:
                found.names.discard(name)
        found.seen = self._forgotten + len(self._changes)
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[pattern] = found
        return frozenset(found.names)

    @staticmethod
    def _look_at(found: _Found, name: str, pattern: str) -> None:
        if is_internal(name) or not found.fits(name):
            return
        found.names.add(name)
        if len(found.names) > limits.CONSUMER_GROUP_TOPICS_MAX:
            raise BrokerError(
                Fault.INVALID_REQUEST,
                f"{pattern!r} matches more than {limits.CONSUMER_GROUP_TOPICS_MAX} topics, the most of a consumer group",
            )


def _compiled(pattern: str) -> Callable[[str], object]:
    import re2

    try:
        fits: Callable[[str], object] = re2.compile(pattern).fullmatch
    except re2.error as error:
        raise BrokerError(Fault.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
    return fits
