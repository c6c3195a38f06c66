"""The order of requests on a connection, where one of them cannot be taken at once.

The brokers whose dialects we speak handle a request after the one before it. A session performs a request when it arrives,
which looks the same as long as the broker takes it at once. Where it cannot (a topic has to be made first, offsets are
being loaded), that request holds up all later ones of its connection until the broker has taken it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.model.pending import Pending, settle

T = TypeVar("T")
U = TypeVar("U")


class Hold(Pending[T]):
    """The answer to a request that holds up the later ones."""

    __slots__ = ()


class HoldingSession(ABC):
    """A session whose requests wait for one another where they must. A request that borrows has `own()`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[tuple[Any, Pending[Any]]] | None = None
        """Requests behind one that the broker could not take; None when there is none such."""

    def perform(self, request: Any) -> Any:
        if self._held is None:
            return self._do(request)
        if hasattr(request, "own"):
            request.own()
        waiting: Pending[Any] = Pending()
        self._held.append((request, waiting))
        return waiting

    @abstractmethod
    def _do(self, request: Any) -> Any:
        """Perform it now: every request before it was taken."""

    def _hold_until(self, event: Pending[T], go_on: Callable[[T], U | Pending[U]]) -> U | Pending[U]:
        """What `go_on` gives once the event came; later requests stay behind it."""
        if event.done:
            return go_on(event.result)
        hold: Hold[U] = Hold()
        if self._held is None:
            self._held = deque()

        def came(result: T) -> None:
            settle(hold, go_on(result))
            self._go_on()

        event.then(came)
        return hold

    def _hold(self, result: Any) -> Any:
        """`result`, which later requests wait for where it is not there yet."""
        return self._hold_until(result, _itself) if isinstance(result, Pending) else result

    def _go_on(self) -> None:
        """Perform what was held, in order, as far as none of it holds up the others itself. What comes meanwhile goes
        behind it."""
        held = self._held
        while held:
            request, waiting = held.popleft()
            result = self._do(request)
            settle(waiting, result)
            if type(result) is Hold:
                return
        self._held = None

    def _forget_held(self) -> None:
        """The connection is gone, and nobody is served by performing what it left."""
        if self._held is not None:
            self._held.clear()


def _itself(result: T) -> T:
    return result
