from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka import produce
from penstock.dialects.kafka.apis import is_flexible
from penstock.dialects.kafka.frame import read_header
from penstock.dialects.kafka.produce import (
    PartitionAnswer,
    ProducePrefix,
    ProduceRequest,
    decode,
    encode_answer,
)
from penstock.model.errors import ProtocolError
from penstock.model.limits import REQUEST_ELEMENTS_MAX as ELEMENTS_MAX
from tests.dialects.kafka.oracle import (
    ERRORS,
    I16S,
    I32S,
    I64S,
    IDS,
    KAFKA_PYTHON,
    NAMES,
    answer_frame,
    request_body,
    same_in_kafka_python,
)

PRODUCE = 0
VERSIONS = range(3, 14)
every_version = pytest.mark.parametrize("version", VERSIONS)
every_encoding = pytest.mark.parametrize("version", [3, 9, 13])
"""One version of each way in which requests are laid out."""

TOPIC_ID = uuid.UUID(int=9)
RECORDS = st.none() | st.binary(max_size=40) | st.integers(0, 2**15).map(bytes)


@st.composite
def requests(draw: st.DrawFn, version: int) -> dict[str, Any]:
    partitions = st.lists(st.fixed_dictionaries({"index": I32S, "records": RECORDS}), max_size=3)
    topic = {"topic_id": IDS} if version >= 13 else {"name": NAMES}
    topics = st.fixed_dictionaries({**topic, "partition_data": partitions})
    return draw(
        st.fixed_dictionaries(
            {
                "transactional_id": st.none() | NAMES,
                "acks": I16S,
                "timeout": I32S,
                "topic_data": st.lists(topics, max_size=3),
            }
        )
    )


def key_of(topic: dict[str, Any]) -> Any:
    return topic["topic_id"].bytes if "topic_id" in topic else topic["name"]


def plain(request: ProduceRequest) -> tuple[Any, ...]:
    topics = [
        (topic, [(index, None if records is None else bytes(records)) for index, records in partitions])
        for topic, partitions in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def expected(tree: dict[str, Any]) -> tuple[Any, ...]:
    topics = [
        (key_of(topic), [(partition["index"], partition["records"]) for partition in topic["partition_data"]])
        for topic in tree["topic_data"]
    ]
    return tree["transactional_id"], tree["acks"], tree["timeout"], topics


@every_version
@given(st.data(), st.integers(0, 3))
def test_requests_encoded_by_kio_are_decoded(version: int, data: st.DataObject, start: int) -> None:
    tree = data.draw(requests(version))
    view = memoryview(bytes(start) + request_body(PRODUCE, version, tree))
    assert plain(decode(view, start, version)) == expected(tree)


@every_version
def test_records_are_views_of_the_buffer(version: int) -> None:
    view = memoryview(bytearray(one_request(version, 1, b"abc")))
    header = read_header(view, 4)
    records = decode(view, header.body_start, version).topics[0][1][0][1]
    assert records is not None
    assert records.obj is view.obj
    records[0:1] = b"z"
    assert b"zbc" in bytes(view)


@pytest.mark.parametrize("version", range(3, KAFKA_PYTHON["ProduceRequest"].max_version + 1))
def test_requests_encoded_by_kafka_python_are_decoded(version: int) -> None:
    message = KAFKA_PYTHON["ProduceRequest"]
    partition = message.TopicProduceData.PartitionProduceData(index=3, records=b"xyz")
    topic = message.TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=[partition])
    request = message(version=version, transactional_id=None, acks=-1, timeout_ms=70, topic_data=[topic])
    request.with_header(correlation_id=5, client_id="me")
    frame = memoryview(request.encode(version=version, header=True, framed=True))
    header = read_header(frame, 4)
    key = "t" if version < 13 else TOPIC_ID.bytes
    assert plain(decode(frame, header.body_start, version)) == (None, -1, 70, [(key, [(3, b"xyz")])])


def tagged(version: int) -> bytes:
    """A request with a tagged field that nobody knows in each of its tag buffers."""
    tag = b"\x01\x63\x02ab"
    topic = bytes(16) if version >= 13 else b"\x02t"
    return b"\x00\x00\x01\x00\x00\x00\x09\x02" + topic + b"\x02" + b"\x00\x00\x00\x04" + b"\x03ab" + tag + tag + tag


@pytest.mark.parametrize("version", range(9, 14))
def test_unknown_tagged_fields_are_read_over(version: int) -> None:
    request = decode(memoryview(tagged(version)), 0, version)
    topic = bytes(16) if version >= 13 else "t"
    assert plain(request) == (None, 1, 9, [(topic, [(4, b"ab")])])


SMALL: dict[str, Any] = {
    "transactional_id": "tx",
    "acks": -1,
    "timeout": 1000,
    "topic_data": [
        {"name": "a", "partition_data": [{"index": 0, "records": b"abcdef"}, {"index": 1, "records": None}]},
        {"name": "bc", "partition_data": [{"index": 7, "records": b"x" * 200}]},
    ],
}


@every_version
def test_every_truncation_of_a_request_is_a_protocol_error(version: int) -> None:
    body = request_body(PRODUCE, version, small(version))
    decode(memoryview(body), 0, version)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            decode(memoryview(body[:cut]), 0, version)


def small(version: int) -> dict[str, Any]:
    if version < 13:
        return SMALL
    return {**SMALL, "topic_data": [{**topic, "topic_id": TOPIC_ID} for topic in SMALL["topic_data"]]}


@every_encoding
@given(st.data())
def test_a_damaged_request_is_decoded_or_a_protocol_error(version: int, data: st.DataObject) -> None:
    body = bytearray(request_body(PRODUCE, version, small(version)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(body), version)


@every_encoding
@given(st.binary(max_size=60))
def test_random_bytes_are_decoded_or_a_protocol_error(version: int, body: bytes) -> None:
    decode_or_refuse(body, version)


def decode_or_refuse(body: bytes, version: int) -> None:
    try:
        decode(memoryview(body), 0, version)
    except ProtocolError:
        pass


@every_encoding
def test_records_that_claim_more_than_is_there_are_refused_with_both_numbers(version: int) -> None:
    whole = memoryview(one_request(version, 1, b"x" * 100))
    body_start = read_header(whole, 4).body_start
    with pytest.raises(ProtocolError, match="records of 100 bytes in a Produce request that has 90"):
        decode(whole[: -10 - 3 * is_flexible(PRODUCE, version)], body_start, version)


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, -2, -1])
def test_a_count_that_cannot_be_true_is_refused_before_anything_is_made_of_it(count: int) -> None:
    legacy = struct.pack(">hhii", -1, 1, 1000, count) + bytes(100)
    with pytest.raises(ProtocolError):
        decode(memoryview(legacy), 0, 7)


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f", b"\x00", b"\xff\xff\xff\xff\xff\x01"])
def test_a_compact_count_that_cannot_be_true_is_refused(count: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(memoryview(b"\x00" + struct.pack(">hi", 1, 1000) + count + bytes(100)), 0, 9)


def test_more_partitions_than_a_broker_can_have_are_refused() -> None:
    head = b"\x00" + struct.pack(">hi", 1, 1000) + b"\x02\x02t"
    count = ELEMENTS_MAX
    varint = bytes([count + 1 & 0x7F | 0x80, count + 1 >> 7 & 0x7F | 0x80, count + 1 >> 14])
    body = head + varint + struct.pack(">iBB", 0, 0, 0) * count + b"\x00\x00"
    with pytest.raises(ProtocolError, match="partitions"):
        decode(memoryview(body), 0, 9)


# ---- requests with the same prefix ----------------------------------------------------------------------------------


def one_request(
    version: int, correlation_id: int, records: bytes | None, partition: int = 0, client: str = "me"
) -> bytes:
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "t"}
    tree = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [{**topic, "partition_data": [{"index": partition, "records": records}]}],
    }
    head = struct.pack(">hhih", PRODUCE, version, correlation_id, len(client)) + client.encode()
    if is_flexible(PRODUCE, version):
        head += b"\x00"
    frame = head + request_body(PRODUCE, version, tree)
    return struct.pack(">i", len(frame)) + frame


def prefix_of(frame: bytes) -> ProducePrefix | None:
    view = memoryview(frame)[4:]
    header = read_header(view)
    return ProducePrefix.of(view, 0, header, decode(view, header.body_start, header.version))


def some_prefix(frame: bytes) -> ProducePrefix:
    prefix = prefix_of(frame)
    assert prefix is not None
    return prefix


@every_encoding
@given(st.lists(st.tuples(I32S, st.integers(0, 300) | st.sampled_from([20_000, 2_100_000])), max_size=6), st.data())
def test_requests_alike_are_cut_as_the_decoder_would(
    version: int, wanted: list[tuple[int, int]], data: st.DataObject
) -> None:
    prefix = some_prefix(one_request(version, 0, b"first"))
    frames = [one_request(version, correlation_id, bytes(length)) for correlation_id, length in wanted]
    buffer = bytes(2) + b"".join(frames)
    at = 2
    seen: list[tuple[int, int]] = []
    while at < len(buffer):
        found, stop = prefix.cut(memoryview(buffer), at)
        seen += [(correlation_id, len(records)) for correlation_id, records in found]
        if stop == at:  # records of more than 2 MB have a length of four bytes in flexible versions
            assert wanted[len(seen)][1] > 2_000_000
            assert is_flexible(PRODUCE, version)
            seen.append(wanted[len(seen)])
            stop += len(frames[len(seen) - 1])
        at = stop
    assert seen == wanted


@every_version
def test_what_the_requests_have_in_common_is_kept(version: int) -> None:
    prefix = some_prefix(one_request(version, 0, b"first", partition=6))
    assert (prefix.version, prefix.client_id, prefix.transactional_id) == (version, "me", None)
    assert (prefix.acks, prefix.timeout_ms, prefix.partition) == (1, 1000, 6)
    assert prefix.topic == (TOPIC_ID.bytes if version >= 13 else "t")


@every_version
def test_a_request_that_differs_or_is_not_whole_ends_the_run(version: int) -> None:
    prefix = some_prefix(one_request(version, 0, b"first"))
    alike = one_request(version, 1, b"abc")
    others = [
        one_request(version, 1, b"abc", partition=1),
        one_request(version, 1, b"abc", client="you"),
        one_request(version, 1, None),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff" + alike[4:],
        alike[:4] + b"\x00\x01" + alike[6:],
    ]
    if version != 3:
        others.append(alike[:6] + struct.pack(">h", version - 1) + alike[8:])
    for other in others:
        found, stop = prefix.cut(memoryview(alike + other + alike), 0)
        assert [(correlation_id, bytes(records)) for correlation_id, records in found] == [(1, b"abc")]
        assert stop == len(alike)
    for cut in range(len(alike)):
        found, stop = prefix.cut(memoryview(alike + alike[:cut]), 0)
        assert (len(found), stop) == (1, len(alike))


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("position", [-1, -2, -3])
def test_a_request_with_tagged_fields_behind_its_records_is_left_to_the_decoder(version: int, position: int) -> None:
    frame = bytearray(one_request(version, 1, b"abc"))
    prefix = some_prefix(bytes(frame))
    assert len(prefix.cut(memoryview(frame), 0)[0]) == 1
    frame[position] = 1
    assert prefix.cut(memoryview(frame), 0) == ([], 0)


@every_encoding
@given(st.data())
def test_a_damaged_request_is_never_cut_otherwise_than_the_decoder_would(version: int, data: st.DataObject) -> None:
    prefix = some_prefix(one_request(version, 0, b"first"))
    frame = bytearray(one_request(version, 1, bytes(data.draw(st.integers(0, 200)))))
    for _ in range(data.draw(st.integers(1, 3))):
        # what follows the prefix is where a damaged frame may still look alike
        frame[data.draw(st.integers(0, 3) | st.integers(20, len(frame) - 1))] = data.draw(st.integers(0, 255))
    found, stop = prefix.cut(memoryview(frame), 0)
    for correlation_id, records in found:
        assert stop == struct.unpack_from(">i", frame)[0] + 4
        view = memoryview(frame)[4:stop]
        header = read_header(view)
        request = decode(view, header.body_start, header.version)
        assert header.correlation_id == correlation_id
        assert request.topics == [(prefix.topic, [(prefix.partition, records)])]


@every_version
def test_only_requests_for_one_partition_have_a_prefix(version: int) -> None:
    head = struct.pack(">hhih", PRODUCE, version, 1, -1) + (b"\x00" if is_flexible(PRODUCE, version) else b"")
    assert prefix_of(bytes(4) + head + request_body(PRODUCE, version, small(version))) is None
    empty = {**small(version), "topic_data": []}
    assert prefix_of(bytes(4) + head + request_body(PRODUCE, version, empty)) is None


# ---- answers --------------------------------------------------------------------------------------------------------

# kio's append times are null or whole seconds
APPEND_TIMES = st.just(-1) | st.integers(0, 2**31).map(lambda seconds: seconds * 1000)
PARTITION_ANSWERS = st.builds(
    PartitionAnswer,
    I32S,
    ERRORS | st.just(0),
    I64S,
    APPEND_TIMES,
    I64S,
    st.lists(st.tuples(I32S, st.none() | NAMES), max_size=2),
    st.none() | NAMES,
)
PLAIN_ANSWERS = st.builds(PartitionAnswer, I32S, st.just(0), I64S, APPEND_TIMES, I64S, st.just(()), st.none())


def topics_of(version: int, partitions: st.SearchStrategy[PartitionAnswer]) -> st.SearchStrategy[Any]:
    key = IDS.map(lambda topic_id: topic_id.bytes) if version >= 13 else NAMES
    return st.lists(st.tuples(key, st.lists(partitions, max_size=3)), max_size=3) | st.tuples(
        st.tuples(key, st.tuples(PLAIN_ANSWERS))
    )


def tree_of(topics: Any, throttle_time_ms: int) -> dict[str, Any]:
    return {
        "throttle_time": throttle_time_ms,
        "responses": [
            {
                **({"name": key} if isinstance(key, str) else {"topic_id": uuid.UUID(bytes=key)}),
                "partition_responses": [
                    {
                        "index": answer.partition,
                        "error_code": answer.error,
                        "base_offset": answer.base_offset,
                        "log_append_time": None if answer.log_append_time_ms < 0 else answer.log_append_time_ms,
                        "log_start_offset": answer.log_start_offset,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": message}
                            for index, message in answer.record_errors
                        ],
                        "error_message": answer.error_message,
                    }
                    for answer in partitions
                ],
            }
            for key, partitions in topics
        ],
    }


@every_version
@given(st.data(), I32S, st.just(0) | I32S)
def test_answers_are_those_of_kio(version: int, data: st.DataObject, correlation_id: int, throttle: int) -> None:
    topics = data.draw(topics_of(version, PARTITION_ANSWERS))
    frame = encode_answer(version, correlation_id, topics, throttle)
    assert frame == answer_frame(PRODUCE, version, correlation_id, tree_of(topics, throttle))
    if version <= KAFKA_PYTHON["ProduceResponse"].max_version:
        assert same_in_kafka_python("ProduceResponse", version, correlation_id, frame)


@pytest.mark.parametrize("error", [0, 35])
@pytest.mark.parametrize(("version", "fields"), [(0, ""), (1, "i"), (2, "qi")])
def test_answers_of_versions_before_those_that_are_served(version: int, fields: str, error: int) -> None:
    """What kio does not know: a version 0 to 2 is advertised, and can be refused in its own words."""
    numbers = (-1, 0)[2 - len(fields) :]
    body = struct.pack(">i", 77) + b"\0\0\0\x01\0\x01t\0\0\0\x01" + struct.pack(">ihq" + fields, 3, error, 5, *numbers)
    answer = encode_answer(version, 77, [("t", [PartitionAnswer(3, error, 5)])])
    assert answer == struct.pack(">i", len(body)) + body


@every_version
def test_templates_of_many_partitions_are_not_mixed_up(version: int) -> None:
    for partition in range(1_100):
        topics = [("t" if version < 13 else TOPIC_ID.bytes, [PartitionAnswer(partition, 0, 5)])]
        assert encode_answer(version, 1, topics) == answer_frame(PRODUCE, version, 1, tree_of(topics, 0))


def test_templates_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_TEMPLATES_MAX", 3)
    monkeypatch.setattr(produce, "_templates", {})
    for partition in range(10):
        assert produce.answer_template(9, "t", partition) is produce.answer_template(9, "t", partition)
        assert len(produce._templates) <= 3
