"""A stream with an exactly-once sink, and each of its three parts killed once; tests/soak kills thirty times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.spark.jvm import stream_settings
from tests.spark.kill_stream import VICTIMS, KillStream

pytest.importorskip("pyspark", reason="the spark extra is not installed")


@pytest.mark.timeout(600)
def test_a_stream_whose_parts_are_killed_adds_up_exactly(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    victims = list(VICTIMS)
    random.Random(seed).shuffle(victims)
    with Broker(tmp_path / "data", settings={"storage.checkpoint_interval_ms": 500}) as broker:
        figures = KillStream(broker, tmp_path, seed, stream_settings()).run(victims)
        log = broker.log
    assert figures, str(figures)
    assert figures.rows > 0
    assert figures.kills.total() == len(VICTIMS)
    assert "Traceback" not in log, log
