"""An account of bytes: memory for data from peers is counted here first, and callers wait while the account is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.model.pending import Pending


class Account:
    """Bytes in use over all connections. Used on the event loop only.

    Callers wait in order, so small requests do not starve a large one. A request above the bound is admitted alone. Waiting
    callers continue in the next turn of the loop, not inside the call that gave bytes back.
    """

    __slots__ = ("_call_soon", "_waiting", "bytes_max", "bytes_taken")

    def __init__(self, bytes_max: int, call_soon: Callable[..., object]) -> None:
        self.bytes_max = bytes_max
        self._call_soon = call_soon
        self.bytes_taken = 0
        self._waiting: deque[tuple[int, Pending[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take_now(self, size: int) -> bool:
        """Take the bytes if they fit and no other caller waits."""
        if self._waiting or not self._has_room(size):
            return False
        self.bytes_taken += size
        return True

    def take(self, size: int) -> Pending[None]:
        """Take the bytes now or as soon as they fit. A caller that no longer needs them abandons the pending."""
        taken: Pending[None] = Pending()
        if self.take_now(size):
            taken.complete(None)
        else:
            self._waiting.append((size, taken))
        return taken

    def give(self, size: int) -> None:
        """Give back bytes that were taken."""
        self.bytes_taken -= size
        assert self.bytes_taken >= 0
        waiting = self._waiting
        while waiting:
            wanted, pending = waiting[0]
            if pending.done:
                waiting.popleft()
            elif self._has_room(wanted):
                waiting.popleft()
                self.bytes_taken += wanted
                self._call_soon(self._admit, wanted, pending)
            else:
                return

    def _admit(self, size: int, pending: Pending[None]) -> None:
        if pending.done:  # abandoned meanwhile
            self.give(size)
        pending.complete(None)

    def _has_room(self, size: int) -> bool:
        return not self.bytes_taken or self.bytes_taken + size <= self.bytes_max
