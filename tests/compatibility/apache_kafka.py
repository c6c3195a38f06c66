"""Apache Kafka itself, one node in KRaft mode on the loopback address: what our clients must work with too."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.java import KAFKA_4, jars

START_S_MAX = 90.0
_MEMORY = ("-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextlib.contextmanager
def apache_kafka(folder: Path, version: str = KAFKA_4, **settings: str) -> Iterator[str]:
    """The address of a broker that lives as long as the context; skips the test where Java or Maven is missing."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    classes = f"{jars(version)}/*"
    port, controller_port = _free_ports(2)
    config = folder / "server.properties"
    config.write_text(
        "\n".join(
            f"{name}={value}"
            for name, value in {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(folder / "data"),
                "offsets.topic.replication.factor": "1",
                "offsets.topic.num.partitions": "1",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "transaction.state.log.num.partitions": "1",
                "auto.create.topics.enable": "false",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }.items()
        )
    )
    java = ["java", *_MEMORY, "-cp", classes]
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatted = subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    with open(folder / "kafka.log", "wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=subprocess.STDOUT)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]
