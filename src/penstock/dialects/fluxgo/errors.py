"""What FluxGo says of each fault: the code and the text. Every fault has an answer for produce and for consume; for
offsets there is one code each, whatever happened."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.dialects.fluxgo.frames import Code
from penstock.model.errors import Fault
from penstock.model.fault_tables import NO_LOG_FAULTS

_FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)

PRODUCE_CODES: Mapping[Fault, Code] = {
    fault: Code.PRODUCE_LOG_ACCESS if fault in NO_LOG_FAULTS else Code.PRODUCE_APPEND_FAILED for fault in _FAULTS
}
CONSUME_CODES: Mapping[Fault, Code] = {
    fault: Code.CONSUME_TOPIC_NOT_FOUND
    if fault in NO_LOG_FAULTS
    else Code.CONSUME_OFFSET_INVALID
    if fault is Fault.OFFSET_OUT_OF_RANGE
    else Code.CONSUME_READ_FAILED
    for fault in _FAULTS
}

_PRODUCE_TEXTS = {
    Code.PRODUCE_LOG_ACCESS: "Failed to access log: ",
    Code.PRODUCE_APPEND_FAILED: "Failed to append message: ",
}
TOPIC_NOT_FOUND = b"Topic or partition not found"
COMMIT_FAILED = b"Failed to commit offset"
FETCH_FAILED = b"Failed to fetch offset"


def produce_error(fault: Fault, text: str) -> tuple[Code, bytes]:
    code = PRODUCE_CODES[fault]
    return code, (_PRODUCE_TEXTS[code] + (text or fault.value)).encode()


def consume_error(fault: Fault, text: str = "") -> tuple[Code, bytes]:
    code = CONSUME_CODES[fault]
    if code is Code.CONSUME_TOPIC_NOT_FOUND:
        return code, TOPIC_NOT_FOUND
    if code is Code.CONSUME_OFFSET_INVALID:
        return code, b""
    return code, f"Failed to read message: {text or fault.value}".encode()
