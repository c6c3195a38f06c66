"""Results for people: tables on the terminal, and docs/benchmarks.md, every number of which comes from a result file.

`python -m bench.report` reads bench/results/*.json and writes the page and its charts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import charts
from bench.catalogue import SCENARIOS
from bench.processes import ROOT
from bench.result import RESULTS, Check, Measure, Result, load_result

PAGE = ROOT / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

Written by `python -m bench.report` from the files in bench/results/; `make bench` makes those anew.

The broker runs in a process of its own and so does every reference: a plain loop of recv + CRC + write, a loop of
sendfile, E, a uvloop server that cuts frames and writes one fixed answer for each, and greet, one that answers whoever
connects. Broker and reference take turns in slices of 0.2 s. CPU is what the scheduler charged to the threads of the
server. Rates are the mean of the best quarter of the slices, because noise only makes a slice slower; "middle half" is
where the second and third quarter lie, as a share of that. The load sends requests that were encoded ahead, checks one
answer in 64, and says how many cores it took itself ("load cores"; near 1 it is the load that was measured).

"""

_QUANTITIES = (
    ("requests_s", "requests/s", 0),
    ("records_s", "records/s", 0),
    ("mb_s", "MB/s", 0),
    ("mb_cpu_s", "MB/CPU s", 0),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("p999_ms", "p99.9 ms", 2),
    ("cpu_us_request", "CPU us/request", 1),
    ("cpu_s_million", "CPU s/million records", 2),
    ("broker_cpu_s_million", "broker CPU s/million", 2),
    ("cpu_cores", "CPU cores", 2),
    ("rss_mb", "RSS MB", 0),
    ("load_cores", "load cores", 2),
)


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _spread(measure: Measure) -> str:
    if measure.spread_low is None or measure.spread_high is None:
        return ""
    return f"{measure.spread_low:.0%}-{measure.spread_high:.0%}"


def _bar(check: Check) -> str:
    return f"{'at least' if check.at_least else 'at most'} {check.bar:g} {check.unit}"


def _lines(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a column for each measurement, a line for each quantity that any of them has."""
    lines = []
    for field, title, digits in _QUANTITIES:
        cells = [_cell(getattr(measure, field), digits) for measure in result.measures]
        if any(cells):
            lines.append([title, *cells])
    spreads = [_spread(measure) for measure in result.measures]
    if any(spreads):
        lines.append(["middle half", *spreads])
    return ["", *(measure.name for measure in result.measures)], lines


def show(result: Result, console: Console) -> None:
    table = Table(title=result.title, title_justify="left")
    header, lines = _lines(result)
    for place, title in enumerate(header):
        table.add_column(title, justify="right" if place else "left")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    for note in result.notes:
        console.print(f"  {note}", style="dim")
    if result.checks:
        show_checks([result], console)


def show_checks(results: Sequence[Result], console: Console) -> None:
    table = Table(title="What must hold", title_justify="left")
    for place, title in enumerate(("", "measured", "bar", "", "")):
        table.add_column(title, justify="right" if place in (1, 2) else "left")
    for result in results:
        for check in result.checks:
            verdict = "[green]holds" if check.holds else "[red]MISSED"
            table.add_row(check.what, f"{check.measured:.2f} {check.unit}", _bar(check), verdict, check.note)
    if table.row_count:
        console.print(table)


def _markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = "|" + "|".join("---" if place == 0 else "--:" for place in range(len(header))) + "|"
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)]


def page(results: Sequence[Result], checks_chart: str) -> str:
    facts = ("cpu", "cores", "kernel", "python")
    machines = sorted({tuple(str(result.machine[fact]) for fact in facts) for result in results})
    text = _INTRODUCTION.splitlines()
    for cpu, cores, kernel, python in machines:
        text.append(f"Machine: {cores} cores of {cpu}, Linux {kernel}, Python {python}.")
    text += ["", "## What must hold", "", f"![Every check against its bar]({checks_chart})", ""]
    rows = [
        [check.what, f"{check.measured:.2f} {check.unit}", _bar(check), "yes" if check.holds else "**no**", check.note]
        for result in results
        for check in result.checks
    ]
    text += _markdown_table(["", "measured", "bar", "holds", "remarks"], rows)
    for result in results:
        machine = result.machine
        chart = f"../bench/results/{result.name}.svg"
        text += ["", f"## {result.title}", ""]
        text += _markdown_table(*_lines(result))
        text += ["", *(f"- {note}" for note in result.notes)]
        text += [f"- {machine['date'][:10]}, commit {machine['commit'][:12]}; bench/results/{result.name}.json"]
        text += ["", f"![{result.title}]({chart})"]
    return "\n".join(text) + "\n"


def main() -> int:
    paths = [RESULTS / f"{scenario.name}.json" for scenario in SCENARIOS]
    results = [load_result(path) for path in paths if path.exists()]
    if not results:
        print("no results in bench/results/: run `make bench` first", file=sys.stderr)
        return 1
    for result in results:
        charts.draw(result, RESULTS / f"{result.name}.svg")
    summary = RESULTS / "checks.svg"
    charts.draw_checks([check for result in results for check in result.checks], summary)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results, Path("..", summary.relative_to(ROOT)).as_posix()))
    print(f"wrote {PAGE.relative_to(ROOT)} from {len(results)} results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
