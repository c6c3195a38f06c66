"""A Spark session as Penstock's commands and examples start it: quiet, on loopback, on whichever Java there is.

A job of yours needs none of this: the format `penstock` works in any session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # micro-batches of one machine are small: Spark's 200 tasks a shuffle are for clusters
    "spark.sql.shuffle.partitions": "4",
}


def open_session(name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process; a running one is given back as it is. Below spark-submit what that was told counts.

    Raises NoJava when there is none to run on.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("Spark is not installed: pip install 'penstock[spark]'", name=missing.name) from None

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started Java, and knows the master and all the rest
        builder = SparkSession.builder.appName(name)
        given = dict(settings or {})
    else:
        builder = SparkSession.builder.appName(name).master(master)
        given = {**_QUIET, **_place(master), **(settings or {})}
        home = java_home()
        if home is not None:
            os.environ["JAVA_HOME"] = str(home)
    # the workers must find what the driver found
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in given.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _place(master: str) -> dict[str, str]:
    if not master.startswith("local"):
        return {}
    # or Spark warns about the machine's name
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
