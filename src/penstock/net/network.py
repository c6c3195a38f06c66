"""What all listeners of one event loop share: memory, limits, counts, reader threads, and the sweep over deadlines."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from penstock.net.buffers import FramePool, InFlight
from penstock.net.loop import SendFile, sendfile_function
from penstock.net.residency import Resident, residency
from penstock.net.settings import NetSettings
from penstock.net.turn import Turn

logger = logging.getLogger("penstock.net")

_TRIM_SWEEPS = 10


class Swept(Protocol):
    """Something with deadlines: looked at once in an interval, instead of a timer for each request."""

    def sweep(self, now_ms: int) -> None: ...


class Network:
    """Made once on the running loop, handed to every listener, closed when they have stopped."""

    def __init__(self, settings: NetSettings | None = None) -> None:
        self.settings = settings or NetSettings()
        self.loop = asyncio.get_running_loop()
        self._arena = memoryview(bytearray(self.settings.scratch_bytes))
        self.scratch = self._arena
        """Where sockets are read into: the part that no request of this turn borrows from."""
        self.turn = Turn(self)
        self.pool = FramePool(self.settings.pool_bytes_max)
        self.in_flight = InFlight(self.settings.in_flight_bytes_max)
        self.sendfile: SendFile | None = sendfile_function(self.settings.sendfile)
        self.resident: Resident
        self.resident, how = residency()
        if how == "none":
            logger.warning("fetch: this system cannot tell what is in its page cache; cold reads may delay others")
        self.readers = ThreadPoolExecutor(self.settings.reader_threads, thread_name_prefix="penstock-cold-read")
        self.connections = 0
        self.connections_by_ip: dict[str, int] = {}
        self.now_ms = int(self.loop.time() * 1_000)
        """A clock that moves with the sweep: exact enough for deadlines, and free to read for every request."""
        # Only uvloop writes several pieces in one call and keeps pausing exact; elsewhere pieces are joined.
        self.vectored = type(self.loop).__module__.startswith("uvloop")
        self._swept: dict[Swept, None] = {}
        self._sweeps = 0
        self._timer = self.loop.call_later(self.settings.sweep_interval_ms / 1_000, self._sweep)

    def watch(self, swept: Swept) -> None:
        self._swept[swept] = None

    def unwatch(self, swept: Swept) -> None:
        self._swept.pop(swept, None)

    def lend_scratch(self) -> memoryview:
        """The scratch buffer, for requests that cannot be performed yet and borrow from it; others get a new one."""
        lent = self.scratch
        self.scratch = self._arena = self.pool.take(self.settings.scratch_bytes)[: self.settings.scratch_bytes]
        return lent

    def renew_scratch(self) -> None:
        """No request borrows from the scratch buffer any more."""
        self.scratch = self._arena

    def close(self) -> None:
        self._timer.cancel()
        self.readers.shutdown(cancel_futures=True)

    def _sweep(self) -> None:
        self.now_ms = int(self.loop.time() * 1_000)
        self._timer = self.loop.call_later(self.settings.sweep_interval_ms / 1_000, self._sweep)
        self.in_flight.sweep()
        self._sweeps += 1
        if self._sweeps % _TRIM_SWEEPS == 0:
            self.pool.trim()
        now_ms = self.now_ms
        for swept in list(self._swept):
            swept.sweep(now_ms)
