"""The flusher: makes appended bytes survive a power cut, with group commit that needs no timer.

On the loop, `request(log)` starts a flush of a log unless one is under way; when it ends, everything that was requested in
the meantime is flushed next, in one go. Threads do nothing but sync, which holds no GIL; they take jobs from a queue and
hand them back through the loop.

A few logs at a time are synced side by side, a file each. When more come meanwhile they wait, and are then made safe by one
sync together, where the file system allows it (`shared_sync`); the next ones wait for that.

A flush keeps its files open. While too many files wait (`FileCache.is_crowded`), further logs are queued without any.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from penstock.storage.files import Disk
from penstock.storage.flush_job import FlushJob
from penstock.storage.log import PartitionLog
from penstock.storage.shared_sync import SharedSync

ALONE_MAX = 2
"""Logs synced side by side before further ones wait to be synced together."""
TOGETHER_MIN = 3
"""Fewer waiting logs than this are synced side by side."""


class Flusher:
    def __init__(
        self,
        disk: Disk,
        threads: int,
        call_on_loop: Callable[[Callable[[], None]], object],
        on_flushed: Callable[[PartitionLog], None],
        shared: SharedSync | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._disk = disk
        self._call_on_loop = call_on_loop
        self._on_flushed = on_flushed
        self._shared = shared
        self._is_crowded = is_crowded
        self._jobs: queue.SimpleQueue[list[FlushJob] | None] = queue.SimpleQueue()
        self._alone = 0
        self._together = False
        self._waiting: list[FlushJob] = []
        """Only while some are under way; their end starts these."""
        self._queued: dict[PartitionLog, None] = {}
        """Logs whose flush has not begun, in their order."""
        self._done: deque[list[FlushJob]] = deque()
        self._notified = False
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-flush-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: PartitionLog) -> None:
        if not log.flush_under_way and log.failure is None and (self._queued or not self._may_begin()):
            self._queued[log] = None
        else:
            self._begin(log)

    def _may_begin(self) -> bool:
        return not (self._alone or self._together or self._waiting) or not self._is_crowded()

    def _begin(self, log: PartitionLog) -> None:
        job = log.begin_flush()
        if job is None:
            if log.failure is not None:
                self._on_flushed(log)
        elif self._may_wait(job):
            self._waiting.append(job)
        else:
            self._start_alone(job)

    def _may_wait(self, job: FlushJob) -> bool:
        if self._shared is None or not (self._together or self._alone >= ALONE_MAX):
            return False
        # new names, and what a recovery found, are synced by the files' own descriptors: those know of older errors
        return job.directory is None and self._shared.worthwhile()

    def _start_alone(self, job: FlushJob) -> None:
        self._alone += 1
        self._jobs.put([job])

    def _start_waiting(self) -> None:
        waiting = self._waiting
        if not waiting or self._together:
            return
        self._waiting = []
        if len(waiting) >= TOGETHER_MIN:
            self._together = True
            self._jobs.put(waiting)
        else:
            for job in waiting:
                self._start_alone(job)

    def _start_queued(self) -> None:
        queued = self._queued
        while queued and self._may_begin():
            log = next(iter(queued))
            del queued[log]
            self._begin(log)

    def stop(self) -> None:
        """Let what has begun finish, then end the threads. Everything else is for the caller to flush."""
        self._stopping = True
        self._queued.clear()
        for job in self._waiting:
            self._start_alone(job)
        self._waiting = []
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._finish()

    def _work(self) -> None:
        while (jobs := self._jobs.get()) is not None:
            if self._shared is not None and len(jobs) > 1:
                self._shared.run(jobs, self._disk)
            else:
                jobs[0].run(self._disk)
            self._done.append(jobs)
            jobs = None  # their files may close now, not when the next jobs come
            if not self._notified:
                self._notified = True
                try:
                    self._call_on_loop(self._finish)
                except RuntimeError:  # the loop is closed: stop() collects what is done
                    return

    def _finish(self) -> None:
        self._notified = False
        done = self._done
        while done:
            jobs = done.popleft()
            if len(jobs) > 1:
                self._together = False
            else:
                self._alone -= 1
            for job in jobs:
                log = job.log
                log.end_flush(job)
                self._on_flushed(log)
                # a flush that was refused is tried again by the next append, or by the broker's timer
                if log.flush_wanted and log.failure is None and job.refused is None and not self._stopping:
                    self.request(log)
        self._start_waiting()
        self._start_queued()
