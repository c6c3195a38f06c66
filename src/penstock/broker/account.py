"""An account of bytes: who takes memory for what a peer sent counts it here first, and waits while there is no room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.model.pending import Pending


class Account:
    """Bytes that are taken, over all connections. Used on the event loop only.

    Waiting is first come, first served, so a large request is not overtaken by small ones for ever. A request above the
    bound is let in alone. Those who waited go on in the next turn of the loop, not inside the call that gave bytes back.
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
        """Take the bytes if there is room for them and nobody waits."""
        if self._waiting or not self._has_room(size):
            return False
        self.bytes_taken += size
        return True

    def take(self, size: int) -> Pending[None]:
        """Take the bytes, now or when there is room. One who no longer wants them abandons the pending."""
        taken: Pending[None] = Pending()
        if self.take_now(size):
            taken.complete(None)
        else:
            self._waiting.append((size, taken))
        return taken

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
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
