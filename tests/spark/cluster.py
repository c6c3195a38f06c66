"""A standalone Spark cluster on loopback, out of what the pyspark package brings: one master, two workers of one core."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.compatibility.apache_kafka import free_ports

START_S_MAX = 90.0
WORKERS = 2


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """The master's address; both workers have said that they are there."""
    port, web_port = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    common = ("--host", "127.0.0.1")
    with contextlib.ExitStack() as running:
        where = ("--port", str(port), "--webui-port", str(web_port))
        running.enter_context(_daemon(folder, "master", "org.apache.spark.deploy.master.Master", *common, *where))
        for number in range(WORKERS):
            name = f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--port", "0", "--webui-port", "0")
            place = ("--work-dir", str(folder / name))
            running.enter_context(
                _daemon(folder, name, "org.apache.spark.deploy.worker.Worker", *common, *size, *place, master)
            )
        _wait_for_workers(folder, f"http://127.0.0.1:{web_port}/json/")
        yield master


@contextlib.contextmanager
def _daemon(folder: Path, name: str, main: str, *arguments: str) -> Iterator[None]:
    import pyspark

    home = Path(pyspark.__file__).parent
    environ = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), main, *arguments], stdout=log, stderr=log, env=environ
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_workers(folder: Path, address: str) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.read().count(b'"ALIVE"') >= WORKERS + 1:
                return
        time.sleep(0.1)
    logs = "\n".join(path.read_text(errors="replace")[-1_500:] for path in sorted(folder.glob("*.log")))
    raise AssertionError(f"the cluster did not start:\n{logs}")
