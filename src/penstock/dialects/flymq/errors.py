"""What goes wrong, in FlyMQ's forms: Kafka's numbers in the API-key frames, one number and a text in the opcode frames."""

from __future__ import annotations

from typing import Final

from penstock.dialects.flymq.wire import I32, string
from penstock.model.errors import BrokerError, Fault
from penstock.model.ids import GROUP_NAME_BYTES_MAX, is_group_name

OPCODE_ERROR_CODE: Final = 1
"""The original has no other; its clients look at the text."""


def coded(text: str) -> bytes:
    """The payload of an error answer to an opcode frame; every client of the original reads this one of its forms."""
    return I32.pack(OPCODE_ERROR_CODE) + string(text)


def checked(fault: Fault, text: str = "") -> None:
    if fault is not Fault.NONE:
        raise BrokerError(fault, text)


def check_group(name: str) -> str:
    if not is_group_name(name):
        if 0 < len(name.encode()) <= GROUP_NAME_BYTES_MAX:
            raise BrokerError(Fault.INVALID_GROUP_ID, "a group name has no control characters")
        raise BrokerError(Fault.INVALID_GROUP_ID, f"a group name has 1 to {GROUP_NAME_BYTES_MAX} bytes")
    return name
