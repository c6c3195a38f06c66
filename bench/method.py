"""How two servers are compared on a machine that is noisy by a factor of two to four.

1. The subjects take turns in short slices, so a slow second of the machine hits all of them.
2. A slice ends when its last answer is in; nothing of it leaks into the next.
3. CPU time is what the scheduler charged to the server's threads (schedstat, nanoseconds), not wall time.
4. The best quarter of a subject's slices stands for it: noise only ever makes a slice slower. The medians and the
   middle half are given beside it.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SLICE_S = 0.2
SLICES_MIN = 20


def cpu_ns(pid: int) -> int:
    """CPU time of every thread of `pid`; a thread that ends in between takes its time with it."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_bytes().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def rss_bytes(pid: int) -> int:
    """Resident memory of `pid`."""
    return _status_bytes(pid, "VmRSS:")


def peak_rss_bytes(pid: int) -> int:
    """The most that was ever resident of `pid`."""
    return _status_bytes(pid, "VmHWM:")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no resident memory")


def raise_open_files(count: int) -> None:
    """Let this process have so many files open, if the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Work(NamedTuple):
    """What a slice got done."""

    requests: int
    records: int
    bytes: int


@dataclass(slots=True)
class Subject:
    """One of the servers compared. `prepare` and `finish` run outside the clock, around every slice."""

    name: str
    pid: int
    work: Callable[[float], Work]
    prepare: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None


class Slice(NamedTuple):
    wall_ns: int
    cpu_ns: int
    """Of the server."""
    load_cpu_ns: int
    """Of this process, which makes the load."""
    work: Work


class Spread(NamedTuple):
    """The values of all slices, summed up; more is better."""

    best: float
    """Mean of the best quarter."""
    median: float
    p25: float
    p75: float


def spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    quarter = max(1, len(ordered) // 4)
    best = statistics.fmean(ordered[-quarter:])
    if len(ordered) < 2:
        return Spread(best, best, best, best)
    p25, median, p75 = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(best, median, p25, p75)


@dataclass(slots=True)
class Series:
    """All slices of one subject."""

    name: str
    slices: list[Slice] = field(default_factory=list)

    def per_s(self, unit: str) -> Spread:
        """`unit` (requests, records or bytes) by wall second."""
        return spread([getattr(one.work, unit) * 1e9 / one.wall_ns for one in self.slices])

    def per_cpu_s(self, unit: str) -> Spread:
        """`unit` (requests, records or bytes) by CPU second of the server."""
        return spread([getattr(one.work, unit) * 1e9 / max(one.cpu_ns, 1) for one in self.slices])

    def per_total_cpu_s(self, unit: str) -> Spread:
        """`unit` by CPU second of server and load together: free of the question who sent loopback's packets."""
        return spread([getattr(one.work, unit) * 1e9 / (one.cpu_ns + one.load_cpu_ns) for one in self.slices])

    @property
    def cpu_share(self) -> float:
        """Cores the server kept busy."""
        return sum(one.cpu_ns for one in self.slices) / sum(one.wall_ns for one in self.slices)

    @property
    def load_share(self) -> float:
        """Cores the load kept busy; near 1 the load is what was measured."""
        return sum(one.load_cpu_ns for one in self.slices) / sum(one.wall_ns for one in self.slices)


class Ratio(NamedTuple):
    best: float
    median: float


def ratio(a: Spread, b: Spread) -> Ratio:
    return Ratio(a.best / b.best, a.median / b.median)


def measure(subject: Subject, seconds: float) -> Slice:
    load_before = time.process_time_ns()
    cpu_before = cpu_ns(subject.pid)
    start = time.perf_counter_ns()
    work = subject.work(seconds)
    wall = time.perf_counter_ns() - start
    cpu = cpu_ns(subject.pid) - cpu_before
    if work.requests == 0:
        raise RuntimeError(f"{subject.name}: nothing was answered in a slice of {wall / 1e9:.2f} s")
    return Slice(wall, cpu, time.process_time_ns() - load_before, work)


def alternate(subjects: Sequence[Subject], slices: int, slice_s: float = SLICE_S) -> dict[str, Series]:
    """Each subject in turn, `slices` times, after one slice each to warm up; the order turns round every time."""
    if slices < SLICES_MIN:
        raise ValueError(f"{slices} slices are too few to tell noise from cost, take {SLICES_MIN}")
    series = {subject.name: Series(subject.name) for subject in subjects}
    for turn in range(slices + 1):
        for subject in subjects if turn % 2 else reversed(subjects):
            subject.prepare()
            try:
                one = measure(subject, slice_s)
            finally:
                subject.finish()
            if turn:
                series[subject.name].slices.append(one)
    return series


class Latencies:
    """Times from request to answer, in nanoseconds, each with the number of requests that shared it."""

    __slots__ = ("counts", "values_ns")

    def __init__(self) -> None:
        self.values_ns: list[int] = []
        self.counts: list[int] = []

    def add(self, value_ns: int, count: int = 1) -> None:
        self.values_ns.append(value_ns)
        self.counts.append(count)

    def clear(self) -> None:
        self.values_ns.clear()
        self.counts.clear()

    def percentiles_ms(self, *shares: float) -> list[float]:
        """The value below which each share (0..1) of the requests lies; nan when there are none."""
        pairs = sorted(zip(self.values_ns, self.counts, strict=True))
        total = sum(self.counts)
        found: list[float] = []
        for share in shares:
            seen = 0
            value = float("nan")
            for value_ns, count in pairs:
                seen += count
                if seen >= share * total:
                    value = value_ns / 1e6
                    break
            found.append(value)
        return found
