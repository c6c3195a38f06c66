"""Who does the work: threads of this process, or whoever another engine sends the partitions to.

A job is plain values and a function of a module, so it can be pickled. An engine may run jobs in any order and at the same
time; each partition is read and written by one job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from penstock.imports.survey import Advance

J = TypeVar("J")
R = TypeVar("R")


class JobFailed(Exception):
    """A job that did not work, for a reason that is one line for the user."""


class ImportFailed(JobFailed):
    """It was tried and did not work: one line for the user. What was done so far is kept, and a second run goes on."""


class Watcher(Protocol):
    """Who is told how far it is; a progress bar is one."""

    def begin(self, what: str, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None: ...


class NobodyWatches:
    def begin(self, what: str, total_bytes: int) -> None:
        return

    def advance(self, count: int) -> None:
        return


class Engine(Protocol):
    def run(
        self, function: Callable[[J, Advance], R], jobs: Sequence[J], sizes: Sequence[int], advance: Advance
    ) -> Iterator[R]:
        """The result of every job, in their order; `sizes` are their bytes, for an engine that hears nothing before the
        end of a job."""
        ...


class LocalEngine:
    """Threads of this process, because copying and checksums let each other run; reading records does not."""

    def __init__(self, threads: int = min(4, os.cpu_count() or 1)) -> None:
        self._threads = threads

    def run(
        self, function: Callable[[J, Advance], R], jobs: Sequence[J], sizes: Sequence[int], advance: Advance
    ) -> Iterator[R]:
        stopping = False

        def advance_or_stop(count: int) -> None:
            if stopping:
                raise _Stopped
            advance(count)

        with ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-import") as threads:
            tasks = [threads.submit(function, job, advance_or_stop) for job in jobs]
            try:
                for task in tasks:
                    yield task.result()
            finally:
                stopping = True
                threads.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """Another job failed, or the user has enough."""
