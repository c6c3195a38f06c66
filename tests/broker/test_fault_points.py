"""Each system call below storage fails once: nothing acknowledged is lost, nothing wrong is served, and the next start
serves everything.

`make test` fails some of the calls, others every day; `make soak` fails every one. A failure names the call:
`PENSTOCK_FAULT=EIO:123` runs that one alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.broker import internal_log
from penstock.storage import recovery, segment
from tests.broker.fault_script import Ledger, check, run
from tests.storage.failing_calls import KINDS, SHORT, FailingCalls, kind_name

RUNS_PER_KIND = 40
RUN_S_MAX = 60


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many reads where a log of this size would need one, so that some succeed before one fails."""
    monkeypatch.setattr(segment, "WALK_BYTES", 128)
    monkeypatch.setattr(segment, "REBUILD_HEADERS", 2)
    monkeypatch.setattr(recovery, "SCAN_BYTES", 256)
    monkeypatch.setattr(internal_log, "LOAD_READ_BYTES", 256)


def attempt(path: Path, fail_at: int | None, kind: int = errno.EIO) -> FailingCalls:
    """Run the script in a new folder and check what is left of it."""
    calls = FailingCalls(fail_at, kind)
    ledger = Ledger()
    path.mkdir()

    async def body() -> None:
        await run(path, calls, ledger)
        await check(path, ledger)

    try:
        asyncio.run(asyncio.wait_for(body(), RUN_S_MAX))
    except Exception as error:
        raise AssertionError(f"{kind_name(kind)}:{fail_at} ({calls.failed}): {error!r}") from error
    finally:
        shutil.rmtree(path)
    return calls


def call_numbers(path: Path, kind: int, step: int) -> Iterator[int]:
    """Numbers of calls that can fail in this way: about every `step`-th, others every day."""
    names = attempt(path / "counted", None).names
    numbers = [at for at, name in enumerate(names) if kind != SHORT or name in FailingCalls.MAY_BE_SHORT]
    day = int(time.time() // 86_400)
    yield from numbers[Random(f"{kind} {day}").randrange(step) :: step]


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_one_failed_call_loses_nothing_and_serves_nothing_wrong(tmp_path: Path, kind: int) -> None:
    wanted = os.environ.get("PENSTOCK_FAULT", "")
    if wanted:
        name, _, number = wanted.partition(":")
        if name == kind_name(kind):
            attempt(tmp_path / "run", int(number), kind)
        return
    step = max(1, len(attempt(tmp_path / "first", None).names) // RUNS_PER_KIND)
    for number in call_numbers(tmp_path, kind, step):
        attempt(tmp_path / str(number), number, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_every_failed_call_loses_nothing_and_serves_nothing_wrong(tmp_path: Path, kind: int) -> None:
    number = 0
    while attempt(tmp_path / str(number), number, kind).count > number:
        number += 1
    assert number > 500, "the script makes fewer calls than it did"
