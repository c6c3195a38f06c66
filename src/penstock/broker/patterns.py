"""The topics that match the patterns of clients.

The first search checks every topic, in slices. Its result is kept, and each later search checks only the topics created or
deleted since, so that a consumer group can resolve all its patterns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from penstock.model import limits
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import is_internal
from penstock.model.slices import Work, at_once

KEPT_MAX = 256
"""Patterns whose topics are kept; the least recently used is dropped first."""
CHANGES_MAX = 10_000
"""Changes that are kept; with more changes all patterns are dropped."""
_SEARCHED_AT_ONCE = 64
"""Names checked between two pauses: about 100 us."""


class _Found:
    __slots__ = ("fits", "names", "seen")

    def __init__(self, fits: Callable[[str], object], seen: int) -> None:
        self.fits = fits
        self.names: set[str] = set()
        self.seen = seen
        """Number of changes that the result includes."""


class Patterns:
    def __init__(self, names: Callable[[], Collection[str]]) -> None:
        self._names = names
        self._kept: dict[str, _Found] = {}
        self._changes: list[str] = []
        self._forgotten = 0
        """Number of changes before the first in `_changes`."""

    def changed(self, names: Iterable[str]) -> None:
        """Note topics that were created or deleted."""
        self._changes.extend(names)
        if len(self._changes) > CHANGES_MAX:
            self._forgotten += len(self._changes)
            self._changes.clear()
            self._kept.clear()

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics whose whole name matches an RE2 pattern. Raises BrokerError if it is invalid or matches too many."""
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
                f"{pattern!r} matches more than {limits.CONSUMER_GROUP_TOPICS_MAX} topics, the limit of a consumer group",
            )


def _compiled(pattern: str) -> Callable[[str], object]:
    import re2

    try:
        fits: Callable[[str], object] = re2.compile(pattern).fullmatch
    except re2.error as error:
        raise BrokerError(Fault.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
    return fits
