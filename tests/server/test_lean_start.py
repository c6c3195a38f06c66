"""A process of Penstock's own imports no test tools, even where they are installed, as they are here."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("hypothesis")


@pytest.mark.parametrize("program", ["penstock.server.__main__", "penstock.cli.main"])
def test_the_broker_and_the_command_line_leave_hypothesis_out(program: str) -> None:
    code = f"""
import sys
from {program} import main
sys.argv = ["penstock", "--help"]
try:
    main()
except SystemExit:
    pass
import penstock.dialects.kafka.session, penstock.client.kafka
print("hypothesis", [name for name in sys.modules if name.startswith("hypothesis.")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "hypothesis []", done


def test_a_program_that_only_uses_penstock_keeps_its_own() -> None:
    code = "import penstock, penstock.dialects.kafka.session, hypothesis; print(hypothesis.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip()
