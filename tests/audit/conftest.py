from __future__ import annotations

from tests.cli.conftest import penstock
from tests.spark.shared import spark

__all__ = ["penstock", "spark"]
