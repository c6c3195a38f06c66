"""What a scenario found: the checks against their bars, the measurements, and the machine it ran on, as JSON."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.method import Latencies, Series
from bench.processes import ROOT

RESULTS = ROOT / "bench" / "results"
RAW = ROOT / "reports" / "bench"
"""Slices of the last run, one file per scenario; not committed."""


@dataclass(slots=True)
class Check:
    """One promise: the bar, and what was measured."""

    what: str
    measured: float
    bar: float
    unit: str = "x"
    at_least: bool = True
    """False: at most."""
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar

    @property
    def against_bar(self) -> float:
        """1 is the bar, more is better."""
        if self.at_least:
            return self.measured / self.bar
        return self.bar / self.measured if self.measured > 0 else math.inf


@dataclass(slots=True)
class Measure:
    """One line of the table; what does not apply is None."""

    name: str
    requests_s: float | None = None
    records_s: float | None = None
    mb_s: float | None = None
    mb_cpu_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    cpu_us_request: float | None = None
    cpu_s_million: float | None = None
    """CPU seconds that a million records took."""
    broker_cpu_s_million: float | None = None
    """The broker's part, where the subject is not the broker."""
    cpu_cores: float | None = None
    rss_mb: float | None = None
    load_cores: float | None = None
    spread_low: float | None = None
    """p25 of what the check compares, as a share of the best quarter."""
    spread_high: float | None = None
    reference: bool = False
    """Not the broker, but what it is compared with."""


@dataclass(slots=True)
class Curve:
    title: str
    x: str
    y: str
    points: list[tuple[float, float]]


@dataclass(slots=True)
class Result:
    name: str
    title: str
    quick: bool
    checks: list[Check] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slices: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def check(
        self, what: str, measured: float, bar: float, *, unit: str = "x", at_least: bool = True, note: str = ""
    ) -> None:
        self.checks.append(Check(what, measured, bar, unit, at_least, note))

    def add_series(
        self,
        series: Series,
        latencies: Latencies | None = None,
        rss_bytes: int | None = None,
        *,
        unit: str = "requests",
        by_cpu: bool = False,
        reference: bool = False,
    ) -> Measure:
        """A line for one subject: rates of the best quarter, and the spread of the rate that is compared."""
        compared = series.per_cpu_s(unit) if by_cpu else series.per_s(unit)
        requests_cpu_s = series.per_cpu_s("requests").best
        p50, p99, p999 = latencies.percentiles_ms(0.5, 0.99, 0.999) if latencies is not None else (None, None, None)
        records_s = series.per_s("records").best
        measure = Measure(
            name=series.name,
            requests_s=series.per_s("requests").best,
            records_s=records_s or None,
            mb_s=series.per_s("bytes").best / 1e6,
            mb_cpu_s=series.per_cpu_s("bytes").best / 1e6,
            p50_ms=p50,
            p99_ms=p99,
            p999_ms=p999,
            cpu_us_request=1e6 / requests_cpu_s,
            cpu_cores=series.cpu_share,
            rss_mb=rss_bytes / 1e6 if rss_bytes is not None else None,
            load_cores=series.load_share,
            spread_low=compared.p25 / compared.best,
            spread_high=compared.p75 / compared.best,
            reference=reference,
        )
        self.measures.append(measure)
        self.slices[series.name] = {
            "wall_ns": [one.wall_ns for one in series.slices],
            "cpu_ns": [one.cpu_ns for one in series.slices],
            "load_cpu_ns": [one.load_cpu_ns for one in series.slices],
            "requests": [one.work.requests for one in series.slices],
            "bytes": [one.work.bytes for one in series.slices],
        }
        return measure

    def path(self) -> Path:
        """Quick runs stay apart from those that the docs quote."""
        return (RESULTS / "quick" if self.quick else RESULTS) / f"{self.name}.json"

    def save(self) -> Path:
        self.machine = machine()
        path = self.path()
        content = asdict(self)
        slices = content.pop("slices")
        for check, plain in zip(self.checks, content["checks"], strict=True):
            plain["holds"] = check.holds
        _write(path, content)
        _write(RAW / f"{self.name}.json", slices)
        return path


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def load_result(path: Path) -> Result:
    content = json.loads(path.read_text())
    for plain in content["checks"]:
        plain.pop("holds")
    content["checks"] = [Check(**plain) for plain in content["checks"]]
    content["measures"] = [Measure(**plain) for plain in content["measures"]]
    content["curves"] = [Curve(**plain) for plain in content["curves"]]
    return Result(**content)


def machine() -> dict[str, Any]:
    """Where and when, without a name or a path of the machine."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--verify", "HEAD")
    if not commit:
        return "none"
    return commit + ("-dirty" if git("status", "--porcelain", "--", "src") else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
