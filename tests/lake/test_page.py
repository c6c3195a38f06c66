"""docs/tables.md is tried out: its commands and its Python, one after the other, as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables.md"
_BLOCK = re.compile(r"^```(sh|py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 8
    with Broker(settings={"storage.flush": "os"}) as broker:
        environment = {
            **os.environ,
            "PENSTOCK_BOOTSTRAP": broker.bootstrap,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        for kind, text in blocks:
            command = ["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
            ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
            assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
