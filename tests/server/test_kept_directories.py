"""Data directories that earlier versions wrote: everything that was acknowledged is served, and writing goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import EARLIEST, LATEST, ConfigKind, GroupOffset, KafkaClient, KafkaError, Producer
from penstock.records.builder import NewRecord, build_batch
from tests.clients.members import until
from tests.kept_directories.clients import Place, produce, read, transact
from tests.kept_directories.contents import COMMITTED, Contents, kept

LATER_MS = 1_700_100_000_000
SETTINGS = {
    "groups.offsets_retention_ms": 2**62,  # the directories are older than what groups commit is kept
    "groups.initial_rebalance_delay_ms": 0,
}
OF_THE_TOPIC = 1
"""Kafka's number for a setting that comes from the topic itself."""


def check(broker: Broker, contents: Contents) -> None:
    with KafkaClient(broker.bootstrap) as client:
        check_topics(client, contents)
        for name, state in contents.transactions.items():
            until(lambda name=name, state=state: client.describe_transaction(name).state == state, f"{name}: {state}")  # type: ignore[misc]
        check_records(broker, client, contents)
        for group, offsets in contents.groups.items():
            found = client.fetch_offsets(group)
            assert {tuple(place): (one.offset, one.metadata) for place, one in found.items()} == offsets, group


def check_topics(client: KafkaClient, contents: Contents) -> None:
    cluster = client.metadata()
    assert cluster.cluster_id == contents.cluster_id
    found = {name: topic for name, topic in cluster.topics.items() if not topic.is_internal}
    assert sorted(found) == sorted(contents.topics)
    for name, topic in contents.topics.items():
        assert str(found[name].topic_id) == topic.id
        assert sorted(found[name].partitions) == list(range(topic.partitions))
        entries = client.describe_configs(ConfigKind.TOPIC, name)
        assert {key: entry.value for key, entry in entries.items() if entry.source == OF_THE_TOPIC} == topic.configs


def check_records(broker: Broker, client: KafkaClient, contents: Contents) -> None:
    earliest = client.list_offsets(dict.fromkeys(contents.logs, EARLIEST))
    latest = client.list_offsets(dict.fromkeys(contents.logs, LATEST))
    starts: dict[Place, int] = {(topic, number): listed.offset or 0 for (topic, number), listed in earliest.items()}
    ends: dict[Place, int | None] = {(topic, number): listed.offset for (topic, number), listed in latest.items()}
    for committed in (False, True):
        found = read(broker, starts, committed=committed)
        for place, log in contents.logs.items():
            assert log.end in (None, ends[place]), place
            if contents.topics[place[0]].is_compacted:  # which older records are left is for log cleaning to say
                assert all(log.rows[row.offset][0] == row for row in found[place])
                assert {row.key: row for row in found[place]} == log.newest()
            else:
                assert starts[place] == log.start
                assert found[place] == log.visible(committed=committed), f"{place}, committed={committed}"


def write_more(broker: Broker, contents: Contents) -> None:
    """Go on where the writers of the directory stopped, and note what is acknowledged."""
    with KafkaClient(broker.bootstrap) as client:
        for place, batch in list(contents.producers.items()):
            producer = Producer(batch.producer_id, batch.producer_epoch)
            next_sequence = batch.base_sequence + batch.record_count

            def send(sequence: int, count: int, place: tuple[str, int] = place, producer: Producer = producer) -> int:
                records = [NewRecord(LATER_MS, None, b"more %d" % sequence)] * count
                built = build_batch(
                    records,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=sequence,
                )
                return client.produce({place: built})[place].base_offset  # type: ignore[index]

            assert send(batch.base_sequence, batch.record_count) == batch.base_offset, "the batch is in the log already"
            with pytest.raises(KafkaError, match="OUT_OF_ORDER"):
                send(next_sequence + 1, 1)
            records = [NewRecord(LATER_MS, b"k", b"more")]
            produce(client, contents, place, records, producer=producer, base_sequence=next_sequence)
        for place, log in contents.logs.items():
            base_offset = produce(client, contents, place, [NewRecord(LATER_MS, b"more", b"plain", (("h", b"v"),))])
            log.end = base_offset + 1
        places = [place for place in contents.logs if place[0] == "ledger"]
        for name in contents.transactions:
            values = {place: [NewRecord(LATER_MS, b"more", name.encode())] for place in places}
            producer = transact(client, contents, name, values, fate=COMMITTED)
            client.end_txn(name, producer, commit=True)
            contents.transactions[name] = "CompleteCommit"
        for place in places:
            contents.logs[place].end = None  # there is a marker after each
        for group, offsets in contents.groups.items():
            moved = {place: (offset + 1, "moved") for place, (offset, _) in offsets.items()}
            client.commit_offsets(group, {place: GroupOffset(*value) for place, value in moved.items()})
            contents.groups[group] = moved


@pytest.mark.parametrize("name", kept())
def test_kept_directory_is_served_in_full_and_written_on(tmp_path: Path, name: str) -> None:
    contents = Contents.load(name)
    folder = tmp_path / "data"
    contents.unpack(folder)
    assert (folder / "clean-stop").exists() == contents.is_clean
    with Broker(folder, settings=SETTINGS) as broker:
        check(broker, contents)
        write_more(broker, contents)
        check(broker, contents)
        broker.stop() if contents.is_clean else broker.kill()
        broker.restart()
        check(broker, contents)
        assert "Traceback" not in broker.log, broker.log


def test_a_clean_and_a_killed_directory_are_kept() -> None:
    directories = [Contents.load(name) for name in kept()]
    assert {contents.is_clean for contents in directories} == {True, False}
    for contents in directories:
        assert contents.archive.stat().st_size <= 100_000
        assert len(contents.logs) >= 7
        assert contents.producers
        assert "open" in contents.transactions
