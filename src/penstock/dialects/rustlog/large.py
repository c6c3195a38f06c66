"""Requests of RustLog that are read in slices: produces of many records, and long JSON texts.

A long JSON text is scanned once without creating objects for its records (`msgspec.Raw`). Their text is then decoded a few
kilobytes at a time, which also finds text that is not an array of arrays of numbers.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.broker.engine import Bytes
from penstock.dialects.rustlog import json_form
from penstock.dialects.rustlog.binary_form import DecodeError
from penstock.dialects.rustlog.json_form import ParseError, Partition
from penstock.dialects.rustlog.requests import Fetch, OffsetCommit, OffsetFetch
from penstock.model.slices import Work

JSON_BYTES_MIN = 16 * 1024
"""Longer JSON texts are read in slices: many tiny arrays take 80 ns per byte."""
RECORDS_AT_ONCE = 1_000
"""Binary produces with more records are read in slices of this many."""

_PIECE_BYTES = 16 * 1024
_U32 = struct.Struct(">I")
_BETWEEN_RECORDS = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_SPACE = b" \t\r\n"


class LargeProduce(NamedTuple):
    """A binary produce of many records."""

    topic: str
    partition: int
    record_count: int
    payload: Bytes
    start: int
    """Start of the first record."""


class LargeJson(NamedTuple):
    payload: Bytes


class _ProduceBody(msgspec.Struct, gc=False):
    topic: str
    partition: Partition
    records: Raw


class _Envelope(msgspec.Struct, forbid_unknown_fields=True, rename="pascal", gc=False):
    produce: _ProduceBody | UnsetType = UNSET
    fetch: Raw = Raw()
    offset_commit: Raw = Raw()
    offset_fetch: Raw = Raw()


_decode = msgspec.json.Decoder(_Envelope).decode


class JsonProduce(NamedTuple):
    topic: str
    partition: int
    values: list[Bytes]


def binary_records(request: LargeProduce) -> Work[list[Bytes]]:
    """Raises DecodeError."""
    data, at, left = request.payload, request.start, request.record_count
    end = len(data)
    values: list[Bytes] = []
    length_of = _U32.unpack_from
    while left:
        for _ in range(min(left, RECORDS_AT_ONCE)):
            if at + 4 > end:
                raise DecodeError("truncated record length")
            stop = at + 4 + length_of(data, at)[0]
            if stop > end:
                raise DecodeError("truncated record")
            values.append(data[at + 4 : stop])
            at = stop
        left -= min(left, RECORDS_AT_ONCE)
        yield None
    return values


def json_request(payload: Bytes, frame_bytes_max: int) -> Work[JsonProduce | Fetch | OffsetCommit | OffsetFetch]:
    """As `json_form.read_request`, with the records of a produce. Raises ParseError."""
    try:
        body = _decode(payload).produce
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(str(error)) from None
    yield None
    if isinstance(body, UnsetType):
        other = json_form.read_request(payload)
        assert not isinstance(other, json_form.ProduceBody), "it has no records"
        return other
    # The other names may be present, too: then the request has two names.
    if json_form.repeats_a_name(bytes(payload)):
        raise ParseError(json_form.ONE_NAME)
    yield None
    values = yield from _records(bytes(body.records), frame_bytes_max // json_form.OFFSET_BYTES_MAX)
    return JsonProduce(body.topic, body.partition, values)


def _records(text: bytes, count_max: int) -> Work[list[Bytes]]:
    """The records of an array of arrays of numbers, which is valid JSON."""
    values: list[Bytes] = []
    if not text.startswith(b"["):
        json_form.decode_records(text)  # which says what is wrong
    count = text.count(b"[") - 1  # valid records have no brackets inside
    if count > count_max:
        raise ParseError(f"{count} records; an answer has room for {count_max} offsets")
    end = text.rindex(b"]")
    at = _BETWEEN_RECORDS.match(text, 1, end).end()  # type: ignore[union-attr]  # it matches anything
    while at < end:
        stop = end if end - at <= _PIECE_BYTES else text.rfind(b"]", at, at + _PIECE_BYTES) + 1
        if stop:
            values += json_form.decode_records(b"[%b]" % text[at:stop].rstrip(_SPACE))
        else:
            value, stop = yield from _long_record(text, at, end)
            values.append(value)
        at = _BETWEEN_RECORDS.match(text, stop, end).end()  # type: ignore[union-attr]
        yield None
    return values


def _long_record(text: bytes, at: int, end: int) -> Work[tuple[bytearray, int]]:
    """A record whose numbers are longer than a piece, and its end."""
    if not text.startswith(b"[", at):
        json_form.decode_records(b"[%b]" % text[at:end])
    value = bytearray()
    at += 1
    while True:
        stop = text.find(b"]", at, at + _PIECE_BYTES)
        if stop >= 0:
            value += json_form.decode_record(text[at:stop])
            return value, stop + 1
        stop = text.rfind(b",", at, at + _PIECE_BYTES)
        if stop < 0:
            raise ParseError("a record is an array of numbers from 0 to 255")
        value += json_form.decode_record(text[at:stop])
        at = stop + 1
        yield None
