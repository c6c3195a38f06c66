"""Kafka's own Java clients and tools, from Maven Central.

`jars(version)` resolves a version once; `tool(...)` runs a class of it as its shell script would; `clients(version)` are the
client libraries alone. Where Maven cannot be reached, tests that need it are skipped with that reason.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.maven import KAFKA_3, KAFKA_4, Unresolved, resolve

__all__ = ["KAFKA_3", "KAFKA_4", "clients", "command", "jars", "tool"]

_LOGGING = "org.slf4j:slf4j-nop:1.7.36"


def jars(version: str) -> Path:
    """The folder with Kafka's tools and clients; skips the test when they cannot be had."""
    kafka = "org.apache.kafka"
    return _or_skip(f"kafka-{version}", f"{kafka}:kafka_2.13:{version}", f"{kafka}:kafka-tools:{version}", _LOGGING)


def clients(version: str) -> Path:
    """The folder with Kafka's Java clients and what they need; skips the test when they cannot be had."""
    return _or_skip(f"clients-{version}", f"org.apache.kafka:kafka-clients:{version}", _LOGGING)


def _or_skip(name: str, *artifacts: str) -> Path:
    try:
        return resolve(name, *artifacts)
    except Unresolved as missing:
        pytest.skip(str(missing))


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
