"""What the matrix checks of the clients that Python can drive: confluent-kafka, aiokafka, kafka-python and kcat.

A check returns what of the feature the client has, "" for all of it, or raises `Gap` with what shows that it has none.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from penstock import Broker
from tests.clients import test_transactions as transactions
from tests.clients.drivers import (
    WAIT_S,
    Aiokafka,
    Client,
    Confluent,
    KafkaPython,
    Kcat,
    Sent,
    confluent_consumer,
    kafka,
)
from tests.clients.members import AiokafkaMember, ConfluentMember, KafkaPythonMember, Member, Read, until
from tests.compatibility.matrix import Gap

PARTITIONS = 4
Join = Callable[..., Member]
Check = Callable[[Broker, str], str | None]


def admin_of(broker: Broker) -> AdminClient:
    return _admin(broker.bootstrap)


@functools.cache
def _admin(bootstrap: str) -> AdminClient:
    """Kept: a call whose client is gone is not answered."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def until_readable(broker: Broker, topic: str) -> None:
    """A transaction is over before its marker is flushed, and who reads to the end would find another end. That is told
    when all is safe that was there before the question."""
    admin = admin_of(broker)
    places = [TopicPartition(topic, at) for at in admin.list_topics(topic, WAIT_S).topics[topic].partitions]
    for told in admin.list_offsets({place: OffsetSpec.latest() for place in places}).values():
        told.result(WAIT_S)


class KcatMember(Member):
    """`kcat -G` in a process of its own; what it owns is the broker's to say."""

    name = "kcat"

    def _run(self) -> None:
        assert Kcat.path is not None
        options = [f"-X{name}={value}" for name, value in self.settings.items()]
        with subprocess.Popen(
            [Kcat.path, "-b", self.bootstrap, "-q", "-u", "-f", "%p %o %s\n", "-Xauto.offset.reset=earliest", *options,
             "-G", self.group, self.topic],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            self._process = process
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                partition, offset, value = line.rstrip(b"\n").split(b" ", 2)
                self.reads.append(Read(int(partition), int(offset), value))
            self.errors += process.stderr.read().splitlines()

    def close(self) -> None:
        os.kill(self._process.pid, signal.SIGTERM)
        super().close()


# ---- producing --------------------------------------------------------------------------------------------------------


def produce(client: Client, codecs: Sequence[str], **settings: Any) -> Check:
    def check(broker: Broker, topic: str) -> str | None:
        sent = [Sent(b"value %d" % at, b"key %d" % at, (("number", b"%d" % at),)) for at in range(20)]
        for codec in codecs:
            client.write(broker.bootstrap, topic, sent, codec=codec, **settings)
        seen = client.read(broker.bootstrap, topic, len(sent) * len(codecs))
        assert [(row.value, row.key, row.headers) for row in seen] == [row[:3] for row in sent] * len(codecs)
        return None

    return check


def idempotent(client: Client, **settings: Any) -> Check:
    def check(broker: Broker, topic: str) -> str | None:
        produce(client, ("none",), **settings)(broker, topic)
        admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        try:
            partition = kafka.TopicPartition(topic, 0)
            known = admin.describe_producers([partition])[partition].active_producers
        finally:
            admin.close()
        assert known, "the broker knows no producer: it was not idempotent"
        assert all(row.producer_id >= 0 for row in known)
        return None

    return check


def transactional(
    write: Callable[..., None], read: Callable[..., list[bytes | None]], transform: Callable[..., None]
) -> Check:
    def check(broker: Broker, topic: str) -> str | None:
        committed, aborted = [b"committed %d" % at for at in range(12)], [b"aborted %d" % at for at in range(6)]
        write(broker.bootstrap, f"{topic}-id", topic, [(committed[:6], True), (aborted, False), (committed[6:], True)])
        until_readable(broker, topic)
        seen = read(broker.bootstrap, topic, 12, "read_committed")
        assert transactions.sorted_values(seen) == sorted(committed)
        everything = read(broker.bootstrap, topic, 18, "read_uncommitted")
        assert transactions.sorted_values(everything) == sorted(committed + aborted)

        source, target = f"{topic}-source", f"{topic}-target"
        for made in admin_of(broker).create_topics([NewTopic(name, 3) for name in (source, target)]).values():
            made.result(WAIT_S)
        transactions.fill(broker.bootstrap, source, 30)
        transform(broker.bootstrap, source, target, f"{topic}-group", 30)
        until_readable(broker, target)
        seen = read(broker.bootstrap, target, 30, "read_committed")
        assert transactions.sorted_values(seen) == sorted(b"out %d" % at for at in range(30))
        return None

    return check


def kcat_transactional(broker: Broker, topic: str) -> str | None:
    """kcat commits at the end of its input. One that is killed before leaves an open transaction, which the next aborts."""
    assert Kcat.path is not None
    where = ["-b", broker.bootstrap, "-t", topic, "-p0"]
    command = [Kcat.path, "-P", *where, f"-Xtransactional.id={topic}-id", "-Xlinger.ms=0"]

    def commit(lines: list[bytes]) -> None:
        run = subprocess.run(command, input=b"\n".join(lines), capture_output=True, timeout=WAIT_S, check=False)
        assert run.returncode == 0, run.stderr

    def read(level: str) -> list[bytes]:
        return Kcat().run("-C", "-q", "-e", *where, "-o", "beginning", f"-Xisolation.level={level}").stdout.split(b"\n")

    first, later = [b"committed %d" % at for at in range(6)], [b"later %d" % at for at in range(6)]
    commit(first)
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
        confluent_consumer(broker.bootstrap, **{"isolation.level": "read_uncommitted"}) as consumer,
    ):
        try:
            assert process.stdin is not None
            # it takes its input in large pieces: the first of these is sent when the last is still underway
            process.stdin.write(b"".join(b"aborted " + b"x" * 50_000 + b"\n" for _ in range(6)))
            process.stdin.flush()
            partition = TopicPartition(topic, 0)
            ends = len(first) + 1
            until(
                lambda: consumer.get_watermark_offsets(partition, WAIT_S)[1] > ends, "the open transaction has records"
            )
        finally:
            process.kill()
    commit(later)
    until_readable(broker, topic)
    assert read("read_committed")[:-1] == first + later
    everything = read("read_uncommitted")[:-1]
    assert any(value.startswith(b"aborted") for value in everything)
    assert [value for value in everything if not value.startswith(b"aborted")] == first + later
    return None


# ---- groups -----------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A group as the broker describes it: (member id, instance id) to partitions."""

    owned: dict[tuple[str, str | None], frozenset[int]]
    kind: Any
    assignor: str

    @property
    def is_shared(self) -> bool:
        parts = list(self.owned.values())
        return len(parts) == 2 and all(parts) and sorted(at for own in parts for at in own) == list(range(PARTITIONS))

    def by_instance(self) -> dict[str | None, frozenset[int]]:
        return {instance: own for (_, instance), own in self.owned.items()}


def described(admin: AdminClient, group: str) -> Seen:
    shown = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    owned = {
        (row.member_id, row.group_instance_id): frozenset(at.partition for at in row.assignment.topic_partitions)
        for row in shown.members
    }
    return Seen(owned, shown.type, shown.partition_assignor)


def write_shared(broker: Broker, topic: str, count: int) -> list[bytes]:
    values = [b"shared %d" % at for at in range(count)]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return sorted(values)


def read_by(*members: Member) -> list[bytes]:
    return sorted(value or b"" for member in members for value in member.values)


def group(
    join: Join,
    *,
    kind: Any = ConsumerGroupType.CLASSIC,
    assignor: str | None = None,
    is_cooperative: bool = False,
    **more: Any,
) -> Check:
    def check(broker: Broker, topic: str) -> str | None:
        name = f"{topic}-group"
        admin = admin_of(broker)
        with join(broker.bootstrap, name, topic, **more) as first:
            until(lambda: len(described(admin, name).owned) == 1, "the first member is there")
            with join(broker.bootstrap, name, topic, **more) as second:
                until(lambda: described(admin, name).is_shared, "two members share the partitions")
                shown = described(admin, name)
                assert shown.kind == kind
                assert assignor in (None, shown.assignor)
                sent = write_shared(broker, topic, 40)
                until(lambda: len(first.reads) + len(second.reads) >= 40, "everything is read")
                assert second.reads
                if is_cooperative and first.assignments:
                    # an eager rebalance would have given the first member its share anew
                    assert not any(first.assignments[1:])
            until(lambda: len(described(admin, name).owned) == 1, "the second member has left")
        assert read_by(first, second) == sent
        assert not first.errors + second.errors
        asked = confluent_kafka.ConsumerGroupTopicPartitions(name)
        found = admin.list_consumer_group_offsets([asked])[name].result(WAIT_S).topic_partitions
        assert {at.partition: at.offset for at in found} == dict.fromkeys(range(PARTITIONS), 10)
        return None

    return check


def static(join: Join, key: str, **more: Any) -> Check:
    def check(broker: Broker, topic: str) -> str | None:
        name = f"{topic}-group"
        admin = admin_of(broker)

        def member(instance: str) -> Member:
            return join(broker.bootstrap, name, topic, **{key: instance}, **more)

        with ExitStack() as stack:
            first = stack.enter_context(member("one"))
            until(lambda: len(described(admin, name).owned) == 1, "the first member is there")
            with member("two"):
                until(lambda: described(admin, name).is_shared, "two members share the partitions")
                before = described(admin, name)
            assert described(admin, name) == before, "its place is kept while it is away"
            again = stack.enter_context(member("two"))
            until(
                lambda: (now := described(admin, name)).is_shared and now.owned.keys() != before.owned.keys(),
                "it is back with a new member id",
            )
            assert described(admin, name).by_instance() == before.by_instance()
            sent = write_shared(broker, topic, 40)
            until(lambda: len(first.reads) + len(again.reads) >= 40, "everything is read")
        assert read_by(first, again) == sent
        return None

    return check


def gap(shows: Callable[[Broker, str], bool], why: str) -> Check:
    """The client does not have it, which `shows`."""

    def check(broker: Broker, topic: str) -> str | None:
        assert shows(broker, topic), f"no longer so: {why}"
        raise Gap(why)

    return check


def aiokafka_has_no_protocol(broker: Broker, _topic: str) -> bool:
    try:
        aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="g", group_protocol="consumer")
    except TypeError:
        return True
    return False


def kafka_python_has_no_protocol(broker: Broker, _topic: str) -> bool:
    try:
        kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="g", group_protocol="consumer").close()
    except (AssertionError, kafka.errors.KafkaError):
        return True
    return False


def kcat_consumer(broker: Broker, topic: str) -> str | None:
    """kcat is as old as the librdkafka that it was linked with."""
    asked = Kcat().run("-L", "-b", broker.bootstrap, "-Xgroup.protocol=consumer")
    if b"No such configuration property" in asked.stderr:
        raise Gap("its librdkafka is older than the protocol")
    return group(KcatMember, kind=ConsumerGroupType.CONSUMER, **{"group.protocol": "consumer"})(broker, topic)


# ---- administration ---------------------------------------------------------------------------------------------------


def confluent_admin(broker: Broker, topic: str) -> str | None:
    admin, made, name = admin_of(broker), f"{topic}-made", f"{topic}-group"

    def one(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(WAIT_S)

    assert len(admin.describe_cluster().result(WAIT_S).nodes) == 1
    one(admin.create_topics([NewTopic(made, 2, config={"retention.ms": "5"})]))
    one(admin.create_partitions([confluent_kafka.admin.NewPartitions(made, PARTITIONS)]))
    shown = one(admin.describe_topics(confluent_kafka.TopicCollection([made])))
    assert len(shown.partitions) == PARTITIONS
    entry = ConfigEntry("retention.ms", "77777", incremental_operation=AlterConfigOpType.SET)
    one(admin.incremental_alter_configs([ConfigResource("topic", made, incremental_configs=[entry])]))
    assert one(admin.describe_configs([ConfigResource("topic", made)]))["retention.ms"].value == "77777"
    write_shared(broker, made, 40)
    first = TopicPartition(made, 0)
    assert one(admin.list_offsets({first: OffsetSpec.latest()})).offset == 10
    assert one(admin.delete_records([TopicPartition(made, 0, 4)])).low_watermark == 4
    assert one(admin.list_offsets({first: OffsetSpec.earliest()})).offset == 4
    moved = confluent_kafka.ConsumerGroupTopicPartitions(name, [TopicPartition(made, 0, 5)])
    one(admin.alter_consumer_group_offsets([moved]))
    asked = confluent_kafka.ConsumerGroupTopicPartitions(name)
    assert [at.offset for at in one(admin.list_consumer_group_offsets([asked])).topic_partitions] == [5]
    assert one(admin.describe_consumer_groups([name])).members == []
    assert name in {row.group_id for row in admin.list_consumer_groups().result(WAIT_S).valid}
    one(admin.delete_consumer_groups([name]))
    one(admin.delete_topics([made]))
    assert made not in admin.list_topics(timeout=WAIT_S).topics
    return None


def kafka_python_admin(broker: Broker, topic: str) -> str | None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    made, name = f"{topic}-made", f"{topic}-group"
    first = kafka.TopicPartition(made, 0)
    try:
        assert len(admin.describe_cluster()["brokers"]) == 1
        admin.create_topics({made: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5"}}})
        admin.create_partitions({made: PARTITIONS})
        (shown,) = admin.describe_topics([made])
        assert len(shown["partitions"]) == PARTITIONS
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, made, {"retention.ms": "77777"})
        admin.alter_configs([resource])
        configs = admin.describe_configs([kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, made)])
        assert "77777" in str(configs)
        write_shared(broker, made, 40)
        assert admin.delete_records({first: 4})
        assert admin.list_partition_offsets({first: kafka.admin.OffsetSpec.EARLIEST})[first].offset == 4
        admin.alter_group_offsets(name, {first: kafka.OffsetAndMetadata(5, "", -1)})
        assert admin.list_group_offsets({name: None})[name][first].offset == 5
        assert admin.describe_groups([name])[name]["members"] == []
        assert any(row["group_id"] == name for row in admin.list_groups())
        admin.delete_groups([name])
        assert admin.describe_log_dirs()
        assert not admin.list_partition_reassignments()
        admin.delete_topics([made])
        assert made not in admin.list_topics()
    finally:
        admin.close()
    return None


def aiokafka_admin(broker: Broker, topic: str) -> str | None:
    made, name = f"{topic}-made", f"{topic}-group"

    async def calls() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            assert len((await admin.describe_cluster())["brokers"]) == 1
            await admin.create_topics([aiokafka.admin.NewTopic(made, 2, 1, topic_configs={"retention.ms": "5"})])
            await admin.create_partitions({made: aiokafka.admin.NewPartitions(PARTITIONS)})
            (shown,) = await admin.describe_topics([made])
            assert len(shown["partitions"]) == PARTITIONS
            kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
            await admin.alter_configs(
                [aiokafka.admin.config_resource.ConfigResource(kind, made, {"retention.ms": "77777"})]
            )
            found = await admin.describe_configs([aiokafka.admin.config_resource.ConfigResource(kind, made)])
            assert "77777" in str(found)
            await asyncio.to_thread(write_shared, broker, made, 40)
            at = aiokafka.TopicPartition(made, 0)
            await admin.delete_records({at: aiokafka.admin.records_to_delete.RecordsToDelete(4)})
            moved = confluent_kafka.ConsumerGroupTopicPartitions(name, [TopicPartition(made, 0, 5)])
            admin_of(broker).alter_consumer_group_offsets([moved])[name].result(WAIT_S)
            assert (await admin.list_consumer_group_offsets(name))[at].offset == 5
            assert name in {row[0] for row in await admin.list_consumer_groups()}
            assert await admin.describe_consumer_groups([name])
            await admin.delete_topics([made])
            assert made not in await admin.list_topics()
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(calls(), 2 * WAIT_S))
    return None


def kcat_admin(broker: Broker, topic: str) -> str | None:
    write_shared(broker, topic, 40)
    assert Kcat().run("-L", "-b", broker.bootstrap, "-t", topic).stdout.count(b"leader 0") == PARTITIONS
    assert Kcat().run("-Q", "-b", broker.bootstrap, "-t", f"{topic}:1:-1").stdout.split()[-1] == b"10"
    return "it has metadata (-L) and offsets by time (-Q), and no other"


# ---- all of them ------------------------------------------------------------------------------------------------------

_RDKAFKA = {"heartbeat.interval.ms": 300}
_OTHERS = {"heartbeat_interval_ms": 300, "session_timeout_ms": 10_000}
"""A member that kafka-python gave up while it joined is in the way for as long as its session lasts."""
_COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
_ALL = ("none", "gzip", "snappy", "lz4", "zstd")


def _kafka_python_cooperative() -> list[Any]:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    return [CooperativeStickyAssignor]


CHECKS: dict[str, dict[str, Check]] = {
    "confluent-kafka": {
        "produce": produce(Confluent(), _ALL),
        "idempotent": idempotent(Confluent(), **{"enable.idempotence": True}),
        "transactional": transactional(
            transactions.write_confluent, transactions.read_confluent, transactions.transform_confluent
        ),
        "classic": group(ConfluentMember, assignor="range", **_RDKAFKA),
        "cooperative": group(
            ConfluentMember, assignor="cooperative-sticky", is_cooperative=True, **_COOPERATIVE, **_RDKAFKA
        ),
        "consumer": group(
            ConfluentMember, kind=ConsumerGroupType.CONSUMER, assignor="uniform", **{"group.protocol": "consumer"}
        ),
        "static": static(ConfluentMember, "group.instance.id", **_RDKAFKA),
        "admin": confluent_admin,
    },
    "aiokafka": {
        "produce": produce(Aiokafka(), Aiokafka.codecs),
        "idempotent": idempotent(Aiokafka(), enable_idempotence=True),
        "transactional": transactional(
            transactions.write_aiokafka, transactions.read_aiokafka, transactions.transform_aiokafka
        ),
        "classic": group(AiokafkaMember, assignor="range", **_OTHERS),
        "cooperative": gap(
            lambda *_: importlib.util.find_spec("aiokafka.coordinator.assignors.cooperative_sticky") is None,
            "it has eager assignors only",
        ),
        "consumer": gap(aiokafka_has_no_protocol, "its consumer has no `group_protocol`"),
        "static": static(AiokafkaMember, "group_instance_id", **_OTHERS),
        "admin": aiokafka_admin,
    },
    "kafka-python": {
        "produce": produce(KafkaPython(), KafkaPython.codecs),
        "idempotent": idempotent(KafkaPython(), enable_idempotence=True),
        "transactional": transactional(
            transactions.write_kafka_python, transactions.read_kafka_python, transactions.transform_kafka_python
        ),
        "classic": group(KafkaPythonMember, assignor="range", **_OTHERS),
        "cooperative": group(
            KafkaPythonMember,
            assignor="cooperative-sticky",
            is_cooperative=True,
            partition_assignment_strategy=_kafka_python_cooperative(),
            **_OTHERS,
        ),
        "consumer": gap(kafka_python_has_no_protocol, "its consumer has no `group_protocol`"),
        "static": static(KafkaPythonMember, "group_instance_id", **_OTHERS),
        "admin": kafka_python_admin,
    },
    "kcat": {
        "produce": produce(Kcat(), Kcat.codecs),
        "idempotent": idempotent(Kcat(), **{"enable.idempotence": "true"}),
        "transactional": kcat_transactional,
        "classic": group(KcatMember, assignor="range", **_RDKAFKA),
        "cooperative": group(KcatMember, assignor="cooperative-sticky", **_COOPERATIVE, **_RDKAFKA),
        "consumer": kcat_consumer,
        "static": static(KcatMember, "group.instance.id", **_RDKAFKA),
        "admin": kcat_admin,
    },
}


def versions() -> dict[str, str]:
    kcat = ""
    if Kcat.path is not None:
        words = Kcat().run("-V").stdout.decode().split()
        kcat = f"{words[words.index('Version') + 1]}, librdkafka {words[words.index('librdkafka') + 1]}"
    return {
        "confluent-kafka": f"{confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}",
        "aiokafka": aiokafka.__version__,
        "kafka-python": kafka.__version__,
        "kcat": kcat,
    }
