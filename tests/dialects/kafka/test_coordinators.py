"""Questions to coordinators: how many of one request wait at the same time."""

from __future__ import annotations

import pytest

from penstock.dialects.kafka import coordinators
from penstock.model.pending import Pending


def test_concurrent_commands_of_one_request_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "ASKED_AT_ONCE", 4)
    waiting: list[Pending[str]] = []
    most = 0

    def ask(_name: str) -> Pending[str]:
        nonlocal most
        waiting.append(Pending())
        most = max(most, len(waiting))
        return waiting[-1]

    names = [f"g{number}" for number in range(20)]
    work = coordinators.ask_each(names, ask, lambda name, answer: name + answer)
    waits_for = next(work)
    try:
        while True:
            if waits_for is None:
                waits_for = work.send(None)
            else:
                assert waits_for is waiting.pop(0), "the one that was asked first"
                waits_for = work.send("!")
    except StopIteration as stop:
        assert stop.value == [f"{name}!" for name in names]
    assert most == 4
