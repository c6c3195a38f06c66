"""What the tests of this folder share: Spark, the same session as in tests/spark."""

from __future__ import annotations

from tests.spark.shared import spark

__all__ = ["spark"]
