"""Consumer groups with real members: sharing, rebalances, static members, commits, and what administrators see."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from tests.clients.drivers import Kcat, confluent_consumer, confluent_producer, kafka
from tests.clients.members import AiokafkaMember, ConfluentMember, KafkaPythonMember, Member, shared, until
from tests.clients.test_cross_client import installed

PARTITIONS = 4
Join = Callable[[str, str, str], Member]


def confluent(**settings: Any) -> Join:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return lambda bootstrap, group, topic: ConfluentMember(bootstrap, group, topic, **named)


KINDS: dict[str, Join] = {
    "confluent-kafka, range": confluent(partition_assignment_strategy="range"),
    "confluent-kafka, cooperative": confluent(partition_assignment_strategy="cooperative-sticky"),
    "confluent-kafka, consumer protocol": confluent(group_protocol="consumer"),
    "confluent-kafka, consumer protocol, range": confluent(group_protocol="consumer", group_remote_assignor="range"),
    "aiokafka": AiokafkaMember,
    "kafka-python": KafkaPythonMember,
}


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
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    return topic


def write(bootstrap: str, topic: str, values: range) -> None:
    producer = confluent_producer(bootstrap)
    for value in values:
        producer.produce(topic, b"%d" % value, partition=value % PARTITIONS)
    assert producer.flush(30) == 0


def as_values(values: range) -> list[bytes]:
    return sorted(b"%d" % value for value in values)


def read_by(*members: Member) -> list[bytes | None]:
    return sorted((value for member in members for value in member.values), key=lambda value: value or b"")


# ---- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("join", KINDS.values(), ids=list(KINDS))
def test_members_share_the_partitions_and_read_each_record_once(broker: Broker, wide_topic: str, join: Join) -> None:
    group = f"{wide_topic}-group"
    write(broker.bootstrap, wide_topic, range(40))
    with join(broker.bootstrap, group, wide_topic) as first:
        until(lambda: len(first.assigned) == PARTITIONS, "the first member has all partitions")
        with join(broker.bootstrap, group, wide_topic) as second:
            until(lambda: shared((first, second), PARTITIONS), "two members share the partitions")
            write(broker.bootstrap, wide_topic, range(40, 80))
            until(lambda: len(first.reads) + len(second.reads) >= 80, "everything is read")
            assert second.reads
        until(lambda: len(first.assigned) == PARTITIONS, "the one that stays has all partitions again")
        write(broker.bootstrap, wide_topic, range(80, 90))
        until(lambda: len(first.reads) + len(second.reads) >= 90, "it goes on where the other left")
    assert read_by(first, second) == as_values(range(90))
    # what was read is committed: who comes later begins behind it
    write(broker.bootstrap, wide_topic, range(90, 100))
    with join(broker.bootstrap, group, wide_topic) as third:
        until(lambda: len(third.reads) >= 10, "the new records are read")
    assert read_by(third) == as_values(range(90, 100))
    assert not first.errors + second.errors + third.errors


def test_members_of_three_clients_share_one_group(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    kinds = (KINDS["confluent-kafka, range"], AiokafkaMember, KafkaPythonMember)
    members = [kind(broker.bootstrap, group, wide_topic) for kind in kinds]
    with members[0], members[1], members[2]:
        until(lambda: shared(members, PARTITIONS), "three members share the partitions")
        write(broker.bootstrap, wide_topic, range(40))
        until(lambda: sum(len(member.reads) for member in members) >= 40, "everything is read")
        assert all(member.reads for member in members)
    assert read_by(*members) == as_values(range(40))


def test_a_cooperative_rebalance_leaves_members_what_they_keep(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    join = KINDS["confluent-kafka, cooperative"]
    with join(broker.bootstrap, group, wide_topic) as first:
        until(lambda: len(first.assigned) == PARTITIONS, "the first member has all partitions")
        with join(broker.bootstrap, group, wide_topic) as second:
            until(lambda: shared((first, second), PARTITIONS), "two members share the partitions")
    # an eager rebalance would have given the first member its share anew
    assert first.assignments[0] == frozenset(range(PARTITIONS))
    assert all(not kept for kept in first.assignments[1:2])


def test_kcat_reads_as_a_member_of_a_group(broker: Broker, wide_topic: str) -> None:
    client = Kcat()
    installed(client)
    write(broker.bootstrap, wide_topic, range(20))
    group = f"{wide_topic}-group"
    options = ("-q", "-b", broker.bootstrap, "-X", "auto.offset.reset=earliest", "-f", "%s\n")
    done = client.run(*options, "-c20", "-G", group, wide_topic)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == as_values(range(20))
    write(broker.bootstrap, wide_topic, range(20, 25))
    done = client.run(*options, "-c5", "-G", group, wide_topic)
    assert sorted(done.stdout.split()) == as_values(range(20, 25))


# ---- static members ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_that_comes_back_finds_its_partitions_and_disturbs_nobody(
    broker: Broker, wide_topic: str, protocol: str
) -> None:
    group = f"{wide_topic}-group"

    def join(instance: str) -> Member:
        static = confluent(group_protocol=protocol, group_instance_id=instance)
        return static(broker.bootstrap, group, wide_topic)

    with join("one") as first:
        until(lambda: bool(first.assigned), "the first member is there")
        with join("two") as second:
            until(lambda: shared((first, second), PARTITIONS), "two members share the partitions")
            kept = second.assigned
        rebalances = len(first.assignments)
        with join("two") as again:
            until(lambda: bool(again.assigned), "it is back")
            assert again.assigned == kept
            write(broker.bootstrap, wide_topic, range(40))
            until(lambda: len(first.reads) + len(again.reads) >= 40, "everything is read")
        assert len(first.assignments) == rebalances
    assert read_by(first, again) == as_values(range(40))


def test_a_second_member_with_the_same_instance_id_fences_the_first(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    static = confluent(group_instance_id="one")
    with static(broker.bootstrap, group, wide_topic) as first:
        until(lambda: bool(first.assigned), "the first member is there")
        with static(broker.bootstrap, group, wide_topic) as second:
            until(lambda: len(second.assigned) == PARTITIONS, "the second has taken over")
            until(lambda: bool(first.errors), "the first is told")
    assert first.errors[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


# ---- the newer protocol -----------------------------------------------------------------------------------------------


def test_a_regular_expression_takes_in_topics_that_come_later(broker: Broker, admin: AdminClient, topic: str) -> None:
    pattern = f"^{topic}-in-.*"
    admin.create_topics([NewTopic(f"{topic}-in-a", 1, 1), NewTopic(f"{topic}-out", 1, 1)])[f"{topic}-in-a"].result(30)
    with ConfluentMember(broker.bootstrap, f"{topic}-group", pattern, **{"group.protocol": "consumer"}) as member:
        until(lambda: len(member.assigned) == 1, "the first topic is assigned")
        admin.create_topics([NewTopic(f"{topic}-in-b", 3, 1)])[f"{topic}-in-b"].result(30)
        until(lambda: member.assigned == frozenset(range(3)), "the second is too")
        write(broker.bootstrap, f"{topic}-in-b", range(3))
        until(lambda: len(member.reads) == 3, "it is read")


def test_members_of_both_protocols_do_not_mix(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    newer, classic = KINDS["confluent-kafka, consumer protocol"], KINDS["confluent-kafka, range"]
    with newer(broker.bootstrap, group, wide_topic) as first:
        until(lambda: len(first.assigned) == PARTITIONS, "the group is there")
        with classic(broker.bootstrap, group, wide_topic) as second:
            until(lambda: bool(second.errors), "the other is refused")
            assert second.errors[0].code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        assert len(first.assigned) == PARTITIONS
    # an empty group is taken over
    with classic(broker.bootstrap, group, wide_topic) as third:
        until(lambda: len(third.assigned) == PARTITIONS, "the group has a classic member now")


# ---- offsets ----------------------------------------------------------------------------------------------------------


def test_metadata_and_leader_epoch_of_a_commit_come_back(broker: Broker, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
        consumer.commit(
            offsets=[
                TopicPartition(wide_topic, 0, 5, "a note", leader_epoch=0),
                TopicPartition(wide_topic, 1, 6),
            ],
            asynchronous=False,
        )
        found = consumer.committed([TopicPartition(wide_topic, at) for at in range(3)], 30)
    assert [(part.offset, part.metadata, part.leader_epoch) for part in found] == [
        (5, "a note", 0),
        (6, None, None),
        (confluent_kafka.OFFSET_INVALID, None, None),
    ]


@pytest.mark.parametrize("metadata", ["a note", "", "grüße"])
def test_kafka_python_finds_what_it_committed(broker: Broker, wide_topic: str, metadata: str) -> None:
    partition = kafka.TopicPartition(wide_topic, 1)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=f"{wide_topic}-group")
    try:
        consumer.assign([partition])
        consumer.commit({partition: kafka.OffsetAndMetadata(7, metadata, 0)})
        found = consumer.committed(partition, metadata=True)
    finally:
        consumer.close()
    assert (found.offset, found.metadata, found.leader_epoch) == (7, metadata, 0)


def test_a_commit_for_a_partition_that_does_not_exist_is_refused(broker: Broker, wide_topic: str) -> None:
    missing = [TopicPartition(wide_topic, PARTITIONS, 1)]
    with (
        confluent_consumer(broker.bootstrap, **{"group.id": f"{wide_topic}-group"}) as consumer,
        pytest.raises(confluent_kafka.KafkaException) as error,
    ):
        consumer.commit(offsets=missing, asynchronous=False)
    assert error.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_committed_offsets_and_groups_survive_kill_9(topic: str) -> None:
    group = f"{topic}-group"
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        write(broker.bootstrap, topic, range(40))
        with ConfluentMember(broker.bootstrap, group, topic, **{"enable.auto.commit": False}) as member:
            until(lambda: len(member.reads) == 40, "everything is read")
        with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
            offsets = [TopicPartition(topic, at, 10 - at, f"at {at}") for at in range(PARTITIONS)]
            consumer.commit(offsets=offsets, asynchronous=False)
        broker.kill()
        broker.restart()
        with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
            found = consumer.committed([TopicPartition(topic, at) for at in range(PARTITIONS)], 30)
        assert [(part.offset, part.metadata) for part in found] == [(10 - at, f"at {at}") for at in range(PARTITIONS)]
        with ConfluentMember(broker.bootstrap, group, topic) as member:
            until(lambda: len(member.reads) >= 6, "the rest is read")
        assert collections.Counter(read.partition for read in member.reads) == {1: 1, 2: 2, 3: 3}


# ---- administration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_administrators_see_change_and_delete_groups(
    broker: Broker, admin: AdminClient, wide_topic: str, protocol: str
) -> None:
    group = f"{wide_topic}-group"
    kind = ConsumerGroupType.CLASSIC if protocol == "classic" else ConsumerGroupType.CONSUMER
    join = confluent(group_protocol=protocol, client_id="reader")

    def listed() -> dict[str, Any]:
        return {row.group_id: row for row in admin.list_consumer_groups().result(30).valid}

    write(broker.bootstrap, wide_topic, range(8))
    with join(broker.bootstrap, group, wide_topic) as member:
        until(lambda: len(member.reads) == 8, "everything is read")
        until(lambda: listed()[group].state == ConsumerGroupState.STABLE, "the group is stable")
        assert listed()[group].type == kind
        described = admin.describe_consumer_groups([group], include_authorized_operations=True)[group].result(30)
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, kind)
        assert described.authorized_operations
        (row,) = described.members
        assert (row.client_id, row.host) == ("reader", "/127.0.0.1")
        assert {part.partition for part in row.assignment.topic_partitions} == set(range(PARTITIONS))
        with pytest.raises(confluent_kafka.KafkaException) as error:
            admin.delete_consumer_groups([group])[group].result(30)
        assert error.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    until(lambda: listed()[group].state == ConsumerGroupState.EMPTY, "the group is empty")

    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(wide_topic, 2, 1)])
    admin.alter_consumer_group_offsets([moved])[group].result(30)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions
    assert {part.partition: part.offset for part in found} == {0: 2, 1: 2, 2: 1, 3: 2}

    admin.delete_consumer_groups([group])[group].result(30)
    assert group not in listed()
    with pytest.raises(confluent_kafka.KafkaException) as error:
        admin.delete_consumer_groups([group])[group].result(30)
    assert error.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_kafka_python_administers_groups(broker: Broker, kafka_admin: Any, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    partitions = [kafka.TopicPartition(wide_topic, at) for at in range(PARTITIONS)]
    write(broker.bootstrap, wide_topic, range(8))
    with KafkaPythonMember(broker.bootstrap, group, wide_topic) as member:
        until(lambda: len(member.reads) == 8, "everything is read")
        described = kafka_admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert [row["client_host"] for row in described["members"]] == ["/127.0.0.1"]
        refused = kafka_admin.delete_group_offsets(group, partitions[:1])
        assert refused[partitions[0]].errno == 86
    assert any(row["group_id"] == group for row in kafka_admin.list_groups(states_filter=["Empty"]))
    deleted = kafka_admin.delete_group_offsets(group, partitions[:2])
    assert {at: error.errno for at, error in deleted.items()} == {partitions[0]: 0, partitions[1]: 0}
    found = kafka_admin.list_group_offsets({group: None})[group]
    assert {at: value.offset for at, value in found.items()} == {partitions[2]: 2, partitions[3]: 2}
    kafka_admin.delete_groups([group])
    assert all(row["group_id"] != group for row in kafka_admin.list_groups())


def test_offsets_of_a_deleted_topic_go_with_it(broker: Broker, admin: AdminClient, wide_topic: str) -> None:
    group = f"{wide_topic}-group"
    with confluent_consumer(broker.bootstrap, **{"group.id": group}) as consumer:
        consumer.commit(offsets=[TopicPartition(wide_topic, 0, 5)], asynchronous=False)
    admin.delete_topics([wide_topic])[wide_topic].result(30)
    asked = ConsumerGroupTopicPartitions(group)
    assert admin.list_consumer_group_offsets([asked])[group].result(30).topic_partitions == []
