"""The JSON form of RustLog: an object with one key that names the request, bytes as arrays of numbers.

    {"Produce": {"topic": "orders", "partition": 0, "records": [[98, 121], [116]]}}   {"Produce": {"offsets": [0, 1]}}
    {"Fetch": {"topic", "partition", "offset", "max_bytes", "group_id"}}              {"Fetch": {"records": [...], "next_offset": 2}}
    {"OffsetCommit": {"topic", "partition", "group_id", "offset"}}                    {"OffsetCommit": {"success": true}}
    {"OffsetFetch": {"topic", "partition", "group_id"}}                               {"OffsetFetch": {"offset": 1500}}
                                                                                      {"Error": {"message": "..."}}

`group_id` of a Fetch may be null or absent; other unknown fields are ignored. msgspec does the parsing; what it makes of
a record is a list of small integers, and `bytes` of that is the check that each of them is one byte.
"""  # noqa: E501 - a table

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from penstock.broker.engine import Bytes
from penstock.dialects.rustlog.requests import Fetch, Form, OffsetCommit, OffsetFetch
from penstock.records.record import Record

_U32 = struct.Struct(">I")
_U64_MAX = 2**64 - 1

Partition = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class ParseError(Exception):
    """The payload is no request; the text is for the answer."""


class ProduceBody(msgspec.Struct):
    topic: str
    partition: Partition
    records: list[list[int]]


class FetchBody(msgspec.Struct):
    topic: str
    partition: Partition
    offset: int
    max_bytes: int
    group_id: str | None = None


class OffsetCommitBody(msgspec.Struct):
    topic: str
    partition: Partition
    group_id: str
    offset: int


class OffsetFetchBody(msgspec.Struct):
    topic: str
    partition: Partition
    group_id: str


class Envelope(msgspec.Struct, forbid_unknown_fields=True, rename="pascal"):
    produce: ProduceBody | UnsetType = UNSET
    fetch: FetchBody | UnsetType = UNSET
    offset_commit: OffsetCommitBody | UnsetType = UNSET
    offset_fetch: OffsetFetchBody | UnsetType = UNSET


class Produce(msgspec.Struct):
    """A produce as it came; the session puts it into a run."""

    topic: str
    partition: int
    values: list[Bytes]


_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


def read_request(payload: Bytes) -> Produce | Fetch | OffsetCommit | OffsetFetch:
    """Raises ParseError."""
    try:
        envelope = _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(str(error)) from None
    given = [body for body in _bodies(envelope) if body is not UNSET]
    if len(given) != 1:
        raise ParseError(f"an object with one request is expected, this one has {len(given)}")
    body = given[0]
    if isinstance(body, ProduceBody):
        try:
            return Produce(body.topic, body.partition, [bytes(record) for record in body.records])
        except ValueError:
            raise ParseError("a record is an array of numbers from 0 to 255") from None
    if isinstance(body, FetchBody):
        offset, max_bytes = _u64("offset", body.offset), _u64("max_bytes", body.max_bytes)
        return Fetch(Form.JSON, body.group_id or "", body.topic, body.partition, offset, max_bytes)
    if isinstance(body, OffsetCommitBody):
        offset = _u64("offset", body.offset)
        return OffsetCommit(Form.JSON, body.group_id, body.topic, body.partition, offset)
    assert isinstance(body, OffsetFetchBody)
    return OffsetFetch(Form.JSON, body.group_id, body.topic, body.partition)


def _bodies(envelope: Envelope) -> tuple[object, ...]:
    return envelope.produce, envelope.fetch, envelope.offset_commit, envelope.offset_fetch


def _u64(name: str, value: int) -> int:
    if not 0 <= value <= _U64_MAX:
        raise ParseError(f"{name} is not a number from 0 to {_U64_MAX}")
    return value


# ------------------------------------------------------------------------------------------------------------ answers


def frame(payload: bytes) -> bytes:
    return _U32.pack(len(payload)) + payload


def error(message: str) -> bytes:
    return frame(_encode({"Error": {"message": message}}))


def parse_failed(text: str) -> bytes:
    return error(f"failed to parse request: {text}")


def produced(base_offset: int, count: int) -> bytes:
    offsets = b",".join([b"%d" % at for at in range(base_offset, base_offset + count)])
    return frame(b'{"Produce":{"offsets":[%b]}}' % offsets)


def produced_singles(base_offset: int, requests: int) -> bytes:
    """The answers of that many requests with one record each."""
    offsets = range(base_offset, base_offset + requests)
    return b"".join([frame(b'{"Produce":{"offsets":[%d]}}' % at) for at in offsets])


_FETCHED = b'{"Fetch":{"records":[%b],"next_offset":%d}}'
_FETCHED_BYTES_MAX = len(_FETCHED) + 20
"""An answer without records, the next offset having as many digits as it can."""


def fetched(records: Sequence[Record], next_offset: int, frame_bytes_max: int) -> bytes | None:
    """As many of the records as the frame holds, and where to go on; None when not even the first one fits."""
    room = frame_bytes_max - _FETCHED_BYTES_MAX
    parts: list[bytes] = []
    for offset, _, _, value, _ in records:
        value = value or b""
        part = b""
        if 2 * len(value) <= room:  # a byte takes two characters at least
            part = b'{"offset":%d,"payload":%b}' % (offset, _encode(list(value)))
        room -= len(part) + 1
        if room < 0 or not part:
            if not parts:
                return None
            next_offset = offset
            break
        parts.append(part)
    return frame(_FETCHED % (b",".join(parts), next_offset))


def committed(*, success: bool) -> bytes:
    return frame(b'{"OffsetCommit":{"success":%b}}' % (b"true" if success else b"false"))


def offset_fetched(offset: int | None) -> bytes:
    return frame(b'{"OffsetFetch":{"offset":%b}}' % (b"null" if offset is None else b"%d" % offset))
