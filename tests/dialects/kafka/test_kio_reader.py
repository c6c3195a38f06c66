"""The decoder for large requests gives what kio's reader gives, for every API and version, and refuses what it refuses."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from penstock.dialects.kafka.apis import APIS, ApiKey
from penstock.dialects.kafka.kio_bridge import decode_request
from penstock.dialects.kafka.kio_reader import PAUSE_ELEMENTS, decode_in_slices
from penstock.dialects.kafka.kio_schema import Shape, request_shape
from penstock.dialects.kafka.wire import TAGGED_FIELDS_MAX, uvarint
from penstock.model import limits
from penstock.model.errors import ProtocolError
from penstock.model.slices import Work, at_once
from tests.dialects.kafka.oracle import encode, entity_of, request_body, sample, trees

every_api = pytest.mark.parametrize("key", APIS)


def versions(key: int) -> range:
    return range(APIS[key].version_min, APIS[key].version_max + 1)


def decode(key: int, version: int, body: bytes, start: int = 0) -> Any:
    """As from a receive buffer, which can be written to."""
    return at_once(decode_in_slices(key, version, memoryview(bytearray(body)), start))


def either(read: Any, *arguments: Any) -> Any:
    """What a decoder gives, or that it refused."""
    try:
        return read(*arguments)
    except ProtocolError:
        return ProtocolError


def compare(key: int, version: int, body: bytes) -> None:
    ours = either(decode, key, version, body)
    assert ours == either(decode_request, key, version, memoryview(body), 0), (key, version, body)


@every_api
def test_every_version_of_every_api_is_read_as_kio_does(key: int) -> None:
    for version in versions(key):
        entity = entity_of(load_request_schema(key, version), sample(load_request_schema(key, version)))
        assert decode(key, version, b"abc" + encode(entity), 3) == entity


@every_api
@given(st.data())
def test_requests_encoded_by_kio_are_decoded(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(key)))
    request = load_request_schema(key, version)
    entity = entity_of(request, data.draw(trees(request)))
    assert decode(key, version, encode(entity)) == entity


@every_api
def test_every_truncation_of_every_request_is_a_protocol_error(key: int) -> None:
    for version in versions(key):
        body = request_body(key, version, sample(load_request_schema(key, version)))
        for cut in range(len(body)):
            with pytest.raises(ProtocolError):
                decode(key, version, body[:cut])


@every_api
@given(st.data())
def test_a_damaged_request_is_read_as_kio_does(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(key)))
    body = bytearray(request_body(key, version, sample(load_request_schema(key, version))))
    for _ in range(data.draw(st.integers(1, 4)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    compare(key, version, bytes(body))


EVERY_VERSION = st.sampled_from([(key, version) for key in APIS for version in versions(key)])


@given(st.lists(st.tuples(EVERY_VERSION, st.binary(max_size=60)), min_size=10, max_size=30))
def test_random_bytes_are_read_as_kio_does(requests: list[tuple[tuple[int, int], bytes]]) -> None:
    for (key, version), body in requests:
        compare(key, version, body)


def test_unknown_tagged_fields_are_skipped_everywhere() -> None:
    topic = bytes(16) + b"\x02t" + b"\x01\x63\x02ab"
    body = b"\x03" + topic + bytes(16) + b"\x02u\x00" + b"\x01\x00" + b"\x02\x63\x02ab\x64\x00"
    compare(ApiKey.METADATA, 12, body)
    assert [topic.name for topic in decode(ApiKey.METADATA, 12, body).topics] == ["t", "u"]


def test_known_tagged_fields_are_set() -> None:
    head = struct.pack(">iiibii", 500, 1, 1000, 0, 0, -1) + b"\x01\x01\x01"
    state = struct.pack(">iq", 7, 9) + b"\x00"
    body = head + b"\x02\x00\x03\x03ab\x01" + uvarint(len(state)) + state
    compare(ApiKey.FETCH, 15, body)
    assert decode(ApiKey.FETCH, 15, body).replica_state.replica_epoch == 9


@pytest.mark.parametrize("too_many", [0, 1])
@pytest.mark.parametrize("is_in_element", [True, False])
def test_thousands_of_tagged_fields_are_refused(is_in_element: bool, too_many: int) -> None:
    count = TAGGED_FIELDS_MAX + too_many
    tags = uvarint(count) + b"\x63\x00" * count
    body = b"\x02" + bytes(16) + b"\x02t" + (tags if is_in_element else b"\x00") + b"\x01\x00" + tags
    for read in (decode, lambda *arguments: decode_request(*arguments[:2], memoryview(arguments[2]), 0)):
        if too_many:
            with pytest.raises(ProtocolError, match="tagged fields"):
                read(ApiKey.METADATA, 12, body)
        else:
            assert [topic.name for topic in read(ApiKey.METADATA, 12, body).topics] == ["t"]


# ---- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("too_many", [0, 1])
def test_elements_of_a_request_are_limited(too_many: int) -> None:
    count = limits.REQUEST_ELEMENTS_MAX + too_many
    body = uvarint(count + 1) + b"\x01" * count + b"\x00"
    if too_many:
        with pytest.raises(ProtocolError, match=str(limits.REQUEST_ELEMENTS_MAX)):
            decode(ApiKey.DELETE_GROUPS, 2, body)
    else:
        assert len(decode(ApiKey.DELETE_GROUPS, 2, body).groups_names) == count


def test_elements_of_all_arrays_count_together() -> None:
    topics = 26
    partitions = limits.REQUEST_ELEMENTS_MAX // 25
    topic = b"\x00\x01t" + struct.pack(f">i{partitions}i", partitions, *range(partitions))
    body = b"\x00\x01g" + struct.pack(">i", topics) + topic * topics
    with pytest.raises(ProtocolError, match="elements"):
        decode(ApiKey.OFFSET_FETCH, 1, body)


@pytest.mark.parametrize("too_long", [0, 1])
def test_length_of_a_string_is_limited(too_long: int) -> None:
    length = limits.STRING_BYTES_MAX + too_long
    body = b"\x02" + uvarint(length + 1) + b"g" * length + b"\x00"
    if too_long:
        with pytest.raises(ProtocolError, match=str(length)):
            decode(ApiKey.DELETE_GROUPS, 2, body)
    else:
        assert decode(ApiKey.DELETE_GROUPS, 2, body).groups_names == ("g" * length,)


def arrays(shape: Shape) -> int:
    return sum(field.is_array + (arrays(field.nested) if field.nested else 0) for field in shape.fields)


@every_api
def test_a_request_with_many_elements_pauses(key: int) -> None:
    dice = random.Random(key)
    for version in versions(key):
        if arrays(request_shape(key, version)) == 0:
            continue
        tree = sample(load_request_schema(key, version))
        repeat_arrays(tree, dice)
        body = memoryview(request_body(key, version, tree))
        work = decode_in_slices(key, version, body, 0)
        pauses = 0
        while True:
            try:
                next(work)
            except StopIteration as stop:
                assert stop.value == decode_request(key, version, body, 0)
                break
            pauses += 1
        assert pauses >= 300 // PAUSE_ELEMENTS or is_of_numbers(tree)


def repeat_arrays(tree: Any, dice: random.Random) -> None:
    """Each array of the tree becomes 300 elements long, those below it are left as they are."""
    for name, value in tree.items():
        if isinstance(value, list | tuple) and value:
            tree[name] = [dice.choice(value) for _ in range(300)]
        elif isinstance(value, dict):
            repeat_arrays(value, dice)


def is_of_numbers(tree: Any) -> bool:
    """Numbers are read in larger steps."""
    values = [value for value in tree.values() if isinstance(value, list) and len(value) == 300]
    return all(isinstance(value[0], int) for value in values)


def test_long_arrays_of_numbers_pause() -> None:
    body = memoryview(struct.pack(">h1sih1si", 1, b"g", 1, 1, b"t", 10_000) + bytes(40_000))
    work: Work[Any] = decode_in_slices(ApiKey.OFFSET_FETCH, 1, body, 0)
    assert sum(1 for _ in work) >= 10
