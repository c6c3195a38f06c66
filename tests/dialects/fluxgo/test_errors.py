"""The tables from faults to FluxGo's codes."""

from __future__ import annotations

import pytest

from penstock.dialects.fluxgo.errors import CONSUME_CODES, PRODUCE_CODES, consume_error, produce_error
from penstock.model.errors import Fault

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def test_every_fault_has_a_code_for_every_command() -> None:
    assert set(PRODUCE_CODES) == set(CONSUME_CODES) == set(FAULTS)
    assert set(PRODUCE_CODES.values()) == {0x13, 0x14}
    assert set(CONSUME_CODES.values()) == {0x22, 0x23, 0x24}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_text_begins_as_the_code_demands(fault: Fault) -> None:
    begin = {0x13: b"Failed to access log: ", 0x14: b"Failed to append message: "}
    code, text = produce_error(fault, "why")
    assert text == begin[code] + b"why"
    assert produce_error(fault, "")[1] == begin[code] + fault.value.encode()
    code, text = consume_error(fault)
    whole = {0x22: b"Topic or partition not found", 0x23: b"", 0x24: b"Failed to read message: " + fault.value.encode()}
    assert text == whole[code]


def test_what_is_not_there_is_told_from_what_failed() -> None:
    assert PRODUCE_CODES[Fault.INVALID_TOPIC] == PRODUCE_CODES[Fault.INVALID_PARTITIONS] == 0x13
    assert PRODUCE_CODES[Fault.STORAGE_ERROR] == 0x14
    assert CONSUME_CODES[Fault.UNKNOWN_TOPIC_OR_PARTITION] == 0x22
    assert CONSUME_CODES[Fault.STORAGE_ERROR] == 0x24
