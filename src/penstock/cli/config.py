"""`penstock config`: what would a broker started like this do, and who says so."""

from __future__ import annotations

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import AsJson
from penstock.cli.convert import convert
from penstock.cli.failure import Misused
from penstock.cli.output import print_json, print_table
from penstock.cli.serve import ConfigFile, DataDir, Listen
from penstock.cli.serve_flags import ServeFlags
from penstock.server.config import sources

app = command_app()
app.command("convert")(convert)


@app.callback(
    invoke_without_command=True,
    help="Print the effective configuration and the source of each value.",
)
def config(
    context: typer.Context,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is not None:
        if config is not None or data_dir is not None or listen or as_json:
            raise Misused(
                f"config {context.invoked_subcommand} does not accept --config, --data-dir, --listen or --json"
            )
        return
    rows = sources(ServeFlags(config, data_dir, listen).load())
    if as_json:
        print_json([source._asdict() for source in rows])
    else:
        print_table(("key", "value", "source"), rows)
