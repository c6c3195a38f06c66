"""The tables from faults to Day1's texts."""

from __future__ import annotations

import pytest

from penstock.dialects.day1.errors import FETCH_PREFIXES, PRODUCE_PREFIXES, fetch_error, produce_error
from penstock.dialects.day1.frames import error_answer
from penstock.model.errors import Fault

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def test_every_fault_has_a_text_for_every_request() -> None:
    assert set(PRODUCE_PREFIXES) == set(FETCH_PREFIXES) == set(FAULTS)
    assert set(PRODUCE_PREFIXES.values()) == {"", "append error: "}
    assert set(FETCH_PREFIXES.values()) == {"", "fetch error: "}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_without_a_text_is_told_in_its_own_words(fault: Fault) -> None:
    assert produce_error(fault, "").endswith(fault.value)
    assert fetch_error(fault).endswith(fault.value)
    assert produce_error(fault, "why").endswith("why")


def test_what_is_not_there_is_told_bare() -> None:
    assert produce_error(Fault.INVALID_TOPIC, "why") == fetch_error(Fault.INVALID_TOPIC, "why") == "why"
    assert produce_error(Fault.STORAGE_ERROR, "why") == "append error: why"
    assert fetch_error(Fault.STORAGE_ERROR, "why") == "fetch error: why"


def test_a_text_of_any_length_fits_its_frame() -> None:
    assert error_answer("x" * 70_000) == b"\x00\x01\x00\x02\xff\xff\xff" + b"x" * 65_535
