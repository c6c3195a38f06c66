"""Which views a query reads, told from its text alone.

No parser of Spark's SQL: the words behind FROM, JOIN and TABLE, less the names that WITH defines, functions, paths and
names with a dot. That is enough to find a view that nobody declared before Spark starts; whatever else is wrong with the
text Spark finds, and `building` adds the file's line to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<text>r?'(?:[^'\\]|\\.)*'|r?"(?:[^"\\]|\\.)*")
      | (?P<name>`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>\d[\w.]*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_STARTS: Final = ("select", "with", "from", "values", "table", "(")
_BEFORE_TABLES: Final = frozenset({"from", "join"})
_AFTER_TABLES: Final = frozenset(
    {
        *("where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "window", "qualify"),
        *("union", "intersect", "except", "minus", "select", "on", "using"),
    }
)
_FROM_IN_CALL: Final = frozenset({"extract", "trim", "substring", "substr", "overlay"})
"""Functions with a FROM of their own: extract(YEAR FROM day)."""
_NO_TABLE: Final = frozenset({"lateral", "values", "select", "with", "table", "stream"})


class InvalidSql(ValueError):
    """`line` is counted from 0 within the text."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


class ViewName(NamedTuple):
    name: str
    line: int


class _Word(NamedTuple):
    kind: str
    text: str
    line: int

    @property
    def lower(self) -> str:
        return self.text.lower()


def view_names(sql: str) -> list[ViewName]:
    """The views that a query reads, each where it is named first; raises InvalidSql."""
    words = list(_words(sql))
    if not words:
        raise InvalidSql("the query is empty", 0)
    if words[0].lower not in _STARTS:
        raise InvalidSql(f"a transform must start with SELECT or WITH, not {words[0].text}", words[0].line)
    defined = _defined(words)
    found: dict[str, ViewName] = {}
    for word in _tables(words):
        name = word.text[1:-1].replace("``", "`") if word.text.startswith("`") else word.text
        if name.lower() not in defined:
            found.setdefault(name.lower(), ViewName(name, word.line))
    return list(found.values())


def _words(sql: str) -> Iterator[_Word]:
    line = 0
    open_brackets: list[int] = []
    ended = False
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup or "mark", match[0]
        here = line
        line += text.count("\n")
        if kind in ("space", "comment"):
            continue
        if text == ";":
            ended = True
            continue
        if ended:
            raise InvalidSql("a transform must be a single query, but there is a second statement", here)
        if kind == "mark" and text in "'\"`":
            raise InvalidSql(f"unclosed {text}", here)
        if text == "(":
            open_brackets.append(here)
        elif text == ")":
            if not open_brackets:
                raise InvalidSql("unexpected )", here)
            open_brackets.pop()
        yield _Word(kind, text, here)
    if open_brackets:
        raise InvalidSql("unclosed (", open_brackets[-1])


def _defined(words: list[_Word]) -> set[str]:
    """Names of common table expressions: NAME [(columns)] AS ( after WITH or a comma."""
    names: set[str] = set()
    if not any(word.lower == "with" for word in words):
        return names
    for at, word in enumerate(words[:-2]):
        if word.kind != "name" or at == 0 or words[at - 1].lower not in ("with", ",", "recursive"):
            continue
        behind = at + 1
        if words[behind].text == "(":
            while behind < len(words) and words[behind].text != ")":
                behind += 1
            behind += 1
        if behind + 1 < len(words) and words[behind].lower == "as" and words[behind + 1].text == "(":
            names.add(word.lower.strip("`"))
    return names


class _Level:
    """What is known inside one pair of brackets."""

    __slots__ = ("in_call", "in_tables", "wants_table")

    def __init__(self, *, in_call: bool, wants_table: bool) -> None:
        self.in_call = in_call
        self.wants_table = wants_table
        self.in_tables = wants_table


def _tables(words: list[_Word]) -> Iterator[_Word]:
    levels = [_Level(in_call=False, wants_table=False)]
    for at, word in enumerate(words):
        level = levels[-1]
        before = words[at - 1].lower if at else ""
        if word.text == "(":
            # FROM (a JOIN b ON ...): the bracket begins with a table where one was expected
            after = words[at + 1].lower if at + 1 < len(words) else ""
            nested = level.wants_table and after not in ("select", "with", "from", "values", "table")
            level.wants_table = False
            levels.append(_Level(in_call=before in _FROM_IN_CALL, wants_table=nested))
        elif word.text == ")":
            if len(levels) > 1:
                levels.pop()
        elif word.lower in _BEFORE_TABLES and word.kind == "name":
            # a IS DISTINCT FROM b; extract(YEAR FROM day)
            is_distinct = before == "distinct" and at >= 2 and words[at - 2].lower in ("is", "not")
            if not level.in_call and not is_distinct:
                level.wants_table = level.in_tables = True
        elif word.text == "," and level.in_tables:
            level.wants_table = True
        elif word.kind == "name" and (word.lower in _AFTER_TABLES or (word.lower == "view" and before == "lateral")):
            level.in_tables = level.wants_table = False
        elif level.wants_table:
            level.wants_table = False
            if word.kind == "name" and word.lower not in _NO_TABLE and not _goes_on(words, at):
                yield word
            elif word.lower == "table" and at + 1 < len(words) and words[at + 1].text != "(":
                level.wants_table = True
        elif word.lower == "table" and at + 1 < len(words) and (at == 0 or before in ("(", "union", "all")):
            level.wants_table = True


def _goes_on(words: list[_Word], at: int) -> bool:
    """Whether the name is a function or has a dot: not a view of the pipeline."""
    return at + 1 < len(words) and words[at + 1].text in ("(", ".")
