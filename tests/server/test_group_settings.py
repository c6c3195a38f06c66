"""The keys of `groups`: each of them acts."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock import Broker
from tests.clients.drivers import WAIT_S, confluent_producer
from tests.clients.members import ConfluentMember, until

SESSION_MS = 3_000
"""Longer than any pause of a machine that does much else."""


def admin_with_topic(broker: Broker) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1)])["t"].result(WAIT_S)
    return admin


def state_of(admin: AdminClient) -> ConsumerGroupState:
    state: ConsumerGroupState = admin.describe_consumer_groups(["g"])["g"].result(WAIT_S).state
    return state


@pytest.mark.parametrize("timeout_ms", [400, 2_100])
def test_a_session_timeout_must_be_within_the_bounds(timeout_ms: int) -> None:
    bounds = {"groups.session_timeout_min_ms": 500, "groups.session_timeout_max_ms": 2_000}
    with Broker(settings={**bounds, "groups.initial_rebalance_delay_ms": 0}) as broker:
        admin_with_topic(broker)
        beats = {"heartbeat.interval.ms": 100}
        with ConfluentMember(broker.bootstrap, "g", "t", **{"session.timeout.ms": timeout_ms, **beats}) as outside:
            until(lambda: bool(outside.errors), "it is refused")
        assert outside.errors[0].code() == KafkaError.INVALID_SESSION_TIMEOUT
        with ConfluentMember(broker.bootstrap, "g", "t", **{"session.timeout.ms": 600, **beats}) as inside:
            until(lambda: bool(inside.assigned), "it is a member")


def test_an_empty_group_waits_for_more_members_as_long_as_the_delay_says() -> None:
    with Broker(settings={"groups.initial_rebalance_delay_ms": 600_000}) as broker:
        admin = admin_with_topic(broker)
        with ConfluentMember(broker.bootstrap, "g", "t", **{"max.poll.interval.ms": 3_600_000}) as member:
            until(lambda: state_of(admin) is ConsumerGroupState.PREPARING_REBALANCING, "the member waits")
            broker.stop()
            assert not member.assigned


def test_a_member_of_the_consumer_protocol_is_out_after_the_brokers_session_timeout() -> None:
    with Broker(
        settings={"groups.consumer_session_timeout_ms": SESSION_MS, "groups.consumer_heartbeat_interval_ms": 100}
    ) as broker:
        admin = admin_with_topic(broker)
        protocol = {"group.protocol": "consumer", "group.instance.id": "one"}
        with ConfluentMember(broker.bootstrap, "g", "t", **protocol) as member:
            until(lambda: bool(member.assigned), "it is a member")
            first = member.assignments
            until(lambda: state_of(admin) is ConsumerGroupState.STABLE, "the group is stable")
            # it lives for longer than a session timeout, because it was told how often to be heard
            began = time.monotonic()
            until(lambda: time.monotonic() > began + 1.5 * SESSION_MS / 1_000, "a session could be over")
        # a static member does not leave: only its session ends
        until(lambda: state_of(admin) is ConsumerGroupState.EMPTY, "its session is over", within_s=20)
        assert len(first) == 1


def test_offsets_of_a_group_whose_members_have_left_go_after_their_retention() -> None:
    with Broker(
        settings={
            "groups.initial_rebalance_delay_ms": 0,
            "groups.offsets_retention_ms": 2_000,
            "groups.offsets_retention_check_interval_ms": 50,
        }
    ) as broker:
        admin = admin_with_topic(broker)
        producer = confluent_producer(broker.bootstrap)
        producer.produce("t", b"v")
        assert producer.flush(WAIT_S) == 0

        def offsets() -> list[int]:
            asked = ConsumerGroupTopicPartitions("g")
            found = admin.list_consumer_group_offsets([asked])["g"].result(WAIT_S).topic_partitions
            return [partition.offset for partition in found]

        with ConfluentMember(broker.bootstrap, "g", "t", **{"auto.commit.interval.ms": 50}) as member:
            until(lambda: bool(member.reads), "the record is read")
            until(lambda: offsets() == [1], "what is read is committed")
        until(lambda: offsets() == [], "the offset is forgotten")


def test_clients_are_told_the_settings_in_kafkas_names() -> None:
    settings = {
        "groups.initial_rebalance_delay_ms": 1,
        "groups.session_timeout_min_ms": 2,
        "groups.session_timeout_max_ms": 3,
        "groups.consumer_heartbeat_interval_ms": 4,
        "groups.consumer_session_timeout_ms": 5,
        "groups.offsets_retention_ms": 360_000,
    }
    with Broker(settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        resource = ConfigResource(ResourceType.BROKER, "0")
        found = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert {name: found[name].value for name in found if name.startswith(("group.", "offsets."))} == {
        "group.initial.rebalance.delay.ms": "1",
        "group.min.session.timeout.ms": "2",
        "group.max.session.timeout.ms": "3",
        "group.consumer.heartbeat.interval.ms": "4",
        "group.consumer.session.timeout.ms": "5",
        "offsets.retention.minutes": "6",
    }
