"""The command line as typer sees it. Imports only the command that is called."""

from __future__ import annotations

import importlib
import keyword
from typing import Annotated, Any

import typer
import typer.core

from penstock import __version__

_COMMANDS = {
    "serve": "Run the broker in the foreground.",
    "topics": "List, create, describe, alter and delete topics.",
    "produce": "Write records to a topic, one per line.",
    "consume": "Read records from a topic and print them, one per line.",
    "groups": "List, describe, reset and delete consumer groups.",
    "logs": "Dump, verify and audit segment files.",
    "pipeline": "Validate, run and monitor pipelines declared in a YAML file.",
    "archive": "Archive topics as lake tables and replay tables to topics.",
    "import": "Import another broker's data directory.",
    "config": "Print the effective configuration or convert another broker's.",
    "bench": "Measure a running broker with a single client.",
}
"""Each is a module of this package with an `app`. What it is for stands here, so that help imports none of them."""


class _Commands(typer.core.TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"penstock.cli.{cmd_name}{'_' * keyword.iskeyword(cmd_name)}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A durable log broker that speaks the Kafka protocol."""
