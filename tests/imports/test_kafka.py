"""Directories that Apache Kafka itself wrote."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.client.kafka import EARLIEST, LATEST, GroupOffset, Isolation, KafkaClient, KafkaSettings
from penstock.imports import kafka
from penstock.imports.kafka_commits import Committed, read_commit
from penstock.imports.run import Import, ImportRequest
from penstock.imports.source import Findings
from penstock.records.batch import Batch, whole_batches
from penstock.records.builder import NewRecord, build_batch, rebuild_batch
from penstock.records.record import Record, read_records
from penstock.storage.segment_reader import list_segments, read_segment
from tests.compatibility.apache_kafka import apache_kafka
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record, flip, tear
from tests.imports.test_into_directory import opener

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIME = 1_650_000_000_000
RECORDS = 200
"""Of each codec."""


@pytest.fixture(scope="session")
def kafka_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics in every compression with headers and times, transactions with every end, a log that begins late, commits."""
    folder = tmp_path_factory.mktemp("apache")
    with apache_kafka(folder) as address, KafkaClient(address) as client:
        client.create_topic("packed", 2)
        client.create_topic("sold", 1)
        client.create_topic("late", 1, configs={"segment.bytes": "1048576"})
        client.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
        _fill(address)
        _transactions(address)
        _late(client, address)
        offsets = {("packed", 0): GroupOffset(150, "noted"), ("late", 0): 60}
        client.commit_offsets("billing", offsets)
        _import_into(address, folder / "foreign")
    return folder / "data"


def _import_into(address: str, root: Path) -> None:
    """Kafka takes an import as Penstock does."""
    values = [b"%05d" % number + b"." * 3_000 for number in range(1_000)]
    day1_log(root, "foreign", 0, [day1_record(n, b"", value) for n, value in enumerate(values)])
    report = Import(ImportRequest("day1", root, progress_folder=root / "p")).into_broker(
        KafkaSettings.of(address), address
    )
    assert report.verified
    assert report.records == len(values)


def _producer(address: str, **settings: object) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": address, "log_level": 0, "linger.ms": 20, **settings})


def _fill(address: str) -> None:
    for at, codec in enumerate(CODECS):
        producer = _producer(address, **{"compression.type": codec, "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce(
                "packed",
                b"%s value %d" % (codec.encode(), number),
                b"k%d" % number,
                partition=number % 2,
                timestamp=TIME + at * RECORDS + number,
                headers=[("codec", codec.encode()), ("n", None)],
            )
        producer.produce("stamped", codec.encode(), partition=0, timestamp=TIME)
        assert producer.flush(30) == 0


def _transactions(address: str) -> None:
    for name, end in (("one", "commit"), ("two", "abort"), ("three", "commit"), ("four", "open")):
        # what is left open must not be aborted before the directory is read
        producer = _producer(address, **{"transactional.id": name, "transaction.timeout.ms": 600_000})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(3):
            producer.produce("sold", b"%s %d" % (end.encode(), number), name.encode(), partition=0)
        assert producer.flush(30) == 0
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        else:
            _LEFT_OPEN.append(producer)


_LEFT_OPEN: list[Any] = []
"""A producer that goes away aborts its transaction."""


def _late(client: KafkaClient, address: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    for number in range(60):
        client.produce({("late", 0): build_batch([NewRecord(TIME, None, b"%03d" % number + b"-" * 50_000)])})
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.delete_records([TopicPartition("late", 0, 45)]).values():
        future.result(30)
    (earliest,) = client.list_offsets({("late", 0): EARLIEST}).values()
    assert earliest.offset == 45


@pytest.fixture
def source(kafka_directory: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(kafka_directory, tmp_path / "source"))


def _committed(client: KafkaClient, topic: str, partition: int) -> list[Record]:
    """What a reader of committed records sees, from start to end."""
    place = (topic, partition)
    (earliest,) = client.list_offsets({place: EARLIEST}).values()
    (latest,) = client.list_offsets({place: LATEST}, Isolation.READ_COMMITTED).values()
    offset, end = earliest.offset or 0, latest.offset or 0
    records: list[Record] = []
    while offset < end:
        (fetched,) = client.fetch({place: offset}, isolation=Isolation.READ_COMMITTED).values()
        hidden = {one.producer_id for one in fetched.aborted}
        for batch in whole_batches(fetched.records):
            if batch.is_control:
                hidden.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in hidden):
                records += [record for record in read_records(batch) if offset <= record.offset]
            offset = max(offset, batch.next_offset)
    return records


def _bare(records: list[Record]) -> list[tuple[Any, ...]]:
    return [tuple(record)[1:] for record in records]


@pytest.fixture(scope="session")
def original(kafka_directory: Path) -> dict[str, list[Record]]:
    """The records as they lie in Kafka's own files."""
    found = {}
    for folder in kafka_directory.iterdir():
        if folder.name.startswith(("packed-", "stamped-")):
            batches = [batch for path in list_segments(folder) for _, batch in read_segment(path)]
            found[folder.name] = [record for batch in batches for record in read_records(batch)]
    return found


def test_a_directory_comes_over_with_offsets_epochs_transactions_and_commits(
    source: Path, tmp_path: Path, original: dict[str, list[Record]]
) -> None:
    data_dir = tmp_path / "data"
    report = Import(ImportRequest("kafka", source)).into_directory(data_dir, opener(data_dir))
    assert report.verified
    assert report.is_complete, report.as_dict()
    assert report.aborted_transactions == 1
    for name in ("packed-0", "packed-1", "stamped-0"):
        theirs = b"".join(path.read_bytes() for path in list_segments(source / name))
        ours = b"".join(path.read_bytes() for path in list_segments(data_dir / name))
        assert ours == theirs, "batches travel whole"
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        for name in ("packed-0", "packed-1", "stamped-0"):
            topic, _, number = name.rpartition("-")
            assert read_all(client, topic, int(number), 0, len(original[name])) == original[name]
        assert [record.value for record in _committed(client, "sold", 0)] == [b"commit %d" % n for n in (0, 1, 2)] * 2
        (late,) = client.list_offsets({("late", 0): EARLIEST}).values()
        assert late.offset == 45
        assert [record.value[:3] for record in read_all(client, "late", 0, 45, 60) if record.value] == [
            b"%03d" % number for number in range(45, 60)
        ]
        offsets = client.fetch_offsets("billing")
        assert {place: (one.offset, one.metadata) for place, one in offsets.items()} == {
            ("packed", 0): (150, "noted"),
            ("late", 0): (60, ""),
        }


def test_into_a_running_broker_only_committed_records_come_and_commits_are_translated(
    broker: Broker, client: KafkaClient, source: Path, original: dict[str, list[Record]]
) -> None:
    mapping = {name: f"moved-{name}" for name in ("packed", "sold", "late", "stamped", "foreign")}
    settings = KafkaSettings.of(broker.bootstrap)
    report = Import(ImportRequest("kafka", source, mapping)).into_broker(settings, broker.bootstrap)
    assert report.verified
    for name in ("packed-0", "packed-1"):
        records = read_all(client, f"moved-{name[:-2]}", int(name[-1]), 0, len(original[name]))
        assert records == original[name]
    (fetched,) = client.fetch({("moved-packed", 0): 0}).values()
    assert {batch.compression for batch in whole_batches(fetched.records)} == {0, 1, 2, 3, 4}
    stamped = read_all(client, "moved-stamped", 0, 0, len(CODECS))
    assert _bare(stamped) == _bare(original["stamped-0"])
    assert client.list_offsets({("moved-sold", 0): LATEST}).popitem()[1].offset == 6
    sold = read_all(client, "moved-sold", 0, 0, 6)
    assert [record.value for record in sold] == [b"commit %d" % n for n in (0, 1, 2)] * 2
    late = read_all(client, "moved-late", 0, 0, 15)
    assert [record.value[:3] for record in late if record.value] == [b"%03d" % number for number in range(45, 60)]
    offsets = client.fetch_offsets("billing")
    assert offsets["moved-packed", 0].offset == 150  # type: ignore[index]
    assert offsets["moved-late", 0].offset == 15  # type: ignore[index]


def test_damaged_batches_stay_behind_and_all_others_come_over(source: Path, tmp_path: Path) -> None:
    folder = source / "packed-1"
    (path,) = list_segments(folder)
    batches = [(position, batch.size, batch.base_offset, batch.count) for position, batch in read_segment(path)]
    assert len(batches) >= len(CODECS)
    flip(path, batches[0][0] + 70)
    flip(path, batches[2][0] + 8)
    tear(path, 5)
    for index in folder.glob("*index"):
        index.unlink()
    data_dir = tmp_path / "data"
    report = Import(ImportRequest("kafka", source, topics=["packed"])).into_directory(data_dir, opener(data_dir))
    row = next(row for row in report.partitions if row.partition == 1)
    lost = [batches[0], batches[2], batches[-1]]
    assert [(one.position, one.length) for one in row.damage[:2]] == [(place, size) for place, size, *_ in lost[:2]]
    assert row.damaged_bytes == sum(size for _, size, *_ in lost) - 5
    kept = [number for _, _, base, count in batches for number in range(base, base + count)]
    for _, _, base, count in lost:
        kept = [number for number in kept if not base <= number < base + count]
    assert row.records == len(kept)
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert [record.offset for record in read_all(client, "packed", 1, 0, kept[-1] + 1)] == kept


def test_what_a_live_kafka_wrote_so_far_is_told_to_be_that(source: Path) -> None:
    import fcntl

    with open(source / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        notes = Import(ImportRequest("kafka", source)).dry_run().notes
    assert any("a broker is using the directory" in one for one in notes)


def test_a_thinned_out_log_gets_dense_offsets_in_a_running_broker_and_commits_find_their_record(
    broker: Broker, client: KafkaClient, tmp_path: Path
) -> None:
    """Log cleaning leaves gaps between batches and inside them, which no broker takes from a producer."""
    folder = tmp_path / "s" / "thin-0"
    folder.mkdir(parents=True)
    data = b""
    for base in (0, 10, 30):
        news = [NewRecord(TIME + n, b"k", b"%d" % (base + n)) for n in range(10)]
        batch = Batch(memoryview(build_batch(news, base_offset=base, leader_epoch=4)))
        data += rebuild_batch(batch, [record for record in read_records(batch) if record.offset % 3 == 0])
    (folder / f"{0:020d}.log").write_bytes(data)
    offsets = tmp_path / "s" / "__consumer_offsets-0"
    offsets.mkdir()
    key = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 4) + b"thin" + struct.pack(">i", 0)
    value = struct.pack(">hqih", 3, 13, 4, 0) + struct.pack(">q", 1)
    (offsets / f"{0:020d}.log").write_bytes(build_batch([NewRecord(1, key, value)], leader_epoch=0))
    settings = KafkaSettings.of(broker.bootstrap)
    report = Import(ImportRequest("kafka", tmp_path / "s")).into_broker(settings, broker.bootstrap)
    kept = [number for base in (0, 10, 30) for number in range(base, base + 10) if number % 3 == 0]
    assert report.records == len(kept)
    records = read_all(client, "thin", 0, 0, len(kept))
    assert [(record.value, record.timestamp - TIME) for record in records] == [(b"%d" % n, n % 10) for n in kept]
    assert client.fetch_offsets("g").popitem()[1].offset == kept.index(15)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (struct.pack(">hqh", 0, 7, 2) + b"me" + struct.pack(">q", 1), Committed(7, "me", -1)),
        (struct.pack(">hqh", 1, 7, 2) + b"me" + struct.pack(">qq", 1, 2), Committed(7, "me", -1)),
        (struct.pack(">hqih", 3, 7, 5, 0) + struct.pack(">q", 1), Committed(7, "", 5)),
        (struct.pack(">hqi", 4, 7, 5) + b"\x03me" + struct.pack(">q", 1) + b"\x00", Committed(7, "me", 5)),
        (None, None),
    ],
)
def test_commits_of_every_version_are_read(value: bytes | None, expected: Committed | None) -> None:
    key = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 9)
    assert read_commit(key, value) == (("g", "t", 9), expected)


def test_what_is_no_commit_is_none() -> None:
    assert read_commit(struct.pack(">hh", 2, 1) + b"g", b"") is None
    assert read_commit(b"\x00", b"\x00") is None
    assert read_commit(None, None) is None


def test_kafkas_own_topics_are_not_imported(source: Path) -> None:
    topics = {partition.topic for partition in kafka.find(source).partitions}
    assert topics == {"packed", "sold", "late", "stamped", "foreign"}
    assert {commit.group for commit in kafka.commits(source, Findings())} == {"billing"}
