"""The archiver killed at random moments, again and again, while it commits small steps and merges small files.

What librdkafka reads from the topic must be in the table, every offset once, however often and wherever the blow fell, and
an audit must find nothing. Three kills run with the tests, thirty with `make soak`.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset

from penstock.audit.job import AuditRequest, audit
from penstock.imports.engine import LocalEngine
from penstock.lake.opening import open_table
from penstock.lake.tables import dataset
from tests.lake.topics import Topic, table_rows

WAIT_S = 150.0
KILL_AFTER_S = (0.0, 0.6)


@dataclass(frozen=True, slots=True)
class Figures:
    kills: int
    records: int
    commits_seen: int


def command(topic: Topic, path: Path, format_: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "penstock", "archive", "run", topic.name, "--to", str(path)),
        *("--format", format_, "--engine", "local", "--bootstrap", topic.bootstrap, *more),
    ]


def kill_run(topic: Topic, path: Path, format_: str, kills: int, seed: int) -> Figures:
    dice = random.Random(seed)
    commits = 0
    for _ in range(kills):
        topic.fill(600, batch=100)
        topic.transaction(20, commit=dice.random() < 0.5, partition=dice.randrange(topic.partitions))
        commits += _killed(topic, path, format_, dice)
    ended = subprocess.run(
        command(topic, path, format_), capture_output=True, text=True, timeout=WAIT_S, env=_environment()
    )
    assert ended.returncode == 0, ended.stderr
    expected = topic.rows()
    assert table_rows(dataset(open_table(str(path))).to_table()) == expected
    if format_ == "parquet":
        # whoever knows nothing of commits reads the folder
        plain = pyarrow.dataset.dataset(path, format="parquet", partitioning="hive")
        assert table_rows(plain.to_table()) == expected
    audited = audit(AuditRequest(LocalEngine(), table=str(path), broker=topic.settings))
    assert audited.is_clean, audited.found()
    return Figures(kills, len(expected), commits)


def _killed(topic: Topic, path: Path, format_: str, dice: random.Random) -> int:
    """Run until something was committed and a moment longer; how many commits were told of."""
    arguments = command(
        topic, path, format_, "--continuous", "--interval", "0s", "--commit-records", "100", "--compact"
    )
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=_environment())
    assert process.stderr is not None
    try:
        seen = _read_until(process, b"archived")
        # the one place where time itself is the point: the blow falls at no particular moment
        time.sleep(dice.uniform(*KILL_AFTER_S))
    finally:
        process.send_signal(signal.SIGKILL)
        rest = process.stderr.read()
        process.wait()
        process.stderr.close()
    return (seen + rest).count(b"archived")


def _read_until(process: subprocess.Popen[bytes], word: bytes) -> bytes:
    assert process.stderr is not None
    seen = b""
    deadline = time.monotonic() + WAIT_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while word not in seen:
            assert selector.select(max(0.0, deadline - time.monotonic())), f"nothing was committed: {seen.decode()}"
            data = os.read(process.stderr.fileno(), 65_536)
            assert data, f"the archiver ended: {seen.decode()}"
            seen += data
    return seen


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
