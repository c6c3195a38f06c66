"""The client's codec against kio's, in every version that the client speaks, and against answers that lie."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import random
import struct
import types
import typing
import uuid
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from penstock.client.kafka_apis import VERSIONS, Api
from penstock.client.kafka_codec import Message, decode, encode, field_names, is_flexible, skip_tags, uvarint
from penstock.client.kafka_errors import KafkaError

EVERY = [(api, version) for api, (low, high) in VERSIONS.items() for version in range(low, high + 1)]
IDS = [f"{api.label}-{version}" for api, version in EVERY]

_NUMBERS = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_TIME_MS_MAX = (1 << 31) - 1
SEEDS = range(6)


def primitive(kind: str, dice: random.Random) -> Any:
    """A value as kio has it."""
    if kind in _NUMBERS:
        low, high = _NUMBERS[kind]
        return dice.choice((low, high, 0, dice.randint(low, high)))
    time = dt.timedelta(milliseconds=dice.randint(0, _TIME_MS_MAX))
    others: dict[str, Any] = {
        "bool": dice.random() < 0.5,
        "float64": dice.random(),
        "string": "".join(dice.choices("ab\0\x7f\u00e9\u20ac\U0001f600", k=dice.choice((0, 1, 5, 200)))),
        "bytes": dice.randbytes(dice.choice((0, 1, 5, 200))),
        "records": dice.randbytes(dice.choice((0, 1, 5, 200))),
        "uuid": uuid.UUID(int=dice.getrandbits(128)),
        "error_code": dice.choice(sorted(ErrorCode)),
        "timedelta_i32": time,
        "timedelta_i64": time,
        "datetime_i64": dt.datetime.fromtimestamp(0, dt.UTC) + time,
    }
    return others[kind]


def sample(entity: type[Any], dice: random.Random) -> Any:
    """Some instance of one of kio's classes."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        annotation: Any = field.type
        is_nullable = typing.get_origin(annotation) is types.UnionType
        if is_nullable:
            (annotation,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
        is_array = typing.get_origin(annotation) is tuple
        if is_array:
            annotation = typing.get_args(annotation)[0]
        is_nested = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
        made = [
            sample(annotation, dice) if is_nested else primitive(field.metadata["kafka_type"], dice)
            for _ in range(dice.randint(0, 3) if is_array else 1)
        ]
        # kio takes the zero id for null.
        is_null = is_nullable and field.metadata.get("kafka_type") != "uuid" and dice.random() < 0.3
        values[field.name] = None if is_null else tuple(made) if is_array else made[0]
    return entity(**values)


def written(entity: type[Any], value: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(entity)(out, value)
    return out.getvalue()


def plain(value: Any) -> Any:
    """What the client says instead of kio's types."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Message):
        return {name: plain(inner) for name, inner in vars(value).items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1_000)
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def same(ours: Any, theirs: Any) -> bool:
    """Equal, but for what a tagged field's default or a null time looks like."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs or (theirs is None and ours == -1)


@pytest.mark.parametrize(("api", "version"), EVERY, ids=IDS)
def test_answers_of_every_version_are_read_as_kio_writes_them(api: Api, version: int) -> None:
    entity = load_response_schema(api, version)
    for seed in SEEDS:
        answer = sample(entity, random.Random(seed))
        decoded = decode(api, version, memoryview(b"abc" + written(entity, answer)), 3)
        assert same(plain(decoded), plain(answer)), seed


@pytest.mark.parametrize(("api", "version"), EVERY, ids=IDS)
def test_requests_of_every_version_are_written_as_kio_writes_them(api: Api, version: int) -> None:
    entity = load_request_schema(api, version)
    for seed in SEEDS:
        request = sample(entity, random.Random(seed))
        assert encode(api, version, plain(request)) == written(entity, request), seed


@pytest.mark.parametrize(("api", "version"), EVERY, ids=IDS)
def test_a_cut_or_changed_answer_is_read_or_refused_and_never_anything_else(api: Api, version: int) -> None:
    entity = load_response_schema(api, version)
    dice = random.Random(version)
    whole = written(entity, sample(entity, dice))
    for _ in range(40):
        answer = bytearray(whole)
        for _ in range(dice.randint(0, 3)):
            answer[dice.randrange(len(answer))] = dice.randrange(256)
        try:
            decode(api, version, memoryview(answer)[: dice.randint(0, 2 * len(answer))], 0)
        except KafkaError as error:
            assert error.name == "CORRUPT_MESSAGE"
            assert not error.retriable


@pytest.mark.parametrize("claim", [struct.pack(">i", 0x7FFFFFFF), struct.pack(">i", 1_000_000)])
def test_an_array_that_cannot_be_there_takes_no_memory(claim: bytes) -> None:
    with pytest.raises(KafkaError, match="claims"):
        decode(Api.METADATA, 4, memoryview(bytes(4) + claim + bytes(20)), 0)
    with pytest.raises(KafkaError, match="claims"):
        decode(Api.METADATA, 12, memoryview(bytes(4) + uvarint(1 << 31) + bytes(20)), 0)


def test_tagged_fields_that_are_not_known_are_stepped_over() -> None:
    known = encode(Api.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": ["g"]})
    assert known[-1] == 0
    answer = bytes(4) + uvarint(1) + uvarint(2) + uvarint(99) + uvarint(3) + b"abc" + uvarint(7) + uvarint(0)
    assert decode(Api.FIND_COORDINATOR, 6, memoryview(answer), 0).coordinators == []
    assert skip_tags(memoryview(answer), 5) == len(answer)
    with pytest.raises(KafkaError, match="tagged field of 3 bytes"):
        decode(Api.FIND_COORDINATOR, 6, memoryview(answer[:10]), 0)
    with pytest.raises(KafkaError, match="header"):
        skip_tags(memoryview(b"\x01\x80"), 0)


def test_a_field_that_must_be_given_is_asked_for() -> None:
    with pytest.raises(TypeError, match="EndTxnRequest requires committed"):
        encode(Api.END_TXN, 3, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 1})


def test_records_are_a_view_of_the_answer_and_no_copy() -> None:
    entity = load_response_schema(Api.SASL_AUTHENTICATE, 2)
    frame = bytearray(written(entity, entity(error_code=ErrorCode.none, error_message=None, auth_bytes=b"token")))
    token = decode(Api.SASL_AUTHENTICATE, 2, memoryview(frame), 0).auth_bytes
    frame[frame.index(b"token")] = ord("T")
    assert bytes(token) == b"Token"


def test_a_null_id_is_the_zero_id() -> None:
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    by_name = encode(Api.METADATA, 12, {"topics": [{"name": "a"}], **fields})
    by_id = encode(Api.METADATA, 12, {"topics": [{"topic_id": uuid.UUID(int=7)}], **fields})
    assert by_name[1:17] == bytes(16)
    assert by_id[1:17] == uuid.UUID(int=7).bytes


def test_which_versions_are_flexible_and_which_names_they_have() -> None:
    assert not is_flexible(Api.SASL_HANDSHAKE, 1)
    assert is_flexible(Api.FETCH, 12)
    assert not is_flexible(Api.FETCH, 11)
    assert {"topics", "partition_max_bytes"} <= field_names(Api.FETCH, 12)
