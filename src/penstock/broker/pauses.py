"""Pauses for coroutines that run for long on the event loop: other work runs every few milliseconds."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from penstock.model.pending import Pending
from penstock.model.slices import SLICE_S

T = TypeVar("T")


class Pauses:
    """Use as `if pauses.due: await pauses.pause()` between two short pieces of work."""

    __slots__ = ("_end_s",)

    def __init__(self) -> None:
        self._end_s = time.monotonic() + SLICE_S

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._end_s

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._end_s = time.monotonic() + SLICE_S


class SharedPauses:
    """As `Pauses`, shared by any number of coroutines: together they get one slice per turn of the loop, and each performs
    at least one piece of its work."""

    __slots__ = ("_end_s", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s: float | None = None
        """When the slice of this turn ends; None before its first use."""

    @property
    def due(self) -> bool:
        now_s = time.monotonic()
        if self._end_s is None:
            self._end_s = now_s + SLICE_S
            self._loop.call_soon(self._next_turn)
        return now_s >= self._end_s

    async def pause(self) -> None:
        await asyncio.sleep(0)

    def _next_turn(self) -> None:
        self._end_s = None


async def result_of(pending: Pending[T]) -> T:
    """Wait for a pending in a coroutine."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not future.done():
            future.set_result(result)

    pending.then(done)
    return await future
