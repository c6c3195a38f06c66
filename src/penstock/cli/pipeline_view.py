"""What `penstock pipeline` shows of running flows: a table that lives on a terminal, JSON lines in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec

from penstock.pipeline.progress import NAMES, BatchDone, Event, FlowEnded, FlowRestarting, FlowStarted

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.pipeline.declaration import AnyFlow
    from penstock.pipeline.status import FlowStatus


class JsonLines:
    """An object a line, each with the event's name, the time and the flow."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        # rows of console flows come from Spark's threads
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def tell(self, event: Event) -> None:
        self._print(NAMES[type(event)], event._asdict())

    def show(self, flow: str, batch: int, rows: list[dict[str, Any]], more: bool) -> None:
        self._print("rows", {"flow": flow, "batch": batch, "rows": rows, "more": more})

    def _print(self, event: str, fields: dict[str, Any]) -> None:
        line = {"event": event, "time": _now(), "pipeline": self._pipeline, **fields}
        text = msgspec.json.encode(line, enc_hook=str).decode()
        with self._lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


@dataclass(slots=True)
class _Row:
    state: str = "waiting"
    batch: int | None = None
    rows: int = 0
    last: BatchDone | None = None


class LiveTable:
    """A line a flow, kept up to date; what has to stay is printed above it."""

    def __init__(self, pipeline: str, flows: Sequence[AnyFlow]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._pipeline = pipeline
        self._rows = {flow.name: _Row() for flow in flows}
        self._console = Console()
        self._live = Live(self._table(), console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(self._table())
        self._live.stop()

    def tell(self, event: Event) -> None:
        row = self._rows[event.flow]
        if isinstance(event, BatchDone):
            row.state, row.last, row.rows = "running", event, row.rows + event.rows
        elif isinstance(event, FlowStarted):
            row.state = "running"
        elif isinstance(event, FlowEnded):
            row.state = event.state
        elif isinstance(event, FlowRestarting):
            row.state = f"restart {event.failures}"
            self._console.print(
                f"{event.flow} failed, restarting in {event.wait_ms / 1000:g} s: {event.error}",
                markup=False,
                highlight=False,
            )
        self._live.update(self._table())

    def show(self, flow: str, batch: int, rows: list[dict[str, Any]], more: bool) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        if not rows:
            return
        table = Table(box=box.SIMPLE_HEAD, title=f"{flow}, batch {batch}", title_justify="left")
        for name in rows[0]:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text("null" if value is None else str(value)) for value in row.values()))
        self._console.print(table)
        if more:
            self._console.print("more rows are not shown")

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=self._pipeline, title_justify="left")
        for head in ("flow", "state"):
            table.add_column(head, overflow="fold")
        for head in ("batch", "rows", "rows/s", "lag", "time"):
            table.add_column(head, justify="right")
        for name, row in self._rows.items():
            cells = [Text(name), Text(row.state)]
            last = row.last
            if last is not None:
                lag = "-" if last.lag is None else f"{last.lag:,}"
                cells += [
                    Text(text)
                    for text in (
                        str(last.batch),
                        f"{row.rows:,}",
                        f"{last.rows_per_s:,.0f}",
                        lag,
                        f"{last.batch_ms / 1000:.2f} s",
                    )
                ]
            table.add_row(*cells)
        return table


def status_rows(found: Sequence[FlowStatus]) -> list[tuple[Any, ...]]:
    rows = []
    for one in found:
        checkpoint = one.checkpoint
        at, watermark = (None, None) if checkpoint is None else (checkpoint.batch_time_ms, checkpoint.watermark_ms)
        batch = None if checkpoint is None else checkpoint.committed_batch
        rows.append((one.flow, one.state, batch, _time(at), _time(watermark), one.lag))
    return rows


def status_json(one: FlowStatus) -> dict[str, Any]:
    checkpoint = one.checkpoint
    return {
        "flow": one.flow,
        "state": one.state,
        "query_id": None if checkpoint is None else checkpoint.query_id,
        "committed_batch": None if checkpoint is None else checkpoint.committed_batch,
        "planned_batch": None if checkpoint is None else checkpoint.planned_batch,
        "batch_time": None if checkpoint is None else _time(checkpoint.batch_time_ms),
        "watermark": None if checkpoint is None else _time(checkpoint.watermark_ms),
        "lag": one.lag,
        "groups": one.groups,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": partition.offset,
                "end_offset": partition.end_offset,
                "lag": partition.lag,
            }
            for partition in one.partitions
        ],
        "notes": one.notes,
    }


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
