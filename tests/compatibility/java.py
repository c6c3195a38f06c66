"""Kafka's own Java clients and tools, from Maven Central, in a cache folder that git ignores.

`jars(version)` resolves a version once; `tool(...)` runs a class of it as its shell script would. Where Maven cannot be
reached, tests that need it are skipped with that reason.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "java"
KAFKA_4 = "4.3.0"
KAFKA_3 = "3.9.2"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def jars(version: str) -> Path:
    """The folder with the jars of a Kafka version; skips the test when they cannot be had."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("Java 17 and Maven are not installed")
    folder = CACHE / f"kafka-{version}"
    done = folder / ".complete"
    folder.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            (folder / "pom.xml").write_text(_POM.format(version=version))
            command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
            run = subprocess.run(
                [*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, timeout=600, check=False
            )
            if run.returncode != 0:
                pytest.skip(f"Maven cannot resolve Kafka {version}: {run.stdout[-300:]}")
            done.touch()
    return folder


def command(version: str, main: str, *arguments: str, heap: str = "256m") -> list[str]:
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp",
        f"{jars(version)}/*",
        main,
        *arguments,
    ]


def tool(version: str, main: str, *arguments: str, stdin: str | None = None, timeout: float = 90) -> str:
    """Run a tool to its end; its standard output. Fails the test with what it wrote when it fails."""
    run = subprocess.run(
        command(version, main, *arguments), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert run.returncode == 0, f"{main} {' '.join(arguments)}\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    return run.stdout
