"""How the tests start Java for Spark: one compiler, and classes from an archive that the first run leaves behind.

Loading its twenty thousand classes is a third of the time that Spark takes to start. Java can keep them parsed in a file
(AppCDS) which fits one Java and one class path. The first test process that finds no archive has its own Java write one
when it ends, beside its final name, and renames it: a half-written archive would keep Java from starting. A second process
at the same time goes without.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.maven import KAFKA_3, ROOT, Unresolved, is_cached, resolve

CACHE = ROOT / ".cache" / "spark"
EXIT_S_MAX = 90.0

# short queries: the second compiler costs more than it gives; and what Java logs about archives is nobody's business
_OPTIONS = "-XX:TieredStopAtLevel=1 -Xlog:disable"

CONNECTOR_NEAREST = "4.2.0"
"""The newest connector that any repository has been seen to have; pyspark's next minor version takes it."""
TOKENS_NEAREST = "4.0.0"
"""The same of the jar with which it would ask for delegation tokens."""


def connector() -> list[Path]:
    """The jars of Spark's own Kafka connector, and Kafka's client in the version that Spark 4 is built with."""
    import pyspark

    candidates = [(pyspark.__version__, pyspark.__version__), (CONNECTOR_NEAREST, TOKENS_NEAREST)]
    # what is in the cache is taken as it is: asking again for what a repository does not have takes seconds
    candidates.sort(key=lambda versions: not is_cached(f"spark-kafka-{versions[0]}"))
    reason = Unresolved("no version was asked for")
    for version, tokens in candidates:
        artifacts = (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{tokens}",
            f"org.apache.kafka:kafka-clients:{KAFKA_3}",
            "org.apache.commons:commons-pool2:2.12.0",
        )
        try:
            return sorted(resolve(f"spark-kafka-{version}", *artifacts, alone=True).glob("*.jar"))
        except Unresolved as missing:
            reason = missing
    raise reason


def connector_or_none() -> list[Path]:
    try:
        return connector()
    except Unresolved:
        return []


class Archive:
    """The classes of one Java with one class path. `options` start a Java that reads them, or one that writes them."""

    def __init__(self, jars: list[Path] = []) -> None:  # noqa: B006 - only read
        self._path = CACHE / f"{_key(jars)}.jsa"
        self._unfinished: Path | None = None
        self._lock: IO[str] | None = None

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def reading(self) -> str:
        """Java's options for a process that takes what there is."""
        return f"{_OPTIONS} -XX:SharedArchiveFile={self._path}" if self.exists else _OPTIONS

    def reading_or_writing(self) -> str:
        """The same, or those that write the archive, when there is none and nobody else is at it."""
        if self.exists:
            return self.reading()
        CACHE.mkdir(parents=True, exist_ok=True)
        lock = open(CACHE / ".lock", "w")  # noqa: SIM115 - held for as long as Java runs
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return _OPTIONS
        self._lock = lock
        for left in CACHE.glob("*.unfinished*"):
            left.unlink()
        self._unfinished = self._path.with_suffix(f".unfinished-{os.getpid()}")
        return f"{_OPTIONS} -XX:ArchiveClassesAtExit={self._unfinished}"

    def exited(self) -> None:
        """The Java that was to write has ended."""
        if self._lock is None or self._unfinished is None:
            return
        with suppress(FileNotFoundError):
            self._unfinished.rename(self._path)
        self._lock.close()
        self._lock = self._unfinished = None


def _key(jars: list[Path]) -> str:
    import pyspark

    java = os.environ.get("JAVA_HOME") or shutil.which("java") or ""
    place = Path(java).resolve()
    folder = place if place.is_dir() else place.parent.parent
    with suppress(OSError):
        java += (folder / "release").read_text()
    parts = [java, str(Path(pyspark.__file__).parent), pyspark.__version__, _OPTIONS, *map(str, jars)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def end_java() -> None:
    """End the Java of this process, after its sessions are stopped, and wait until it has ended."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_S_MAX)
    SparkContext._gateway = SparkContext._jvm = None


def stream_settings() -> dict[str, str]:
    """Spark settings of a process of its own that starts as fast as it can: with the archive of the tests' session."""
    jars = connector_or_none()
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": Archive(jars).reading(),
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        "spark.sql.shuffle.partitions": "2",
    }
