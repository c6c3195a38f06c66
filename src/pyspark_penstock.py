"""Spark imports every top-level module named pyspark_* when a format is asked for, and registers its DefaultSource: with
Penstock installed, `format("penstock")` works without a word of set-up."""

from __future__ import annotations

from penstock.spark.data_source import PenstockDataSource

__all__ = ["DefaultSource"]


class DefaultSource(PenstockDataSource):
    """The name that Spark looks for."""
