"""What every scenario is given: how long to measure, and a place on the disk of the repository."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.processes import ROOT
from bench.result import Result

WORKSPACES = ROOT / "build"


class NoRoom(Exception):
    """The machine lacks what the scenario needs; says what."""


@dataclass(slots=True)
class Run:
    """One scenario's workspace; the log files must lie on a real disk, so it is made in the repository."""

    quick: bool
    workspace: Path

    @property
    def slices(self) -> int:
        return 20 if self.quick else 40

    @property
    def slice_s(self) -> float:
        return 0.1 if self.quick else 0.2

    def directory(self, name: str) -> Path:
        path = self.workspace / name
        path.mkdir()
        return path

    def need_bytes(self, count: int) -> None:
        free = shutil.disk_usage(self.workspace).free
        if free < count:
            raise NoRoom(f"needs {count / 1e9:.0f} GB of disk, {free / 1e9:.0f} GB are free")


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    title: str
    perform: Callable[[Run, Result], None]

    def run(self, quick: bool) -> Result:
        result = Result(self.name, self.title, quick)
        WORKSPACES.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=WORKSPACES) as place:
            self.perform(Run(quick, Path(place)), result)
        return result
