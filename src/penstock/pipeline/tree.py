"""The YAML of a pipeline's file as a tree where everything knows its line.

Values are texts as they were written: what a key takes is known to who reads the key. `${NAME}` becomes the environment's
value and `${NAME:-text}` has a text for when there is none. A key written twice is a problem, not a surprise; merge
keys (`<<`) and anchors work as in any YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.pipeline.problems import InvalidPipeline, Problem, Problems

NODES_MAX: Final = 20_000
DEPTH_MAX: Final = 50
"""Aliases of aliases can make a small file endless."""

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text. `first_line` is where the text itself begins: one below its `|` in a block."""

    line: int
    text: str
    first_line: int
    is_block: bool = False
    tag: str = "str"
    """What YAML takes it for: str, int, float, bool or another of its types."""


@dataclass(frozen=True, slots=True)
class Items:
    line: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's line and its value; None where the file says nothing."""

    line: int
    node: Node | None


@dataclass(frozen=True, slots=True)
class Section:
    line: int
    entries: Mapping[str, Entry]


Node = Scalar | Items | Section


def read_tree(file: Path, environment: Mapping[str, str]) -> tuple[Section, Problems]:
    """The file's top level and the problems found on the way; raises InvalidPipeline when there is no tree to go on with."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidPipeline(file, [Problem(1, f"cannot read the file: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidPipeline(file, [Problem(1, "not UTF-8 text")]) from None
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise InvalidPipeline(file, [Problem(line, " ".join((error.problem or "not valid YAML").split()))]) from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise InvalidPipeline(file, [Problem(line, " ".join(str(error).split()))]) from None
    if not isinstance(root, yaml.MappingNode):
        raise InvalidPipeline(file, [Problem(1, "expected a mapping with sources and flows")])
    problems = Problems(file)
    section = _Growing(environment, problems).section(root)
    return section, problems


class _Growing:
    """From PyYAML's nodes to ours."""

    def __init__(self, environment: Mapping[str, str], problems: Problems) -> None:
        self._environment = environment
        self._problems = problems
        self._nodes = 0
        self._depth = 0
        self._merger = yaml.constructor.SafeConstructor()

    def section(self, node: yaml.MappingNode) -> Section:
        self._refuse_twins(node)
        try:
            self._merger.flatten_mapping(node)
        except RecursionError:
            self._problems.add(node.start_mark.line + 1, "the merge key merges itself")
            return Section(node.start_mark.line + 1, {})
        except yaml.constructor.ConstructorError as error:
            line = error.problem_mark.line if error.problem_mark is not None else node.start_mark.line
            self._problems.add(line + 1, error.problem or "the merge key is not valid")
        entries: dict[str, Entry] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                entries[key.value] = Entry(key.start_mark.line + 1, self._node(value))
            else:
                self._problems.add(key.start_mark.line + 1, "a key must be a string")
        return Section(node.start_mark.line + 1, entries)

    def _refuse_twins(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    self._problems.add(key.start_mark.line + 1, f"duplicate key {key.value}")
                seen.add(key.value)

    def _node(self, node: yaml.Node) -> Node | None:
        """A node of the file, or what an alias stands for; None where there is nothing."""
        line = node.start_mark.line + 1
        self._nodes += 1
        self._depth += 1
        if self._nodes > NODES_MAX or self._depth > DEPTH_MAX:
            what = f"more than {NODES_MAX} values or is nested more than {DEPTH_MAX} levels deep"
            raise InvalidPipeline(self._problems.file, [Problem(line, f"the file has {what}")])
        try:
            return self._grown(node, line)
        finally:
            self._depth -= 1

    def _grown(self, node: yaml.Node, line: int) -> Node | None:
        if isinstance(node, yaml.MappingNode):
            return self.section(node)
        if isinstance(node, yaml.SequenceNode):
            return Items(line, tuple(item for item in map(self._node, node.value) if item is not None))
        assert isinstance(node, yaml.ScalarNode)
        if node.tag == _NULL:
            return None
        style: str | None = node.style
        is_block = style == "|"
        first_line = line + 1 if style in ("|", ">") else line
        return Scalar(line, self._filled_in(node.value, line), first_line, is_block, node.tag.rpartition(":")[2])

    def _filled_in(self, text: str, line: int) -> str:
        def value(match: re.Match[str]) -> str:
            found: str | None = self._environment.get(match["name"], match["default"])
            if found is None:
                self._problems.add(
                    line, f"environment variable {match['name']} is not set (used in ${{{match['name']}}})"
                )
                return ""
            return found

        return _VARIABLE.sub(value, text)


def value_of(node: Node | None) -> Any:
    """A node as a program takes it: numbers and truth values where YAML has them, lists and mappings of these."""
    if isinstance(node, Section):
        return {name: value_of(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, Items):
        return [value_of(item) for item in node.nodes]
    if node is None:
        return None
    if node.tag in ("int", "float", "bool"):
        return yaml.safe_load(node.text)
    return node.text
