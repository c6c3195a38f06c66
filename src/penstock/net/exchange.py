"""The exchange on one connection: what was received is cut into requests, each is performed, the answers leave in order.

Taking. The session cuts what the socket delivered into requests, and only the start of a frame that is not whole yet is
copied to a buffer of this connection. An idle connection holds none.

Performing. Each request is performed as it arrives, without waiting for earlier answers. A `Pending` parks its request,
and every later answer waits behind it, unless the session multiplexes and the answer has another key. All answers of one
read leave in one write.

Waiting. Requests after a `Hold`, requests beyond the bounds (of answers unsent, of requests parked), and requests for which
a turn of the loop has no time (`Pace`) stay in the backlog with the buffer that they borrow from. They are performed when
the hold has its answer, or when room or time is available. A hold that borrows (`Hold.borrows`) keeps the buffer.

The socket's side, when it is read and how the connection ends, is `Connection`. It is a subclass, not an owner, because
every call between two objects would be paid by every request.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import ProtocolError
from penstock.model.pending import Hold, Pending
from penstock.net.half_frame import HalfFrame
from penstock.net.orphans import Orphans
from penstock.net.outbox import Outbox, write
from penstock.net.parked import Parked, bring_forward
from penstock.net.session import Fed, Session

if TYPE_CHECKING:
    from penstock.net.listener import Listener


_Waiting = tuple[Any, Iterator[Any]]
"""The next request of a read and those behind it. Not one iterator: putting a request back before the others would nest it
once for every time that a read has to stop."""


class _Backlog(NamedTuple):
    """Requests that one read delivered and that must wait for room."""

    requests: _Waiting
    borrowed: memoryview
    fatal: str | None


class _Raised(NamedTuple):
    """What a request that waited for the turn of the loop ended in; a session's results may be anything else."""

    error: Exception


class Exchange(ABC):
    __slots__ = (
        "_backlog",
        "_charged",
        "_closed",
        "_ending",
        "_half",
        "_hold",
        "_in_turn",
        "_listener",
        "_multiplexes",
        "_network",
        "_orphans",
        "_outbox",
        "_parked",
        "_scheduled",
        "_session",
        "_transport",
        "stalled",
    )

    _transport: asyncio.Transport
    _session: Session

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._network = listener.network
        self.stalled = False
        """The transport holds bytes that the socket did not take; see `Outbox` for why that is exact."""
        self._closed = True
        self._ending = 0
        """Not 0: nothing more is taken, and what has been taken is still answered."""
        self._half = HalfFrame(self._network.pool)
        self._parked: Parked | None = None
        self._hold: Hold[Any] | None = None
        """The last request that held up those behind it."""
        self._multiplexes = False
        self._scheduled = False
        self._in_turn = False
        """A request of this connection waits for the turn of the loop to run."""
        self._backlog: _Backlog | None = None
        self._orphans: Orphans | None = None
        """Requests that the peer sent before it disconnected."""
        self._outbox: Outbox | None = None
        self._charged = 0

    # What the socket's side does.

    @abstractmethod
    def _regulate(self) -> None:
        """What is held has changed: read the socket, or stop."""

    @abstractmethod
    def _end(self, reason: str) -> None:
        """The peer broke its protocol: answer what came before, then close."""

    @abstractmethod
    def _finish(self) -> None:
        """The last answers of a connection that ends have left."""

    @abstractmethod
    def _crash(self, reason: str | None = None) -> None:
        """The session is wrong, not the peer. Without a reason, the exception under way is it."""

    @abstractmethod
    def answer_failed(self, reason: str, peer_gone: bool) -> None:
        """An answer can never leave in order: the connection has to go."""

    # From bytes to requests to answers.

    def _take(self, view: memoryview, may_wait: bool = False) -> None:
        """Feed the session, perform what it cut, and keep the start of the next frame.

        `may_wait`: `view` is the unused beginning of the scratch buffer, where a request may wait for the turn to run.
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
                is_alone = may_wait and len(requests) == 1 and consumed == len(view) and fatal is None
                if is_alone and not (
                    # nothing is in progress that the request would have to wait for or be counted with
                    self._parked
                    or self.stalled
                    or self._charged
                    or self._backlog is not None
                    or self._outbox is not None
                    or self._network.in_flight.pressed
                ):
                    self._in_turn = True
                    self._network.turn.add(self, requests[0], consumed)
                    return
                may_wait = False
                behind = iter(requests)
                first = next(behind)
                waiting = (first, behind) if self._is_held_up() else self._perform(first, behind)
                if self._closed:
                    self._network.lend_scratch()  # the work continues and may read it
                if self._closed or self._ending:
                    return
                if waiting is not None or self._lends():
                    lent = half.lend() or self._network.lend_scratch()
                    self._lend(lent)
                    if waiting is not None:
                        self._backlog = _Backlog(waiting, lent, fatal)
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
                    self._crash("the session consumed nothing of a complete frame")
                    return
                if self._backlog is None and not self._is_full():
                    if not self._network.pace.is_late():
                        continue
                    self._go_on_soon()
            frame_bytes = max(needed, rest)
            if frame_bytes > self._network.settings.frame_bytes_max:
                self._end(
                    f"a frame of {frame_bytes} bytes exceeds the limit of {self._network.settings.frame_bytes_max}"
                )
                return
            half.keep(view, start, needed, self._network.now_ms)
            break
        if self._parked or self.stalled or self._charged or half.filled or self._outbox is not None:
            self._recharge()
            self._regulate()

    def _perform(self, first: Any, behind: Iterator[Any]) -> _Waiting | None:
        """Perform in order and send the answers; what remains when a hold or a bound stopped it."""
        session = self._session
        perform, answer = session.perform, session.answer
        parked_max = self._network.settings.in_flight_requests_max
        room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
        is_late = self._network.pace.is_late
        parked = self._parked
        out: list[Chunk] = []
        size = 0
        full = begun = False
        try:
            for request in chain((first,), behind):
                if full or (begun and is_late()):
                    out_of_time = not full or is_late()
                    self._send(out, size)
                    out, size, full = [], 0, False
                    if parked:
                        self._leave()  # what has come by now wakes nobody later
                    if self._closed:
                        return None
                    if out_of_time:
                        self._go_on_soon()
                    if out_of_time or self._is_full():
                        return request, behind
                    room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
                begun = True
                result = perform(request)
                if parked or isinstance(result, Pending):
                    parked = self._park(request, result)
                    full = len(parked) >= parked_max or self._hold is not None
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

    def perform_in_turn(self, request: Any) -> Any:
        """The first half of a request that waited for the turn of the loop: its result, or the error that it ended in."""
        if self._closed:
            return None
        try:
            return self._session.perform(request)
        except Exception as error:  # noqa: BLE001 - handled with the answer
            return _Raised(error)

    def answer_in_turn(self, request: Any, result: Any) -> None:
        """The second half, when all requests of the turn have been performed."""
        self._in_turn = False
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
                    if self._hold is not None:
                        if self._lends():
                            self._network.lend_to(self._hold)
                        self._regulate()
                    return
                result = result.result
            chunks = self._session.answer(request, result)
        except ProtocolError as error:
            self._end(str(error))
            return
        except Exception:  # noqa: BLE001 - logged there with its traceback
            self._crash()
            return
        waits = self.stalled or self._outbox is not None
        if len(chunks) == 1 and type(chunks[0]) is bytes and not waits:
            # one small answer and nothing before it: the way of most
            self._listener.bytes_sent += len(chunks[0])
            self._transport.write(chunks[0])
            if self.stalled or self._charged:
                self._recharge()
        else:
            self._send(chunks, sum(map(len, chunks)))
        if self._ending:
            self._go_on_soon()

    def _park(self, request: Any, result: Any) -> Parked:
        parked = self._parked
        if parked is None:
            parked = self._parked = deque()
        parked.append((request, result))
        if isinstance(result, Pending) and not result.done:
            if isinstance(result, Hold):
                self._hold = result
            result.then(self._woken)
        return parked

    def _woken(self, _result: Any) -> None:
        # Many requests end by one flush: their answers leave together, and never inside the broker's call.
        if self._orphans is None:
            self._go_on_soon()
        else:
            self._orphans.go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._network.pace.add(self)

    def go_on(self) -> None:
        """Continue with answers and requests, in a turn of the loop that has time for this connection."""
        self._scheduled = False
        if not self._closed and self._outbox is not None:
            self._outbox.pump()
        if not self._closed:
            self.answers_moved()

    def _leave(self) -> None:
        """Send the answers at the head of the queue that have come, as far as the bound of unsent bytes allows."""
        parked = self._parked
        if self._multiplexes and parked:
            bring_forward(parked)
        room = self._network.settings.write_buffer_bytes_high - self._bytes_unsent()
        is_late = self._network.pace.is_late
        out: list[Chunk] = []
        size = 0
        begun = False
        try:
            while parked:
                request, result = parked[0]
                if isinstance(result, Pending):
                    if not result.done:
                        break
                    result = result.result
                if room < 0:
                    break
                if begun and is_late():
                    self._go_on_soon()
                    break
                begun = True
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

    # What waits, and how much of it there is.

    def answers_moved(self) -> None:
        """There may be room again: let parked answers leave, perform the backlog, read on."""
        if self._parked:
            self._leave()
        half = self._half
        backlog = self._backlog
        if backlog is not None and not self._closed and not self._is_full():
            self._backlog = None
            waiting = self._perform(*backlog.requests)
            lends = self._lends()
            if lends:
                self._lend(backlog.borrowed)
            if waiting is not None:
                self._backlog = backlog._replace(requests=waiting)
            else:
                if not lends and not self._closed:
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

    def _lends(self) -> bool:
        """Whether the work for the last request still reads the buffer that holds the request."""
        hold = self._hold
        return hold is not None and hold.borrows and not hold.done and hold.over is None

    def _lend(self, buffer: memoryview) -> None:
        if self._hold is not None and self._lends():
            self._network.lend_to(self._hold, buffer)

    def _is_held_up(self) -> bool:
        if self._hold is not None and self._hold.done:
            self._hold = None
        return self._hold is not None

    def _is_full(self) -> bool:
        if self._is_held_up():
            return True
        settings = self._network.settings
        if self._parked is not None and len(self._parked) >= settings.in_flight_requests_max:
            return True
        return self._bytes_unsent() > settings.write_buffer_bytes_high

    def _bytes_unsent(self) -> int:
        unsent = 0 if self._outbox is None else self._outbox.bytes_unsent
        return unsent + self._transport.get_write_buffer_size()

    def _has_unfinished(self) -> bool:
        return self._in_turn or bool(self._parked) or self._backlog is not None or self._bytes_unsent() > 0

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
