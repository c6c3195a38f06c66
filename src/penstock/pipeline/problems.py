"""What is wrong with a pipeline's file, each with its line; all of them at once, not the first alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Problem(NamedTuple):
    line: int
    text: str


class InvalidPipeline(Exception):
    """The file cannot be run as it is. `str` is one line a problem, each as FILE:LINE: what is wrong."""

    def __init__(self, file: Path, problems: list[Problem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        super().__init__("\n".join(f"{file}:{line}: {text}" for line, text in self.problems))


class Problems:
    """What was found so far. Reading goes on after a problem, with nothing in place of what was wrong."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._found: list[Problem] = []

    def add(self, line: int, text: str) -> None:
        self._found.append(Problem(line, text))

    def __len__(self) -> int:
        return len(self._found)

    def raise_if_any(self) -> None:
        if self._found:
            raise InvalidPipeline(self.file, self._found)


class PipelineFailed(Exception):
    """A pipeline that was valid did not run, in one line."""
