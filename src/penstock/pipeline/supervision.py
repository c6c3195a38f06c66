"""Running the flows of a pipeline: each a query, started again after a failure, until all are done or a stop is asked.

Theory of operation. One thread looks at every query in turn; Spark runs them. A query that failed is built anew and
started after a pause that doubles with each failure in a row; a batch that succeeds ends the row. A flow that fails once
more than `restarts.max` allows has failed for good, and the others are stopped: half a pipeline that nobody looks at is
worse than none. What is wrong with the declaration itself (a column that is not there) is not tried again.

A stop lets each query end the batch it is in, for at most `STOP_S_MAX`; what is cut off is done again after the next
start, from the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from penstock.pipeline.building import Show, start_query
from penstock.pipeline.declaration import AnyFlow, Pipeline
from penstock.pipeline.problems import InvalidPipeline, PipelineFailed
from penstock.pipeline.progress import Event, FlowEnded, FlowRestarting, FlowStarted, batch_done
from penstock.spark.failures import one_line
from penstock.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.1
STOP_S_MAX: Final = 30.0
"""How long a stop waits for the batches under way."""

Tell = Callable[[Event], None]


class Supervisor:
    """Runs flows; `tell` hears of everything that happens, in order."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, flows: Iterable[AnyFlow], tell: Tell, show: Show
    ) -> None:
        self._runs = [_Run(spark, pipeline, flow, tell, show) for flow in flows]

    def run(self, stop_asked: Callable[[], bool]) -> None:
        """Until every flow is done or a stop is asked; raises InvalidPipeline or PipelineFailed after all were stopped."""
        try:
            while not stop_asked() and any(run.goes_on for run in self._runs):
                for run in self._runs:
                    run.look()
                    if stop_asked():
                        break
                time.sleep(POLL_S)
        except (Py4JNetworkError, ConnectionError):
            raise PipelineFailed("Spark stopped: its Java process ended") from None
        finally:
            try:
                self._stop()
            except (Py4JError, ConnectionError):
                pass  # with Spark gone there is nothing to stop

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_S_MAX
        marks = {run: run.batches_done for run in self._runs}
        while any(run.is_in_batch and run.batches_done == marks[run] for run in self._runs):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S / 2)
            for run in self._runs:
                run.report()
        for run in self._runs:
            run.stop()


class _Run:
    """One flow: its query, its failures in a row, and when to start it again."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, flow: AnyFlow, tell: Tell, show: Show) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._flow = flow
        self._tell = tell
        self._show = show
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_batch = -1
        self.batches_done = 0
        self.goes_on = True

    def look(self) -> None:
        """Start it if it is time, tell of its batches, see whether it ended."""
        if not self.goes_on:
            return
        if self._query is None:
            if time.monotonic() >= self._not_before:
                self._start()
            return
        active = self._query.isActive
        self.report()
        if not active:
            self._ended(self._query)

    def _start(self) -> None:
        try:
            self._query = start_query(self._spark, self._pipeline, self._flow, self._show)
        except InvalidPipeline as error:
            self.goes_on = False
            self._tell(FlowEnded(self._flow.name, "failed", error.problems[0].text))
            raise
        self._last_batch = -1
        self._tell(FlowStarted(self._flow.name, self._failures))

    def report(self) -> None:
        if self._query is None:
            return
        for progress in self._query.recentProgress:
            if progress["batchId"] <= self._last_batch:
                continue
            done = batch_done(self._flow.name, progress)
            if done is not None:
                self._last_batch = done.batch
                self._failures = 0
                self.batches_done += 1
                self._tell(done)

    def _ended(self, query: StreamingQuery) -> None:
        error = query.exception()
        self._query = None
        if error is None:
            self.goes_on = False
            self._tell(FlowEnded(self._flow.name, "done", None))
            return
        self._failures += 1
        text = one_line(error)
        restarts = self._pipeline.restarts
        if self._failures > restarts.max:
            self.goes_on = False
            self._tell(FlowEnded(self._flow.name, "failed", text))
            times = f" {self._failures} times in a row" if self._failures > 1 else ""
            raise PipelineFailed(f"flows.{self._flow.name} failed{times}: {text}")
        wait_ms = restarts.wait_ms(self._failures)
        self._not_before = time.monotonic() + wait_ms / 1000
        self._tell(FlowRestarting(self._flow.name, self._failures, wait_ms, text))

    @property
    def is_in_batch(self) -> bool:
        return self._query is not None and self._query.isActive and bool(self._query.status["isTriggerActive"])

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            try:
                query.stop()
            except PySparkException:
                pass  # it did not end in Spark's time for it, and goes with its session
        if self.goes_on:
            self.goes_on = False
            self._tell(FlowEnded(self._flow.name, "stopped", None))


def open_for(pipeline: Pipeline, master: str | None = None) -> SparkSession:
    """Spark as the file wants it; raises NoSpark."""
    return open_session(f"penstock {pipeline.name}", master or pipeline.master, pipeline.settings)


def close_session(spark: SparkSession) -> None:
    """End Spark, if it has not ended by itself."""
    try:
        spark.stop()
    except (Py4JError, ConnectionError):
        pass  # its process is gone
