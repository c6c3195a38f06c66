"""The same job on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from tests.spark.cluster import WORKERS, spark_cluster
from tests.spark.kill_stream import PARTITIONS, SOURCE, TARGET, event, expected_rows, read_committed
from tests.spark.windowed_stream import LATE_S, Order

pytest.importorskip("pyspark", reason="the spark extra is not installed")

EVENTS = 6_000
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
}
SETTINGS = {"spark.sql.shuffle.partitions": "2"}


@pytest.mark.timeout(500)
def test_a_stream_on_two_workers_writes_exactly_once(tmp_path: Path) -> None:
    with Broker() as broker, spark_cluster(tmp_path) as master:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in (SOURCE, TARGET)]).values():
            made.result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(EVENTS):
            producer.produce(SOURCE, event(number), partition=number % PARTITIONS)
        for partition in range(PARTITIONS):
            producer.produce(SOURCE, event(EVENTS + 3 * LATE_S), partition=partition)
        assert producer.flush(30) == 0
        order = Order(broker.bootstrap, SOURCE, TARGET, str(tmp_path / "checkpoint"), settings=SETTINGS, follows=False)
        run = subprocess.run(
            submitted(master, order),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            cwd=tmp_path,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        assert run.returncode == 0, run.stderr[-3_000:]
        assert Counter(read_committed(broker.bootstrap)) == Counter(expected_rows(EVENTS))
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert said == [{"master": master, "executors": WORKERS}]


def submitted(master: str, order: Order) -> list[str]:
    """The command of docs/spark.md, with this cluster and this job instead of its own."""
    (line,) = re.findall(r"^spark-submit .*$", PAGE.read_text(), re.MULTILINE)
    words = shlex.split(line)
    assert words[0] == "spark-submit"
    assert words[-3].endswith(".py")
    program = [str(Path(sys.executable).with_name(words[0])), *words[1:-3]]
    program[program.index("--master") + 1] = master
    # of this machine, and of so small a job: not what a page should tell
    for name, value in DRIVER.items():
        program += ["--conf", f"{name}={value}"]
    return [*program, *order.command()[1:]]
