"""The YAML of a config file: a mapping, or StartError with the line where it goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from penstock.model.errors import StartError

VALUES_MAX = 100_000
"""Of a file with its aliases written out: a few hundred bytes can stand for billions."""


class _Loader(yaml.SafeLoader):
    """YAML where a key written twice is an error, not a surprise."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # refused by the loader itself
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> dict[Any, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise StartError(f"cannot read config file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"config file {file} is not UTF-8 text") from None
    try:
        content = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise StartError(f"file {file}: {' '.join(_yaml_problem(error))}") from None
    except (
        ValueError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:  # of a date or tag that is none, or nesting
        raise StartError(f"file {file}: not valid YAML: {str(error).splitlines()[0]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise StartError(f"file {file}: expected a mapping of sections, not {type(content).__name__}")
    count = _count(content, {})
    if count is None:
        raise StartError(f"file {file}: a value contains itself")
    if count > VALUES_MAX:
        raise StartError(
            f"file {file}: has {count} values with its aliases written out, at most {VALUES_MAX} are allowed"
        )
    return content


def _count(value: Any, counted: dict[int, int | None]) -> int | None:
    """How many values a text of it would have, without writing it; None if it contains itself."""
    if not isinstance(value, (dict, list, tuple, set)):
        return 1
    if id(value) not in counted:
        counted[id(value)] = None
        total = 1
        for part in value.values() if isinstance(value, dict) else value:
            count = _count(part, counted)
            if count is None:
                return None
            total += count
        counted[id(value)] = total
    return counted[id(value)]


def _yaml_problem(error: yaml.YAMLError) -> Iterator[str]:
    if isinstance(error, yaml.MarkedYAMLError):
        if error.problem_mark is not None:
            yield f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}:"
        yield (error.problem or "not valid YAML").replace("\n", " ")
    else:
        yield str(error).splitlines()[0]
