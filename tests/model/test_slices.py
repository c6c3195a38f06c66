"""Long work in slices: short work is done at once, long work leaves the loop to others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from penstock.model.errors import ProtocolError
from penstock.model.pending import Hold, Pending
from penstock.model.slices import ACTIVE_MAX, SLICE_S, Failed, Slices, Work, all_of

STEP_S = SLICE_S / 4


class Loop:
    """A loop whose turns and clock the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._ready: deque[Callable[[], None]] = deque()
        self.slices = Slices(self._ready.append, lambda: self.now_s)

    def turn(self) -> float:
        """Run what was ready when the turn started; the time that it took."""
        start = self.now_s
        for _ in range(len(self._ready)):
            self._ready.popleft()()
        return self.now_s - start

    def turns_until_idle(self) -> list[float]:
        took = []
        while self._ready:
            took.append(self.turn())
        return took

    def steps(self, count: int, log: list[str] | None = None, name: str = "", step_s: float = STEP_S) -> Work[int]:
        """Work of `count` steps."""
        for _ in range(count):
            self.now_s += step_s
            if log is not None:
                log.append(name)
            yield None
        return count


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_short_work_is_done_at_once(loop: Loop) -> None:
    assert loop.slices.run(loop.steps(3)) == 3


def test_long_work_is_a_hold_that_completes_later(loop: Loop) -> None:
    result = loop.slices.run(loop.steps(100))
    assert isinstance(result, Hold)
    assert loop.now_s <= SLICE_S + STEP_S
    took = loop.turns_until_idle()
    assert result.result == 100
    assert max(took) <= SLICE_S + STEP_S


def test_many_long_requests_in_one_turn_share_one_slice(loop: Loop) -> None:
    results = [loop.slices.run(loop.steps(40)) for _ in range(50)]
    assert loop.now_s <= SLICE_S + 50 * STEP_S, "one slice in all, then the first step of each"
    assert max(loop.turns_until_idle()) <= SLICE_S + STEP_S
    assert [result.result for result in results if isinstance(result, Hold)] == [40] * 50


def test_requests_done_in_their_first_slice_count_for_the_turn(loop: Loop) -> None:
    for _ in range(50):
        loop.slices.run(loop.steps(2))
    assert loop.now_s <= SLICE_S + 50 * STEP_S, "one slice in all, then the first step of each"
    loop.turns_until_idle()


def test_work_that_was_never_performed_does_not_exist(loop: Loop) -> None:
    """What it set up before its first step is undone when it is dropped."""
    log: list[str] = []

    def work() -> Work[None]:
        try:
            yield from loop.steps(30)
        finally:
            log.append("undone")

    for _ in range(10):
        loop.slices.run(work(), drop=True).abandon()
    assert log == ["undone"] * 10


def test_long_requests_take_turns(loop: Loop) -> None:
    log: list[str] = []
    for name in "ab":
        loop.slices.run(loop.steps(20, log, name))
    loop.turns_until_idle()
    assert log.index("b") < 12, "the second started before the first ended"
    assert sorted(log) == ["a"] * 20 + ["b"] * 20


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("steps_before", [0, 30])
def test_work_receives_the_result_of_a_pending(loop: Loop, is_done: bool, steps_before: int) -> None:
    pending: Pending[str] = Pending()

    def work() -> Work[str]:
        yield from loop.steps(steps_before)
        found = yield pending
        assert isinstance(found, str)
        yield from loop.steps(steps_before)
        return found

    if is_done:
        pending.complete("found")
    result = loop.slices.run(work())
    loop.turns_until_idle()
    pending.complete("found")
    loop.turns_until_idle()
    assert (result.result if isinstance(result, Pending) else result) == "found"


def test_an_error_in_the_first_slice_is_raised(loop: Loop) -> None:
    def work() -> Work[int]:
        yield None
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        loop.slices.run(work())


def test_an_error_later_completes_the_result(loop: Loop) -> None:
    def work() -> Work[int]:
        yield from loop.steps(30)
        raise LookupError("gone")

    result = loop.slices.run(work())
    loop.turns_until_idle()
    assert isinstance(result, Hold)
    assert isinstance(result.result, Failed)
    assert isinstance(result.result.error, LookupError)


@pytest.mark.parametrize("drop", [True, False])
def test_abandoned_work_continues_unless_it_only_reads(loop: Loop, drop: bool) -> None:
    log: list[str] = []
    result = loop.slices.run(loop.steps(30, log), drop=drop)
    assert isinstance(result, Hold)
    before = len(log)
    result.abandon()
    loop.turns_until_idle()
    assert len(log) == (before if drop else 30)


def test_dropped_work_that_waits_does_not_run_again(loop: Loop) -> None:
    pending: Pending[None] = Pending()
    log: list[str] = []

    def work() -> Work[None]:
        yield pending
        log.append("ran")

    result = loop.slices.run(work(), drop=True)
    assert isinstance(result, Pending)
    result.abandon()
    assert pending.done, "what it waited for is abandoned too"
    pending.complete(None)
    loop.turns_until_idle()
    assert log == []


def test_work_that_only_waits_is_not_a_hold(loop: Loop) -> None:
    result = loop.slices.run(_waiting(Pending()))
    assert isinstance(result, Pending)
    assert not isinstance(result, Hold)


def test_work_continues_as_soon_as_its_pending_completes(loop: Loop) -> None:
    pending: Pending[str] = Pending()
    result = loop.slices.run(_waiting(pending))
    pending.complete("found")
    assert result.result == "found"


def test_work_whose_pendings_complete_together_shares_a_slice(loop: Loop) -> None:
    pendings: list[Pending[None]] = [Pending() for _ in range(50)]

    def work(pending: Pending[None]) -> Work[int]:
        yield pending
        return (yield from loop.steps(2))

    results = [loop.slices.run(work(pending)) for pending in pendings]
    start = loop.now_s
    for pending in pendings:
        pending.complete(None)
    assert loop.now_s - start <= SLICE_S + STEP_S
    assert max(loop.turns_until_idle()) <= SLICE_S + STEP_S
    assert [result.result for result in results] == [2] * 50


def test_new_work_comes_before_long_work(loop: Loop) -> None:
    long = [loop.slices.run(loop.steps(1_000)) for _ in range(40)]
    for _ in range(40):
        loop.turn()
    loop.slices.run(loop.steps(4))  # uses up the time for new work
    short = loop.slices.run(loop.steps(5, step_s=SLICE_S / 100))
    loop.turn()
    assert short.done
    assert not any(result.done for result in long)


def test_few_long_tasks_take_turns_and_the_others_wait(loop: Loop) -> None:
    started: list[int] = []

    def work(name: int) -> Work[int]:
        yield from loop.steps(4)
        started.append(name)
        yield from loop.steps(200)
        return name

    results = [loop.slices.run(work(name)) for name in range(2 * ACTIVE_MAX)]
    while not any(result.done for result in results):
        loop.turn()
    assert len(started) == ACTIVE_MAX
    loop.turns_until_idle()
    assert [result.result for result in results] == list(range(2 * ACTIVE_MAX))


@pytest.mark.parametrize("steps", [1, 30])
def test_only_late_results_are_finished_in_slices(loop: Loop, steps: int) -> None:
    def finish(count: int) -> Work[str]:
        yield from loop.steps(30)
        return f"finished {count}"

    result = loop.slices.run(loop.steps(steps), finish=finish)
    took = loop.turns_until_idle()
    if steps == 1:
        assert result == 1
    else:
        assert result.result == "finished 30"
        assert max(took) <= SLICE_S + STEP_S


def test_the_result_of_work_that_only_waited_is_not_finished(loop: Loop) -> None:
    def finish(_: str) -> Work[str]:
        yield None
        raise AssertionError("it was short")

    pending: Pending[str] = Pending()
    result = loop.slices.run(_waiting(pending), finish=finish)
    pending.complete("found")
    assert result.result == "found"


@pytest.mark.parametrize("ending", ["done", "failed", "dropped"])
def test_borrowed_bytes_are_given_back_when_the_work_is_over(loop: Loop, ending: str) -> None:
    def work() -> Work[None]:
        yield from loop.steps(30)
        if ending == "failed":
            raise ProtocolError("no request")

    result = loop.slices.run(work(), borrows=True, drop=ending == "dropped")
    assert isinstance(result, Hold)
    assert result.borrows
    given_back: list[str] = []
    result.over = lambda: given_back.append("over")
    loop.turn()
    assert not given_back
    if ending == "dropped":
        result.abandon()
    loop.turns_until_idle()
    assert given_back == ["over"]


def test_protocol_error_after_the_first_slice_is_not_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> Work[None]:
        yield from loop.steps(30)
        raise ProtocolError("no request")

    result = loop.slices.run(work())
    loop.turns_until_idle()
    assert isinstance(result.result.error, ProtocolError)
    assert not caplog.records


def test_all_of_gives_the_answers_in_order(loop: Loop) -> None:
    pendings: list[Pending[int]] = [Pending() for _ in range(3)]
    parts: list[int | Pending[int]] = [0, *pendings, 4]
    result = loop.slices.run(all_of(parts))
    for value in (3, 1, 2):
        pendings[value - 1].complete(value)
    assert result.result == [0, 1, 2, 3, 4]


def test_work_whose_answers_are_there_pauses_too(loop: Loop) -> None:
    def work() -> Work[list[int]]:
        found = []
        for number in range(100):
            loop.now_s += STEP_S
            answered: Pending[int] = Pending()
            answered.complete(number)
            found.append((yield answered))
        return found

    result = loop.slices.run(work())
    assert loop.now_s <= SLICE_S + STEP_S
    assert max(loop.turns_until_idle()) <= SLICE_S + STEP_S
    assert result.result == list(range(100))


def _waiting(pending: Pending[str]) -> Work[str]:
    return (yield pending)  # type: ignore[no-any-return]
