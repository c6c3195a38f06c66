"""The archiver killed thirty times in each format. `PENSTOCK_RESULTS=1` keeps the figures in results/archive-*.json."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from penstock import Broker
from tests.soak.test_kill_soak import keep

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


@pytest.mark.parametrize("format_", ["parquet", "delta", "iceberg"])
def test_30_kills_leave_every_offset_once(tmp_path: Path, format_: str) -> None:
    pytest.importorskip("pyarrow", reason="the spark extra is not installed")
    if format_ != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[format_])
    from tests.lake.kill_run import kill_run
    from tests.lake.topics import Topic

    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    kills = int(os.environ.get("PENSTOCK_CYCLES", "30"))
    print(f"seed {seed}")
    began = time.monotonic()
    with Broker(tmp_path / "data") as broker, Topic(broker.bootstrap, "killed", 3) as topic:
        figures = kill_run(topic, tmp_path / "table", format_, kills, seed)
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep(
            f"archive-{format_}",
            {
                "seed": seed,
                "kills": figures.kills,
                "records": figures.records,
                "commits_seen": figures.commits_seen,
                "seconds": round(time.monotonic() - began, 1),
            },
        )
    assert figures.commits_seen >= kills
