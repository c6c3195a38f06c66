from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import EARLIEST, LATEST, KafkaClient
from penstock.imports.run import Import, ImportRequest, OpenBroker
from penstock.records.batch import whole_batches
from penstock.records.builder import NewRecord, build_batch
from tests.imports.conftest import read_all
from tests.imports.directories import rustlog_log, rustlog_record
from tests.imports.fixtures import COUNT, FIXTURES, Fixture


def opener(data_dir: Path) -> OpenBroker:
    @contextlib.contextmanager
    def open_broker() -> Iterator[str]:
        with Broker(data_dir) as broker:
            yield broker.bootstrap

    return open_broker


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_records_of_a_damaged_directory_keep_their_offsets_and_gaps_stay(tmp_path: Path, fixture: Fixture) -> None:
    root, data_dir = tmp_path / "source", tmp_path / "data"
    fixture.make(root)
    fixture.damage(root)
    report = Import(ImportRequest(fixture.name, root)).into_directory(data_dir, opener(data_dir))
    assert report.verified
    assert not report.is_complete
    assert not (data_dir / ".import").exists()
    expected = fixture.expected(damaged=True)
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        for name, rows in expected.items():
            topic, _, number = name.rpartition("-")
            place = (topic, int(number))
            assert client.list_offsets({place: EARLIEST}).popitem()[1].offset == rows[0][0]
            assert client.list_offsets({place: LATEST}).popitem()[1].offset == rows[-1][0] + 1
            records = read_all(client, *place, rows[0][0], rows[-1][0] + 1)
            assert [(record.offset, record.key, record.value) for record in records] == rows
        for (group, topic, partition), offset in fixture.commits.items():
            assert client.fetch_offsets(group).popitem() == ((topic, partition), (offset, "", -1))


def test_a_log_with_gaps_survives_appends_crashes_and_a_lost_checkpoint(tmp_path: Path) -> None:
    """Recovery holds gaps in the active segment for damage: imported records must not lie in it."""
    root, data_dir = tmp_path / "source", tmp_path / "data"
    offsets = [7, 8, 20, 21, 22, 500]
    rustlog_log(root / "t-0", 7, [rustlog_record(n, b"v%d" % n) for n in offsets])
    Import(ImportRequest("rustlog", root)).into_directory(data_dir, opener(data_dir))
    broker = Broker(data_dir)
    for loss in ("nothing", "clean stop", "checkpoint"):
        if loss == "checkpoint":
            (data_dir / "checkpoint").unlink()
        broker.start()
        with KafkaClient(broker.bootstrap) as client:
            client.produce({("t", 0): build_batch([NewRecord(1, None, b"new")])})
            offsets.append(offsets[-1] + 1)
            assert [record.offset for record in read_all(client, "t", 0, 7, offsets[-1] + 1)] == offsets
        broker.kill()
    broker.close()


def test_other_topics_of_the_directory_are_left_as_they_are(tmp_path: Path) -> None:
    root, data_dir = tmp_path / "source", tmp_path / "data"
    FIXTURES[-1].make(root)
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        client.create_topic("mine", 1)
        client.produce({("mine", 0): build_batch([NewRecord(1, None, b"before")])})
        client.commit_offsets("g", {("mine", 0): 1})
    Import(ImportRequest("day1", root)).into_directory(data_dir, opener(data_dir))
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        assert [record.value for record in read_all(client, "mine", 0, 0, 1)] == [b"before"]
        assert client.fetch_offsets("g").popitem()[1].offset == 1
        assert len(read_all(client, "orders", 0, 0, COUNT)) == COUNT
        assert "recovered" not in broker.log


def test_producers_and_epochs_that_come_later_are_above_all_that_came_over(tmp_path: Path) -> None:
    """The logs remember old producers: a new one with the number of an old one would be told that its batch is a copy."""
    root, data_dir = tmp_path / "source", tmp_path / "data"
    (root / "t-0").mkdir(parents=True)
    now_ms = int(time.time() * 1000)
    old = {"producer_id": 50_000, "producer_epoch": 0, "base_sequence": 0}
    batch = build_batch([NewRecord(now_ms, None, b"old")], leader_epoch=7, **old)
    (root / "t-0" / f"{0:020d}.log").write_bytes(batch)
    Import(ImportRequest("kafka", root)).into_directory(data_dir, opener(data_dir))
    with Broker(data_dir) as broker, KafkaClient(broker.bootstrap) as client:
        (states,) = client.describe_producers([("t", 0)]).values()
        assert [state.producer_id for state in states] == [50_000]
        assert client.init_producer_id().producer_id > 50_000
        client.produce({("t", 0): build_batch([NewRecord(now_ms, None, b"new")])})
        for offset, epoch in ((0, 7), (1, 8)):
            (fetched,) = client.fetch({("t", 0): offset}).values()
            assert next(whole_batches(fetched.records)).leader_epoch == epoch
