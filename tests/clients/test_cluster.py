"""What kafka-python's administrators ask about the cluster, which is one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock import Broker
from tests.clients.drivers import Confluent, Sent, kafka


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


@pytest.fixture
def kafka_admin(broker: Broker) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def wide_topic(admin: AdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "60000"})])[topic].result(30)
    return topic


def test_the_features_in_force_are_told(kafka_admin: Any) -> None:
    features = kafka_admin.describe_features()
    assert {name: (row["supported"], row["finalized"]) for name, row in features.items()} == {
        "group.version": ((0, 1), (1, 1)),
        "transaction.version": ((0, 2), (2, 2)),
    }


def test_partitions_are_described_page_by_page(kafka_admin: Any, wide_topic: str) -> None:
    first = kafka_admin.describe_topic_partitions([wide_topic], response_partition_limit=2)
    assert [row["partition_index"] for row in first["topics"][0]["partitions"]] == [0, 1]
    rest = kafka_admin.describe_topic_partitions([wide_topic], 2, first["next_cursor"])
    assert [row["partition_index"] for row in rest["topics"][0]["partitions"]] == [2]
    assert rest["next_cursor"] is None


def test_the_size_of_a_log_is_told(broker: Broker, kafka_admin: Any, wide_topic: str) -> None:
    Confluent().write(broker.bootstrap, wide_topic, [Sent(b"x" * 5_000)])
    (answer,) = kafka_admin.describe_log_dirs({wide_topic: [0, 1]})
    (directory,) = answer["log_dirs"]
    assert directory["log_dir"] == str(broker.data_dir)
    (topic,) = directory["topics"]
    sizes = {row["partition_index"]: row["partition_size"] for row in topic["partitions"]}
    assert sizes[0] > 5_000
    assert sizes[1] == 0


def test_nothing_is_elected_and_nothing_moves(admin: AdminClient, kafka_admin: Any, wide_topic: str) -> None:
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(wide_topic, 0)]).result(30)
    assert [error.code() for error in elected.values()] == [KafkaError.ELECTION_NOT_NEEDED]
    assert admin.elect_leaders(ElectionType.PREFERRED, None).result(30) == {}
    assert kafka_admin.list_partition_reassignments() == {}


def test_configs_are_listed_and_replaced(admin: AdminClient, kafka_admin: Any, wide_topic: str) -> None:
    assert wide_topic in kafka_admin.list_config_resources(["TOPIC"])["topic"]
    resource = ConfigResource(ResourceType.TOPIC, wide_topic, set_config={"segment.bytes": "1048576"})
    with pytest.deprecated_call():
        altered = admin.alter_configs([resource])[resource]
    altered.result(30)
    found = admin.describe_configs([resource])[resource].result(30)
    assert (found["segment.bytes"].value, found["segment.bytes"].is_default) == ("1048576", False)
    assert found["retention.ms"].is_default
