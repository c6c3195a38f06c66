"""What Day1 says of each fault: it has no codes, only texts, and a word in front that tells where it failed.

Where there is no log to use, mini-kafka tells it bare, as the failure to open its file.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.errors import Fault
from penstock.model.fault_tables import NO_LOG_FAULTS

_FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)

PRODUCE_PREFIXES: Mapping[Fault, str] = {fault: "" if fault in NO_LOG_FAULTS else "append error: " for fault in _FAULTS}
FETCH_PREFIXES: Mapping[Fault, str] = {fault: "" if fault in NO_LOG_FAULTS else "fetch error: " for fault in _FAULTS}


def produce_error(fault: Fault, text: str) -> str:
    return PRODUCE_PREFIXES[fault] + (text or fault.value)


def fetch_error(fault: Fault, text: str = "") -> str:
    return FETCH_PREFIXES[fault] + (text or fault.value)
