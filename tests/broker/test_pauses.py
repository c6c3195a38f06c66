"""Pauses of coroutines that work for long."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker import pauses
from penstock.broker.pauses import SharedPauses
from penstock.model.slices import SLICE_S

PIECE_S = SLICE_S / 10


class VirtualTime:
    """Moves with each piece of work alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("count", [1, 40])
def test_coroutines_share_one_slice_per_turn(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    virtual = VirtualTime()
    monkeypatch.setattr(pauses, "time", virtual)
    turns: list[float] = []

    async def work(shared: SharedPauses, done: list[int], number: int) -> None:
        for _ in range(20):
            virtual.now_s += PIECE_S
            done[number] += 1
            if shared.due:
                await shared.pause()

    async def run() -> list[int]:
        shared = SharedPauses()
        done = [0] * count
        tasks = [asyncio.ensure_future(work(shared, done, number)) for number in range(count)]
        while not all(task.done() for task in tasks):
            before = virtual.now_s
            await asyncio.sleep(0)
            turns.append(virtual.now_s - before)
        return done

    assert asyncio.run(run()) == [20] * count
    assert max(turns) <= SLICE_S + count * PIECE_S + PIECE_S, "not a slice for each of them"
