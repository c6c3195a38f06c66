"""Log lines for refused writes: the first at once, then at most one every ten seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("penstock.storage")

LINE_INTERVAL_S = 10.0


class Refusals:
    """Counts the refused writes of one disk. A producer that retries is refused many times per second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line_at = -LINE_INTERVAL_S
        """Time of the last line."""
        self._count = 0

    def note(self, name: str, reason: str) -> None:
        """Count a refused write to a log or topic."""
        self._count += 1
        elapsed_s = self._clock() - self._line_at
        if elapsed_s < LINE_INTERVAL_S:
            return
        others = f" ({self._count:,} refused in the last {elapsed_s:.0f} s)" if self._count > 1 else ""
        logger.warning("write to %s refused%s: %s", name, others, reason)
        self._count = 0
        self._line_at += elapsed_s
