from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.failure import Misused
from penstock.cli.whence import From, parse_start
from tests.cli.conftest import Run, environment

COMMANDS = ("serve", "topics", "produce", "consume", "groups", "logs", "config", "bench")


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else can meanwhile."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "list"],
        ["topics", "create", "t"],
        ["topics", "describe", "t"],
        ["topics", "alter", "t", "--partitions", "2"],
        ["topics", "delete", "t"],
        ["produce", "t"],
        ["consume", "t"],
        ["consume", "t", "--group", "g"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["groups", "reset", "g", "--to", "earliest"],
        ["groups", "delete", "g"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_a_broker_that_is_not_there_is_one_clear_line(penstock: Run, nobody: str, command: list[str]) -> None:
    ended = penstock(*command, "--bootstrap", nobody)
    assert ended.code == 1
    assert ended.out == b""
    assert len(ended.err.splitlines()) == 1
    assert ended.err.startswith(f"penstock: no broker at {nobody}: Connection refused")


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "create", "../x"],
        ["topics", "describe", "a/b"],
        ["topics", "delete", "."],
        ["produce", "a b"],
        ["consume", "x" * 250],
        ["consume", "t", "--from", "yesterday"],
        ["topics", "alter", "t"],
        ["topics", "create", "t", "--config", "retention.ms"],
        ["produce", "t", "--header", "x"],
        ["produce", "t", "--format", "json", "--key-separator", ":"],
        ["topics", "list", "--bootstrap", "nowhere"],
    ],
    ids=lambda command: " ".join(command)[:50],
)
def test_a_wrong_call_is_one_clear_line_and_exit_code_2(penstock: Run, command: list[str]) -> None:
    ended = penstock(*command)
    assert ended.code == 2
    assert ended.out == b""
    assert len(ended.err.splitlines()) == 1
    assert ended.err.startswith("penstock: ")


@pytest.mark.parametrize(
    "command", [["consume"], ["nonsense"], ["consume", "t", "--format", "morse"], ["serve", "--lisen"]]
)
def test_what_the_command_line_does_not_know_is_exit_code_2(penstock: Run, command: list[str]) -> None:
    ended = penstock(*command)
    assert ended.code == 2
    assert "Error: " in ended.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(penstock: Run, command: str) -> None:
    ended = penstock(command, "--help")
    assert ended.code == 0
    assert ended.text.startswith(f"Usage: penstock {command}")


def test_help_lists_every_command(penstock: Run) -> None:
    ended = penstock("--help")
    assert ended.code == 0
    for command in COMMANDS:
        assert f"  {command} " in ended.text


@pytest.mark.parametrize(
    "command",
    [["--help"], ["topics", "list"], ["groups", "list"], ["produce", "t"], ["consume", "t"]]
    + [[verb, "t", "--dialect", "fluxgo"] for verb in ("produce", "consume")],
    ids=" ".join,
)
def test_a_command_that_runs_no_broker_loads_none(nobody: str, command: list[str]) -> None:
    """What is imported is most of the time that a short command takes."""
    where = [] if "--help" in command else ["--bootstrap", nobody]
    code = (
        "import sys\n"
        "from penstock.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*(name for name in sys.modules if name.startswith('penstock.')), file=sys.__stdout__)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *command, *where], env=environment(), stdin=subprocess.DEVNULL, capture_output=True
    )
    loaded = {name.split(".")[1] for name in ended.stdout.decode().splitlines()[-1].split()}
    assert loaded <= {"cli", "client", "model"}


def test_config_prints_every_value_with_its_origin(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("storage: {flush: os}\n")
    env = {"PENSTOCK_LOG__LEVEL": "debug"}
    shown = penstock("config", "--config", "c.yaml", "--listen", "kafka=h:1", "--json", env=env)
    assert shown.code == 0
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.out)}
    assert rows["storage.flush"] == ("os", "file c.yaml")
    assert rows["log.level"] == ("debug", "environment PENSTOCK_LOG__LEVEL")
    assert rows["listeners.kafka"] == ("h:1", "command line")
    assert rows["net.uvloop"] == (True, "default")
    table = penstock("config", "--config", "c.yaml", "--listen", "kafka=h:1", env=env).text.splitlines()
    assert table[0].split() == ["key", "value", "source"]
    assert len(table) == len(rows) + 1


@pytest.mark.parametrize("command", ["config", "serve"])
def test_an_unusable_config_is_one_clear_line_and_exit_code_2(penstock: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "c.yaml").write_text("storage: {flsh: os}\n")
    ended = penstock(command, "--config", "c.yaml")
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err == "penstock: file c.yaml: unknown key storage.flsh; did you mean storage.flush?\n"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", (From.BEGINNING, 0)),
        ("end", (From.END, 0)),
        ("0", (From.OFFSET, 0)),
        ("123", (From.OFFSET, 123)),
        ("-5", (From.LAST, 5)),
        ("@1700000000000", (From.TIMESTAMP_MS, 1_700_000_000_000)),
        ("2026-01-31T12:00Z", (From.TIMESTAMP_MS, 1_769_860_800_000)),
        ("2026-01-31T12:00:00.5+02:00", (From.TIMESTAMP_MS, 1_769_853_600_500)),
    ],
)
def test_a_place_to_read_from_is_understood(text: str, start: tuple[From, int]) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "start", "1.5", "@", "@x", "2026-13-01"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Misused):
        parse_start(text)
