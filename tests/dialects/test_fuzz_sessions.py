"""Every session under a fuzzer that sees which branches it takes: see fuzz_sessions.py for what must hold.

The fuzzer is a process of its own, because it instruments what it imports and ends the process.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.model.listeners import PORTS

ROOT = Path(__file__).parents[2]
SECONDS = 2
START_SECONDS_MAX = 120


class Fuzzed(NamedTuple):
    runs: int
    branches: int
    peak_rss_mb: int


def fuzz(dialect: str, folder: Path, seconds: int) -> Fuzzed:
    """Fuzz it for so long; an AssertionError with what the fuzzer found."""
    command = [sys.executable, "-m", "tests.dialects.fuzz_sessions", dialect, str(folder), str(seconds)]
    # The fuzzer bounds its peak memory, and a process starts with the peak of its parent: a shell's, not pytest's.
    command = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *command]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=seconds + START_SECONDS_MAX
    )
    if ended.returncode:
        told = [line for line in ended.stderr.splitlines() if not re.match(r"#\d+\t|INFO|WARNING", line)]
        raise AssertionError("\n".join([ended.stdout[-4000:], *told[-20:]]))
    [branches] = re.findall(r"^#\d+\s+DONE\s+cov: (\d+)", ended.stderr, re.MULTILINE)
    found = dict(re.findall(r"^stat::(\w+):\s+(\d+)", ended.stderr, re.MULTILINE))
    return Fuzzed(int(found["number_of_executed_units"]), int(branches), int(found["peak_rss_mb"]))


@pytest.mark.parametrize("dialect", PORTS)
def test_no_input_makes_a_session_fail_hang_or_grow(dialect: str, tmp_path: Path) -> None:
    fuzzed = fuzz(dialect, tmp_path, SECONDS)
    assert fuzzed.runs > 50
    assert fuzzed.branches > 300


def test_an_answer_that_is_not_documented_ends_the_fuzzer(tmp_path: Path) -> None:
    script = (
        "import tests.dialects.fuzz_sessions as fuzzer, tests.dialects.fuzz_targets as targets\n"
        "targets._check_fluxgo = targets._check_day1\n"
        "fuzzer.main()\n"
    )
    unknown_command = tmp_path / "input"
    unknown_command.write_bytes(b"\x01\x01\x03")
    command = [sys.executable, "-c", script, "fluxgo", str(tmp_path), "1", str(unknown_command)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS_MAX)
    assert ended.returncode, ended.stderr[-2000:]
    assert "AssertionError" in ended.stdout
