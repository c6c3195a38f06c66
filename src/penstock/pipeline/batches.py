"""What a flow knows of the batch that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.pipeline.problems import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID: Final = "sql.streaming.queryId"
"""The property that Spark sets around every batch."""


def query_id(frame: DataFrame) -> str:
    """Of the query whose batch this is; it stays the same over restarts from a checkpoint."""
    found: str | None = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if found is None:
        raise PipelineFailed("Spark does not report the query of this batch")
    return found
