from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.coordination.group_commands import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribeConsumerGroup,
    DescribedConsumer,
)
from penstock.dialects.kafka.apis import ApiKey
from penstock.dialects.kafka.groups import GROUP_OPERATIONS
from penstock.model.errors import Fault
from tests.dialects.kafka.stand_in import CLIENT_HOST, CLIENT_ID, IDS, STRANGE_ID, Client, versions

HEARTBEAT: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 3,
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout": 45_000,
    "subscribed_topic_names": ["alpha", "beta"],
    "subscribed_topic_regex": "a.*",
    "server_assignor": "range",
    "topic_partitions": [{"topic_id": IDS["alpha"], "partitions": [2, 0]}],
}
KEEP_ALIVE: dict[str, Any] = {
    **HEARTBEAT,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_a_heartbeat_says_all_and_gets_an_assignment(client: Client, version: int) -> None:
    client.groups.answers[ConsumerHeartbeat] = ConsumerHeartbeatResult(
        Fault.NONE, None, "m", 4, 5_000, {IDS["alpha"]: frozenset({2, 0}), IDS["beta"]: frozenset({0})}
    )
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, HEARTBEAT)
    assert client.groups.asked == [
        ConsumerHeartbeat(
            "g",
            "m",
            3,
            "i",
            "r",
            CLIENT_ID,
            f"/{CLIENT_HOST}",
            45_000,
            ("alpha", "beta"),
            "a.*" if version >= 1 else None,
            "range",
            {IDS["alpha"]: frozenset({0, 2})},
        )
    ]
    assert (answer.error_code, answer.error_message, answer.member_id, answer.member_epoch) == (0, None, "m", 4)
    assert answer.heartbeat_interval.total_seconds() == 5
    assert [(row.topic_id, row.partitions) for row in answer.assignment.topic_partitions] == [
        (IDS["alpha"], (0, 2)),
        (IDS["beta"], (0,)),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_null_means_as_before_both_ways(client: Client, version: int) -> None:
    client.groups.answers[ConsumerHeartbeat] = ConsumerHeartbeatResult(Fault.NONE, None, "m", 4, 5_000, None)
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, KEEP_ALIVE)
    (command,) = client.groups.asked
    assert (command.subscribed_names, command.subscribed_regex, command.assignor, command.owned) == (None,) * 4
    assert command.rebalance_timeout_ms == -1
    assert answer.assignment is None


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_nothing_assigned_is_not_null(client: Client, version: int) -> None:
    client.groups.answers[ConsumerHeartbeat] = ConsumerHeartbeatResult(Fault.NONE, None, "m", 4, 5_000, {})
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, {**HEARTBEAT, "topic_partitions": []})
    assert client.groups.asked[0].owned == {}
    assert answer.assignment.topic_partitions == ()


def test_only_version_0_lets_the_broker_name_a_member(client: Client) -> None:
    client.groups.answers[ConsumerHeartbeat] = ConsumerHeartbeatResult(Fault.NONE, None, "made", 1, 5_000, {})
    nameless = {**HEARTBEAT, "member_id": "", "member_epoch": 0}
    assert client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, nameless).member_id == "made"
    refused = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, nameless)
    assert (refused.error_code, refused.error_message) == (42, "MemberId can't be empty.")
    assert len(client.groups.asked) == 1


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
@pytest.mark.parametrize(
    ("result", "code", "text"),
    [
        (ConsumerHeartbeatResult(Fault.UNSUPPORTED_ASSIGNOR, "no such assignor"), 112, "no such assignor"),
        (ConsumerHeartbeatResult(Fault.FENCED_MEMBER_EPOCH), 110, Fault.FENCED_MEMBER_EPOCH.value),
        (Fault.COORDINATOR_LOADING, 14, Fault.COORDINATOR_LOADING.value),
    ],
)
def test_a_refused_heartbeat_has_a_code_and_a_sentence(
    client: Client, version: int, result: object, code: int, text: str
) -> None:
    client.groups.answers[ConsumerHeartbeat] = result
    answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, HEARTBEAT)
    assert (answer.error_code, answer.error_message, answer.assignment) == (code, text, None)


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_DESCRIBE))
def test_consumer_groups_are_described_with_the_names_of_their_topics(client: Client, version: int) -> None:
    known = uuid.UUID(int=5)
    found = ConsumerGroupDescription(
        Fault.NONE,
        "g",
        "Reconciling",
        8,
        7,
        "uniform",
        (
            DescribedConsumer(
                "m",
                "i",
                "r",
                6,
                "client",
                "/host",
                ("alpha",),
                "a.*",
                {IDS["alpha"]: frozenset({2, 1}), STRANGE_ID: frozenset({0})},
                {known: frozenset({0})},
            ),
        ),
        {known: "gamma"},
    )
    results = {
        "g": found,
        "classic": ConsumerGroupDescription(Fault.GROUP_ID_NOT_FOUND, "classic"),
        "away": Fault.COORDINATOR_NOT_AVAILABLE,
    }
    client.groups.answers[DescribeConsumerGroup] = lambda command: results[command.group]
    answer = client.ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        version,
        {"group_ids": ["classic", "g", "", "away"], "include_authorized_operations": True},
    )
    assert [(row.group_id, row.error_code) for row in answer.groups] == [
        ("classic", 69),
        ("g", 0),
        ("", 24),
        ("away", 15),
    ]
    group = answer.groups[1]
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Reconciling",
        8,
        7,
        "uniform",
    )
    assert group.authorized_operations == GROUP_OPERATIONS
    assert "not a consumer group" in answer.groups[0].error_message
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 6)
    assert (member.client_id, member.client_host) == ("client", "/host")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("alpha",), "a.*")
    assert [(row.topic_id, row.topic_name, row.partitions) for row in member.assignment.topic_partitions] == [
        (IDS["alpha"], "alpha", (1, 2))
    ]
    assert [(row.topic_id, row.topic_name) for row in member.target_assignment.topic_partitions] == [(known, "gamma")]
    if version >= 1:
        assert member.member_type == 1
