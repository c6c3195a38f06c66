"""Topics in Spark and as Arrow: what the extra `spark` brings.

Knows records, the Kafka client and segment files; knows no broker. `register(spark)` makes the format `penstock` known to
a session; a session whose Python finds the module `pyspark_penstock` knows it by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """After this `spark.read.format("penstock")` and its three sisters work; doing it twice does no harm."""
    from penstock.spark.data_source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)
