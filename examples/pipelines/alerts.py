"""The functions of log_alerting.yaml: each takes DataFrames and gives one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, concat, lit, upper


def only_errors(lines: DataFrame, levels: Sequence[str]) -> DataFrame:
    """The lines of these levels."""
    return lines.where(upper(col("level")).isin(*levels)).select("service", "message", "at")


def over_limit(per_minute: DataFrame, limit: int) -> DataFrame:
    """Minutes with more errors than the limit, with a sentence for whoever is woken."""
    text = concat(col("errors"), lit(" errors in a minute, such as: "), col("sample"))
    return per_minute.where(col("errors") > limit).withColumn("text", text)
