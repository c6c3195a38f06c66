"""`Pending`: an answer that comes later, on the same thread.

Most requests are answered by the call that makes them. Only a flush wait, a long poll or a coordinator's pause returns a
`Pending`: a slotted object with callbacks, a fifth of the cost of an asyncio future with its task. It is completed once;
a waiter that no longer cares abandons it, so that whoever parked it can forget it at once.

A `Hold` is the pending of a request that changes what the requests behind it on its connection find (its topic has to be
made first, a transaction ends): none of them is performed before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Pending(Generic[T]):
    __slots__ = ("_callback", "_on_abandon", "_result", "done")

    def __init__(self, on_abandon: Callable[[], None] | None = None) -> None:
        self.done = False
        self._callback: Callable[[T], None] | None = None
        self._on_abandon = on_abandon
        self._result: T

    def complete(self, result: T) -> None:
        """Give the answer; later completions and those after an abandon are ignored."""
        if self.done:
            return
        self.done = True
        self._result = result
        self._on_abandon = None
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(result)

    def then(self, callback: Callable[[T], None]) -> None:
        """Call back with the answer, at once if it is there. One waiter a pending."""
        assert self._callback is None, "a pending has one waiter"
        if self.done:
            callback(self._result)
        else:
            self._callback = callback

    def abandon(self) -> None:
        """Nobody waits any more: the parker is told, the callback is dropped."""
        if self.done:
            return
        self.done = True
        self._callback = None
        on_abandon, self._on_abandon = self._on_abandon, None
        if on_abandon is not None:
            on_abandon()

    @property
    def result(self) -> T:
        assert self.done
        return self._result

    def map(self, change: Callable[[T], U]) -> Pending[U]:
        """A pending of the changed answer; abandoning it abandons this one."""
        mapped: Pending[U] = Pending(self.abandon)
        self.then(lambda result: mapped.complete(change(result)))
        return mapped


class Hold(Pending[T]):
    __slots__ = ("borrows", "over")

    def __init__(self, on_abandon: Callable[[], None] | None = None, *, borrows: bool = False) -> None:
        super().__init__(on_abandon)
        self.borrows = borrows
        """Whether the work reads bytes of its request: their buffer must not change until `over` is called."""
        self.over: Callable[[], None] | None = None
        """Called when the work no longer needs the buffer, even if the result has been abandoned."""

    def map(self, change: Callable[[T], U]) -> Hold[U]:
        """A hold for the mapped answer that borrows the same bytes."""
        mapped: Hold[U] = Hold(self.abandon, borrows=self.borrows)

        def over() -> None:
            if mapped.over is not None:
                mapped.over()

        self.over = over
        self.then(lambda result: mapped.complete(change(result)))
        return mapped


def held(result: T | Pending[T], *, borrows: bool = False) -> T | Hold[T]:
    """The answer, now or as a `Hold`. Work that has started continues when the answer is abandoned.

    `borrows`: the work reads bytes of the request until it is done, and their buffer is counted (`Hold.borrows`)."""
    if not isinstance(result, Pending):
        return result
    if result.done:
        return result.result
    if isinstance(result, Hold):
        return result
    hold: Hold[T] = Hold(borrows=borrows)
    if not borrows:
        result.then(hold.complete)
        return hold

    def done(answer: T) -> None:
        hold.borrows = False
        over, hold.over = hold.over, None
        if over is not None:
            over()
        hold.complete(answer)

    result.then(done)
    return hold


def gather(parts: Sequence[T | Pending[T]]) -> list[T] | Pending[list[T]]:
    """All the answers in order: at once if every one is there."""
    waiting = [at for at, part in enumerate(parts) if isinstance(part, Pending)]
    if not waiting:
        return parts  # type: ignore[return-value]  # none of them is pending
    results: list[T] = [part.result if isinstance(part, Pending) and part.done else part for part in parts]  # type: ignore[misc]
    left = len(waiting)

    def abandon() -> None:
        for at in waiting:
            part = parts[at]
            assert isinstance(part, Pending)
            part.abandon()

    gathered: Pending[list[T]] = Pending(abandon)

    def take(at: int, result: T) -> None:
        nonlocal left
        results[at] = result
        left -= 1
        if left == 0:
            gathered.complete(results)

    for at in waiting:
        part = parts[at]
        assert isinstance(part, Pending)
        part.then(partial(take, at))
    return gathered


def when(result: T | Pending[T], change: Callable[[T], U]) -> U | Pending[U]:
    """`change` of the answer, now or when it comes."""
    if isinstance(result, Pending):
        return result.map(change)
    return change(result)


def in_turn(first: T | Pending[T], then: Callable[[T], U | Pending[U]]) -> U | Pending[U]:
    """Ask `then` as soon as `first` is answered, in the same moment: nothing else happens between the two. It is asked
    although whoever waits for its answer may have gone."""
    if not isinstance(first, Pending):
        return then(first)
    last: Pending[U] = Pending()
    first.then(lambda result: settle(last, then(result)))
    return last


def settle(waiting: Pending[T], result: T | Pending[T]) -> None:
    """Complete `waiting` with the answer, now or when it comes."""
    if isinstance(result, Pending):
        result.then(waiting.complete)
    else:
        waiting.complete(result)
