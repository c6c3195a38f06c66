"""The stream's kill run at full length. `PENSTOCK_RESULTS=1` keeps its figures in results/stream-kills*.json."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock import Broker
from tests.compatibility.apache_kafka import ApacheKafka
from tests.soak.test_kill_soak import keep
from tests.spark.jvm import stream_settings
from tests.spark.kill_stream import VICTIMS, Figures, KillStream

KILLS = int(os.environ.get("PENSTOCK_CYCLES", "30"))
KILLS_APACHE_KAFKA = 5

pytest.importorskip("pyspark", reason="the spark extra is not installed")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("PENSTOCK_SOAK") != "1", reason="PENSTOCK_SOAK=1 (`make soak`) runs it"),
]


def drawn(seed: int, kills: int) -> list[str]:
    """Who is killed, each as often as the others, in an order that the seed gives."""
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    random.Random(seed).shuffle(victims)
    return victims


def kept(name: str, figures: Figures) -> None:
    if os.environ.get("PENSTOCK_RESULTS") == "1":
        keep(name, figures.as_json())
    assert figures, str(figures)


def test_30_kills_leave_every_window_once_and_right(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    with Broker(tmp_path / "data", settings={"storage.checkpoint_interval_ms": 500}) as broker:
        figures = KillStream(broker, tmp_path, seed, stream_settings()).run(drawn(seed, KILLS))
        log = broker.log
    kept("stream-kills", figures)
    assert figures.kills.total() == KILLS
    assert "Traceback" not in log, log


def test_5_kills_with_apache_kafka_leave_every_window_once_and_right(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(2**32)))
    with ApacheKafka(tmp_path) as broker:
        figures = KillStream(broker, tmp_path, seed, stream_settings()).run(drawn(seed, KILLS_APACHE_KAFKA))
    kept("stream-kills-apache-kafka", figures)
