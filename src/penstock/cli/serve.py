"""`penstock serve`: the broker in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.command import command_app
from penstock.cli.serve_flags import ServeFlags

app = command_app()

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML config file.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Data directory. [default: ./penstock-data]")
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="DIALECT=HOST:PORT", help="Listen on this address only; repeatable."),
]


@app.command()
def serve(config: ConfigFile = None, data_dir: DataDir = None, listen: Listen = None) -> None:
    """Run the broker in the foreground.

    Prints `listening DIALECT HOST:PORT` for each listener when it is ready. SIGTERM and Ctrl-C stop the broker cleanly.
    """
    effective = ServeFlags(config, data_dir, listen).load()
    from penstock.server.main import run

    raise typer.Exit(run(effective))
