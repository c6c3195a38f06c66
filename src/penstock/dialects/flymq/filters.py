"""Filters of FETCH: which records a reader wants. No pattern can make the broker slow.

    $.a.b     the value is a JSON object that has that path
    other     the key or the value contains the text, in either case, or fits it as a regular expression

Regular expressions are RE2's, which takes time in proportion to what it looks at; how much that is, is bounded by
`SCANNED_BYTES_MAX` for one request. Text that is no expression is looked for as text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from penstock.model.errors import BrokerError, Fault
from penstock.records.record import Record

FILTER_BYTES_MAX = 1_024
SCANNED_BYTES_MAX = 4 * 1024 * 1024
"""Of keys and values in one request with a filter: tens of milliseconds at RE2's slowest. One record is always looked
at, however large."""

_PATTERN_MEMORY_BYTES_MAX = 1024 * 1024

Filter = Callable[[Record], bool]


@lru_cache(maxsize=256)
def filter_of(text: str) -> Filter:
    if len(text.encode()) > FILTER_BYTES_MAX:
        raise BrokerError(Fault.INVALID_REQUEST, f"a filter has at most {FILTER_BYTES_MAX} bytes")
    if text.startswith("$."):
        return _has_path(tuple(text[2:].split(".")))
    return _contains(text)


def _has_path(path: tuple[str, ...]) -> Filter:
    def fits(record: Record) -> bool:
        try:
            found: Any = msgspec.json.decode(record.value or b"")
        except (msgspec.DecodeError, RecursionError):
            return False
        for name in path:
            if not isinstance(found, dict) or name not in found:
                return False
            found = found[name]
        return True

    return fits


def _contains(text: str) -> Filter:
    needle = text.lower().encode()
    search = _expression(text)

    def fits(record: Record) -> bool:
        for field in (record.key, record.value):
            if field and (needle in _lowered(field) or (search is not None and search(field))):
                return True
        return not needle

    return fits


def _lowered(field: bytes) -> bytes:
    if field.isascii():
        return field.lower()
    try:
        return field.decode().lower().encode()
    except UnicodeDecodeError:
        return field.lower()


def _expression(text: str) -> Callable[[bytes], Any] | None:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_MEMORY_BYTES_MAX
    try:
        pattern = re2.compile(text.encode(), options)
    except re2.error:
        return None
    search: Callable[[bytes], Any] = pattern.search
    return search
