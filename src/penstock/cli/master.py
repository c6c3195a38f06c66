"""Where the Spark of a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.failure import Misused

MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master for --engine spark. [default: local[*]]"),
]


def check_master(master: str | None, *, uses_spark: bool = True) -> None:
    """If one was given, it must be one, and somebody must ask for it."""
    if master is None:
        return
    if not uses_spark:
        raise Misused("--master requires --engine spark")
    from penstock.pipeline.reading import problem_with_master

    wrong = problem_with_master(master)
    if wrong is not None:
        raise Misused(f"--master {wrong}")
