from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from penstock.dialects.kafka.fetch import FetchPartition, FetchRequest, PartitionAnswer, decode, encode_answer
from penstock.dialects.kafka.frame import read_header
from penstock.model.chunks import Chunk, FileRange
from penstock.model.errors import ProtocolError
from penstock.model.limits import REQUEST_ELEMENTS_MAX as ELEMENTS_MAX
from tests.dialects.kafka.oracle import (
    ERRORS,
    I32S,
    I64S,
    IDS,
    KAFKA_PYTHON,
    NAMES,
    answer_frame,
    decode_answer,
    request_body,
    same_in_kafka_python,
    sample,
    trees,
)

FETCH = 1
VERSIONS = range(4, 19)
every_version = pytest.mark.parametrize("version", VERSIONS)
every_encoding = pytest.mark.parametrize("version", [4, 7, 11, 12, 17])
"""One version of each way in which requests are laid out."""


def key_of(topic: dict[str, Any]) -> str | bytes:
    if "topic_id" in topic:
        return (topic["topic_id"] or uuid.UUID(int=0)).bytes
    return topic["topic"]  # type: ignore[no-any-return]


def expected(tree: dict[str, Any]) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=tree["max_wait"],
        min_bytes=tree["min_bytes"],
        max_bytes=tree["max_bytes"],
        isolation_level=tree["isolation_level"],
        session_id=tree.get("session_id", 0),
        session_epoch=tree.get("session_epoch", -1),
        topics=[
            (
                key_of(topic),
                [
                    FetchPartition(
                        partition["partition"],
                        partition.get("current_leader_epoch", -1),
                        partition["fetch_offset"],
                        partition.get("last_fetched_epoch", -1),
                        partition["partition_max_bytes"],
                    )
                    for partition in topic["partitions"]
                ],
            )
            for topic in tree["topics"]
        ],
        forgotten=[(key_of(topic), topic["partitions"]) for topic in tree.get("forgotten_topics_data", [])],
        rack_id=tree.get("rack_id", ""),
    )


@every_version
@given(st.data(), st.integers(0, 3))
def test_requests_encoded_by_kio_are_decoded(version: int, data: st.DataObject, start: int) -> None:
    tree = data.draw(trees(load_request_schema(FETCH, version)))
    view = memoryview(bytes(start) + request_body(FETCH, version, tree))
    assert decode(view, start, version) == expected(tree)


@pytest.mark.parametrize("version", range(4, KAFKA_PYTHON["FetchRequest"].max_version + 1))
def test_requests_encoded_by_kafka_python_are_decoded(version: int) -> None:
    message = KAFKA_PYTHON["FetchRequest"]
    partition = message.FetchTopic.FetchPartition(partition=2, fetch_offset=40, partition_max_bytes=1000)
    topic = message.FetchTopic(topic="t", topic_id=uuid.UUID(int=9), partitions=[partition])
    request = message(
        version=version, max_wait_ms=500, min_bytes=1, max_bytes=5000, isolation_level=1, topics=[topic], rack_id="r"
    )
    request.with_header(correlation_id=5, client_id="me")
    frame = memoryview(request.encode(version=version, header=True, framed=True))
    decoded = decode(frame, read_header(frame, 4).body_start, version)
    name = "t" if version < 13 else uuid.UUID(int=9).bytes
    assert decoded.topics == [(name, [FetchPartition(2, -1, 40, -1, 1000)])]
    assert (decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes) == (500, 1, 5000)
    assert (decoded.isolation_level, decoded.session_id, decoded.session_epoch) == (1, 0, -1)
    assert decoded.rack_id == ("r" if version >= 11 else "")


def sample_body(version: int) -> bytes:
    return request_body(FETCH, version, sample(load_request_schema(FETCH, version)))


@every_version
def test_every_truncation_of_a_request_is_a_protocol_error(version: int) -> None:
    body = sample_body(version)
    decode(memoryview(body), 0, version)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            decode(memoryview(body[:cut]), 0, version)


@every_encoding
@given(st.data())
def test_a_damaged_request_is_decoded_or_a_protocol_error(version: int, data: st.DataObject) -> None:
    body = bytearray(sample_body(version))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(body), version)


@every_encoding
@given(st.binary(max_size=80))
def test_random_bytes_are_decoded_or_a_protocol_error(version: int, body: bytes) -> None:
    decode_or_refuse(body, version)


def decode_or_refuse(body: bytes, version: int) -> None:
    try:
        decode(memoryview(body), 0, version)
    except ProtocolError:
        pass


@pytest.mark.parametrize("count", [2**31 - 1, 2**24, -2, -1])
def test_a_count_that_cannot_be_true_is_refused_before_anything_is_made_of_it(count: int) -> None:
    body = struct.pack(">iiiibi", -1, 500, 1, 1000, 0, count) + bytes(100)
    with pytest.raises(ProtocolError):
        decode(memoryview(body), 0, 4)


def test_more_partitions_than_a_broker_can_have_are_refused() -> None:
    head = struct.pack(">iiiibihi", -1, 500, 1, 1000, 0, 1, 0, ELEMENTS_MAX)
    with pytest.raises(ProtocolError, match="partitions"):
        decode(memoryview(head + bytes(16 * ELEMENTS_MAX)), 0, 4)


# ---- answers --------------------------------------------------------------------------------------------------------


class Lying:
    """A file that must not be touched: only its range is of interest."""

    def fileno(self) -> int:
        raise AssertionError("nobody may look into the log")


CHUNKS = st.lists(st.binary(max_size=30) | st.integers(0, 20_000).map(bytes), max_size=3)
PARTITION_ANSWERS = st.builds(
    PartitionAnswer, I32S, ERRORS, I64S, I64S, I64S, st.none() | st.lists(st.tuples(I64S, I64S), max_size=2), CHUNKS
)


def topics_of(version: int) -> st.SearchStrategy[Any]:
    key = IDS.map(lambda topic_id: topic_id.bytes) if version >= 13 else NAMES
    return st.lists(st.tuples(key, st.lists(PARTITION_ANSWERS, max_size=3)), max_size=3)


def tree_of(topics: Any, error: int, session_id: int, throttle: int) -> dict[str, Any]:
    return {
        "throttle_time": throttle,
        "error_code": error,
        "session_id": session_id,
        "responses": [
            {
                **({"topic": key} if isinstance(key, str) else {"topic_id": uuid.UUID(bytes=key)}),
                "partitions": [
                    {
                        "partition_index": answer.partition,
                        "error_code": answer.error,
                        "high_watermark": answer.high_watermark,
                        "last_stable_offset": answer.last_stable_offset,
                        "log_start_offset": answer.log_start_offset,
                        "aborted_transactions": None
                        if answer.aborted is None
                        else [{"producer_id": pid, "first_offset": first} for pid, first in answer.aborted],
                        "records": b"".join(answer.records),
                    }
                    for answer in partitions
                ],
            }
            for key, partitions in topics
        ],
    }


def joined(chunks: Sequence[Chunk]) -> bytes:
    return b"".join(bytes(chunk.length) if isinstance(chunk, FileRange) else chunk for chunk in chunks)


@every_version
@given(st.data(), I32S, ERRORS, I32S, st.just(0) | I32S)
def test_answers_are_those_of_kio(
    version: int, data: st.DataObject, correlation_id: int, error: int, session_id: int, throttle: int
) -> None:
    topics = data.draw(topics_of(version))
    frame = joined(encode_answer(version, correlation_id, error, session_id, topics, throttle))
    assert frame == answer_frame(FETCH, version, correlation_id, tree_of(topics, error, session_id, throttle))
    if version <= KAFKA_PYTHON["FetchResponse"].max_version:
        assert same_in_kafka_python("FetchResponse", version, correlation_id, frame)


@every_version
def test_records_leave_as_the_chunks_they_came_in(version: int) -> None:
    memory = memoryview(bytearray(b"abc"))
    in_file = FileRange(Lying(), 100, 70_000)
    topic = "t" if version < 13 else bytes(16)
    answers = [PartitionAnswer(0, 0, 9, records=[memory, in_file]), PartitionAnswer(1, 0, 9, records=[in_file])]
    chunks = encode_answer(version, 1, 0, 0, [(topic, answers)])
    assert [chunk is memory or chunk is in_file for chunk in chunks] == (
        [False, True, True, False, True] + [False] * (version >= 12)
    )
    decoded = decode_answer(FETCH, version, joined([b"abc" if chunk is memory else chunk for chunk in chunks]))
    assert len(decoded.responses[0].partitions[0].records) == 70_003


@every_version
@pytest.mark.parametrize("records", [(), (b"",), (FileRange(Lying(), 5, 0),)])
def test_no_records_are_an_empty_string_and_never_null(version: int, records: Sequence[Chunk]) -> None:
    topic = "t" if version < 13 else bytes(16)
    chunks = encode_answer(version, 1, 0, 0, [(topic, [PartitionAnswer(0, 1, -1, records=records)])])
    assert len(chunks) == 1
    frame = joined(chunks)
    assert decode_answer(FETCH, version, frame).responses[0].partitions[0].records == b""
