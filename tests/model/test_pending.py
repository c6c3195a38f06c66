"""An answer that comes later: completed once, one waiter, and steps that follow it in order."""

from __future__ import annotations

import pytest

from penstock.model.pending import Hold, Pending, gather, held, in_turn, settle, when


def test_the_first_answer_counts_and_later_ones_are_ignored() -> None:
    pending: Pending[int] = Pending()
    got: list[int] = []
    pending.then(got.append)
    pending.complete(1)
    pending.complete(2)
    assert got == [1]
    assert pending.result == 1


def test_who_asks_after_the_answer_came_is_told_at_once() -> None:
    pending: Pending[int] = Pending()
    pending.complete(1)
    got: list[int] = []
    pending.then(got.append)
    assert got == [1]


def test_whoever_parked_it_hears_that_nobody_waits_once() -> None:
    told: list[str] = []
    pending: Pending[int] = Pending(lambda: told.append("abandoned"))
    got: list[int] = []
    pending.then(got.append)
    pending.abandon()
    pending.abandon()
    pending.complete(1)
    assert told == ["abandoned"]
    assert got == []


def test_a_change_of_an_answer_is_made_now_or_later() -> None:
    assert when(1, str) == "1"
    pending: Pending[int] = Pending()
    changed = when(pending, str)
    assert isinstance(changed, Pending)
    pending.complete(1)
    assert changed.result == "1"


@pytest.mark.parametrize("first_waits", [False, True])
@pytest.mark.parametrize("second_waits", [False, True])
def test_the_next_step_is_asked_in_the_moment_the_one_before_is_answered(first_waits: bool, second_waits: bool) -> None:
    first: Pending[int] = Pending()
    second: Pending[str] = Pending()
    asked: list[int] = []

    def then(result: int) -> str | Pending[str]:
        asked.append(result)
        return second if second_waits else "done"

    last = in_turn(first if first_waits else 1, then)
    if first_waits:
        assert asked == []
        first.complete(1)
    assert asked == [1]
    if second_waits:
        assert isinstance(last, Pending)
        assert not last.done
        second.complete("done")
    assert (last.result if isinstance(last, Pending) else last) == "done"


def test_a_step_is_asked_although_nobody_waits_for_it_any_more() -> None:
    first: Pending[int] = Pending()
    asked: list[int] = []
    last = in_turn(first, asked.append)
    assert isinstance(last, Pending)
    last.abandon()
    first.complete(1)
    assert asked == [1]


def test_an_answer_is_passed_on_now_or_later() -> None:
    waiting: Pending[int] = Pending()
    settle(waiting, 1)
    assert waiting.result == 1
    later: Pending[int] = Pending()
    waiting = Pending()
    settle(waiting, later)
    assert not waiting.done
    later.complete(2)
    assert waiting.result == 2


def test_many_answers_keep_their_places() -> None:
    assert gather([1, 2]) == [1, 2]
    later: Pending[int] = Pending()
    done: Pending[int] = Pending()
    done.complete(2)
    all_of_them = gather([1, later, done])
    assert isinstance(all_of_them, Pending)
    assert not all_of_them.done
    later.complete(3)
    assert all_of_them.result == [1, 3, 2]


def test_what_is_answered_already_holds_nothing_up() -> None:
    assert held(1) == 1
    done: Pending[int] = Pending()
    done.complete(2)
    assert held(done) == 2


def test_what_was_begun_goes_on_when_nobody_waits_for_the_hold() -> None:
    told: list[str] = []
    pending: Pending[int] = Pending(lambda: told.append("abandoned"))
    hold = held(pending)
    assert isinstance(hold, Hold)
    hold.abandon()
    assert not pending.done
    assert told == []
    other: Pending[int] = Pending()
    hold = held(other)
    assert isinstance(hold, Hold)
    other.complete(3)
    assert hold.result == 3


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_borrowing_hold_calls_over_when_done(is_abandoned: bool) -> None:
    pending: Pending[int] = Pending()
    hold = held(pending, borrows=True)
    assert isinstance(hold, Hold)
    assert hold.borrows
    over: list[bool] = []
    hold.over = lambda: over.append(hold.done)
    if is_abandoned:
        hold.abandon()
        assert not over, "what was begun goes on, and reads the bytes"
    pending.complete(3)
    assert over == [is_abandoned]
    assert not hold.borrows
