"""What FlyMQ's frames are made of."""

from __future__ import annotations

import pytest

from penstock.dialects.flymq.wire import ANSWER_LEAD_BYTES, Rows
from penstock.model.errors import BrokerError, Fault


def test_rows_fill_a_frame_and_one_byte_more_is_refused() -> None:
    rows = Rows(ANSWER_LEAD_BYTES + 30)
    for _ in range(3):
        rows.add(b"0123456789")
    assert len(rows) == 3
    with pytest.raises(BrokerError, match="ask for less at once") as refused:
        rows.add(b"0")
    assert refused.value.fault is Fault.INVALID_REQUEST
