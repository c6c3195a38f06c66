from __future__ import annotations

import pytest

from penstock.storage.refusals import LINE_INTERVAL_S, Refusals


def test_refused_writes_are_logged_at_once_and_then_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    refusals = Refusals(lambda: now)
    refusals.note("t-0", "no room")
    assert [record.getMessage() for record in caplog.records] == ["write to t-0 refused: no room"]
    for at in range(1_000):
        now = 100.0 + at * LINE_INTERVAL_S / 1_000
        refusals.note("t-1", "no room")
    assert len(caplog.records) == 1
    now = 135.0
    refusals.note("u-7", "no room")
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "write to u-7 refused (1,001 refused in the last 35 s): no room"
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
