from __future__ import annotations

from typing import Any

import pytest
from kio.schema.api_versions.v4.response import ApiVersionsResponse
from kio.serial import entity_reader

from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.service import HANDLERS
from tests.dialects.kafka.stand_in import IDS, NODE, TOPICS, Client, versions

UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42


@pytest.fixture
def client() -> Client:
    return Client()


# ---- ApiVersions ------------------------------------------------------------------------------------------------------


def test_groups_and_transactions_of_the_newest_kind_are_announced(client: Client) -> None:
    frame = client.service._api_versions.answer(4, 1)
    answer, _ = entity_reader(ApiVersionsResponse)(frame, 8)
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    finalized = {row.name: row.max_version_level for row in answer.finalized_features}
    assert supported == {"group.version": (0, 1), "transaction.version": (0, 2)}
    assert finalized == {"group.version": 1, "transaction.version": 2}
    announced = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert set(HANDLERS) <= set(announced)
    assert announced[int(ApiKey.JOIN_GROUP)] == (0, 9)
    assert announced[int(ApiKey.END_TXN)] == (0, 5)


# ---- DescribeCluster --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_the_cluster_is_this_node(client: Client, version: int) -> None:
    asked = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": True}
    answer = client.ask(ApiKey.DESCRIBE_CLUSTER, version, asked)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "cluster", NODE)
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port) == (NODE, "broker.test", 9_092)
    assert answer.cluster_authorized_operations > 0
    if version >= 1:
        refused = client.ask(ApiKey.DESCRIBE_CLUSTER, version, {**asked, "endpoint_type": 2})
        assert (refused.error_code, refused.brokers) == (INVALID_REQUEST, ())


# ---- DescribeTopicPartitions ------------------------------------------------------------------------------------------


def pages(client: Client, names: list[str], limit: int) -> list[tuple[list[tuple[str, list[int]]], Any]]:
    """Every page by way of its cursor, and the cursor that it ended with."""
    found = []
    cursor = None
    while True:
        answer = client.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": cursor},
        )
        topics = [(topic.name, [row.partition_index for row in topic.partitions]) for topic in answer.topics]
        following = answer.next_cursor
        found.append((topics, following))
        if following is None:
            return found
        cursor = {"topic_name": following.topic_name, "partition_index": following.partition_index}
        assert len(found) < 50


def test_all_topics_come_in_the_order_of_their_names(client: Client) -> None:
    ((topics, cursor),) = pages(client, [], 2_000)
    assert topics == [(name, list(range(TOPICS[name]))) for name in sorted(TOPICS)]
    assert cursor is None


@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize("names", [[], ["beta", "alpha"]])
def test_pages_are_no_larger_than_asked_and_together_all(client: Client, limit: int, names: list[str]) -> None:
    everything: list[tuple[str, int]] = []
    for topics, _ in pages(client, names, limit):
        assert sum(len(partitions) for _, partitions in topics) <= max(limit, 1)
        everything += [(name, at) for name, partitions in topics for at in partitions]
    wanted = sorted(names or TOPICS)
    assert everything == [(name, at) for name in wanted for at in range(TOPICS[name])]


def test_a_page_is_never_larger_than_the_brokers_limit() -> None:
    sizes = [
        sum(len(partitions) for _, partitions in topics) for topics, _ in pages(Client({"alpha": 4_500}), [], 100_000)
    ]
    assert sizes == [2_000, 2_000, 500]


def test_partitions_are_described_as_they_are(client: Client) -> None:
    client.engine.take_offline("alpha", 1)
    answer = client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": "nope"}, {"name": "a/b"}, {"name": "alpha"}], "response_partition_limit": 10},
    )
    bad, alpha, missing = answer.topics
    assert (bad.name, bad.error_code, missing.name, missing.error_code) == (
        "a/b",
        INVALID_TOPIC,
        "nope",
        UNKNOWN_TOPIC,
    )
    assert (alpha.topic_id, alpha.is_internal) == (IDS["alpha"], False)
    assert alpha.topic_authorized_operations > 0
    online, offline, _ = alpha.partitions
    assert (online.error_code, online.leader_id, online.leader_epoch) == (0, NODE, 6)
    assert (online.replica_nodes, online.isr_nodes, online.offline_replicas) == ((NODE,), (NODE,), ())
    assert (online.eligible_leader_replicas, online.last_known_elr) == ((), ())
    assert (offline.error_code, offline.leader_id, offline.isr_nodes, offline.offline_replicas) == (5, -1, (), (NODE,))


def test_a_cursor_outside_what_is_asked_is_refused_for_each_topic(client: Client) -> None:
    tree: dict[str, Any] = {"topics": [{"name": "alpha"}], "response_partition_limit": 10}
    for cursor in ({"topic_name": "beta", "partition_index": 0}, {"topic_name": "alpha", "partition_index": -1}):
        answer = client.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {**tree, "cursor": cursor})
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [("alpha", INVALID_REQUEST)]


def test_a_cursor_on_a_topic_that_went_away_goes_on_with_the_next(client: Client) -> None:
    cursor = {"topic_name": "apple", "partition_index": 2}
    answer = client.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": 10, "cursor": cursor}
    )
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("beta", 1)]


# ---- DescribeLogDirs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_the_sizes_of_all_logs_or_of_the_asked_ones_are_told(client: Client, version: int) -> None:
    client.engine.take_offline("alpha", 2)
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})
    (directory,) = answer.results
    assert (directory.error_code, directory.log_dir) == (0, "/data")
    assert {topic.name for topic in directory.topics} == set(TOPICS)
    answer = client.ask(
        ApiKey.DESCRIBE_LOG_DIRS,
        version,
        {"topics": [{"topic": "alpha", "partitions": [2, 1, 9]}, {"topic": "nope", "partitions": [0]}]},
    )
    (topic,) = answer.results[0].topics
    (row,) = topic.partitions
    assert (topic.name, row.partition_index, row.partition_size, row.offset_lag) == ("alpha", 1, 101, 0)
    assert not row.is_future_key
    if version >= 4:
        assert answer.results[0].total_bytes == -1
    assert client.ask(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": []}).results[0].topics == ()


# ---- elections and moves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(ApiKey.ELECT_LEADERS))
def test_no_election_is_needed_on_one_node(client: Client, version: int) -> None:
    client.engine.take_offline("alpha", 1)
    asked = {
        "topic_partitions": [{"topic": "alpha", "partitions": [0, 1, 9]}],
        "timeout": 1_000,
        "election_type": 1,
    }
    answer = client.ask(ApiKey.ELECT_LEADERS, version, asked)
    (topic,) = answer.replica_election_results
    offline = 83 if version >= 1 else 80
    assert [(row.partition_id, row.error_code) for row in topic.partition_result] == [
        (0, 84),
        (1, offline),
        (9, UNKNOWN_TOPIC),
    ]
    assert all(row.error_message for row in topic.partition_result)
    answer = client.ask(ApiKey.ELECT_LEADERS, version, {**asked, "topic_partitions": None})
    assert [
        (topic.topic, [row.partition_id for row in topic.partition_result]) for topic in answer.replica_election_results
    ] == [("alpha", [1])]
    if version >= 1:
        assert client.ask(ApiKey.ELECT_LEADERS, version, {**asked, "election_type": 5}).error_code == INVALID_REQUEST


def test_nothing_is_being_moved(client: Client) -> None:
    for topics in (None, [{"name": "alpha", "partition_indexes": [0]}]):
        answer = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1_000, "topics": topics})
        assert (answer.error_code, answer.error_message, answer.topics) == (0, None, ())


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS))
def test_a_partition_can_be_moved_to_where_it_is_and_nowhere_else(client: Client, version: int) -> None:
    moves = [(0, [NODE]), (1, [NODE, 9]), (2, None), (9, [NODE])]
    partitions = [{"partition_index": at, "replicas": replicas} for at, replicas in moves]
    answer = client.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        version,
        {
            "timeout": 1_000,
            "allow_replication_factor_change": False,
            "topics": [{"name": "alpha", "partitions": partitions}],
        },
    )
    (topic,) = answer.responses
    assert [(row.partition_index, row.error_code) for row in topic.partitions] == [
        (0, 0),
        (1, 39),
        (2, 85),
        (9, UNKNOWN_TOPIC),
    ]
    assert topic.partitions[0].error_message is None
    if version >= 1:
        assert answer.allow_replication_factor_change is False


# ---- configs ----------------------------------------------------------------------------------------------------------


def test_what_has_configs_is_listed_by_type(client: Client) -> None:
    def listed(version: int, types: list[int]) -> Any:
        answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": types})
        return answer.error_code, [(row.resource_type, row.resource_name) for row in answer.config_resources]

    topics = [(2, name) for name in sorted(TOPICS)]
    assert client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, {}).config_resources == ()
    assert listed(1, []) == (0, [*topics, (4, str(NODE)), (8, str(NODE))])
    assert listed(1, [4, 2, 4]) == (0, [(4, str(NODE)), *topics])
    assert listed(1, [16, 32]) == (0, [])
    assert listed(1, [2, 3]) == (35, [])


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_altering_configs_takes_back_what_is_not_named(client: Client, version: int) -> None:
    def resource(kind: int, name: str, **configs: str | None) -> dict[str, Any]:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        return {"resource_type": kind, "resource_name": name, "configs": rows}

    asked = [
        resource(2, "alpha", retention_ms="9", cleanup_policy="compact"),
        resource(2, "beta", retention_ms=None),
        resource(2, "nope"),
        resource(4, str(NODE), log_retention_ms="1"),
    ]
    answer = client.ask(ApiKey.ALTER_CONFIGS, version, {"resources": asked, "validate_only": False})
    assert [(row.resource_type, row.resource_name, row.error_code) for row in answer.responses] == [
        (2, "alpha", 0),
        (2, "beta", 40),
        (2, "nope", UNKNOWN_TOPIC),
        (4, str(NODE), INVALID_REQUEST),
    ]
    assert [row.error_message is None for row in answer.responses] == [True, False, False, False]
    assert client.engine.altered == {"alpha": {"retention.ms": "9", "cleanup.policy": "compact", "segment.bytes": None}}
