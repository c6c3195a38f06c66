"""Topics, partitions, configs and records by way of the clients' admin calls, with Kafka's error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AiokafkaNewPartitions
from aiokafka.admin import NewTopic as AiokafkaNewTopic
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock import Broker
from penstock.model.topic_config import KEYS
from tests.clients.drivers import Confluent, KafkaPython, Kcat, Sent, confluent_consumer, kafka
from tests.clients.test_cross_client import installed


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def refused(future: Any) -> int:
    """The error code that the request ends with."""
    with pytest.raises(confluent_kafka.KafkaException) as error:
        future.result(30)
    code = error.value.args[0].code()
    assert error.value.args[0].str()
    return int(code)


def configs(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    return dict(admin.describe_configs([resource])[resource].result(30))


# ---- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_described_and_deleted(admin: AdminClient, broker: Broker, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    described = admin.list_topics(topic, 30)
    [node] = described.brokers.values()
    assert f"{node.host}:{node.port}" == broker.bootstrap
    partitions = described.topics[topic].partitions
    assert sorted(partitions) == [0, 1, 2]
    assert all(
        (p.leader, p.replicas, p.isrs, p.error) == (node.id, [node.id], [node.id], None) for p in partitions.values()
    )
    assert {f"{topic}-{at}" for at in range(3)} <= {path.name for path in broker.data_dir.iterdir()}

    admin.delete_topics([topic])[topic].result(30)
    assert topic not in admin.list_topics(timeout=30).topics
    assert not list(broker.data_dir.glob(f"{topic}-*"))


def test_a_topic_made_again_is_empty_and_has_another_id(admin: AdminClient, broker: Broker, topic: str) -> None:
    ids = []
    for _ in range(2):
        Confluent().write(broker.bootstrap, topic, [Sent(b"old")] * 3)
        described = admin.describe_topics(confluent_kafka.TopicCollection([topic]))[topic].result(30)
        ids.append(str(described.topic_id))
        with confluent_consumer(broker.bootstrap) as consumer:
            assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 30) == (0, 3)
        admin.delete_topics([topic])[topic].result(30)
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"replication_factor": 2}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"num_partitions": 10_001}, KafkaError.INVALID_PARTITIONS),
        ({"config": {"no.such.config": "1"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"compression.type": "gzip"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"min.insync.replicas": "2"}}, KafkaError.INVALID_CONFIG),
        ({"replica_assignment": [[0], [1]], "num_partitions": 2}, KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(
    admin: AdminClient, topic: str, wanted: dict[str, Any], code: int
) -> None:
    new = NewTopic(topic, **{"num_partitions": 1, **wanted})
    assert refused(admin.create_topics([new])[topic]) == code
    assert topic not in admin.list_topics(timeout=30).topics


def test_a_topic_that_exists_is_not_made_again(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    assert refused(admin.create_topics([NewTopic(topic, 2)])[topic]) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refused(admin.delete_topics([topic + "-x"])[topic + "-x"]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_one_bad_topic_does_not_hold_up_the_others(admin: AdminClient, new_topic: Callable[[], str]) -> None:
    good, bad = new_topic(), new_topic()
    made = admin.create_topics([NewTopic(bad, 1, 5), NewTopic(good, 1)])
    assert refused(made[bad]) == KafkaError.INVALID_REPLICATION_FACTOR
    made[good].result(30)
    assert good in admin.list_topics(timeout=30).topics


def test_a_trial_creates_nothing(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)], validate_only=True)[topic].result(30)
    assert refused(admin.create_topics([NewTopic(topic, 1, 9)], validate_only=True)[topic])
    assert topic not in admin.list_topics(timeout=30).topics


def test_partitions_are_added_and_never_taken_away(admin: AdminClient, broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"kept")])
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    assert sorted(admin.list_topics(topic, 30).topics[topic].partitions) == [0, 1, 2, 3]
    assert refused(admin.create_partitions([NewPartitions(topic, 4)])[topic]) == KafkaError.INVALID_PARTITIONS
    assert refused(admin.create_partitions([NewPartitions(topic, 2)])[topic]) == KafkaError.INVALID_PARTITIONS
    assert refused(admin.create_partitions([NewPartitions(topic + "x", 2)])[topic + "x"]) == (
        KafkaError.UNKNOWN_TOPIC_OR_PART
    )
    assert [seen.value for seen in Confluent().read(broker.bootstrap, topic, 1)] == [b"kept"]


# ---- configs ----------------------------------------------------------------------------------------------------------


def test_every_topic_config_is_told_with_value_and_source(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "60000"})])[topic].result(30)
    found = configs(admin, ResourceType.TOPIC, topic)
    assert set(found) == set(KEYS)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("60000", 1)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].is_default) == ("delete", True)
    assert found["max.message.bytes"].value == "1048588"


def test_topic_configs_change_and_act_at_once(admin: AdminClient, broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"small")])

    def alter(operation: AlterConfigOpType, name: str, value: str | None) -> Any:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    alter(AlterConfigOpType.SET, "max.message.bytes", "1000").result(30)
    assert configs(admin, ResourceType.TOPIC, topic)["max.message.bytes"].value == "1000"
    with pytest.raises(confluent_kafka.KafkaException) as error:
        Confluent().write(broker.bootstrap, topic, [Sent(b"x" * 2_000)])
    assert error.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    alter(AlterConfigOpType.DELETE, "max.message.bytes", None).result(30)
    Confluent().write(broker.bootstrap, topic, [Sent(b"x" * 2_000)])
    alter(AlterConfigOpType.APPEND, "cleanup.policy", "compact").result(30)
    assert set(configs(admin, ResourceType.TOPIC, topic)["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    assert refused(alter(AlterConfigOpType.SET, "retention.ms", "x")) == KafkaError.INVALID_CONFIG
    assert refused(alter(AlterConfigOpType.SET, "no.such", "x")) == KafkaError.INVALID_CONFIG


def test_broker_configs_are_told_in_kafkas_names(admin: AdminClient, broker: Broker) -> None:
    found = configs(admin, ResourceType.BROKER, "0")
    assert found["num.partitions"].value == "1"
    assert found["auto.create.topics.enable"].value == "true"
    assert found["message.max.bytes"].value == "1048588"
    assert found["default.replication.factor"].value == "1"
    assert found["log.dirs"].value == str(broker.data_dir)
    assert all(entry.is_read_only for entry in found.values())


def test_configs_of_a_topic_that_is_not_there_are_refused(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert refused(admin.describe_configs([resource])[resource]) == KafkaError.UNKNOWN_TOPIC_OR_PART


# ---- records and offsets ----------------------------------------------------------------------------------------------


def test_deleted_records_are_gone_for_good(admin: AdminClient, broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"%d" % n) for n in range(10)])
    partition = TopicPartition(topic, 0, 4)
    assert admin.delete_records([partition])[partition].result(30).low_watermark == 4
    with confluent_consumer(broker.bootstrap) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 30) == (4, 10)
        consumer.assign([TopicPartition(topic, 0, 3)])
        assert consumer.poll(30).error().code() == KafkaError._AUTO_OFFSET_RESET
    assert [seen.value for seen in Confluent().read(broker.bootstrap, topic, 6, 4)] == [b"%d" % n for n in range(4, 10)]
    too_far = TopicPartition(topic, 0, 11)
    assert refused(admin.delete_records([too_far])[too_far]) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
    assert admin.delete_records([everything])[everything].result(30).low_watermark == 10


def test_offsets_are_listed_by_place_and_time(admin: AdminClient, broker: Broker, topic: str) -> None:
    Confluent().write(broker.bootstrap, topic, [Sent(b"v", timestamp_ms=at) for at in (1_000, 9_000, 5_000)])
    partition = TopicPartition(topic, 0)

    def listed(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({partition: spec})[partition].result(30).offset)

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 3
    assert listed(OffsetSpec.max_timestamp()) == 1
    assert listed(OffsetSpec.for_timestamp(1_001)) == 1


def test_the_cluster_is_described(admin: AdminClient, broker: Broker) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(30)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [broker.bootstrap]
    assert described.controller.id == described.nodes[0].id
    assert described.cluster_id == admin.list_topics(timeout=30).cluster_id
    assert described.authorized_operations


# ---- the other clients ------------------------------------------------------------------------------------------------


def test_kafka_python_administers_topics(broker: Broker, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
        [described] = admin.describe_topics([topic])
        assert len(described["partitions"]) == 2
        admin.create_partitions({topic: kafka.admin.NewPartitions(3)})
        assert len(admin.describe_topics([topic])[0]["partitions"]) == 3
        KafkaPython().write(broker.bootstrap, topic, [Sent(b"v")] * 5)
        partition = kafka.TopicPartition(topic, 0)
        assert admin.delete_records({partition: 2})[partition]["low_watermark"] == 2
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([kafka.admin.NewTopic(topic, 2, 1)])
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()


def test_aiokafka_administers_topics(broker: Broker, topic: str) -> None:
    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            made = await admin.create_topics([AiokafkaNewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000"})])
            assert [row[1] for row in made.topic_errors] == [0]
            assert topic in await admin.list_topics()
            [described] = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 2
            await admin.create_partitions({topic: AiokafkaNewPartitions(3)})
            [described] = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(administer())


def test_kcat_lists_what_there_is(broker: Broker, topic: str) -> None:
    installed(Kcat())
    Confluent().write(broker.bootstrap, topic, [Sent(b"v")])
    listed = Kcat().run("-L", "-b", broker.bootstrap, "-t", topic)
    assert listed.returncode == 0
    assert f'topic "{topic}" with 1 partitions' in listed.stdout.decode()
