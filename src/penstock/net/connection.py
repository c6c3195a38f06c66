"""One connection: bytes from the socket to its session, requests performed in order, answers out in the same order.

Reading. The socket is read into the scratch buffer of the loop; the session cuts it into requests, and only the start
of a frame that is not whole yet is copied to a buffer of this connection. A connection that gets one large frame after
the other reads straight into such a buffer. An idle connection holds none.

Performing. Each request is performed as it arrives, without waiting for earlier answers. A `Pending` parks its request,
and every later answer waits behind it, unless the session multiplexes and the answer has another key. All answers of one
read leave in one write.

Stopping. One rule says when the socket is read (`_regulate`): no answers beyond the bound are unsent, no more than the
allowed requests are parked, no request waits in the backlog, and memory is free. Requests that one read delivered
beyond those bounds stay in the backlog, with the buffer that they borrow from, and are performed when there is room.

Ending. `_close` ends at once; `_end` lets the answers of earlier requests leave first. Either writes one log line,
abandons what is parked, tells the session, and touches nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import ProtocolError
from penstock.model.pending import Pending
from penstock.net.half_frame import HalfFrame
from penstock.net.log_lines import endpoint, printable
from penstock.net.outbox import Outbox, write
from penstock.net.session import Fed, Peer, Session
from penstock.net.turn import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from penstock.net.listener import Listener

logger = logging.getLogger("penstock.net")

_OPEN, _LAST_ANSWERS, _LINGER = range(3)

QUEUED_BYTES_MAX = 64 * 1024
"""What the transport may hold without telling: answers that wait for the end of a turn of the loop."""
"""A connection that ends lets its last answers leave; after a broken protocol it then lingers until the peer closes,
because closing a socket with unread bytes resets the connection and may destroy answers on their way."""


class _Backlog(NamedTuple):
    """Requests that one read delivered and that must wait for room."""

    requests: Iterator[Any]
    borrowed: memoryview
    fatal: str | None


class _Raised(NamedTuple):
    """What a request that waited for the turn of the loop ended in; a session's results may be anything else."""

    error: Exception


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_charged",
        "_closed",
        "_ending",
        "_ending_since_ms",
        "_eof",
        "_half",
        "_heard_ms",
        "_held",
        "_listener",
        "_multiplexes",
        "_network",
        "_outbox",
        "_parked",
        "_reading",
        "_scheduled",
        "_session",
        "_stalled_bytes",
        "_stalled_since_ms",
        "_told",
        "_transport",
        "_waits_for_memory",
        "peer",
        "stalled",
    )

    _transport: asyncio.Transport
    _session: Session

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._network = listener.network
        self.peer = Peer("?", 0, "?", 0)
        self.stalled = False
        """The transport holds bytes that the socket did not take; see `Outbox` for why that is exact."""
        self._closed = True
        self._half = HalfFrame(self._network.pool)
        self._parked: deque[tuple[Any, Any]] | None = None
        self._multiplexes = False
        self._scheduled = False
        self._held = False
        """A request of this connection waits for the turn of the loop to run."""
        self._backlog: _Backlog | None = None
        self._outbox: Outbox | None = None
        self._reading = True
        self._waits_for_memory = False
        self._eof = False
        self._ending = _OPEN
        self._told = False
        self._ending_since_ms = 0
        self._charged = 0
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
            self._tell(logging.ERROR, "no session could be made", exc_info=True)
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
            may_hold = nbytes <= REQUEST_BYTES_MAX
        if self._held:
            network.turn.run()
            may_hold = False  # the scratch buffer begins anew, and not with these bytes
        if self._closed or self._ending:
            return
        self._heard_ms = network.now_ms
        self._listener.bytes_received += nbytes
        if buffer is None:
            self._take(view, may_hold)
        else:
            half.filled = filled = half.filled + nbytes
            if filled >= half.needed:
                self._take(buffer[:filled])
            else:
                self._recharge()
        if network.in_flight.pressed and not self._closed:
            self._waits_for_memory = not network.in_flight.may_read(self, half.filled > 0)
            self._regulate()

    def eof_received(self) -> bool:
        if self._held:
            self._network.turn.run()
        self._eof = True
        if self._closed or self._ending:
            return False
        if self._half.filled:
            self._tell(logging.INFO, f"the peer closed after {self._half.filled} bytes of a frame")
        if not self._has_unfinished():
            return False
        self._begin_end(_LAST_ANSWERS)
        return True

    def pause_writing(self) -> None:
        self.stalled = True

    def resume_writing(self) -> None:
        # Not at once: asyncio's transport is in the middle of a write, and would end twice if this connection ended now.
        self.stalled = False
        self._go_on_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._held:
            self._network.turn.run()
        if not self._closed:
            because = "" if exc is None else f": {exc}"
            unsent = self._bytes_unsent()
            if unsent:
                self._tell(logging.INFO, f"the peer vanished with {unsent} bytes of answers unsent{because}")
            elif self._half.filled:
                self._tell(logging.INFO, f"the peer vanished after {self._half.filled} bytes of a frame{because}")
            elif exc is not None:
                self._tell(logging.INFO, f"the connection was lost{because}")
            self._release()
        self._listener.forget(self)

    # From bytes to requests to answers.

    def _take(self, view: memoryview, may_hold: bool = False) -> None:
        """Feed the session, perform what it cut, and keep the start of the next frame.

        `may_hold`: `view` is the unused beginning of the scratch buffer, where a request may wait for the turn to run.
        """
        half = self._half
        start = 0
        while True:
            try:
                fed = self._session.feed(view[start:] if start else view)
            except ProtocolError as error:
                fed = Fed(0, 0, [], str(error))
            except Exception:  # noqa: BLE001 - logged there with its traceback
                self._crash()
                return
            consumed, needed, requests, fatal = fed
            if requests:
                if may_hold and len(requests) == 1 and consumed == len(view) and fatal is None and self._is_at_rest():
                    self._held = True
                    self._network.turn.add(self, requests[0], consumed)
                    return
                may_hold = False
                waiting = self._perform(iter(requests))
                if self._closed or self._ending:
                    return
                if waiting is not None:
                    self._backlog = _Backlog(waiting, half.lend() or self._network.lend_scratch(), fatal)
                    self._recharge()
            if fatal is not None:
                if self._backlog is None:
                    self._end(fatal)
                else:
                    self._regulate()
                return
            start += consumed
            rest = len(view) - start
            if not rest:
                half.performed()
                break
            if 0 < needed <= rest:
                if not consumed:
                    self._crash("the session took nothing of a whole frame")
                    return
                if self._backlog is None and not self._is_full():
                    continue
            frame_bytes = max(needed, rest)
            if frame_bytes > self._network.settings.frame_bytes_max:
                self._end(f"a frame of {frame_bytes} bytes is more than {self._network.settings.frame_bytes_max}")
                return
            half.keep(view, start, needed, self._network.now_ms)
            break
        if self._parked or self.stalled or self._charged or half.filled or self._outbox is not None:
            self._recharge()
            self._regulate()

    def _perform(self, requests: Iterator[Any]) -> Iterator[Any] | None:
        """Perform in order and send the answers; what remains when a bound stopped it."""
        session = self._session
        perform, answer = session.perform, session.answer
        parked_max = self._network.settings.in_flight_requests_max
        room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
        parked = self._parked
        out: list[Chunk] = []
        size = 0
        full = False
        try:
            for request in requests:
                if full:
                    self._send(out, size)
                    out, size, full = [], 0, False
                    if self._multiplexes and parked:
                        self._leave()
                    if self._closed:
                        return None
                    if self._is_full():
                        return chain((request,), requests)
                    room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
                result = perform(request)
                if parked or isinstance(result, Pending):
                    parked = self._park(request, result)
                    full = len(parked) >= parked_max
                else:
                    chunks = answer(request, result)
                    for chunk in chunks:
                        size += len(chunk)
                    out += chunks
                    if size > room:
                        full = True
        except ProtocolError as error:
            self._send(out, size)
            self._end(str(error))
            return None
        except Exception:  # noqa: BLE001 - logged there with its traceback
            self._send(out, size)
            self._crash()
            return None
        self._send(out, size)
        if parked and not self._closed:
            self._leave()
        return None

    def _is_at_rest(self) -> bool:
        """Nothing is under way that a new request would have to wait for, or be counted with."""
        return not (
            self._parked
            or self.stalled
            or self._charged
            or self._backlog is not None
            or self._outbox is not None
            or self._network.in_flight.pressed
        )

    def perform_held(self, request: Any) -> Any:
        """The first half of a request that waited for the turn of the loop: its result, or the error that it ended in."""
        if self._closed:
            return None
        try:
            return self._session.perform(request)
        except Exception as error:  # noqa: BLE001 - handled with the answer
            return _Raised(error)

    def answer_held(self, request: Any, result: Any) -> None:
        """The second half, when all requests of the turn have been performed."""
        self._held = False
        if self._closed:
            if isinstance(result, Pending):
                result.abandon()
            return
        try:
            if type(result) is _Raised:
                raise result.error
            if isinstance(result, Pending):
                if not result.done:
                    self._park(request, result)
                    return
                result = result.result
            chunks = self._session.answer(request, result)
        except ProtocolError as error:
            self._end(str(error))
            return
        except Exception:  # noqa: BLE001 - logged there with its traceback
            self._crash()
            return
        size = 0
        for chunk in chunks:
            size += len(chunk)
        self._send(chunks, size)
        if self._ending:
            self._go_on_soon()

    def _park(self, request: Any, result: Any) -> deque[tuple[Any, Any]]:
        parked = self._parked
        if parked is None:
            parked = self._parked = deque()
        parked.append((request, result))
        if isinstance(result, Pending) and not result.done:
            result.then(self._woken)
        return parked

    def _woken(self, _result: Any) -> None:
        # Many requests end by one flush: their answers leave together, and never inside the broker's call.
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._network.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if not self._closed and self._outbox is not None:
            self._outbox.pump()
        if not self._closed:
            self.answers_moved()

    def _leave(self) -> None:
        """Send the answers at the head of the queue that have come, as far as the bound of unsent bytes allows."""
        parked = self._parked
        if self._multiplexes and parked:
            _bring_forward(parked)
        room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
        out: list[Chunk] = []
        size = 0
        try:
            while parked:
                request, result = parked[0]
                if isinstance(result, Pending):
                    if not result.done:
                        break
                    result = result.result
                if room < 0:
                    break
                parked.popleft()
                chunks = self._session.answer(request, result)
                for chunk in chunks:
                    size += len(chunk)
                out += chunks
                if size > room:
                    self._send(out, size)
                    out, size = [], 0
                    if self._closed:
                        return
                    room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
        except ProtocolError as error:
            self._send(out, size)
            self._end(str(error))
            return
        except Exception:  # noqa: BLE001 - logged there with its traceback
            self._send(out, size)
            self._crash()
            return
        self._send(out, size)

    def _send(self, out: list[Chunk], size: int) -> None:
        """Everything in one write, unless something waits before it or a file has to be read."""
        if not out or self._closed:
            return
        outbox = self._outbox
        self._listener.bytes_sent += size
        if not self.stalled and (outbox is None or not outbox.bytes_unsent) and FileRange not in map(type, out):
            # uvloop writes when it has read every socket that was ready: a peer that serves many connections is then
            # woken once, not by the first of them and again by each that follows.
            write(self._network, self._transport, cast("list[bytes | bytearray | memoryview]", out), size)
        else:
            if outbox is None:
                outbox = self._outbox = Outbox(self._network, self._transport, self)
                # An outbox writes to the socket itself: the transport must be empty, or say that it is not.
                self._transport.set_write_buffer_limits(high=0)
            outbox.push(out, size)
        if self.stalled or self._charged or outbox is not None:
            self._recharge()

    # Flow control.

    def answers_moved(self) -> None:
        """There may be room again: let parked answers leave, perform the backlog, read on."""
        if self._parked:
            self._leave()
        half = self._half
        backlog = self._backlog
        if backlog is not None and not self._closed and not self._is_full():
            self._backlog = None
            waiting = self._perform(backlog.requests)
            if waiting is not None:
                self._backlog = backlog._replace(requests=waiting)
            else:
                self._network.pool.give(backlog.borrowed)
                if backlog.fatal is not None and not self._ending:
                    self._end(backlog.fatal)
        if half.is_whole() and half.buffer is not None and self._backlog is None and not self._ending:
            if not self._is_full():
                self._take(half.buffer[: half.filled])
        if self._closed:
            return
        self._recharge()
        self._regulate()
        if self._ending and not self._has_unfinished():
            self._finish()

    def memory_is_free(self) -> None:
        self._waits_for_memory = False
        self._regulate()

    def _is_full(self) -> bool:
        settings = self._network.settings
        if self._parked is not None and len(self._parked) >= settings.in_flight_requests_max:
            return True
        return self._bytes_unsent() > settings.write_buffer_bytes_high

    def _regulate(self) -> None:
        """Read the socket, or stop: the one place that decides."""
        if self._closed or self._eof:
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
                and (self._parked is None or len(self._parked) < settings.in_flight_requests_max)
                and self._bytes_unsent() <= (high if self._reading else high // 2)
            )
        if read != self._reading:
            self._reading = read
            if read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _bytes_unsent(self) -> int:
        unsent = 0 if self._outbox is None else self._outbox.bytes_unsent
        return unsent + self._transport.get_write_buffer_size()

    def _has_unfinished(self) -> bool:
        return self._held or bool(self._parked) or self._backlog is not None or self._bytes_unsent() > 0

    def _recharge(self) -> None:
        """Bring the common account up to date with what this connection holds in memory."""
        if self._closed:
            return
        held = self._half.filled
        if self.stalled:
            held += self._transport.get_write_buffer_size()
        if self._outbox is not None:
            held += self._outbox.bytes_in_memory
        if self._backlog is not None:
            held += len(self._backlog.borrowed)
        if held != self._charged:
            delta = held - self._charged
            self._charged = held
            self._network.in_flight.charge(delta)

    # Deadlines and endings.

    def sweep(self, now_ms: int) -> None:
        """Once a second: whatever took longer than it may. The coarse clock makes nothing early."""
        if self._closed:
            return
        settings = self._network.settings
        slack_ms = settings.sweep_interval_ms
        half = self._half
        outbox = self._outbox
        unsent = self._bytes_unsent()
        if self._ending:
            if now_ms - self._ending_since_ms > settings.stop_grace_ms + slack_ms:
                level = logging.INFO if unsent else logging.DEBUG
                self._close("its last answers did not leave in time", level)
            return
        if unsent:
            if unsent != self._stalled_bytes or (outbox is not None and outbox.waits_for_disk):
                self._stalled_bytes = unsent
                self._stalled_since_ms = now_ms
            elif now_ms - self._stalled_since_ms > settings.write_deadline_ms:
                self._close(f"the peer took none of {unsent} waiting bytes for {settings.write_deadline_ms} ms")
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
            elif now_ms - half.since_ms > settings.frame_deadline_ms + slack_ms:
                got = f"{half.filled} of {half.needed}" if half.needed else f"{half.filled}"
                self._close(f"a frame was not whole after {settings.frame_deadline_ms} ms, with {got} bytes")
            return
        if half.buffer is not None:
            half.drop()
        if now_ms - self._heard_ms > settings.idle_deadline_ms + slack_ms:
            self._close(f"idle for {settings.idle_deadline_ms} ms", logging.INFO)

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
            self._close(
                f"the peer vanished with {self._bytes_unsent()} bytes of answers unsent: {reason}", logging.INFO
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
        self._tell(logging.ERROR, reason or "unexpected error in its session", exc_info=reason is None)
        self._close(None)

    def _close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """At once. `reason` is for the log; None when no line is due."""
        if reason is not None:
            self._tell(level, reason)
        self._release()
        self._transport.abort()

    def _release(self) -> None:
        self._closed = True
        self._half.drop()
        self._backlog = None
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = None
        if self._charged:
            self._network.in_flight.charge(-self._charged)
            self._charged = 0
        self._network.in_flight.forget(self)
        parked, self._parked = self._parked, None
        for _request, result in parked or ():
            if isinstance(result, Pending):
                result.abandon()
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


def _bring_forward(parked: deque[tuple[Any, Any]]) -> None:
    """Put the answers that may leave before those that wait; among requests of one key the order stays."""
    waiting_keys: set[Any] = set()
    come: list[tuple[Any, Any]] = []
    waiting: list[tuple[Any, Any]] = []
    for entry in parked:
        request, result = entry
        key = request.unordered_key
        if key in waiting_keys or (isinstance(result, Pending) and not result.done):
            waiting_keys.add(key)
            waiting.append(entry)
        else:
            come.append(entry)
    parked.clear()
    parked.extend(come)
    parked.extend(waiting)
