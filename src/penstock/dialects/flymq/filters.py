"""Filters of FETCH: which records a reader wants. No filter and no record can make the broker slow.

    $.a.b     the value is a JSON object that has that path
    other     the key or the value contains the text, in either case, or fits it as a regular expression

Regular expressions are RE2's. While its automaton fits its memory a byte takes nanoseconds, whatever the expression. Beyond
that a byte takes as many steps as the compiled expression has instructions. So a small one, whose automaton always fits, is
run as an automaton and nothing else, and for others the bytes shrink as their instructions grow. A record that is too large
for the filter is an error that names it, for nobody knows whether it fits.

Text that is no expression is looked for as text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from penstock.model.errors import BrokerError, Fault
from penstock.model.limits import FLYMQ_PATH_NAMES_MAX
from penstock.records.record import Record

FILTER_BYTES_MAX = 1_024
SCANNED_BYTES_MAX = 4 * 1024 * 1024
"""Of keys and values in one request with a filter. One record is always looked at."""
SLOW_BYTES_MAX = 4 * 1024 * 1024
"""Of a record that takes up to 10 ns a byte: small expressions, and text beyond ASCII, whose case is looked up."""
SMALL_INSTRUCTIONS_MAX = 20
"""`a[ab]{11}c` has so many. Its 4,096 sets of them fit `_SMALL_MEMORY_BYTES_MAX`."""
INSTRUCTIONS_MAX = 2_000
STEPS_MAX = 4_000_000
"""Instructions times bytes in one request; RE2 takes up to 10 ns for each."""

_MEMORY_BYTES_MAX = 1024 * 1024
_SMALL_MEMORY_BYTES_MAX = 4 * 1024 * 1024
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
_TOO_LARGE = b"pattern too large"

Test = Callable[[bytes], bool]


class Filter(NamedTuple):
    fits: Callable[[Record], bool]
    """Raises BrokerError for a record that is too large to be tried."""
    bytes_max: int = SCANNED_BYTES_MAX
    """To be looked at in one request."""


@lru_cache(maxsize=16)
def filter_of(text: str) -> Filter:
    if len(text.encode()) > FILTER_BYTES_MAX:
        raise BrokerError(Fault.INVALID_REQUEST, f"a filter has at most {FILTER_BYTES_MAX} bytes")
    if text.startswith("$."):
        return Filter(_has_path(text[2:].split(".")))
    return _contains(text)


def _has_path(path: list[str]) -> Callable[[Record], bool]:
    """What is not on the path is passed over, and nothing is made of it."""
    if len(path) > FLYMQ_PATH_NAMES_MAX:
        raise BrokerError(Fault.INVALID_REQUEST, f"a path has at most {FLYMQ_PATH_NAMES_MAX} names")
    kind: Any = msgspec.Raw
    for name in reversed(path):
        try:
            kind = msgspec.defstruct("Step", [("inside", kind)], rename={"inside": name})
        except ValueError:
            raise BrokerError(Fault.INVALID_REQUEST, f"a path has no quotes and no backslashes: {name}") from None
    decode = msgspec.json.Decoder(kind).decode

    def fits(record: Record) -> bool:
        try:
            decode(record.value or b"")
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    return fits


def _contains(text: str) -> Filter:
    has_text, slow, bytes_max = _text(text)
    if _SPECIAL.intersection(text):
        expression, expression_bytes_max = _expression(text)
        if expression is not None:
            slow.append(expression)
            bytes_max = min(bytes_max, expression_bytes_max)

    def fits(record: Record) -> bool:
        key, value = record.key or b"", record.value or b""
        if has_text(key) or has_text(value):
            return True
        if not slow:
            return False
        size = len(key) + len(value)
        if size > bytes_max:
            raise BrokerError(
                Fault.MESSAGE_TOO_LARGE,
                f"the record at offset {record.offset} has {size} bytes, this filter is tried on at most {bytes_max}; "
                f"next is {record.offset + 1}",
            )
        return any(test(key) or test(value) for test in slow)

    return Filter(fits, min(bytes_max, SCANNED_BYTES_MAX))


def _text(text: str) -> tuple[Test, list[Test], int]:
    """The quick look for the text, the slow one, and how large a record this one takes."""
    lowered = text.lower().encode()
    if text.isascii():
        return (lambda field: lowered in field.lower()), [], SLOW_BYTES_MAX
    encoded = text.encode()

    def in_either_case(field: bytes) -> bool:
        try:
            return lowered in field.decode().lower().encode()
        except UnicodeDecodeError:
            return lowered in field.lower()

    return (lambda field: encoded in field), [in_either_case], SLOW_BYTES_MAX


def _expression(text: str) -> tuple[Test | None, int]:
    """The regular expression, and how large a record it takes; None when it is none."""
    import re2

    try:
        pattern = re2.compile(text.encode(), _options(_MEMORY_BYTES_MAX))
    except re2.error as error:
        if error.args[0].startswith(_TOO_LARGE):
            raise _too_many_instructions() from None
        return None, 0
    small = _small(text.encode())
    if small is not None:
        return small, SLOW_BYTES_MAX
    if pattern.programsize > INSTRUCTIONS_MAX:
        raise _too_many_instructions()
    return (lambda field: pattern.search(field) is not None), STEPS_MAX // pattern.programsize


def _small(expression: bytes) -> Test | None:
    """The expression as an automaton whose states are sets of instructions. It says whether the expression fits, not where,
    so their order does not count, and few instructions have few sets."""
    import re2

    # Any bytes before and behind: then only the last byte tells, and a fit in the middle costs no more than none.
    whole = b"\\C*(?:%b)\\C*" % expression
    options = _options(_SMALL_MEMORY_BYTES_MAX)
    try:
        if re2.compile(whole, options).programsize > SMALL_INSTRUCTIONS_MAX:
            return None
    except re2.error:  # an open \\Q takes in what is behind it
        return None
    automaton = re2.Set.FullMatchSet(options)
    automaton.Add(whole)
    automaton.Compile()
    return lambda field: automaton.Match(field) is not None


def _options(memory_bytes_max: int) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory_bytes_max
    return options


def _too_many_instructions() -> BrokerError:
    return BrokerError(Fault.INVALID_REQUEST, f"a filter's expression has at most {INSTRUCTIONS_MAX} instructions")
