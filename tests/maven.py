"""Jars from Maven, in a cache folder that git ignores: resolved once, by one process at a time."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


class Unresolved(Exception):
    """Maven does not give what was asked for; the text is its own."""


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
