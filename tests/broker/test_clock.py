"""The broker's time of day: neither a jump of the wall clock nor a suspended machine changes how long anything lasts."""

from __future__ import annotations

import time

import pytest

from penstock.broker.clock import STEP_MAX_MS, Clock, passed_ms

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Times:
    wall_ms = START_MS
    passed_ms = 5_000

    def clock(self) -> Clock:
        return Clock(lambda: self.wall_ms, lambda: self.passed_ms)

    def pass_ms(self, count: int) -> None:
        self.wall_ms += count
        self.passed_ms += count


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.mark.parametrize("step_ms", [STEP_MAX_MS, -STEP_MAX_MS, 0])
def test_small_corrections_of_the_wall_clock_are_followed(times: Times, step_ms: int) -> None:
    clock = times.clock()
    times.pass_ms(HOUR_MS)
    times.wall_ms += step_ms
    assert clock.now_ms() == START_MS + HOUR_MS + step_ms
    assert clock.is_steady


@pytest.mark.parametrize("step_ms", [STEP_MAX_MS + 1, -STEP_MAX_MS - 1, 10 * 365 * 24 * HOUR_MS, -HOUR_MS])
def test_clock_jump_does_not_move_the_time(times: Times, step_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    clock = times.clock()
    times.pass_ms(HOUR_MS)
    times.wall_ms += step_ms
    for _ in range(2):
        assert clock.now_ms() == START_MS + HOUR_MS
    assert not clock.is_steady
    times.pass_ms(HOUR_MS)
    assert clock.now_ms() == START_MS + 2 * HOUR_MS
    assert caplog.text.count("jumped") == 1


def test_a_wall_clock_that_jumps_back_is_not_trusted_again(times: Times) -> None:
    clock = times.clock()
    times.wall_ms += HOUR_MS
    clock.now_ms()
    times.wall_ms -= HOUR_MS
    assert clock.now_ms() == START_MS
    assert not clock.is_steady


def test_suspended_machine_is_not_a_clock_jump(times: Times) -> None:
    clock = times.clock()
    times.pass_ms(100 * HOUR_MS)
    assert clock.now_ms() == START_MS + 100 * HOUR_MS
    assert clock.is_steady


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no clock that includes suspended time")
def test_elapsed_time_includes_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    awake_ms, suspended_ms = 5_000, 100 * HOUR_MS
    elapsed_ns = {time.CLOCK_MONOTONIC: awake_ms * 10**6, time.CLOCK_BOOTTIME: (awake_ms + suspended_ms) * 10**6}
    monkeypatch.setattr(time, "clock_gettime_ns", elapsed_ns.__getitem__)
    monkeypatch.setattr(time, "monotonic_ns", lambda: elapsed_ns[time.CLOCK_MONOTONIC])
    assert passed_ms() == awake_ms + suspended_ms
