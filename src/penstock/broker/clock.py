"""The broker's time of day: the wall clock, as long as it agrees with the time elapsed since the start.

Sessions, transactions, committed offsets and retention depend on the time of day. A jump of the wall clock, caused by an
operator or a faulty time server, would expel every member and delete every log. After a jump of more than five minutes,
`now_ms` follows the time elapsed since the start, and nothing is deleted by age until the broker restarts, because it is
unknown which clock was right.

Elapsed time includes time that the machine was suspended (CLOCK_BOOTTIME), so waking up is not a jump.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

STEP_MAX_MS = 300_000

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def passed_ms() -> int:
    """Milliseconds since a fixed moment in the past, including suspended time where the system supports it."""
    if _SINCE_BOOT is None:
        return time.monotonic_ns() // 1_000_000
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


class Clock:
    __slots__ = ("_passed_ms", "_start_ms", "_wall_ms", "is_steady")

    def __init__(self, wall_ms: Callable[[], int] = wall_ms, passed_ms: Callable[[], int] = passed_ms) -> None:
        self._wall_ms = wall_ms
        self._passed_ms = passed_ms
        self._start_ms = wall_ms() - passed_ms()
        self.is_steady = True
        """Whether the wall clock has never jumped, so that data may be deleted by age."""

    def now_ms(self) -> int:
        expected_ms = self._start_ms + self._passed_ms()
        if not self.is_steady:
            return expected_ms
        now_ms = self._wall_ms()
        if abs(now_ms - expected_ms) <= STEP_MAX_MS:
            return now_ms
        self.is_steady = False
        logger.error(
            "the wall clock jumped by %d s: nothing is deleted by age until the broker restarts",
            (now_ms - expected_ms) // 1_000,
        )
        return expected_ms
