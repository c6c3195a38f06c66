"""What all listeners of one event loop share: memory, limits, counts, reader threads, and the sweep over deadlines."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from penstock.model.pending import Hold
from penstock.net.buffers import FramePool, InFlight
from penstock.net.loop import SendFile, sendfile_function
from penstock.net.pace import Pace
from penstock.net.residency import Resident, residency
from penstock.net.settings import NetSettings
from penstock.net.turn import Turn

logger = logging.getLogger("penstock.net")

_TRIM_SWEEPS = 10
_SWEPT_AT_ONCE = 1_000
"""Connections checked in one turn of the loop: about a millisecond."""


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
        self._arena_is_lent = False
        self.turn = Turn(self)
        self.pace = Pace(self.loop.call_soon)
        self.pool = FramePool(self.settings.pool_bytes_max)
        self.in_flight = InFlight(self.settings.in_flight_bytes_max)
        self.sendfile: SendFile | None = sendfile_function(self.settings.sendfile)
        self.resident: Resident
        self.resident, how = residency()
        if how == "none":
            logger.warning(
                "fetch: the page cache cannot be queried on this system; disk reads may delay other requests"
            )
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
        self.replace_scratch()
        return lent

    def replace_scratch(self) -> None:
        """Read into a new buffer from now on; requests continue to borrow from the old one."""
        self.scratch = self._arena = self.pool.take(self.settings.scratch_bytes)[: self.settings.scratch_bytes]
        self._arena_is_lent = False

    def renew_scratch(self) -> None:
        """Reuse the scratch buffer after a turn, unless a request still borrows from it (`lend_to`)."""
        if self._arena_is_lent:
            self.replace_scratch()
        else:
            self.scratch = self._arena

    def lend_to(self, hold: Hold[Any], buffer: memoryview | None = None) -> None:
        """Lend a buffer to the work of a hold and count it until the work is over. The default is the scratch buffer, which
        is replaced after the turn."""
        if buffer is None:
            buffer = self._arena
            self._arena_is_lent = True
        size = len(buffer)
        self.in_flight.charge(size)
        hold.over = lambda: self.in_flight.charge(-size)

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
        self._sweep_some(list(self._swept), self.now_ms)

    def _sweep_some(self, swept: list[Swept], now_ms: int) -> None:
        for one in swept[:_SWEPT_AT_ONCE]:
            one.sweep(now_ms)
        if len(swept) > _SWEPT_AT_ONCE:
            self.loop.call_soon(self._sweep_some, swept[_SWEPT_AT_ONCE:], now_ms)
