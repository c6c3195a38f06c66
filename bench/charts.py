"""A chart of one result, and one of all checks against their bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "penstock"  # the same numbers give the same file

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from bench.result import Check, Curve, Measure, Result  # noqa: E402

_AXES = (
    ("mb_cpu_s", "MB per CPU second of the server"),
    ("requests_s", "requests/s"),
    ("records_s", "records/s"),
    ("p99_ms", "p99, ms"),
    ("rss_mb", "RSS, MB"),
)


def _compared(result: Result) -> tuple[str, str]:
    """What the bars show: the first quantity that the check compares and every line has."""
    order = _AXES if result.name.startswith("bulk") else _AXES[1:]
    for field, label in order:
        if sum(getattr(measure, field) is not None for measure in result.measures) == len(result.measures):
            return field, label
    return max(order, key=lambda axis: sum(getattr(m, axis[0]) is not None for m in result.measures))


def _bars(axes: Axes, measures: Sequence[Measure], field: str, label: str) -> None:
    shown = [measure for measure in measures if getattr(measure, field) is not None]
    values = [float(getattr(measure, field)) for measure in shown]
    names = [measure.name for measure in shown]
    spread = field in ("mb_cpu_s", "requests_s")
    axes.barh(names, values, color=["#b0b0b0" if measure.reference else "#31688e" for measure in shown])
    for place, (measure, value) in enumerate(zip(shown, values, strict=True)):
        if spread and measure.spread_low is not None and measure.spread_high is not None:
            middle = [value * measure.spread_low, value * measure.spread_high]
            axes.plot(middle, [place, place], color="black", linewidth=3, solid_capstyle="butt")
    axes.set_xlabel(label + (" (best quarter; line: middle half of the slices)" if spread else ""))
    axes.invert_yaxis()


def _curve(axes: Axes, curve: Curve) -> None:
    axes.plot(*zip(*curve.points, strict=True), marker="o", color="#31688e")
    axes.set(title=curve.title, xlabel=curve.x, ylabel=curve.y)
    axes.set_ylim(bottom=0)


def draw(result: Result, path: Path) -> None:
    rows = 1 + len(result.curves)
    height = 0.5 * len(result.measures) + 1.5 + 3 * len(result.curves)
    figure, grid = plt.subplots(rows, 1, figsize=(8, height), squeeze=False, layout="constrained")
    field, label = _compared(result)
    _bars(grid[0][0], result.measures, field, label)
    grid[0][0].set_title(result.title + (" (quick run)" if result.quick else ""))
    for axes, curve in zip(grid[1:], result.curves, strict=True):
        _curve(axes[0], curve)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_checks(checks: Sequence[Check], path: Path) -> None:
    """Every check on one scale: 1 is its bar, right of it is better."""
    figure, axes = plt.subplots(figsize=(9, 0.35 * len(checks) + 1.2), layout="constrained")
    values = [min(max(check.against_bar, 0.12), 10.0) for check in checks]
    colors = ["#35b779" if check.holds else "#d1495b" for check in checks]
    axes.barh([check.what for check in checks], values, color=colors)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(0.1, 10)
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    figure.suptitle("Measured against the bar: right of 1 is better")
    axes.set_xlabel("(cut at 0.1 and 10)")
    axes.invert_yaxis()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
