"""Complete requests of a disconnected peer that waited for a hold or for room: they are performed without answers.

A client may send its last records and close. An answer that arrives afterwards makes it reset the connection. Requests
received by then are performed like earlier ones, and their bytes stay counted until they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.model.errors import ProtocolError
from penstock.model.pending import Hold, Pending

if TYPE_CHECKING:
    from penstock.net.pace import Pace
    from penstock.net.session import Session

logger = logging.getLogger(__name__)


class Orphans:
    __slots__ = ("_on_done", "_pace", "_requests", "_rest", "_scheduled", "_session")

    def __init__(
        self, pace: Pace, session: Session, requests: Iterator[Any], rest: memoryview, on_done: Callable[[], None]
    ) -> None:
        """`rest` is what arrived after the requests. The buffers of both are no longer used for anything else."""
        self._pace = pace
        self._session = session
        self._requests = requests
        self._rest = rest
        self._on_done = on_done
        self._scheduled = False

    def go_on_soon(self, _result: object = None) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._pace.add(self)

    def go_on(self) -> None:
        """Perform requests, in a turn of the loop that has time for them."""
        self._scheduled = False
        try:
            while True:
                for request in self._requests:
                    result = self._session.perform(request)
                    if isinstance(result, Hold) and not result.done:
                        result.then(self.go_on_soon)
                        return
                    if isinstance(result, Pending):
                        result.abandon()
                    if self._pace.is_late():
                        self.go_on_soon()
                        return
                consumed, _, requests, _ = self._session.feed(self._rest)
                if not requests:
                    break
                self._rest = self._rest[consumed:]
                self._requests = iter(requests)
        except ProtocolError as error:
            logger.debug("request of a disconnected peer: %s", error)
        except Exception:
            logger.exception("request of a disconnected peer failed")
        self._on_done()
