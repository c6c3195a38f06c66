"""Whether a repeated batch is the one that was decided, judged by Spark's plan of it or by its rows.

A batch id is not enough. A checkpoint that was restored from a copy, or lost its last offsets file, assigns a used id to new
input, and rows that are skipped because "batch 7 is written" are lost. So a decision identifies the content of the batch, in
three steps from the most to the least certain:

1. The same offsets file: Spark writes `offsets/<batch>` once, when it plans the batch, with the current time in it. If the
   file is the same, this is the same batch, even if the query now computes different rows (rand(), a new version of the
   query). The decided rows stay.
2. Different source offsets in that file: a different batch.
3. Otherwise (a checkpoint that this process cannot read, a batch write with a writeId, a source whose offsets are only a
   counter), the number and the digest of the rows.

A decision without any of these was written by an earlier version and counts as the same batch, as it did then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.spark.sink.journal import Decision, Plan
from penstock.spark.sink.options import SinkError
from penstock.spark.sink.row_digest import EMPTY, Content

_HEAD_LINES = 2
"""Lines at the start of an offsets file: the version and the metadata of the batch. One line per source follows."""


class Batch(NamedTuple):
    """A batch of the current run."""

    query: str
    number: int
    contents: Mapping[int, Content]
    """Content by task; tasks without rows may be missing."""
    plan: Plan | None


def check_same(decision: Decision, batch: Batch, write_id: str | None) -> None:
    """Raise SinkError if the batch is not the one that was decided under its number."""
    if _is_same(decision, batch):
        return
    before, now = total((decision.contents or {}).values()), total(batch.contents.values())
    other = "other " if before.rows == now.rows else ""
    if write_id is not None:
        raise SinkError(
            f"writeId {write_id} was already used for a write of {before.rows} rows, and this write has {now.rows} "
            f"{other}rows: none of them was written; use another writeId for other rows. If every run computes "
            "different rows (rand(), current_timestamp()), the rows of the first run are in the topic"
        )
    raise SinkError(
        f"batch {batch.number} of query {batch.query} was already written with {before.rows} rows and now has {now.rows} "
        f"{other}rows, which would be lost: the checkpoint is older than the topic, because it was restored from a copy or "
        "lost its newest offsets file; restore the newest checkpoint, or start with a new one after the rows that the "
        "topic already has"
    )


def check_same_task(decision: Decision, batch: Batch, task: int) -> None:
    """Raise SinkError if a task that must write its part of a decided batch again has different rows."""
    if decision.contents is None:
        return
    before, now = decision.contents.get(task, EMPTY), batch.contents.get(task, EMPTY)
    if before != now:
        raise SinkError(
            f"the transaction of task {task} of batch {batch.number} of query {batch.query} timed out after the batch was "
            f"decided, and the task now has other rows ({before.rows} then, {now.rows} now): which rows are missing "
            "cannot be determined; run the query as it was, with as many tasks as before"
        )


def total(contents: Iterable[Content]) -> Content:
    return sum(contents, EMPTY)


def _is_same(decision: Decision, batch: Batch) -> bool:
    if decision.plan is not None and batch.plan is not None:
        if decision.plan.file == batch.plan.file:
            return True
        if decision.plan.sources != batch.plan.sources:
            return False
    return decision.contents is None or total(decision.contents.values()) == total(batch.contents.values())


# ---------------------------------------------------------------------------------------------------- plans


def plan_of(checkpoint: str | None, query: str, batch: int) -> Plan | None:
    """The plan of a batch in the checkpoint; None if the checkpoint is not a local folder of this query."""
    folder = None if checkpoint is None else _local(checkpoint)
    if folder is None:
        return None
    try:
        if json.loads((folder / "metadata").read_bytes())["id"] != query:
            return None
        data = (folder / "offsets" / str(batch)).read_bytes()
    except (OSError, ValueError, TypeError, KeyError):
        # Spark supports other file systems, which may interpret a path without a scheme differently.
        return None
    return Plan(_digest(data), _digest(b"\n".join(data.splitlines()[_HEAD_LINES:])))


def _local(checkpoint: str) -> Path | None:
    parts = urlsplit(checkpoint)
    if parts.scheme:
        return Path(unquote(parts.path)) if parts.scheme == "file" else None
    return Path(checkpoint)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
