from __future__ import annotations

from penstock.dialects.rustlog.errors import CODES, Code, code_and_text, json_text
from penstock.dialects.rustlog.requests import Refusal
from penstock.model.errors import Fault


def test_the_table_of_faults_is_total() -> None:
    assert set(CODES) == set(Fault)


def test_every_fault_has_a_code_and_a_text_in_both_forms() -> None:
    for fault in Fault:
        for failure in (Code.FETCH, Code.COMMIT, Code.WRITE, Code.INTERNAL):
            code, text = code_and_text(Refusal(fault), "t", 0, failure)
            assert code in Code
            assert text
            assert json_text(Refusal(fault), "t", 0, failure)


def test_a_fault_without_a_code_of_its_own_has_the_code_of_what_was_asked() -> None:
    refusal = Refusal(Fault.STORAGE_ERROR, "the disk is gone")
    assert code_and_text(refusal, "t", 0, Code.FETCH) == (4, "Fetch failed: the disk is gone")
    assert code_and_text(refusal, "t", 0, Code.COMMIT) == (5, "Offset commit failed: the disk is gone")
    assert code_and_text(refusal, "t", 0, Code.WRITE) == (500, "Failed to write record: the disk is gone")
    assert code_and_text(refusal, "t", 0, Code.INTERNAL) == (1, "Internal error: the disk is gone")
