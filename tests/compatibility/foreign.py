"""The two programs of the matrix that are not Python: java/Matrix.java and node/matrix.js, one process a client.

Each checks every feature and writes a line for it; kafkajs comes from npm into a cache folder that git ignores.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compatibility.java import clients
from tests.compatibility.matrix import FEATURES, NO, ROOT, YES, Cell

HERE = Path(__file__).parent
NODE_CACHE = ROOT / ".cache" / "node"
KAFKAJS = "2.2.4"
RUN_S_MAX = 240.0


class FeatureFailed(AssertionError):
    """Features that did not work, with what the program wrote."""


def run_java(version: str, bootstrap: str, prefix: str) -> dict[str, Cell]:
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{clients(version)}/*"]
    return _run([*command, str(HERE / "java" / "Matrix.java"), bootstrap, prefix], {}, version)


def run_kafkajs(bootstrap: str, prefix: str) -> dict[str, Cell]:
    modules = kafkajs()
    return _run(["node", str(HERE / "node" / "matrix.js"), bootstrap, prefix], {"NODE_PATH": str(modules)}, KAFKAJS)


def kafkajs() -> Path:
    """The folder of node's modules with kafkajs in it; skips the test when it cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = NODE_CACHE / f"kafkajs-{KAFKAJS}"
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / ".complete"
    with open(NODE_CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"kafkajs@{KAFKAJS}"]
            run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if run.returncode != 0:
                pytest.skip(f"npm cannot install kafkajs {KAFKAJS}: {run.stderr[-300:]}")
            done.touch()
    return folder / "node_modules"


def _run(command: list[str], environment: dict[str, str], version: str) -> dict[str, Cell]:
    run = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    cells: dict[str, Cell] = {}
    failed = []
    for line in run.stdout.splitlines():
        word, feature, *why = line.split(" ", 2)
        if word == "failed":
            failed.append(line)
        else:
            cells[feature] = Cell(YES if word == "ok" else NO, "".join(why), version)
    if failed or cells.keys() != FEATURES.keys():
        raise FeatureFailed("\n".join([*failed, run.stdout[-2000:], run.stderr[-6000:]]))
    return cells
