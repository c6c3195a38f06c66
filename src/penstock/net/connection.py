"""One connection: the socket of an `Exchange`, from its first byte to its end.

Reading. The socket is read into the scratch buffer of the loop. A connection that gets one large frame after the other
reads straight into a buffer of its own.

Stopping. One rule says when the socket is read (`_regulate`): no answers beyond the bound are unsent, no more than the
allowed requests are parked, none holds up those behind it, none waits in the backlog, and memory is free.

Deadlines. Those of its listener, looked at by a sweep (`sweep`).

Ending. `_close` ends at once; `_end` lets the answers of earlier requests leave first. Either writes one log line,
abandons what is parked, tells the session, and touches nobody else. A disconnect by the peer, orderly or not, is normal and
logged at DEBUG. A connection that the broker ends is logged at INFO or above.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, cast

from penstock.net.exchange import Exchange
from penstock.net.log_lines import endpoint, printable
from penstock.net.orphans import Orphans
from penstock.net.parked import abandon
from penstock.net.session import Peer
from penstock.net.turn import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from penstock.net.listener import Listener

logger = logging.getLogger("penstock.net")

_OPEN, _LAST_ANSWERS, _LINGER = range(3)
"""A connection that ends lets its last answers leave; after a broken protocol it then lingers until the peer closes,
because closing a socket with unread bytes resets the connection and may destroy answers on their way."""

QUEUED_BYTES_MAX = 64 * 1024
"""What the transport may hold without telling: answers that wait for the end of a turn of the loop."""


class Connection(Exchange, asyncio.BufferedProtocol):
    __slots__ = (
        "_ending_since_ms",
        "_eof",
        "_heard_ms",
        "_reading",
        "_stalled_bytes",
        "_stalled_since_ms",
        "_told",
        "_waits_for_memory",
        "peer",
    )

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.peer = Peer("?", 0, "?", 0)
        self._reading = True
        self._waits_for_memory = False
        self._eof = False
        self._ending = _OPEN
        self._told = False
        self._ending_since_ms = 0
        self._heard_ms = self._network.now_ms
        self._stalled_bytes = 0
        self._stalled_since_ms = 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        remote = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.peer = Peer(remote[0], remote[1], local[0], local[1])
        if not self._listener.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=QUEUED_BYTES_MAX, low=0)
        try:
            self._session = self._listener.session_factory(self.peer)
        except Exception:  # noqa: BLE001 - logged with its traceback
            self._tell(logging.ERROR, "cannot create a session", exc_info=True)
            self._listener.forget(self)
            self._transport.abort()
            return
        self._multiplexes = getattr(self._session, "multiplexes", False)
        self._closed = False

    def get_buffer(self, sizehint: int) -> memoryview:
        space = self._half.space()
        return self._network.scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        network = self._network
        half = self._half
        buffer = half.buffer
        if buffer is None:
            view = network.scratch[:nbytes]
            may_wait = nbytes <= REQUEST_BYTES_MAX
        if self._in_turn:
            network.turn.run_for(self)
            may_wait = False  # the scratch buffer begins anew, and not with these bytes
        if self._closed or self._ending:
            return
        self._heard_ms = network.now_ms
        self._listener.bytes_received += nbytes
        if buffer is None:
            self._take(view, may_wait)
        else:
            half.filled = filled = half.filled + nbytes
            if filled >= half.needed:
                self._take(buffer[:filled])
            else:
                self._recharge()
        if network.in_flight.pressed and not self._closed:
            is_mid_frame = half.filled > 0 and not self._is_held_up()
            self._waits_for_memory = not network.in_flight.may_read(self, is_mid_frame)
            self._regulate()

    def eof_received(self) -> bool:
        if self._in_turn:
            self._network.turn.run_for(self)
        self._eof = True
        if self._closed or self._ending:
            return False
        if self._awaits_requests():
            return True
        self._tell_of_half_frame()
        if not self._has_unfinished():
            return False
        self._begin_end(_LAST_ANSWERS)
        return True

    def _awaits_requests(self) -> bool:
        """Whether complete requests have arrived that have not been performed yet."""
        return self._backlog is not None or self._half.is_whole()

    def _tell_of_half_frame(self) -> None:
        if self._half.filled:
            self._tell(logging.DEBUG, f"the peer closed the connection after {self._half.filled} bytes of a frame")

    def pause_writing(self) -> None:
        self.stalled = True

    def resume_writing(self) -> None:
        # Not at once: asyncio's transport is in the middle of a write, and would end twice if this connection ended now.
        self.stalled = False
        self._go_on_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._in_turn:
            self._network.turn.run_for(self)
        if not self._closed:
            because = "" if exc is None else f": {getattr(exc, 'strerror', None) or exc}"
            unsent = self._bytes_unsent()
            if unsent:
                self._tell(logging.DEBUG, f"connection lost with {unsent} bytes of responses unsent{because}")
            elif self._half.filled:
                self._tell(logging.DEBUG, f"connection lost after {self._half.filled} bytes of a frame{because}")
            elif exc is not None:
                self._tell(logging.DEBUG, f"connection lost{because}")
            self._orphan()
            self._release()
        self._listener.forget(self)

    # Flow control.

    def memory_is_free(self) -> None:
        self._waits_for_memory = False
        self._regulate()

    def _regulate(self) -> None:
        """Read the socket, or stop: the one place that decides."""
        if self._closed:
            return
        if self._eof:
            if not self._ending and not self._awaits_requests():
                self._tell_of_half_frame()
                self._begin_end(_LAST_ANSWERS)
            return
        settings = self._network.settings
        high = settings.write_buffer_bytes_high
        if self._ending:
            read = self._ending == _LINGER and not self._has_unfinished()
        else:
            read = (
                self._backlog is None
                and not self._half.is_whole()
                and not self._waits_for_memory
                and not self._is_held_up()
                and (self._parked is None or len(self._parked) < settings.in_flight_requests_max)
                and self._bytes_unsent() <= (high if self._reading else high // 2)
            )
        if read != self._reading:
            self._reading = read
            if read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Deadlines and endings.

    def sweep(self, now_ms: int) -> None:
        """Once a second: whatever took longer than it may. The coarse clock makes nothing early."""
        if self._closed:
            return
        settings = self._network.settings
        deadlines = self._listener.deadlines
        slack_ms = settings.sweep_interval_ms
        half = self._half
        outbox = self._outbox
        unsent = self._bytes_unsent()
        if self._ending:
            if now_ms - self._ending_since_ms > settings.stop_grace_ms + slack_ms:
                level = logging.INFO if unsent else logging.DEBUG
                self._close("timed out sending the last responses", level)
            return
        if unsent:
            if unsent != self._stalled_bytes or (outbox is not None and outbox.waits_for_disk):
                self._stalled_bytes = unsent
                self._stalled_since_ms = now_ms
            elif now_ms - self._stalled_since_ms > deadlines.write_deadline_ms:
                self._close(f"the peer read none of {unsent} pending bytes for {deadlines.write_deadline_ms} ms")
                return
        else:
            self._stalled_bytes = 0
            if outbox is not None and outbox.release_when_unused():
                self._outbox = None
                self._transport.set_write_buffer_limits(high=QUEUED_BYTES_MAX, low=0)
        if unsent or self._parked:
            self._heard_ms = now_ms
        if half.filled:
            if not self._reading and not self._waits_for_memory:
                # The peer cannot send the rest while we do not read. When memory is short the frame itself is to blame.
                half.since_ms = now_ms
            elif now_ms - half.since_ms > deadlines.frame_deadline_ms + slack_ms:
                got = f"{half.filled} of {half.needed}" if half.needed else f"{half.filled}"
                self._close(f"incomplete frame after {deadlines.frame_deadline_ms} ms: {got} bytes received")
            return
        if half.buffer is not None:
            half.drop()
        if now_ms - self._heard_ms > deadlines.idle_deadline_ms + slack_ms:
            self._close(f"idle for {deadlines.idle_deadline_ms} ms", logging.INFO)

    def stop(self) -> None:
        """The listener stops: nothing more is read, started answers may leave."""
        if self._closed:
            return
        self._begin_end(_LAST_ANSWERS)
        if not self._has_unfinished():
            self._close(None)

    def abort(self) -> None:
        if not self._closed:
            self._close(None)

    def answer_failed(self, reason: str, peer_gone: bool) -> None:
        if peer_gone:
            self._orphan()
            self._close(
                f"connection lost with {self._bytes_unsent()} bytes of responses unsent: {reason}", logging.DEBUG
            )
        else:
            self._close(reason, logging.ERROR)

    def _end(self, reason: str) -> None:
        """The peer broke its protocol: answer what came before, then close."""
        if self._closed or self._ending:
            return
        self._tell(logging.WARNING, reason)
        self._half.drop()
        self._recharge()
        self._begin_end(_LINGER)
        if not self._has_unfinished():
            self._finish()

    def _begin_end(self, ending: int) -> None:
        self._transport.set_write_buffer_limits(high=0)  # tells when the last answer has left
        self._ending = ending
        self._ending_since_ms = self._network.now_ms
        self._regulate()

    def _finish(self) -> None:
        """The last answers have left."""
        if self._eof or self._ending != _LINGER:
            self._close(None)
            return
        self._regulate()
        try:
            self._transport.write_eof()
        except OSError:
            self._close(None)

    def _crash(self, reason: str | None = None) -> None:
        """The session is wrong, not the peer. Without a reason, the exception under way is it."""
        if self._closed:
            return
        self._tell(logging.ERROR, reason or "unexpected error in the session", exc_info=reason is None)
        self._close(None)

    def _close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """At once. `reason` is for the log; None when no line is due."""
        if reason is not None:
            self._tell(level, reason)
        self._release()
        self._transport.abort()

    def _orphan(self) -> None:
        """Keep the complete requests of a disconnected peer that have not been performed yet."""
        if not self._awaits_requests():
            return
        backlog, half = self._backlog, self._half
        filled = half.filled if half.is_whole() else 0
        rest = half.lend() if filled else None
        charged, self._charged = self._charged, 0
        session, self._backlog = self._session, None

        def done() -> None:
            self._network.in_flight.charge(-charged)
            self._close_session()

        requests = iter(()) if backlog is None else chain((backlog.requests[0],), backlog.requests[1])
        waiting = memoryview(b"") if rest is None else rest[:filled]
        self._orphans = Orphans(self._network.pace, session, requests, waiting, done)
        if self._is_held_up():
            self._parked = deque(entry for entry in self._parked or () if entry[1] is not self._hold)
        else:
            self._orphans.go_on_soon()

    def _release(self) -> None:
        self._closed = True
        if self._hold is not None and self._hold.borrows:
            self._half.lend()  # the work continues and may read it: nothing else is received into it
        else:
            self._half.drop()
        self._backlog = self._hold = None
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
        if self._charged:
            self._network.in_flight.charge(-self._charged)
            self._charged = 0
        self._network.in_flight.forget(self)
        parked, self._parked = self._parked, None
        if parked:
            abandon(parked)
        if self._orphans is None:
            self._close_session()

    def _close_session(self) -> None:
        try:
            self._session.closed()
        except Exception:
            logger.exception("a %s session failed to close", self._listener.name)

    def _tell(self, level: int, reason: str, exc_info: bool = False) -> None:
        """The one line that the log has about the end of this connection."""
        if not self._told:
            self._told = True
            name, peer = self._listener.name, endpoint(self.peer.host, self.peer.port)
            logger.log(level, "%s connection from %s closed: %s", name, peer, printable(reason), exc_info=exc_info)
