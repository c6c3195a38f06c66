"""The pool of frame buffers and the account of in-flight bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.buffers import CLASS_BYTES_MAX, SMALL_BYTES_MAX, FramePool, InFlight

MB = 1024 * 1024


def test_a_large_buffer_is_used_again_for_its_size_class():
    pool = FramePool(64 * MB)
    view = pool.take(700_000)
    assert len(view) == MB
    pool.give(view)
    assert pool.take(MB) is view
    assert pool.take(MB) is not view


def test_small_and_huge_buffers_are_not_kept():
    pool = FramePool(64 * MB)
    for size in (1, SMALL_BYTES_MAX, CLASS_BYTES_MAX + 1):
        view = pool.take(size)
        assert len(view) == size
        pool.give(view)
    assert pool.bytes_kept == 0


def test_the_pool_keeps_no_more_than_its_bound():
    pool = FramePool(3 * MB)
    for view in [pool.take(MB) for _ in range(5)]:
        pool.give(view)
    assert pool.bytes_kept == 3 * MB


def test_a_trim_frees_what_was_not_used_since_the_last():
    pool = FramePool(64 * MB)
    for view in [pool.take(MB) for _ in range(4)]:
        pool.give(view)
    pool.trim()
    assert pool.bytes_kept == 4 * MB
    pool.give(pool.take(MB))
    pool.trim()
    assert pool.bytes_kept == MB
    pool.trim()
    assert pool.bytes_kept == 0
    assert len(pool.take(MB)) == MB


@given(st.lists(st.one_of(st.integers(1, 20 * MB), st.none(), st.just("trim")), max_size=60))
def test_the_pool_never_lends_a_buffer_twice_and_counts_what_it_keeps(steps):
    pool = FramePool(20 * MB)
    out: list[memoryview] = []
    for step in steps:
        if step == "trim":
            pool.trim()
        elif step is None:
            if out:
                pool.give(out.pop(0))
        else:
            view = pool.take(step)
            assert len(view) >= step
            assert all(view is not other for other in out)
            out.append(view)
        assert pool.bytes_kept == sum(len(view) for views in pool._free.values() for view in views) <= pool.bytes_max


class Waiter:
    def __init__(self) -> None:
        self.may_read = True

    def memory_is_free(self) -> None:
        self.may_read = True


def ask(account: InFlight, waiter: Waiter, mid_frame: bool) -> bool:
    waiter.may_read = account.may_read(waiter, mid_frame)
    return waiter.may_read


def test_below_the_bound_everybody_reads():
    account = InFlight(100)
    account.charge(100)
    assert not account.pressed
    assert ask(account, Waiter(), True)


def test_above_the_bound_only_one_half_received_frame_goes_on():
    account = InFlight(100)
    account.charge(150)
    assert account.pressed
    first, second, third = Waiter(), Waiter(), Waiter()
    assert ask(account, first, True)
    assert not ask(account, second, True)
    assert not ask(account, third, False)
    assert ask(account, first, True)
    # Its frame is whole: the next in the queue has the turn.
    assert not ask(account, first, False)
    assert second.may_read
    assert not third.may_read


def test_the_turn_goes_on_at_each_sweep():
    account = InFlight(100)
    account.charge(150)
    first, second = Waiter(), Waiter()
    assert ask(account, first, True)
    assert not ask(account, second, True)
    account.sweep()
    assert second.may_read
    assert not ask(account, first, True)


def test_freed_bytes_wake_those_who_wait_in_their_order():
    account = InFlight(100)
    account.charge(150)
    waiters = [Waiter() for _ in range(4)]
    for waiter in waiters:
        ask(account, waiter, True)
    assert [waiter.may_read for waiter in waiters] == [True, False, False, False]
    account.charge(-60)
    assert [waiter.may_read for waiter in waiters] == [True, True, False, False]
    account.sweep()
    account.sweep()
    assert all(waiter.may_read for waiter in waiters)
    assert not account.pressed


def test_a_waiter_that_is_gone_is_not_called_and_passes_its_turn():
    account = InFlight(100)
    account.charge(150)
    first, second, third = Waiter(), Waiter(), Waiter()
    for waiter in (first, second, third):
        ask(account, waiter, True)
    account.forget(second)
    account.forget(first)
    assert third.may_read
    assert not second.may_read
    assert account.readers_waiting == 0


@given(
    st.lists(st.tuples(st.sampled_from(["charge", "free", "read", "sweep", "forget"]), st.integers(0, 5)), max_size=80)
)
def test_nobody_waits_for_ever_once_the_bytes_are_free(steps):
    account = InFlight(100)
    waiters = [Waiter() for _ in range(6)]
    for step, n in steps:
        if step == "charge":
            account.charge(20 * n)
        elif step == "free":
            account.charge(-min(account.bytes_held, 20 * n))
        elif step == "read" and waiters[n].may_read:
            ask(account, waiters[n], bool(n % 2))
        elif step == "sweep":
            account.sweep()
        elif step == "forget":
            account.forget(waiters[n])
            waiters[n] = Waiter()
        if account.bytes_held > account.bytes_max:
            assert account.pressed
        if account.readers_waiting:
            assert account.pressed
    account.charge(-account.bytes_held)
    for _ in waiters:
        account.sweep()
    assert all(waiter.may_read for waiter in waiters)
    assert not account.pressed
