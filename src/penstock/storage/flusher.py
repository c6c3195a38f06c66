"""The flusher: makes appended bytes survive a power cut, with group commit that needs no timer.

On the loop, `request(log)` starts a flush of a log unless one is under way; when it ends, everything appended in the
meantime is flushed next, in one go. Threads do nothing but fdatasync, which holds no GIL; they take jobs from a queue and
hand them back through the loop. Several threads, because file systems commit the journals of several files together.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from penstock.storage.files import Disk
from penstock.storage.log import FlushJob, PartitionLog


class Flusher:
    def __init__(
        self,
        disk: Disk,
        threads: int,
        call_on_loop: Callable[[Callable[[], None]], object],
        on_flushed: Callable[[PartitionLog], None],
    ) -> None:
        self._disk = disk
        self._call_on_loop = call_on_loop
        self._on_flushed = on_flushed
        self._jobs: queue.SimpleQueue[FlushJob | None] = queue.SimpleQueue()
        self._done: deque[FlushJob] = deque()
        self._notified = False
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-flush-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: PartitionLog) -> None:
        job = log.begin_flush()
        if job is not None:
            self._jobs.put(job)
        elif log.failure is not None:
            self._on_flushed(log)

    def stop(self) -> None:
        """Let what is queued finish, then end the threads. What was appended since is for the caller to flush."""
        self._stopping = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._finish()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run(self._disk)
            self._done.append(job)
            job = None  # its files may close now, not when the next job comes
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
            job = done.popleft()
            log = job.log
            log.end_flush(job)
            self._on_flushed(log)
            if log.dirty and log.failure is None and not self._stopping:
                self.request(log)
