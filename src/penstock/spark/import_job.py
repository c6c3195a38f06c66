"""Jobs with Spark: each partition of an import, or of an audit, is a task, worked at wherever Spark puts it.

The executors must see the source's files, and with a data directory for a target that directory too, under the same paths;
with a running broker they must reach it. Progress is kept by each task in the driver's progress folder, so that has to
be shared as well when executors are other machines. A task that Spark repeats goes on where the first try ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.imports.engine import JobFailed
from penstock.imports.survey import Advance
from penstock.spark.session import LOCAL, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

J = TypeVar("J")
R = TypeVar("R")


class SparkEngine:
    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def run(
        self, function: Callable[[J, Advance], R], jobs: Sequence[J], sizes: Sequence[int], advance: Advance
    ) -> Iterator[R]:
        if not jobs:
            return
        tasks = self._session.sparkContext.parallelize(list(jobs), len(jobs))
        # A failure is a result: what Spark makes of an exception is pages long, and it would try again.
        results = tasks.map(_Task(function)).collect()
        for result, size in zip(results, sizes, strict=True):
            if isinstance(result, JobFailed):
                raise result
            advance(size)
            yield result


class _Task(Generic[J, R]):
    """What a worker calls; picklable, since the function is a module's."""

    def __init__(self, function: Callable[[J, Advance], R]) -> None:
        self._function = function

    def __call__(self, job: J) -> R | JobFailed:
        try:
            return self._function(job, _nobody_hears)
        except JobFailed as error:
            return error


def _nobody_hears(count: int) -> None:
    return


@contextlib.contextmanager
def spark_engine(master: str = LOCAL, title: str = "penstock import") -> Iterator[SparkEngine]:
    """An engine with a session of its own, which ends with it."""
    session = open_session(title, master)
    try:
        yield SparkEngine(session)
    finally:
        session.stop()
