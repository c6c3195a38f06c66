"""The JSON form of RustLog: an object with one key that names the request, bytes as arrays of numbers.

    {"Produce": {"topic": "orders", "partition": 0, "records": [[98, 121], [116]]}}   {"Produce": {"offsets": [0, 1]}}
    {"Fetch": {"topic", "partition", "offset", "max_bytes", "group_id"}}              {"Fetch": {"records": [...], "next_offset": 2}}
    {"OffsetCommit": {"topic", "partition", "group_id", "offset"}}                    {"OffsetCommit": {"success": true}}
    {"OffsetFetch": {"topic", "partition", "group_id"}}                               {"OffsetFetch": {"offset": 1500}}
                                                                                      {"Error": {"message": "..."}}

`group_id` of a Fetch may be null or absent; other unknown fields are ignored. msgspec does the parsing; what it makes of
a record is a list of small integers, and `bytearray` of that, which costs half of `bytes`, checks that each is one byte.
Produces of one record are the hot path: `ProduceHead` knows the text that those of one producer have in common.
"""  # noqa: E501 - a table

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from penstock.broker.engine import Bytes
from penstock.dialects.rustlog.requests import Fetch, Form, OffsetCommit, OffsetFetch
from penstock.model.slices import Work
from penstock.records.record import Record

_U32 = struct.Struct(">I")
_SIZE_BYTES = 4
_U64_MAX = 2**64 - 1

ENCODED_AT_ONCE = 64 * 1024
"""Bytes encoded as JSON without a pause: about a millisecond."""
OFFSETS_AT_ONCE = 4_096

OFFSET_BYTES_MAX = 32
"""An offset and a comma, and the share of a request with one record in what is around them."""

TEXTS_AT_ONCE = 128
"""Produces that are decoded together. If one of them is invalid, the later ones are decoded again."""

Partition = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class ParseError(Exception):
    """The payload is no request; the text is for the answer."""


class ProduceBody(msgspec.Struct, gc=False):
    topic: str
    partition: Partition
    records: list[list[int]]


class FetchBody(msgspec.Struct, gc=False):
    topic: str
    partition: Partition
    offset: int
    max_bytes: int
    group_id: str | None = None


class OffsetCommitBody(msgspec.Struct, gc=False):
    topic: str
    partition: Partition
    group_id: str
    offset: int


class OffsetFetchBody(msgspec.Struct, gc=False):
    topic: str
    partition: Partition
    group_id: str


class Envelope(msgspec.Struct, forbid_unknown_fields=True, rename="pascal", gc=False):
    produce: ProduceBody | UnsetType = UNSET
    fetch: FetchBody | UnsetType = UNSET
    offset_commit: OffsetCommitBody | UnsetType = UNSET
    offset_fetch: OffsetFetchBody | UnsetType = UNSET


_decode = msgspec.json.Decoder(Envelope).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_name = msgspec.json.Decoder(str).decode
_decode_record = msgspec.json.Decoder(list[int]).decode
_decode_records = msgspec.json.Decoder(list[list[int]]).decode
_encode = msgspec.json.Encoder().encode

_NAMES = tuple(b'"%b"' % field.encode_name.encode() for field in msgspec.structs.fields(Envelope))
ONE_NAME = "an object with the name of one request is expected"
_RECORDS_NAME = b'"records"'
_RECORDS = b'"records":[['


def read_request(payload: Bytes) -> ProduceBody | Fetch | OffsetCommit | OffsetFetch:
    """A produce as it came, because the session puts it into a run, or the request. Raises ParseError."""
    try:
        envelope = _decode(payload)
        repeats = repeats_a_name(bytes(payload))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(str(error)) from None
    if repeats:
        raise ParseError(ONE_NAME)
    produce, fetch, commit, offset_fetch = (
        envelope.produce,
        envelope.fetch,
        envelope.offset_commit,
        envelope.offset_fetch,
    )
    if produce is not UNSET and fetch is commit is offset_fetch is UNSET:
        return produce
    if fetch is not UNSET and produce is commit is offset_fetch is UNSET:
        offset, max_bytes = _u64("offset", fetch.offset), _u64("max_bytes", fetch.max_bytes)
        return Fetch(Form.JSON, fetch.group_id or "", fetch.topic, fetch.partition, offset, max_bytes)
    if commit is not UNSET and produce is fetch is offset_fetch is UNSET:
        offset = _u64("offset", commit.offset)
        return OffsetCommit(Form.JSON, commit.group_id, commit.topic, commit.partition, offset)
    if offset_fetch is not UNSET and produce is fetch is commit is UNSET:
        return OffsetFetch(Form.JSON, offset_fetch.group_id, offset_fetch.topic, offset_fetch.partition)
    raise ParseError(ONE_NAME)


def repeats_a_name(payload: bytes) -> bool:
    """Whether the object has the name of its request twice, which msgspec takes for the last of the two. Looked at closely
    only where the bytes could be such."""
    if b"\\" not in payload and sum(map(payload.count, _NAMES)) <= 1:
        return False
    # Only its name may precede the value that msgspec decodes.
    values = list(_decode_raw(payload).values())
    before, value, _ = payload.strip().rpartition(bytes(values[-1]))
    if len(values) != 1 or not value:
        return True
    try:
        _decode_name(before[1:].rstrip().removesuffix(b":"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return False


def records(body: ProduceBody, frame_bytes_max: int) -> list[Bytes]:
    """The records of a produce; raises ParseError, also when the answer with their offsets would not fit a frame."""
    lists = body.records
    if len(lists) * OFFSET_BYTES_MAX > frame_bytes_max:
        count_max = frame_bytes_max // OFFSET_BYTES_MAX
        raise ParseError(f"{len(lists)} records; the offsets of {count_max} at most fit an answer")
    return _as_bytes(lists)


def _as_bytes(lists: list[list[int]]) -> list[Bytes]:
    try:
        return list(map(bytearray, lists))
    except ValueError:
        raise ParseError("a record is an array of numbers from 0 to 255") from None


def decode_records(text: bytes) -> list[Bytes]:
    """The records of an array of arrays. Raises ParseError."""
    try:
        return _as_bytes(_decode_records(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(str(error).replace("`$", "`$.Produce.records")) from None


def decode_record(numbers: bytes) -> Bytes:
    """The bytes given by the numbers between two brackets. Raises ParseError."""
    return decode_records(b"[[%b]]" % numbers)[0]


class ProduceHead:
    """What the single-record produces of one producer to one partition have before and behind the record's numbers."""

    __slots__ = ("_prefix", "_suffix", "_unpack", "partition", "topic")

    def __init__(self, prefix: bytes, suffix: bytes, topic: str, partition: int) -> None:
        self._prefix = prefix
        self._suffix = suffix
        self._unpack = struct.Struct(f">I{len(prefix)}s").unpack_from
        self.topic = topic
        self.partition = partition

    def cut(self, data: bytes, at: int, end: int, frame_bytes_max: int, count_max: int) -> tuple[list[Bytes], int]:
        """The records of the frames from `at` on that are whole and look so, and where the first other one is."""
        unpack, prefix, suffix = self._unpack, self._prefix, self._suffix
        before, behind = _SIZE_BYTES + len(prefix), len(suffix)
        size_min = len(prefix) + behind
        last = end - _SIZE_BYTES - size_min
        has = data.startswith
        texts: list[bytes] = []
        add = texts.append
        start = at
        for _ in range(min(count_max, TEXTS_AT_ONCE)):
            if at > last:
                break
            size, found = unpack(data, at)
            stop = at + _SIZE_BYTES + size
            if (
                found != prefix
                or not size_min <= size <= frame_bytes_max
                or stop > end
                or not has(suffix, stop - behind)
            ):
                break
            add(data[at + before : stop - behind])
            at = stop
        if not texts:
            return [], at
        values = _values_of(texts)
        if len(values) < len(texts):
            at = start + sum(before + len(text) + behind for text in texts[: len(values)])
        return values, at


def _values_of(texts: list[bytes]) -> list[Bytes]:
    """The records whose numbers are sound, up to the first whose are not."""
    if len(texts) > 1:
        together = b"[[%b]]" % b"],[".join(texts)
        if together.count(b"]") == len(texts) + 1:  # no text has a bracket of its own: none runs into the next
            try:
                return list(map(bytearray, _decode_records(together)))
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
                pass
    values: list[Bytes] = []
    for text in texts:
        try:
            values.append(bytearray(_decode_record(b"[%b]" % text)))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            break
    return values


def head_of(payload: bytes, body: ProduceBody) -> ProduceHead | None:
    """What the next produce may have in common with this one, if it has one record and is written without detours."""
    start = payload.find(_RECORDS) + len(_RECORDS)
    stop = payload.find(b"]", start)
    if len(body.records) != 1 or start < len(_RECORDS) or payload[stop : stop + 2] != b"]]":
        return None
    # The only place where records can be: a second one, or an escaped name, could hide the real one.
    if payload.count(_RECORDS_NAME) != 1 or b"\\" in payload:
        return None
    return ProduceHead(payload[:start], payload[stop:], body.topic, body.partition)


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


def produced_in_slices(base_offset: int, count: int) -> Work[bytes]:
    """As `produced`, in slices."""
    pieces = []
    end = base_offset + count
    for start in range(base_offset, end, OFFSETS_AT_ONCE):
        pieces.append(b",".join([b"%d" % at for at in range(start, min(end, start + OFFSETS_AT_ONCE))]))
        yield None
    return frame(b'{"Produce":{"offsets":[%b]}}' % b",".join(pieces))


def produced_singles(base_offset: int, requests: int) -> bytes:
    """The answers of that many requests with one record each."""
    last = base_offset + requests - 1
    digits = len(str(last))
    if len(str(base_offset)) != digits:
        ten = 10 ** (digits - 1)
        return produced_singles(base_offset, ten - base_offset) + produced_singles(ten, last - ten + 1)
    # Offsets of as many digits have answers of one size, which are printed in one go.
    head = _U32.pack(len(_PRODUCED_ONE) - 2 + digits).replace(b"%", b"%%")
    return (head + _PRODUCED_ONE) * requests % tuple(range(base_offset, last + 1))


_PRODUCED_ONE = b'{"Produce":{"offsets":[%d]}}'

_FETCHED = b'{"Fetch":{"records":[%b],"next_offset":%d}}'
_FETCHED_BYTES = len(_FETCHED % (b"", 0)) - 1
"""Of an answer without records and without the digits of its next offset."""


def fetched(records: Sequence[Record], next_offset: int, frame_bytes_max: int) -> Work[bytes | None]:
    """As many of the records as the frame holds, and where to go on; None when not even the first one fits."""
    # the next offset is at most the one that was found, and a comma is saved before the first record
    room = frame_bytes_max - _FETCHED_BYTES - len(str(next_offset)) + 1
    parts: list[bytes] = []
    weight = 0
    for offset, _, _, value, _ in records:
        value = value or b""
        part = b""
        if 2 * len(value) <= room:  # a byte takes two characters at least
            numbers = _encode(list(value)) if len(value) <= ENCODED_AT_ONCE else (yield from _numbers(value))
            part = b'{"offset":%d,"payload":%b}' % (offset, numbers)
            weight += len(part)
            if weight > ENCODED_AT_ONCE:
                weight = 0
                yield None
        room -= len(part) + 1
        if room < 0 or not part:
            if not parts:
                if next_offset == offset + 1:
                    return None
                # by itself it may save digits of the next offset
                return (yield from fetched(records[:1], offset + 1, frame_bytes_max))
            next_offset = offset
            break
        parts.append(part)
    return frame(_FETCHED % (b",".join(parts), next_offset))


def _numbers(value: bytes) -> Work[bytes]:
    """A long value as an array of numbers."""
    pieces = []
    for start in range(0, len(value), ENCODED_AT_ONCE):
        pieces.append(_encode(list(value[start : start + ENCODED_AT_ONCE]))[1:-1])
        yield None
    return b"[%b]" % b",".join(pieces)


def committed(*, success: bool) -> bytes:
    return frame(b'{"OffsetCommit":{"success":%b}}' % (b"true" if success else b"false"))


def offset_fetched(offset: int | None) -> bytes:
    return frame(b'{"OffsetFetch":{"offset":%b}}' % (b"null" if offset is None else b"%d" % offset))
