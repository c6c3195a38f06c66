"""A Spark session as Penstock's commands and examples start it: quiet, on loopback, on whichever Java there is.

A job of yours needs none of this: the format `penstock` works in any session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.spark.failures import one_line
from penstock.spark.java import NoSpark, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # micro-batches of one machine are small: Spark's 200 tasks a shuffle are for clusters
    "spark.sql.shuffle.partitions": "4",
}


def open_session(name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process; a running one is given back as it is. Below spark-submit what that was told counts.

    Raises NoSpark when it does not start. Ctrl-C stays with who had it: it waits while Spark starts, and Spark does
    not take it over.
    """
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        hint = "Spark is not installed: pip install 'penstock-broker[spark]'"
        raise ModuleNotFoundError(hint, name=missing.name) from None

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started Java, and knows the master and all the rest
        given = {"spark.app.name": name, **(settings or {})}
    else:
        given = {"spark.app.name": name, "spark.master": master, **_QUIET, **_place(master), **(settings or {})}
        _hush_start(given)
        home = java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    # the workers must find what the driver found
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for key, value in given.items():
        builder = builder.config(key, value)
    try:
        with _interrupts_held():
            SparkContext.getOrCreate(SparkConf().setAll(list(given.items())))
        with _interrupts_held():
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    except (PySparkException, Py4JError) as error:
        raise NoSpark(f"cannot start Spark: {one_line(error)}") from None
    return session


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """An interrupt in the midst of the start would leave Spark's Java behind, so it is handed on when that is over. The
    second does not wait: a master that is not there is tried for a minute."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1 and callable(before):
            before(number, frame)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held and callable(before):
        before(*held[0])


def _hush_start(given: dict[str, str]) -> None:
    """Until the session can say how much it logs, Java would tell of its defaults. Who has a configuration keeps it."""
    options = given.get(_JAVA_OPTIONS, "")
    if "log4j" not in options and "SPARK_CONF_DIR" not in os.environ:
        file = Path(__file__).with_name("log4j2.properties").as_uri()
        given[_JAVA_OPTIONS] = f"{options} -Dlog4j2.configurationFile={file}".lstrip()


def _place(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return {}
    # or Spark warns about the machine's name
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
