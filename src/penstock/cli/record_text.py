"""Records as text: the formats that `produce` reads and `consume` writes. Pure; JSON is exact both ways.

value     the value alone, a line a record
keyvalue  key, separator, value
json      {"key": ..., "value": ..., "headers": [{"name": ..., "value": ...}], "timestamp": ms}; what is not UTF-8 is in
          "key_base64" and "value_base64". `consume` adds "topic", "partition" and "offset"; `produce` ignores these three,
          so that the records of one topic can be piped into another.
hex       partition, offset, key and value with tabs between; "-" for null (`consume` only)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

Header = tuple[str, bytes | None]

_KNOWN = {"key", "key_base64", "value", "value_base64", "headers", "timestamp", "topic", "partition", "offset"}

_BAD_LINES_TOLD_MAX = 5


class TextRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


RecordWriter = Callable[[TextRecord, Place], bytes]


# -------------------------------------------------------------------------------------------------------- reading


class LineParser:
    """Lines in, records out. A line that is none is counted, and the first few are told."""

    def __init__(self, parse: Callable[[bytes], TextRecord | None], told: Callable[[str], None]) -> None:
        self._parse = parse
        self._told = told
        self._lines = 0
        self.bad_lines = 0

    def take(self, line: bytes, check: Callable[[TextRecord], None] | None = None) -> TextRecord | None:
        """The record of the next line; `check` raises ValueError for one that cannot be sent."""
        self._lines += 1
        try:
            record = self._parse(line.removesuffix(b"\n").removesuffix(b"\r"))
            if record is not None and check is not None:
                check(record)
            return record
        except ValueError as error:
            self.bad_lines += 1
            if self.bad_lines <= _BAD_LINES_TOLD_MAX:
                self._told(f"line {self._lines}: {error}")
            return None


def parse_keyvalue(line: bytes, separator: bytes) -> TextRecord:
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError(f"no {separator.decode(errors='replace')!r} between key and value")
    return TextRecord(key, value)


def parse_json(line: bytes) -> TextRecord:
    try:
        content = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    unknown = sorted(content.keys() - _KNOWN)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    timestamp = content.get("timestamp")
    if timestamp is not None and (not isinstance(timestamp, int) or isinstance(timestamp, bool) or timestamp < 0):
        raise ValueError(f"timestamp {timestamp!r} is not a number of milliseconds")
    return TextRecord(_field(content, "key"), _field(content, "value"), _headers(content.get("headers")), timestamp)


def _field(content: dict[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, null as null; any other JSON value as JSON."""
    encoded = content.get(f"{name}_base64")
    if encoded is not None:
        if content.get(name) is not None:
            raise ValueError(f"{name} and {name}_base64 cannot be combined")
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"{name}_base64 is not base64") from None
    value = content.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _headers(written: Any) -> list[Header]:
    if written is None:
        return []
    if isinstance(written, dict):
        return [(name, _field({"value": value}, "value")) for name, value in written.items()]
    if not isinstance(written, list):
        raise ValueError("headers must be an object or a list of objects")
    headers: list[Header] = []
    for header in written:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError('a header must be {"name": ..., "value": ...}')
        headers.append((header["name"], _field(header, "value")))
    return headers


# -------------------------------------------------------------------------------------------------------- writing


def format_json(record: TextRecord, place: Place) -> bytes:
    content: dict[str, Any] = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
        "timestamp": record.timestamp_ms,
    }
    _put(content, "key", record.key)
    _put(content, "value", record.value)
    if record.headers:
        content["headers"] = [_header(name, value) for name, value in record.headers]
    return msgspec.json.encode(content)


def _header(name: str, value: bytes | None) -> dict[str, Any]:
    """Names are text in every client library; a log may hold one that is not UTF-8 (surrogates stand for its bytes)."""
    return _put(_put({}, "name", name.encode("utf-8", "surrogateescape")), "value", value)


def _put(content: dict[str, Any], name: str, value: bytes | None) -> dict[str, Any]:
    try:
        content[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None
        content[f"{name}_base64"] = base64.b64encode(value).decode()
    return content


def format_keyvalue(record: TextRecord, separator: bytes) -> bytes:
    return (record.key or b"") + separator + (record.value or b"")


def format_hex(record: TextRecord, place: Place) -> bytes:
    key, value = ("-" if field is None else field.hex() for field in (record.key, record.value))
    return f"{place.partition}\t{place.offset}\t{key}\t{value}".encode()
