"""The session that Penstock's commands start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_running_session_is_given_back_as_it_is(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert open_session("another", "local[1]", {"spark.sql.shuffle.partitions": "9"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.sparkContext.master == "local[2]"


def test_the_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def whose(batches):  # type: ignore[no-untyped-def]
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(1, numPartitions=1).mapInArrow(whose, "python string").collect()
    assert [row.python for row in rows] == [sys.executable]


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'penstock-broker\[spark\]'"):
        open_session("none")


_STARTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
from penstock.spark.session import open_session
open_session("interrupted", "local[1]").range(1_000).count()
print("counted", flush=True)
"""


def _others_in(session_id: int) -> list[int]:
    """Processes of a session, without the one that leads it."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session_id and fields[0] != "Z" and int(status.parent.name) != session_id:
            found.append(int(status.parent.name))
    return found


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.5])
def test_ctrl_c_while_spark_starts_ends_its_java_too(after_s: float) -> None:
    """So many seconds after Java began."""
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not _others_in(process.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(after_s)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT
            assert b"counted" not in out
            # one interrupt, and no failure of Spark's that came of it
            assert err.count(b"Traceback") == 1, err.decode()
            assert err.endswith(b"KeyboardInterrupt\n")
            deadline = time.monotonic() + 30
            while left := _others_in(process.pid):
                assert time.monotonic() < deadline, f"processes {left} are still there"
                time.sleep(0.1)
        finally:
            for one in _others_in(process.pid):
                os.kill(one, signal.SIGKILL)
            process.kill()


def test_ctrl_c_stays_with_who_had_it_and_a_start_says_nothing() -> None:
    code = """
import signal
from penstock.spark.session import open_session
mine = lambda *_: None
signal.signal(signal.SIGINT, mine)
open_session("mine", "local[1]")
assert signal.getsignal(signal.SIGINT) is mine
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)
    # one line is Java's own, about a module that Spark asks it for
    assert [line for line in (ended.stdout + ended.stderr).splitlines() if b"incubator" not in line] == []


def test_a_master_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    """Spark refuses the name, which only it can know; that nobody answers takes it a minute to find out."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").touch()
    command = [sys.executable, "-m", "penstock.cli.main", "logs", "audit", str(tmp_path), "--master", "k8s://x:y"]
    ended = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("penstock: cannot start Spark: ")
    assert "Traceback" not in ended.stderr
