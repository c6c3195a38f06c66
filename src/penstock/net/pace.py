"""Time for requests in one turn of the event loop, and the connections that continue in the next turn.

One read may deliver thousands of small requests, and one flush may answer thousands of parked ones. A connection performs
at least one request per turn of the loop. After `PERFORM_S` it leaves the rest for the next turn, in order of arrival, so
that all other sockets are read in between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

PERFORM_S = 0.003
"""Time for requests in one turn of the loop: once for new requests and once for waiting ones."""


class Waits(Protocol):
    """A connection with requests to perform or answers to send."""

    def go_on(self) -> None: ...


class Pace:
    __slots__ = ("_call_soon", "_ends_s", "_scheduled", "_waiting", "clock")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self.clock = time.monotonic
        self._ends_s = 0.0
        """When this turn of the loop has to stop; 0 before the first call of `is_late`."""
        self._waiting: deque[Waits] = deque()
        self._scheduled = False

    def is_late(self) -> bool:
        """Whether this turn of the loop has used up its time."""
        if not self._ends_s:
            self._ends_s = self.clock() + PERFORM_S
            self._schedule()
            return False
        return self.clock() >= self._ends_s

    def add(self, connection: Waits) -> None:
        """Continue the connection in the next turn of the loop that has time for it."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        waiting = self._waiting
        if waiting:
            self._ends_s = self.clock() + PERFORM_S
            self._scheduled = True  # connections added from here on wait for the next turn
            try:
                for _ in range(len(waiting)):
                    waiting.popleft().go_on()
                    if self.clock() >= self._ends_s:
                        break
            finally:
                self._scheduled = False
                if waiting:
                    self._schedule()
        self._ends_s = 0.0
