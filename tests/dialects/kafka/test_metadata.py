from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.kafka import metadata
from penstock.dialects.kafka.metadata import (
    BrokerAddress,
    PartitionDescription,
    TopicDescription,
    Topics,
    TopicsKept,
    encode_answer,
    encode_topics,
    encode_topics_in_slices,
)
from penstock.model.errors import ProtocolError
from tests.dialects.kafka.oracle import (
    ERRORS,
    I32S,
    IDS,
    KAFKA_PYTHON,
    NAMES,
    answer_frame,
    decode_answer,
    same_in_kafka_python,
)

METADATA = 3
every_version = pytest.mark.parametrize("version", range(14))

NODES = st.lists(I32S, max_size=3)
BROKERS = st.lists(st.builds(BrokerAddress, I32S, NAMES, I32S, st.none() | NAMES), max_size=2)
PARTITIONS = st.builds(PartitionDescription, I32S, I32S, I32S, NODES, NODES, NODES, ERRORS)


def topics_of(version: int) -> st.SearchStrategy[list[TopicDescription]]:
    return st.lists(
        st.builds(
            TopicDescription,
            st.none() | NAMES if version >= 12 else NAMES,
            IDS.map(lambda topic_id: topic_id.bytes),
            st.lists(PARTITIONS, max_size=2),
            st.booleans(),
            ERRORS,
            I32S,
        ),
        max_size=3,
    )


def tree_of(brokers: list[BrokerAddress], topics: list[TopicDescription], **others: Any) -> dict[str, Any]:
    return {
        "brokers": [broker._asdict() for broker in brokers],
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": uuid.UUID(bytes=topic.topic_id),
                "is_internal": topic.is_internal,
                "topic_authorized_operations": topic.authorized_operations,
                "partitions": [
                    {
                        "error_code": partition.error,
                        "partition_index": partition.partition,
                        "leader_id": partition.leader_id,
                        "leader_epoch": partition.leader_epoch,
                        "replica_nodes": partition.replicas,
                        "isr_nodes": partition.in_sync,
                        "offline_replicas": partition.offline,
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in topics
        ],
        **others,
    }


@every_version
@given(st.data(), I32S, BROKERS, st.none() | NAMES, I32S, ERRORS, I32S)
def test_answers_are_those_of_kio(
    version: int,
    data: st.DataObject,
    correlation_id: int,
    brokers: list[BrokerAddress],
    cluster_id: str | None,
    number: int,
    error: int,
    throttle: int,
) -> None:
    topics = data.draw(topics_of(version))
    split = data.draw(st.integers(0, len(topics)))
    frame = b"".join(
        encode_answer(
            version,
            correlation_id,
            brokers,
            cluster_id,
            number,
            [encode_topics(version, topics[:split]), encode_topics(version, topics[split:])],
            cluster_operations=number,
            error=error,
            throttle_time_ms=throttle,
        )
    )
    tree = tree_of(
        brokers,
        topics,
        throttle_time=throttle,
        cluster_id=cluster_id,
        controller_id=number,
        cluster_authorized_operations=number,
        error_code=error,
    )
    assert frame == answer_frame(METADATA, version, correlation_id, tree)
    if version <= KAFKA_PYTHON["MetadataResponse"].max_version:
        assert same_in_kafka_python("MetadataResponse", version, correlation_id, frame)


def topic(name: str, epoch: int = 3) -> TopicDescription:
    return TopicDescription(name, bytes(range(16)), [PartitionDescription(0, 1, epoch, [1], [1])])


class Catalogue:
    def __init__(self) -> None:
        self.asked = 0
        self.epoch = 3

    def describe(self) -> list[TopicDescription]:
        self.asked += 1
        return [topic("a", self.epoch), topic("b", self.epoch)]


def get(
    kept: TopicsKept, version: int, key: object, counter: int, describe: Callable[[], list[TopicDescription]]
) -> Topics:
    """What is kept, or what is described now."""
    found = kept.find(version, key, counter)
    if found is None:
        found = encode_topics(version, describe())
        kept.keep(version, key, counter, found)
    return found


def test_topics_described_before_a_change_are_not_kept() -> None:
    kept = TopicsKept()
    assert kept.find(9, "all", 1) is None
    assert kept.find(9, "all", 2) is None
    kept.keep(9, "all", 1, encode_topics(9, [topic("a")]))
    assert kept.find(9, "all", 2) is None


def test_kept_bytes_serve_until_the_counter_rises() -> None:
    kept, catalogue = TopicsKept(), Catalogue()
    first = get(kept, 9, "all", 1, catalogue.describe)
    assert get(kept, 9, "all", 1, catalogue.describe) is first
    assert catalogue.asked == 1
    catalogue.epoch = 4
    second = get(kept, 9, "all", 2, catalogue.describe)
    assert second == encode_topics(9, [topic("a", 4), topic("b", 4)])
    assert second != first


def test_kept_bytes_are_of_one_version_and_one_key() -> None:
    kept, catalogue = TopicsKept(), Catalogue()
    for version in range(14):
        assert get(kept, version, "all", 1, catalogue.describe) == encode_topics(version, catalogue.describe())
        assert get(kept, version, "a", 1, lambda: [topic("a")]) == encode_topics(version, [topic("a")])


def test_kept_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ENTRIES_MAX", 10)
    kept = TopicsKept()
    for number in range(100):
        entry = get(kept, 9, number, 1, lambda number=number: [topic(str(number))])  # type: ignore[misc]
        assert entry == encode_topics(9, [topic(str(number))])
        assert len(kept._entries) <= 10


def test_the_bytes_of_many_topics_are_not_copied() -> None:
    topics = encode_topics(9, [topic(str(number)) for number in range(5_000)])
    chunks = encode_answer(9, 1, [], None, 0, [topics])
    assert any(chunk is topics.data for chunk in chunks)
    assert len(decode_answer(METADATA, 9, b"".join(chunks)).topics) == 5_000


def test_topics_with_many_partitions_are_encoded_in_slices() -> None:
    partitions = [PartitionDescription(number, 1, 0, (1,), (1,)) for number in range(1_000)]
    wide = TopicDescription("wide", bytes(16), partitions)
    work = encode_topics_in_slices(9, [wide, wide])
    assert sum(1 for _ in work) >= 2_000 // metadata.PAUSE_PARTITIONS


def test_topics_that_are_too_large_for_an_answer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata.limits, "ANSWER_BYTES_MAX", 10_000)
    with pytest.raises(ProtocolError, match="10000 bytes"):
        encode_topics(9, [topic(str(number)) for number in range(5_000)])


def test_a_topic_asked_by_an_unknown_id_has_no_name_and_keeps_its_id() -> None:
    unknown = TopicDescription(None, bytes(range(16)), error=100)
    frame = b"".join(encode_answer(12, 1, [], None, 0, [encode_topics(12, [unknown])]))
    (answered,) = decode_answer(METADATA, 12, frame).topics
    assert (answered.name, answered.topic_id, answered.error_code) == (None, uuid.UUID(bytes=bytes(range(16))), 100)
