"""Long work on the event loop in slices of a few milliseconds, with other connections in between.

The cost of some requests grows with a number that the peer chooses: partitions listed, topics described, records read.
Such work is a generator:

    yield           a point where the work may pause
    yield pending   wait for it; the expression is its result
    return result   the end; a pending is waited for

`Slices.run` performs the first slice at once, so short work needs no `Pending`. Once a turn of the loop has spent a slice
on new work, further new work gets one step only. Unfinished work waits in a queue, and each turn performs one slice. New
work and work whose pending has completed get the first half of a slice, because most of it is short; long work shares the
rest. At most `ACTIVE_MAX` long tasks take turns. The others wait until one of them ends, which bounds the memory for
unfinished work.

The result of work that runs out of time is a `Hold`: later requests on the same connection wait, so a connection has one
long request at a time. The result of work that only waits is a plain `Pending`.

Work continues when its connection closes, because a client may send a produce and disconnect. Work that only reads is
dropped (`drop=True`), together with the pending that it waits for.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.model.errors import ProtocolError
from penstock.model.pending import Hold, Pending, settle

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

Work = Generator["Pending[Any] | None", Any, T]

SLICE_S = 0.002
"""Length of a slice. A generator pauses at the first `yield` after it, so the work between two yields must be short."""
_SHORT_S = SLICE_S / 20
"""Shorter work is not counted against the turn of the loop."""
ACTIVE_MAX = 16
"""Long tasks that take turns. A request with the most elements needs about 30 MB of objects while it is performed."""


class Failed(NamedTuple):
    """The result of work that raised after its first slice; the caller raises the error again."""

    error: Exception


class _Task(Generic[T]):
    """Work in progress and the pending for its result."""

    __slots__ = ("dropped", "finish", "is_long", "result", "waits_for", "work")

    def __init__(self, work: Work[T], finish: Callable[[T], Work[Any]] | None) -> None:
        self.work: Work[Any] = work
        self.finish = finish
        self.result: Pending[Any]
        self.dropped = False
        self.is_long = False
        """Whether the work took longer than a slice."""
        self.waits_for: Pending[Any] | None = None

    def drop(self) -> None:
        self.dropped = True
        waits_for, self.waits_for = self.waits_for, None
        if waits_for is not None:
            waits_for.abandon()
        self.work.close()
        self.is_over()

    def is_over(self) -> None:
        """Give back the borrowed bytes: the work no longer needs them."""
        if isinstance(self.result, Hold):
            over, self.result.over = self.result.over, None
            self.result.borrows = False
            if over is not None:
                over()


class Slices:
    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._fresh: deque[tuple[_Task[Any], Any]] = deque()
        """New work and work whose pending has completed, with the value to send to its next step."""
        self._active: deque[_Task[Any]] = deque()
        self._queued: deque[_Task[Any]] = deque()
        self._scheduled = False
        self._spent_s = 0.0
        """Time that this turn of the loop has spent on first slices."""

    def run(
        self,
        work: Work[T],
        *,
        drop: bool = False,
        holds: bool = True,
        borrows: bool = False,
        finish: Callable[[T], Work[Any]] | None = None,
    ) -> Any:
        """The result of `work`, now or as a `Pending`. Raises what the work raises in its first slice.

        `holds` is False for short work that may wait for long: its result is never a `Hold`.
        `finish` processes the result of work that took longer than a slice; the caller processes small results itself.
        `borrows`: the work reads borrowed bytes of its request (`Hold.borrows`), so its result is a `Hold` while it waits,
        too. Work that no longer needs the bytes returns its last pending instead of yielding it.
        """
        start = self._clock()
        end = start + SLICE_S - self._spent_s
        given: Any = None
        waits_for: Pending[Any] | None = None
        while True:
            try:
                waits_for = work.send(given)
            except StopIteration as stop:
                if self._clock() - start > _SHORT_S:
                    self._spend(start)
                return stop.value
            given = None
            if waits_for is not None:
                if not waits_for.done:
                    break
                given = waits_for.result
                waits_for = None
            if self._clock() >= end:
                break
        if self._clock() - start > _SHORT_S:
            self._spend(start)
        task = _Task(work, finish)
        on_abandon = task.drop if drop else None
        if borrows or (holds and waits_for is None):
            task.result = Hold(on_abandon, borrows=borrows)
        else:
            task.result = Pending(on_abandon)
        if waits_for is not None:
            self._wait(task, waits_for)
        else:
            task.is_long = True
            self._fresh.append((task, given))
            self._schedule()
        return task.result

    def _spend(self, start: float) -> None:
        self._spent_s += self._clock() - start
        self._schedule()

    def _wait(self, task: _Task[Any], waits_for: Pending[Any]) -> None:
        task.waits_for = waits_for
        waits_for.then(partial(self._resume, task))

    def _resume(self, task: _Task[Any], given: Any) -> None:
        """Continue work whose pending has completed. Most such work has only its answer left to build, and does it now."""
        task.waits_for = None
        if task.dropped:
            return
        if self._spent_s >= SLICE_S:
            self._fresh.append((task, given))
            self._schedule()
            return
        start = self._clock()
        if not self._continue(task, given, start + SLICE_S - self._spent_s):
            self._queue(task)
        self._spend(start)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._next_turn)

    def _queue(self, task: _Task[Any]) -> None:
        if len(self._active) < ACTIVE_MAX:
            self._active.append(task)
        else:
            self._queued.append(task)
        self._schedule()

    def _next_turn(self) -> None:
        self._scheduled = False
        self._spent_s = 0.0
        start = self._clock()
        end = start + SLICE_S
        fresh_end = end - SLICE_S / 2
        fresh, active, queued = self._fresh, self._active, self._queued
        try:
            while fresh and self._clock() < fresh_end:
                task, given = fresh.popleft()
                if not task.dropped and not self._continue(task, given, min(fresh_end, self._clock() + SLICE_S / 8)):
                    self._queue(task)
            while active and self._clock() < end:
                task = active.popleft()
                if not task.dropped and not self._continue(task, None, end):
                    active.append(task)
        finally:
            while queued and len(active) < ACTIVE_MAX:
                active.append(queued.popleft())
            if fresh or active:
                self._schedule()

    def _continue(self, task: _Task[Any], given: Any, end: float) -> bool:
        """Perform steps until `end`. False if the work needs another slice."""
        work = task.work
        while True:
            try:
                waits_for = work.send(given)
            except StopIteration as stop:
                finish, task.finish = task.finish, None
                result = stop.value
                if finish is not None and task.is_long:
                    task.is_over()
                    work = task.work = _finished(result, finish) if isinstance(result, Pending) else finish(result)
                    given = None
                    continue
                task.is_over()
                settle(task.result, result)
                return True
            except Exception as error:
                if not isinstance(error, ProtocolError):
                    logger.exception("long work failed")
                task.is_over()
                task.result.complete(Failed(error))
                return True
            given = None
            if waits_for is not None:
                if not waits_for.done:
                    self._wait(task, waits_for)
                    return True
                given = waits_for.result
            if self._clock() >= end:
                task.is_long = True
                if given is not None:
                    self._fresh.append((task, given))
                    self._schedule()
                    return True
                return False


def _finished(result: Pending[T], finish: Callable[[T], Work[U]]) -> Work[U]:
    return (yield from finish((yield result)))


def at_once(work: Work[T]) -> T:
    """The result of short work that never waits."""
    while True:
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def released(result: object) -> Work[None]:
    """Wait until a result that is a hold no longer needs the borrowed bytes of its request."""
    if isinstance(result, Hold) and result.borrows and not result.done:
        owned: Pending[None] = Pending()
        result.over = partial(owned.complete, None)
        yield owned
        result.borrows = False


def done(result: T) -> Work[T]:
    """Work that is already done."""
    yield from ()
    return result


_SORTED_AT_ONCE = 2_000


def sorted_in_slices(items: Iterable[str]) -> Work[Iterator[str]]:
    """The strings in sorted order, for loops that pause."""
    rest = iter(items)
    runs: list[list[str]] = []
    while run := sorted(islice(rest, _SORTED_AT_ONCE)):
        runs.append(run)
        yield None
    return heapq.merge(*runs)


def all_of(parts: Iterable[T | Pending[T]]) -> Work[list[T]]:
    """All answers in order, once they are complete."""
    results: list[T] = []
    for part in parts:
        if isinstance(part, Pending):
            results.append((yield part))
        else:
            results.append(part)
            yield None
    return results
