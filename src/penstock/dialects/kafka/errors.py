"""Kafka's error codes: from a number back to the `Fault`, and names for people."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.model.errors import Fault
from penstock.model.fault_tables import KAFKA_CODES as CODES

__all__ = ["CODES", "FAULTS", "NO_ERROR", "error_code", "error_name"]

NO_ERROR: Final = 0

FAULTS: Final[dict[int, Fault]] = {code: fault for fault, code in CODES.items()}
"""The other way: no two faults share a code."""


def error_code(fault: Fault) -> int:
    return CODES[fault]


def error_name(code: int) -> str:
    """Kafka's own name of a code, for log lines: `not_leader_or_follower`."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
