"""Apache Kafka itself, one node in KRaft mode on the loopback address: what our clients must work with too."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.compatibility.java import KAFKA_4, jars

START_S_MAX = 90.0
_MEMORY = ("-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextlib.contextmanager
def apache_kafka(folder: Path, version: str = KAFKA_4, **settings: str) -> Iterator[str]:
    """The address of a broker that lives as long as the context; skips the test where Java or Maven is missing."""
    with ApacheKafka(folder, version, **settings) as broker:
        yield broker.bootstrap


class ApacheKafka:
    """A broker that can be killed and started again; skips the test where Java or Maven is missing."""

    def __init__(self, folder: Path, version: str = KAFKA_4, **settings: str) -> None:
        if shutil.which("java") is None:
            pytest.skip("there is no Java")
        port, controller_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self._config = folder / "server.properties"
        self._config.write_text(
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
        self._java = ["java", *_MEMORY, "-cp", f"{jars(version)}/*"]
        self._log = folder / "kafka.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # one that began with a dash would be taken for an option
        cluster_id = urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        formatted = subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._config)],
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
        )
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        return self.restart()

    def restart(self) -> Self:
        """Start on the same port and data. It answers some seconds later; clients wait for it."""
        with open(self._log, "ab") as log:
            command = [*self._java, "kafka.Kafka", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def free_ports(count: int) -> list[int]:
    """Ports that are free now, and below those that the system gives to whoever asks for any: Java takes seconds to
    begin, and meanwhile nobody is given one of them by chance."""
    dice = random.SystemRandom()  # processes that test side by side have the same seed
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = dice.randrange(15_000, 30_000)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports
