"""Kafka's own Java clients and tools, from Maven Central, in a cache folder that git ignores.

`jars(version)` resolves a version once; `tool(...)` runs a class of it as its shell script would; `clients(version)` are the
client libraries alone. Where Maven cannot be reached, tests that need it are skipped with that reason.
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
  <groupId>penstock.tests</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_LOGGING = "org.slf4j:slf4j-nop:1.7.36"


class Unresolved(Exception):
    """Maven does not give what was asked for; the text is its own."""


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


def is_cached(name: str) -> bool:
    return (CACHE / name / ".complete").exists()


def resolve(name: str, *artifacts: str, alone: bool = False) -> Path:
    """A folder of the cache with these artifacts (group:artifact:version) and, unless `alone`, what they depend on."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise Unresolved("Java 17 and Maven are not installed")
    folder = CACHE / name
    done = folder / ".complete"
    folder.mkdir(parents=True, exist_ok=True)
    with open(CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            rows = (_DEPENDENCY.format(*artifact.split(":"), _ALONE if alone else "") for artifact in artifacts)
            pom = folder / "pom.xml"
            pom.write_text(_POM.format(dependencies="\n".join(rows)))
            command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
            run = subprocess.run(
                [*command, f"-DoutputDirectory={folder}"], capture_output=True, text=True, timeout=600, check=False
            )
            if run.returncode != 0:
                raise Unresolved(f"Maven cannot resolve {', '.join(artifacts)}: {run.stdout[:300]}")
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
