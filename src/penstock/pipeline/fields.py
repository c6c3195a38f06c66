"""The schema of decoded values: names and Spark's SQL types, checked before there is a Spark to ask.

Written as Spark writes it, `id BIGINT NOT NULL, tags ARRAY<STRING>`, or as a mapping of names to types. What is not null
here is demanded of every row; Spark's own readers take NOT NULL for a promise and do not check it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.topic_config import nearest

SIMPLE: Final = frozenset(
    {
        *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"),
        *("float", "real", "double", "string", "binary", "variant"),
        *("date", "timestamp", "timestamp_ltz", "timestamp_ntz"),
    }
)
SIZED: Final = {"decimal": (0, 2), "dec": (0, 2), "numeric": (0, 2), "char": (1, 1), "varchar": (1, 1)}
"""Types with numbers in brackets: how few and how many."""
NESTED: Final = ("array", "map", "struct")
DEPTH_MAX: Final = 32

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")


class InvalidSchema(ValueError):
    """The text is no schema; `line` is counted from 0 within it."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line = line


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    required: bool = False

    @property
    def ddl(self) -> str:
        return f"{quoted(self.name)} {self.type}"


def quoted(name: str) -> str:
    """A name as SQL takes any name."""
    return "`" + name.replace("`", "``") + "`"


def ddl(fields: tuple[Field, ...]) -> str:
    return ", ".join(field.ddl for field in fields)


def parse_fields(text: str) -> tuple[Field, ...]:
    """The fields of a schema text; raises InvalidSchema."""
    parser = _Parser(text)
    fields = [parser.field()]
    while parser.takes(","):
        fields.append(parser.field())
    parser.end()
    _refuse_twins(fields)
    return tuple(fields)


def parse_type(text: str) -> tuple[str, bool]:
    """A type, and whether NOT NULL stands behind it; raises InvalidSchema."""
    parser = _Parser(text)
    found = parser.type(0), parser.not_null()
    parser.end()
    return found


def _refuse_twins(fields: list[Field]) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name.lower() in seen:
            raise InvalidSchema(f"duplicate column {field.name}", 0)
        seen.add(field.name.lower())


class _Word(NamedTuple):
    text: str
    line: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._words: list[_Word] = []
        self._at = 0
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            line = text.count("\n", 0, position if match is None else match.start(1))
            if match is None:
                raise InvalidSchema(f"{stripped[position:].split()[0]!r} is not valid in a schema", line)
            self._words.append(_Word(match[1], line))
            position = match.end()
        self._last_line = text.count("\n", 0, len(stripped))

    def _next(self, what: str) -> _Word:
        if self._at >= len(self._words):
            raise InvalidSchema(f"the schema ends where {what} is expected", self._last_line)
        self._at += 1
        return self._words[self._at - 1]

    def takes(self, text: str) -> bool:
        if self._at < len(self._words) and self._words[self._at].text.lower() == text:
            self._at += 1
            return True
        return False

    def demand(self, text: str, after: str) -> None:
        if not self.takes(text):
            line = self._words[self._at].line if self._at < len(self._words) else self._last_line
            raise InvalidSchema(f"{text!r} is missing after {after}", line)

    def end(self) -> None:
        if self._at < len(self._words):
            word = self._words[self._at]
            raise InvalidSchema(f"{word.text!r} is unexpected; expected NAME TYPE, separated by commas", word.line)

    def field(self, depth: int = 0) -> Field:
        name = self._name()
        self.takes(":")
        return Field(name, self.type(depth), self.not_null())

    def _name(self) -> str:
        word = self._next("a column name")
        if word.text.startswith("`"):
            return word.text[1:-1].replace("``", "`")
        if not re.match(r"[A-Za-z_]", word.text):
            raise InvalidSchema(f"{word.text!r} is not a column name", word.line)
        return word.text

    def not_null(self) -> bool:
        if self.takes("not"):
            self.demand("null", "NOT")
            return True
        return False

    def type(self, depth: int) -> str:
        word = self._next("a type")
        name = word.text.lower()
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"types are nested more than {DEPTH_MAX} levels deep", word.line)
        if name == "array":
            self.demand("<", "ARRAY")
            inner = self.type(depth + 1)
            self.demand(">", f"ARRAY<{inner}")
            return f"array<{inner}>"
        if name == "map":
            self.demand("<", "MAP")
            key = self.type(depth + 1)
            self.demand(",", f"MAP<{key}")
            value = self.type(depth + 1)
            self.demand(">", f"MAP<{key}, {value}")
            return f"map<{key}, {value}>"
        if name == "struct":
            return self._struct(depth)
        if name in SIZED:
            return name + self._sizes(name, *SIZED[name])
        if name not in SIMPLE:
            raise InvalidSchema(f"unknown type {word.text}{nearest(name, [*SIMPLE, *SIZED, *NESTED])}", word.line)
        return name

    def _struct(self, depth: int) -> str:
        self.demand("<", "STRUCT")
        fields = [self.field(depth + 1)]
        while self.takes(","):
            fields.append(self.field(depth + 1))
        self.demand(">", "the columns of STRUCT")
        _refuse_twins(fields)
        return f"struct<{', '.join(f'{quoted(field.name)}: {field.type}' for field in fields)}>"

    def _sizes(self, name: str, least: int, most: int) -> str:
        if not self.takes("("):
            if least:
                raise InvalidSchema(
                    f"{name.upper()} requires a length: {name.upper()}(20)", self._words[self._at - 1].line
                )
            return ""
        sizes = [self._size(name)]
        while self.takes(","):
            sizes.append(self._size(name))
        self.demand(")", name.upper())
        if len(sizes) > most:
            raise InvalidSchema(f"{name.upper()} accepts at most {most} numbers", self._words[self._at - 1].line)
        return f"({', '.join(sizes)})"

    def _size(self, name: str) -> str:
        word = self._next("a number")
        if not word.text.isdecimal():
            raise InvalidSchema(f"{name.upper()} requires numbers in its parentheses, not {word.text!r}", word.line)
        return word.text
