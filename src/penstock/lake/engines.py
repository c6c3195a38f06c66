"""Who carries out the tasks: threads of this process, or Spark's Python workers.

Spark only schedules. Each task is a partition of a small DataFrame, `mapInArrow` calls it in a Python worker, and what
comes back to the driver is what was written, never a row. A task that fails for a reason that it knows is not tried
again; one whose worker died is.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from penstock.client.kafka import KafkaError
from penstock.lake.errors import ArchiveError
from penstock.lake.tasks import Task, Written
from penstock.records.batch import BatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXPLAINED: Final = (ArchiveError, KafkaError, BatchError)
_RESULT: Final = pa.schema([pa.field("result", pa.binary())])


class Engine(Protocol):
    @property
    def workers(self) -> int:
        """Tasks that run at the same time."""
        ...

    @property
    def is_one_process(self) -> bool:
        """Whether tasks see the memory of this process."""
        ...

    def run(self, tasks: Sequence[Task]) -> list[Written]:
        """In their order. Raises ArchiveError, KafkaError or BatchError: what the first that failed raised."""
        ...


class LocalEngine:
    """Threads: Arrow, compression and the network run beside each other, Python does not."""

    is_one_process = True

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or min(os.cpu_count() or 1, 8)

    def run(self, tasks: Sequence[Task]) -> list[Written]:
        if len(tasks) == 1:
            return [tasks[0].run()]
        with concurrent.futures.ThreadPoolExecutor(self.workers, "archive") as pool:
            futures = [pool.submit(task.run) for task in tasks]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class SparkEngine:
    """Any Spark session, opened when there is work for it; the workers need Penstock installed, as the driver has it."""

    is_one_process = False

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._open = session

    @functools.cached_property
    def _session(self) -> SparkSession:
        return self._open()

    @property
    def workers(self) -> int:
        return int(self._session.sparkContext.defaultParallelism)

    def run(self, tasks: Sequence[Task]) -> list[Written]:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        pickled = [pickle.dumps(task) for task in tasks]

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([_outcome(number, pickled[number])], pa.binary())], schema=_RESULT
                    )

        numbers = self._session.range(0, len(tasks), 1, len(tasks))
        try:
            rows = numbers.mapInArrow(work, "result binary").collect()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise ArchiveError(f"a Spark task failed: {_last_line(str(error))}") from None
        outcomes: dict[int, Any] = dict(pickle.loads(bytes(row.result)) for row in rows)
        for number in sorted(outcomes):
            if isinstance(outcomes[number], Exception):
                raise outcomes[number]
        return [outcomes[number] for number in range(len(tasks))]


def _outcome(number: int, pickled: bytes) -> bytes:
    task: Task = pickle.loads(pickled)
    outcome: Written | Exception
    try:
        outcome = task.run()
    except _EXPLAINED as error:
        outcome = error
    return pickle.dumps((number, outcome))


def _last_line(text: str) -> str:
    """Of a Python traceback inside of a Java one: the line that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    traceback = [at for at, line in enumerate(lines) if line.startswith("File ")]
    return lines[min(traceback[-1] + 2, len(lines) - 1)] if traceback else lines[0] if lines else "no reason given"
