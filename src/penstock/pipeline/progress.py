"""What happens to flows while they run, as values: for the terminal, for JSON lines, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from penstock.spark.source.offsets import ID as TOPIC_ID


class FlowStarted(NamedTuple):
    """A query runs; `restarts` is how often in a row it was started again."""

    flow: str
    restarts: int


class BatchDone(NamedTuple):
    flow: str
    batch: int
    rows: int
    rows_per_s: float
    lag: int | None
    """Records of its topics that it has still to read; None when it reads no topic."""
    batch_ms: int
    watermark: str | None
    """Event time before which no more rows are expected."""


class FlowRestarting(NamedTuple):
    """It failed and is started again after a pause."""

    flow: str
    failures: int
    wait_ms: int
    error: str


class FlowEnded(NamedTuple):
    flow: str
    state: Literal["done", "stopped", "failed"]
    error: str | None


Event = FlowStarted | BatchDone | FlowRestarting | FlowEnded

NAMES: Mapping[type[Event], str] = {
    FlowStarted: "started",
    BatchDone: "batch",
    FlowRestarting: "restarting",
    FlowEnded: "ended",
}


def batch_done(flow: str, progress: Mapping[str, Any]) -> BatchDone | None:
    """Of Spark's report on a trigger; None when there was nothing to do and no batch ran."""
    durations = progress.get("durationMs") or {}
    if "addBatch" not in durations:
        return None
    batch_ms = int(durations.get("triggerExecution", progress.get("batchDuration", 0)))
    rows = int(progress["numInputRows"])
    return BatchDone(
        flow,
        int(progress["batchId"]),
        rows,
        round(rows * 1000 / batch_ms, 1) if batch_ms else 0.0,
        lag_of(progress.get("sources") or ()),
        batch_ms,
        (progress.get("eventTime") or {}).get("watermark"),
    )


def lag_of(sources: Any) -> int | None:
    """Over all topics: how far the log's end is from where the batch ended."""
    lags = []
    for source in sources:
        end, latest = topic_offsets(source.get("endOffset")), topic_offsets(source.get("latestOffset"))
        if end is not None and latest is not None:
            lags.append(sum(max(0, offset - end.get(place, offset)) for place, offset in latest.items()))
    return sum(lags) if lags else None


def topic_offsets(offset: Any) -> dict[tuple[str, int], int] | None:
    """Spark's offset of a source by topic and partition; None when the source is not of topics."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict) or not offset or not all(isinstance(rows, dict) for rows in offset.values()):
        return None
    try:
        return {
            (topic, int(partition)): int(value)
            for topic, rows in offset.items()
            for partition, value in rows.items()
            if partition != TOPIC_ID
        }
    except (TypeError, ValueError):
        return None
