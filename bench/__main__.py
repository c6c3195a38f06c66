"""`python -m bench [NAMES...] [--quick]`: run scenarios, write results, show tables and charts."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from types import FrameType

from rich.console import Console

from bench import charts, report
from bench.catalogue import SCENARIOS
from bench.processes import ServerError
from bench.result import Result
from bench.scenario import NoRoom
from bench.wire import WireError


def _stop(number: int, frame: FrameType | None) -> None:
    """Leave by the front door: servers are ended and their data removed."""
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of the broker in its own process.")
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenarios to run: {names}")
    parser.add_argument("--quick", action="store_true", help="shorter and smaller; results go to bench/results/quick/")
    options = parser.parse_args()
    known = {scenario.name: scenario for scenario in SCENARIOS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no scenario named {', '.join(unknown)}; there are {', '.join(known)}")

    signal.signal(signal.SIGTERM, _stop)
    console = Console()
    results: list[Result] = []
    failed = False
    for scenario in [known[name] for name in options.names] or SCENARIOS:
        console.rule(f"{scenario.name}: {scenario.title}")
        gc.collect()
        try:
            result = scenario.run(options.quick)
        except NoRoom as reason:
            console.print(f"[yellow]skipped: {reason}")
            continue
        except (ServerError, WireError, OSError, RuntimeError) as error:
            console.print(f"failed: {type(error).__name__}: {error}", style="red", markup=False)
            for note in getattr(error, "__notes__", ()):
                console.print(note, style="dim", markup=False)
            failed = True
            continue
        path = result.save()
        charts.draw(result, path.with_suffix(".svg"))
        report.show(result, console)
        results.append(result)
    if len(results) > 1:
        report.show_checks(results, console)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
