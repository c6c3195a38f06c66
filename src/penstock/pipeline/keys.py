"""Taking the keys of one section of the file, each in the type that it has; what nobody asked for is unknown.

Each method gives the value, or the default after a problem was noted with its line. Durations are written as Spark
writes intervals: `10 seconds`, `1 hour`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.model.topic_config import nearest
from penstock.pipeline.problems import Problems
from penstock.pipeline.tree import Items, Node, Scalar, Section

UNITS_MS: Final = {
    "millisecond": 1,
    "ms": 1,
    "second": 1_000,
    "s": 1_000,
    "minute": 60_000,
    "min": 60_000,
    "hour": 3_600_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "d": 86_400_000,
}
_DURATION = re.compile(r"(\d{1,12})\s*([a-z]+)")


def duration_ms(text: str) -> int | None:
    """ "10 seconds" in milliseconds; None when it is no duration."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        return None
    unit_ms = UNITS_MS.get(match[2]) or UNITS_MS.get(match[2].removesuffix("s"))
    return None if unit_ms is None else int(match[1]) * unit_ms


class Keys:
    """`path` names the section in problems: "sources.orders"."""

    def __init__(self, section: Section, path: str, problems: Problems) -> None:
        self.line = section.line
        self.path = path
        self._section = section
        self._problems = problems
        self._asked: set[str] = set()

    def problem(self, text: str, line: int | None = None) -> None:
        self._problems.add(self.line if line is None else line, text)

    @property
    def problems_so_far(self) -> int:
        return len(self._problems)

    def named(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def line_of(self, key: str) -> int:
        entry = self._section.entries.get(key)
        return self.line if entry is None else entry.line

    def has(self, key: str) -> bool:
        """Whether the file says anything for it."""
        self._asked.add(key)
        return self._node(key) is not None

    def _node(self, key: str) -> Node | None:
        self._asked.add(key)
        entry = self._section.entries.get(key)
        return None if entry is None else entry.node

    def scalar(self, key: str, takes: str, *, required: bool = False) -> Scalar | None:
        node = self._node(key)
        if node is None:
            if required:
                self.problem(f"{self.named(key)} is required ({takes})", self.line_of(key))
            return None
        if not isinstance(node, Scalar):
            self.problem(f"{self.named(key)} must be {takes}, not a {_kind(node)}", self.line_of(key))
            return None
        return node

    def text(self, key: str, takes: str = "a string", *, required: bool = False) -> str | None:
        found = self.scalar(key, takes, required=required)
        if found is not None and not found.text.strip():
            self.problem(f"{self.named(key)} is empty ({takes})", found.line)
            return None
        return None if found is None else found.text

    def text_is(self, key: str, text: str) -> bool:
        node = self._node(key)
        return isinstance(node, Scalar) and node.text == text

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        found = self.text(key, f"one of {', '.join(choices)}")
        if found is None:
            return default
        if found not in choices:
            hint = nearest(found, choices)
            self.problem(f"{self.named(key)} = {found!r} is not one of {', '.join(choices)}{hint}", self.line_of(key))
            return default
        return found

    def whole(self, key: str, default: int, minimum: int, maximum: int) -> int:
        found = self.text(key, "an integer")
        if found is None:
            return default
        if not found.isascii() or not found.isdecimal() or not minimum <= int(found) <= maximum:
            takes = f"an integer from {minimum} to {maximum}"
            self.problem(f"{self.named(key)} = {found!r} is not {takes}", self.line_of(key))
            return default
        return int(found)

    def duration(self, key: str, default_ms: int) -> int:
        found = self.text(key, "a duration such as 10 seconds")
        if found is None:
            return default_ms
        parsed = duration_ms(found)
        if parsed is None:
            self.problem(f"{self.named(key)} = {found!r} is not a duration such as 10 seconds", self.line_of(key))
            return default_ms
        return parsed

    def texts(self, key: str, takes: str) -> tuple[Scalar, ...]:
        """A list of texts; one text alone is a list of one."""
        node = self._node(key)
        if node is None:
            return ()
        if isinstance(node, Scalar):
            return (node,)
        if isinstance(node, Section) or not all(isinstance(item, Scalar) for item in node.nodes):
            self.problem(f"{self.named(key)} must be {takes}", self.line_of(key))
            return ()
        return tuple(item for item in node.nodes if isinstance(item, Scalar))

    def plain(self, key: str) -> dict[str, Scalar]:
        """A mapping of names to texts: options, settings, checks."""
        inner = self.section(key)
        if inner is None:
            return {}
        found = {name: inner.scalar(name, "a single value") for name in inner.names()}
        return {name: scalar for name, scalar in found.items() if scalar is not None}

    def section(self, key: str, *, required: bool = False) -> Keys | None:
        node = self._node(key)
        if node is None:
            if required:
                self.problem(f"{self.named(key)} is required", self.line_of(key))
            return None
        if not isinstance(node, Section):
            self.problem(f"{self.named(key)} must be a mapping of keys to values", self.line_of(key))
            return None
        return Keys(node, self.named(key), self._problems)

    def sections(self) -> Iterator[tuple[str, Keys]]:
        """All entries as sections of their own, by name."""
        for name, entry in self._section.entries.items():
            self._asked.add(name)
            if isinstance(entry.node, Section):
                inner = Keys(entry.node, self.named(name), self._problems)
                inner.line = entry.line
                yield name, inner
            else:
                self.problem(f"{self.named(name)} must be a mapping of keys to values", entry.line)

    def names(self) -> list[str]:
        return list(self._section.entries)

    def node(self, key: str) -> Node | None:
        """For who takes more than one shape."""
        return self._node(key)

    def only_one_of(self, choices: Sequence[str], what: str) -> str | None:
        """The one key of several that is given."""
        given = [key for key in choices if self.has(key)]
        if len(given) == 1:
            return given[0]
        if given:
            self.problem(f"{self.path} has {' and '.join(given)}: {what}", self.line_of(given[1]))
        else:
            near = next((name for name in self.names() if nearest(name, choices)), None)
            hint = "" if near is None else f"; unknown key {near}{nearest(near, choices)}"
            self.problem(f"{self.path} requires one of {', '.join(choices)}: {what}{hint}")
        return None

    def done(self, also_known: Sequence[str] = ()) -> None:
        """No more keys are asked for: what is left is unknown."""
        known = [*sorted(self._asked), *also_known]
        for name, entry in self._section.entries.items():
            if name not in known:
                self.problem(f"unknown key {self.named(name)}{nearest(name, known)}", entry.line)


def _kind(node: Node) -> str:
    return "list" if isinstance(node, Items) else "mapping"
