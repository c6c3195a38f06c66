"""Requests of a connection behind one that the broker could not take: held, then performed in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.holding import HoldingSession
from penstock.model.pending import Pending


class Borrowing:
    def __init__(self) -> None:
        self.owned = False

    def own(self) -> None:
        self.owned = True


class Recorded(HoldingSession):
    """Performs numbers. Negative ones hold until their event comes; the answer is the number."""

    def __init__(self, when_begun: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.begun: list[Any] = []
        self.events: dict[int, Pending[None]] = {}
        self._when_begun = when_begun

    def _do(self, request: Any) -> Any:
        self.begun.append(request)
        self._when_begun()
        if isinstance(request, int) and request < 0:
            event = self.events[request] = Pending()
            return self._hold_until(event, lambda _: request)
        return request

    def answer_of(self, result: Any) -> Any:
        return result.result if isinstance(result, Pending) else result


@given(st.lists(st.booleans(), max_size=20), st.randoms(use_true_random=False))
def test_requests_begin_in_order_and_none_before_what_holds_it_up_is_over(holds: list[bool], random: Any) -> None:
    session = Recorded()
    requests = [-at - 1 if hold else at + 1 for at, hold in enumerate(holds)]
    waiting = list(requests)
    results: list[Any] = []
    while waiting or any(not event.done for event in session.events.values()):
        due = [event for event in session.events.values() if not event.done]
        assert len(due) <= 1
        if due and (not waiting or random.random() < 0.5):
            due[0].complete(None)
        else:
            results.append(session.perform(waiting.pop(0)))
        begun = session.begun
        assert begun == requests[: len(begun)]
        assert all(request > 0 or session.events[request].done for request in begun[:-1])
    assert [session.answer_of(result) for result in results] == requests


def test_what_comes_while_the_held_ones_are_performed_goes_behind_them() -> None:
    late: list[Any] = []

    def come_late() -> None:
        if session.begun[-1] == 1:
            late.append(session.perform(3))

    session = Recorded(come_late)
    session.perform(-1)
    session.perform(1)
    session.perform(2)
    session.events[-1].complete(None)
    assert session.begun == [-1, 1, 2, 3]
    assert session.answer_of(late[0]) == 3


def test_a_held_request_borrows_nothing() -> None:
    session = Recorded()
    session.perform(-1)
    held = Borrowing()
    session.perform(held)
    assert held.owned
    session.events[-1].complete(None)
    free = Borrowing()
    session.perform(free)
    assert not free.owned


def test_an_event_that_came_already_holds_nothing_up() -> None:
    session = Recorded()
    event: Pending[int] = Pending()
    event.complete(1)
    assert session._hold_until(event, lambda number: number + 1) == 2
    assert session.perform(5) == 5


def test_what_a_closed_connection_left_is_forgotten() -> None:
    session = Recorded()
    session.perform(-1)
    session.perform(1)
    session._forget_held()
    session.events[-1].complete(None)
    assert session.begun == [-1]
    assert session.perform(2) == 2
