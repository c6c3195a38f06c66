"""Answers that come later, put in a row: steps that follow one another, and lanes in which one thing at a time is done.

A step that fails gives a `BrokerError` as its result, so that a failure travels through pendings like any other answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from penstock.model.errors import BrokerError
from penstock.model.pending import Hold, Pending, settle

T = TypeVar("T")

Work = Callable[[], Any]


def attempt(change: Callable[[T], Any], value: T) -> Any:
    """`change(value)`, or the BrokerError that it raised, or the one that `value` is."""
    if isinstance(value, BrokerError):
        return value
    try:
        return change(value)
    except BrokerError as error:
        return error


def follow(result: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of the answer, now or when it comes; it may itself give a pending."""
    if not isinstance(result, Pending):
        return attempt(change, result)
    answer: Pending[Any] = type(result)(result.abandon)  # what holds up others still does
    if isinstance(result, Hold) and isinstance(answer, Hold):
        answer.borrows = result.borrows
        result.over = partial(give_back, answer)

    def came(value: Any) -> None:
        settle(answer, attempt(change, value))

    result.then(came)
    return answer


def give_back(answer: Hold[Any]) -> None:
    """Give back the borrowed bytes before the answer is complete."""
    answer.borrows = False
    over, answer.over = answer.over, None
    if over is not None:
        over()


def detached(result: Any) -> Any:
    """The same answer, which comes also when whoever gets this one abandons it."""
    if not isinstance(result, Pending):
        return result
    answer: Pending[Any] = Pending()
    result.then(answer.complete)
    return answer


class Lane:
    """Work that has to be done in the order it came: the next begins when the one before has its answer.

    What is in a lane is done even if nobody waits for the answer any more: the next in the row may be somebody else's.
    """

    __slots__ = ("_waiting", "busy")

    def __init__(self) -> None:
        self.busy = False
        self._waiting: deque[tuple[Work, Pending[Any]]] = deque()

    def run(self, work: Work) -> Any:
        if not self.busy:
            return self._begin(work)
        answer: Pending[Any] = Pending()
        self._waiting.append((work, answer))
        return answer

    def _begin(self, work: Work) -> Any:
        try:
            outcome = work()
        except BrokerError as error:
            return error
        if not isinstance(outcome, Pending):
            return outcome
        if outcome.done:
            return outcome.result
        self.busy = True
        answer: Pending[Any] = Pending()
        outcome.then(partial(self._ended, answer))
        return answer

    def _ended(self, answer: Pending[Any], result: Any) -> None:
        self.busy = False
        answer.complete(result)
        while self._waiting and not self.busy:
            work, waiting = self._waiting.popleft()
            settle(waiting, self._begin(work))
