"""What the commands have in common as typer sees them."""

from __future__ import annotations

import typer


def command_app(help_text: str | None = None) -> typer.Typer:
    """The app of one command's module; with a text it is the noun of several commands. Plain text: help is full of
    brackets, and an error is one line."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=help_text is not None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
