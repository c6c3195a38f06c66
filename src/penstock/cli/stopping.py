"""Stopping a command that may run on and on: Ctrl-C and SIGTERM ask, and it ends between two steps, with exit code 0 if it
was to run until then. A second one does not wait, and the exit code is 130."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Stop:
    """`asked` turns true at the first signal. The second does not wait."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, _number: int, _frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextlib.contextmanager
def until_stopped() -> Iterator[Stop]:
    """Not by an exception: what was printed and what is committed must be the same records."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
