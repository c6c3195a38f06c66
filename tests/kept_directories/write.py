"""Write the kept data directories of this version: `python -m tests.kept_directories.write`.

One is stopped cleanly and one is killed. Both live through a clean restart first, so that each has recovery points, caches
and a cleaned log from before; what follows is after the last recovery point. Takes about a minute.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from penstock import Broker, __version__
from penstock.client.kafka import LATEST, GroupOffset, KafkaClient, Producer
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS
from tests.clients.drivers import WAIT_S, confluent_consumer
from tests.clients.members import until
from tests.kept_directories.clients import produce, read, transact
from tests.kept_directories.contents import ABORTED, COMMITTED, DATA, Contents, Topic

T0_MS = 1_700_000_000_000
LEFT_OUT = ("reserve", ".lock")
"""Made again by every start."""
FOR_EVER = {"retention.ms": "-1"}
SMALL = {"segment.bytes": "2000", "index.interval.bytes": "200"}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "orders": (2, {**FOR_EVER, **SMALL}),
    "latest": (
        1,
        {
            **SMALL,
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(2**62),
        },
    ),
    "ledger": (2, {**FOR_EVER, **SMALL}),
    "tuned": (1, {**FOR_EVER, "message.timestamp.type": "LogAppendTime", "penstock.flush": "always"}),
}
LATEST_KEYS = 6
ALTERED = {"max.message.bytes": "200000"}
CHECKPOINT_MS = 600_000
"""Nothing of the second life gets into a recovery point unless the broker stops cleanly."""


class Writer:
    def __init__(self, broker: Broker, contents: Contents) -> None:
        self.broker = broker
        self.contents = contents
        self.client = KafkaClient(broker.bootstrap)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self.number = 0

    # ------------------------------------------------------------------------------------------------ parts

    def create_topics(self) -> None:
        for name, (partitions, configs) in TOPICS.items():
            self.client.create_topic(name, partitions, configs=configs)
        self.client.create_topic("gone", 1)
        self.client.produce({("gone", 0): build_batch([NewRecord(T0_MS, None, b"deleted with its topic")])})
        self.admin.delete_topics(["gone"])["gone"].result(WAIT_S)

    def records(self, count: int) -> list[NewRecord]:
        made = []
        for _ in range(count):
            n = self.number = self.number + 1
            key = None if n % 5 == 0 else b"" if n % 7 == 0 else b"key-%d" % (n % 11)
            value = None if n % 13 == 0 else b"" if n % 17 == 0 else b"value %d " % n + bytes(range(n % 40))
            headers = ((), (("trace", b"%d" % n),), (("a", b"1"), ("a", b"2"), ("none", None)))[n % 3]
            made.append(NewRecord(T0_MS + n * 1_000 - (n % 4) * 1_500, key, value, headers))
        return made

    def write_orders(self, producer: Producer, first_sequence: int) -> None:
        """Batches of every codec, plain ones and those of an idempotent producer, in both partitions."""
        for partition in (0, 1):
            sequence = first_sequence
            for codec in sorted(CODECS):
                produce(self.client, self.contents, ("orders", partition), self.records(5), codec=codec)
                produce(
                    self.client,
                    self.contents,
                    ("orders", partition),
                    self.records(3),
                    codec=codec,
                    producer=producer,
                    base_sequence=sequence,
                )
                sequence += 3

    def write_latest(self, rounds: int) -> None:
        for _ in range(rounds):
            for key in range(LATEST_KEYS):
                record = self.records(1)[0]
                produce(
                    self.client,
                    self.contents,
                    ("latest", 0),
                    [record._replace(key=b"latest-%d" % key, value=record.value or b"value")],
                )
        produce(self.client, self.contents, ("latest", 0), [NewRecord(T0_MS, b"latest-0", None)])

    def write_ledger(self, life: int) -> None:
        """A transaction that is committed and one that is aborted, with offsets of a group in each."""
        for name, fate in (("payments", COMMITTED), ("refunds", ABORTED)):
            offset = 10 * life if fate == COMMITTED else 1_000
            values = {("ledger", partition): self.records(4) for partition in (0, 1)}
            producer = transact(
                self.client, self.contents, name, values, fate=fate, offsets={("orders", 0): offset}, group="ledger"
            )
            self.client.end_txn(name, producer, commit=fate == COMMITTED)
            state = "CompleteCommit" if fate == COMMITTED else "CompleteAbort"
            until(lambda name=name, state=state: self.client.describe_transaction(name).state == state, state)  # type: ignore[misc]
            self.contents.transactions[name] = state
            produce(self.client, self.contents, ("ledger", 0), self.records(1))
        self.contents.groups["ledger"] = {("orders", 0): (10 * life, "")}

    def leave_transaction_open(self) -> None:
        values = {("ledger", partition): self.records(2) for partition in (0, 1)}
        transact(
            self.client, self.contents, "open", values, fate=ABORTED, offsets={("orders", 0): 2_000}, group="ledger"
        )
        self.contents.transactions["open"] = "CompleteAbort"
        produce(self.client, self.contents, ("ledger", 0), self.records(1))

    def commit(self, group: str, offset: int) -> None:
        """For a group without members."""
        offsets = {("orders", partition): (offset + partition, f"metadata {offset}") for partition in (0, 1)}
        self.client.commit_offsets(group, {place: GroupOffset(*value) for place, value in offsets.items()})
        self.contents.groups[group] = offsets

    def consume(self, group: str, protocol: str, offset: int) -> None:
        """Join the group, commit as a member of it, and leave."""
        with confluent_consumer(
            self.broker.bootstrap, **{"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.subscribe(["orders"])
            until(lambda: consumer.poll(0.1) is not None, f"{group} reads")
            offsets = [confluent_kafka.TopicPartition("orders", partition, offset) for partition in (0, 1)]
            consumer.commit(offsets=offsets, asynchronous=False)
        self.contents.groups[group] = {("orders", partition): (offset, "") for partition in (0, 1)}

    def delete_records(self, place: tuple[str, int], start: int) -> None:
        below = confluent_kafka.TopicPartition(*place, start)
        self.admin.delete_records([below])[below].result(WAIT_S)
        self.contents.logs[place].start = start

    def change_topic(self) -> None:
        entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in ALTERED.items()]
        resource = ConfigResource(ResourceType.TOPIC, "tuned", incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
        self.admin.create_partitions([NewPartitions("tuned", 3)])["tuned"].result(WAIT_S)

    # ------------------------------------------------------------------------------------------------ lives

    def first_life(self) -> Producer:
        self.create_topics()
        producer = self.client.init_producer_id()
        self.write_orders(producer, 0)
        self.write_latest(12)
        self.write_ledger(1)
        produce(self.client, self.contents, ("tuned", 0), self.records(3))
        self.commit("reader", 3)
        self.consume("classic", "classic", 4)
        self.consume("consumers", "consumer", 5)
        self.delete_records(("orders", 1), 7)
        until(self.latest_is_cleaned, "the log is cleaned", 120)
        return producer

    def latest_is_cleaned(self) -> bool:
        [rows] = read(self.broker, {("latest", 0): 0}, committed=False).values()
        return rows[0].offset > 0

    def second_life(self, producer: Producer) -> None:
        self.delete_records(("orders", 1), 11)  # the last recovery point
        self.change_topic()
        self.write_orders(producer, 3 * len(CODECS))
        self.write_orders(producer, 6 * len(CODECS))
        self.write_latest(2)
        self.write_ledger(2)
        produce(self.client, self.contents, ("tuned", 2), self.records(3))
        self.commit("reader", 30)
        self.leave_transaction_open()

    def note_topics_and_ends(self) -> None:
        found = self.client.metadata()
        assert found.cluster_id is not None
        self.contents.cluster_id = found.cluster_id
        for name, (_, configs) in TOPICS.items():
            topic = found.topics[name]
            more = ALTERED if name == "tuned" else {}
            self.contents.topics[name] = Topic(str(topic.topic_id), len(topic.partitions), {**configs, **more})
        ends = self.client.list_offsets(dict.fromkeys(self.contents.logs, LATEST))
        for place, listed in ends.items():
            if place.topic != "ledger":
                self.contents.logs[place.topic, place.partition].end = listed.offset


def write(folder: Path, *, is_clean: bool) -> Contents:
    contents = Contents(__version__, is_clean)
    settings = {"groups.initial_rebalance_delay_ms": 0, "storage.checkpoint_interval_ms": CHECKPOINT_MS}
    with Broker(folder, settings=settings) as broker:
        producer = Writer(broker, contents).first_life()
        broker.restart()
        writer = Writer(broker, contents)
        writer.number = 1_000
        writer.second_life(producer)
        writer.note_topics_and_ends()
        if is_clean:
            assert broker.stop() == 0
        else:
            broker.kill()
            tear(folder / "orders-0", contents)
    return contents


def tear(folder: Path, contents: Contents) -> None:
    """Leave half a batch at the end of a log, as a power cut during an append does."""
    end = contents.logs["orders", 0].end
    assert end is not None
    batch = build_batch([NewRecord(T0_MS, b"torn", b"never acknowledged" * 5)], base_offset=end)
    with max(folder.glob("*.log")).open("ab") as segment:
        segment.write(batch[: len(batch) // 2])


def pack(folder: Path, archive: Path) -> None:
    """The same bytes for the same directory: sorted, and without times and owners."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name in LEFT_OUT:
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = T0_MS // 1_000
        return member

    with tarfile.open(archive, "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, path.name, filter=plain)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for is_clean in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            contents = write(Path(folder) / "data", is_clean=is_clean)
            pack(Path(folder) / "data", contents.archive)
        contents.store()
        print(f"{contents.archive}: {contents.archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
