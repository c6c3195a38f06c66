from __future__ import annotations

import datetime as dt
import struct
import types
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema

from penstock.dialects.kafka.apis import APIS
from penstock.dialects.kafka.kio_bridge import answer, answer_in_slices, decode_request, milliseconds, unknown_names
from penstock.dialects.kafka.wire import uvarint
from penstock.model import limits
from penstock.model.errors import Fault, ProtocolError
from penstock.model.limits import REQUEST_ELEMENTS_MAX as ELEMENTS_MAX
from penstock.model.slices import Work, at_once
from tests.dialects.kafka.oracle import (
    answer_frame,
    decode_answer,
    encode,
    entity_of,
    request_body,
    sample,
    trees,
)

METADATA, JOIN_GROUP, DELETE_GROUPS, DESCRIBE_CLUSTER = 3, 11, 42, 60
every_api = pytest.mark.parametrize("key", APIS)


def versions(key: int) -> range:
    return range(APIS[key].version_min, APIS[key].version_max + 1)


@every_api
def test_every_version_of_every_api_is_spoken_both_ways(key: int) -> None:
    for version in versions(key):
        request = load_request_schema(key, version)
        entity = entity_of(request, sample(request))
        assert decode_request(key, version, memoryview(b"abc" + encode(entity)), 3) == entity
        tree = sample(load_response_schema(key, version))
        assert answer(key, version, 5, tree) == answer_frame(key, version, 5, tree)
        assert answer(key, version, 5, namespaces(tree)) == answer_frame(key, version, 5, tree)
        assert in_slices(key, version, 5, namespaces(tree)) == answer_frame(key, version, 5, tree)


def in_slices(key: int, version: int, correlation_id: int, tree: Any) -> bytes:
    return b"".join(at_once(answer_in_slices(key, version, correlation_id, tree)).chunks)


def namespaces(value: Any) -> Any:
    if isinstance(value, dict):
        return types.SimpleNamespace(**{name: namespaces(inner) for name, inner in value.items()})
    return [namespaces(inner) for inner in value] if isinstance(value, list) else value


@every_api
@given(st.data())
def test_requests_of_kio_come_back_and_answers_are_those_of_kio(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(key)))
    request = load_request_schema(key, version)
    entity = entity_of(request, data.draw(trees(request)))
    assert decode_request(key, version, memoryview(encode(entity)), 0) == entity
    tree = data.draw(trees(load_response_schema(key, version)))
    assert answer(key, version, 9, tree) == answer_frame(key, version, 9, tree)
    assert in_slices(key, version, 9, tree) == answer_frame(key, version, 9, tree)


@every_api
def test_every_truncation_of_every_request_is_a_protocol_error(key: int) -> None:
    for version in versions(key):
        body = request_body(key, version, sample(load_request_schema(key, version)))
        for cut in range(len(body)):
            with pytest.raises(ProtocolError):
                decode_request(key, version, memoryview(body[:cut]), 0)


@every_api
@given(st.data())
def test_a_damaged_request_is_decoded_or_a_protocol_error(key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(key)))
    body = bytearray(request_body(key, version, sample(load_request_schema(key, version))))
    for _ in range(data.draw(st.integers(1, 4)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    decode_or_refuse(key, version, bytes(body))


EVERY_VERSION = st.sampled_from([(key, version) for key in APIS for version in versions(key)])


@given(st.lists(st.tuples(EVERY_VERSION, st.binary(max_size=60)), min_size=10, max_size=30))
def test_random_bytes_are_decoded_or_a_protocol_error(requests: list[tuple[tuple[int, int], bytes]]) -> None:
    for (key, version), body in requests:
        decode_or_refuse(key, version, body)


def decode_or_refuse(key: int, version: int, body: bytes) -> None:
    try:
        decode_request(key, version, memoryview(body), 0)
    except ProtocolError:
        pass


def test_a_version_that_does_not_exist_is_a_protocol_error() -> None:
    for key, version in ((METADATA, 99), (0, 2), (999, 0), (METADATA, -1)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, memoryview(b""), 0)


@pytest.mark.parametrize(
    "count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\x01"]
)
def test_a_compact_count_for_which_kio_would_end_the_process_is_refused(count: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(METADATA, 12, memoryview(count + bytes(60)), 0)


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, 31])
def test_a_legacy_count_that_cannot_be_true_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match="claims"):
        decode_request(METADATA, 4, memoryview(struct.pack(">i", count) + bytes(61)), 0)


def test_counts_deep_in_a_request_are_checked_too() -> None:
    body = request_body(8, 8, sample(load_request_schema(8, 8)))
    at = body.rindex("grüße".encode(), 0, len(body) - 60)
    for position in range(at, len(body)):
        decode_or_refuse(8, 8, body[:position] + b"\xff\xff\xff\xff\x0f" + body[position + 1 :])


def test_more_elements_than_any_request_needs_are_refused() -> None:
    body = uvarint(ELEMENTS_MAX + 2) + b"\x01" * (ELEMENTS_MAX + 1) + b"\x00"
    with pytest.raises(ProtocolError, match="claims"):
        decode_request(DELETE_GROUPS, 2, memoryview(body), 0)


@pytest.mark.parametrize("length", [2**30, 2**31 - 1, -2])
def test_a_string_of_a_gigabyte_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        decode_request(36, 1, memoryview(struct.pack(">i", length) + b"abc"), 0)


@pytest.mark.parametrize("version", [2, 1])
def test_an_array_that_must_not_be_null_is_refused_when_it_is(version: int) -> None:
    null = b"\x00\x00" if version == 2 else b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError):
        decode_request(DELETE_GROUPS, version, memoryview(null), 0)


def test_an_array_that_may_be_null_is_none() -> None:
    assert decode_request(METADATA, 1, memoryview(b"\xff\xff\xff\xff"), 0).topics is None
    assert decode_request(METADATA, 9, memoryview(b"\x00\x01\x00\x00\x00"), 0).topics is None


# ---- tagged fields (KIP-482) ----------------------------------------------------------------------------------------

UNKNOWN = b"\x63\x02ab"


def test_unknown_tagged_fields_are_taken_out_wherever_they_are() -> None:
    topic = bytes(16) + b"\x02t" + b"\x01" + UNKNOWN
    body = b"\x03" + topic + bytes(16) + b"\x02u\x00" + b"\x01\x00" + b"\x02" + UNKNOWN + b"\x64\x00"
    request = decode_request(METADATA, 12, memoryview(b"abc" + body), 3)
    assert [topic.name for topic in request.topics] == ["t", "u"]
    assert request.allow_auto_topic_creation is True


def test_known_tagged_fields_stay_when_unknown_ones_go() -> None:
    head = struct.pack(">iiibii", 500, 1, 1000, 0, 0, -1) + b"\x01\x01\x01"
    state = struct.pack(">iq", 7, 9)
    cluster = b"\x00\x03\x03ab"
    inner = state + b"\x01" + UNKNOWN
    tags = b"\x03" + cluster + b"\x01" + uvarint(len(inner)) + inner + UNKNOWN
    request = decode_request(1, 15, memoryview(head + tags), 0)
    assert request.cluster_id == "ab"
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (7, 9)


@pytest.mark.parametrize(
    "tags", [b"\x01", b"\x01\x63", b"\x01\x63\x05abc", b"\xff\xff\xff\xff\x0f\x63\x00", b"\x02\x63\x00"]
)
def test_tag_buffers_that_are_cut_off_are_a_protocol_error(tags: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(METADATA, 12, memoryview(b"\x00\x01\x00" + tags), 0)


def test_a_known_tagged_field_of_another_length_than_it_says_is_a_protocol_error() -> None:
    head = struct.pack(">iiibii", 500, 1, 1000, 0, 0, -1) + b"\x01\x01\x01"
    with pytest.raises(ProtocolError):
        decode_request(1, 15, memoryview(head + b"\x01\x00\x07\x03ab" + bytes(4)), 0)


# ---- one description for all versions -------------------------------------------------------------------------------

FIND_COORDINATOR = {
    "node_id": 1,
    "host": "h",
    "port": 9092,
    "coordinators": [{"key": "g", "node_id": 1, "host": "h", "port": 9092, "error_message": None}],
}


@pytest.mark.parametrize("version", range(7))
def test_one_description_serves_every_version(version: int) -> None:
    decoded = decode_answer(10, version, answer(10, version, 1, FIND_COORDINATOR))
    named = decoded.coordinators[0] if version >= 4 else decoded
    assert (named.node_id, named.host, named.port, named.error_code) == (1, "h", 9092, 0)


def test_what_is_not_given_has_its_default() -> None:
    fields = {"cluster_id": "c", "controller_id": 1, "brokers": []}
    decoded = decode_answer(DESCRIBE_CLUSTER, 1, answer(DESCRIBE_CLUSTER, 1, 1, fields))
    assert decoded.throttle_time == dt.timedelta(0)
    assert decoded.error_code == 0
    assert decoded.error_message is None
    assert decoded.endpoint_type == 1
    assert decoded.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize("description", [{"brokers": []}, types.SimpleNamespace(brokers=[])])
def test_a_field_that_is_forgotten_is_named(description: object) -> None:
    with pytest.raises(TypeError, match="cluster_id"):
        answer(DESCRIBE_CLUSTER, 1, 1, description)


def test_errors_may_be_faults_and_ids_bytes() -> None:
    topic = {"name": "t", "topic_id": bytes(range(16)), "error_code": Fault.TOPIC_EXISTS, "error_message": None}
    decoded = decode_answer(19, 7, answer(19, 7, 1, {"topics": [{**topic, "configs": None}]}))
    assert decoded.topics[0].error_code == 36
    assert decoded.topics[0].topic_id == uuid.UUID(bytes=bytes(range(16)))
    with pytest.raises(ValueError, match="16 bytes"):
        answer(19, 7, 1, {"topics": [{**topic, "configs": None, "topic_id": b"short"}]})


def test_a_time_that_is_not_there_is_minus_one() -> None:
    fields = {"responses": [{"name": "t", "partition_responses": [partition]} for partition in PARTITIONS]}
    decoded = decode_answer(0, 3, answer(0, 3, 1, fields))
    times = [topic.partition_responses[0].log_append_time for topic in decoded.responses]
    assert times == [None, None, dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)]


PARTITIONS: list[dict[str, Any]] = [
    {"index": 0, "base_offset": 1, "log_append_time": time} for time in (None, -1, 1_700_000_000_000)
]


def test_nested_messages_that_may_be_null_are_written_with_their_marker() -> None:
    heartbeat = {"member_id": "m", "member_epoch": 1, "heartbeat_interval": 5000}
    assert decode_answer(68, 1, answer(68, 1, 1, heartbeat)).assignment is None
    assigned = {**heartbeat, "assignment": {"topic_partitions": [{"topic_id": uuid.UUID(int=3), "partitions": [1]}]}}
    assert decode_answer(68, 1, answer(68, 1, 1, assigned)).assignment.topic_partitions[0].partitions == (1,)


# ---- answers in slices ------------------------------------------------------------------------------------------------


def repeated(value: Any, count: int) -> Any:
    """The tree with so many elements in each array that it is made of alone."""
    if isinstance(value, dict):
        return {name: repeated(inner, count) for name, inner in value.items()}
    if isinstance(value, list | tuple) and value:
        return [repeated(value[0], max(1, count // 10)) for _ in range(count)]
    return value


@every_api
def test_an_answer_with_many_elements_pauses(key: int) -> None:
    version = APIS[key].version_max
    tree = repeated(sample(load_response_schema(key, version)), 40)
    work: Work[Any] = answer_in_slices(key, version, 5, tree)
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as stop:
            assert b"".join(stop.value.chunks) == answer_frame(key, version, 5, tree)
            break
        pauses += 1
    has_array = any(isinstance(value, list) and value for value in tree.values())
    assert pauses >= 2 or not has_array


def test_a_large_answer_is_in_pieces_that_are_not_copied_again() -> None:
    tree = {"groups": [{"group_id": "g" * 30_000, "protocol_type": ""} for _ in range(100)]}
    chunks = at_once(answer_in_slices(16, 2, 1, tree)).chunks
    assert b"".join(chunks) == answer(16, 2, 1, tree)
    assert max(map(len, chunks)) < 1_000_000


def test_an_answer_that_is_too_large_is_a_protocol_error() -> None:
    group = {"group_id": "g" * 30_000, "protocol_type": ""}
    tree = {"groups": [group] * (limits.ANSWER_BYTES_MAX // 30_000 + 1)}
    with pytest.raises(ProtocolError, match=str(limits.ANSWER_BYTES_MAX)):
        at_once(answer_in_slices(16, 2, 1, tree))


def test_misspelled_names_are_found() -> None:
    assert unknown_names(10, FIND_COORDINATOR) == set()
    wrong = {**FIND_COORDINATOR, "prot": 1, "coordinators": [{"keys": "g"}, types.SimpleNamespace(host="h", posrt=1)]}
    assert unknown_names(10, wrong) == {"prot", "coordinators.keys", "coordinators.posrt"}


@pytest.mark.parametrize("number", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_times_of_requests_are_milliseconds_again(number: int) -> None:
    tree = {**sample(load_request_schema(JOIN_GROUP, 5)), "session_timeout": number}
    request = decode_request(JOIN_GROUP, 5, memoryview(request_body(JOIN_GROUP, 5, tree)), 0)
    assert milliseconds(request.session_timeout) == number
