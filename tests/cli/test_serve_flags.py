from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.serve_flags import ServeFlags, parse_plain


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], ServeFlags()),
        (["--config", "c.yaml"], ServeFlags(Path("c.yaml"))),
        (["-c", "c.yaml", "--data-dir=d=e"], ServeFlags(Path("c.yaml"), "d=e")),
        (
            ["--listen", "kafka=h:1", "--listen=kafka=h:2", "--data-dir", "d"],
            ServeFlags(None, "d", ["kafka=h:1", "kafka=h:2"]),
        ),
        (["--data-dir", "a", "--data-dir", "b"], ServeFlags(None, "b")),
    ],
)
def test_plain_flags_are_understood(arguments: list[str], flags: ServeFlags) -> None:
    assert parse_plain(arguments) == flags


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["--listen"], ["--data-dir", "--listen"], ["x"], ["--lis", "kafka=h:1"], ["-cfile"]],
)
def test_everything_else_is_left_to_the_full_command_line(arguments: list[str]) -> None:
    assert parse_plain(arguments) is None
