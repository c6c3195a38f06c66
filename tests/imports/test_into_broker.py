from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.client.kafka import LATEST, KafkaClient, KafkaSettings
from penstock.imports.engine import ImportFailed
from penstock.imports.report import Report
from penstock.imports.run import Import, ImportRequest
from penstock.imports.source import SourceError
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record, minikafka_log, minikafka_record
from tests.imports.fixtures import COUNT, FIXTURES, KEYS, LOST, VALUES, Fixture


def _import(broker: Broker, request: ImportRequest) -> Report:
    return Import(request).into_broker(KafkaSettings.of(broker.bootstrap), broker.bootstrap)


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_what_is_whole_comes_over_and_what_is_not_is_in_the_report(
    broker: Broker, client: KafkaClient, tmp_path: Path, fixture: Fixture, damaged: bool
) -> None:
    root = tmp_path / "source"
    fixture.make(root)
    if damaged:
        fixture.damage(root)
    topic = f"{fixture.name}-{damaged}"
    report = _import(broker, ImportRequest(fixture.name, root, {"orders": topic}))
    assert report.verified
    assert report.is_complete is not damaged
    lost = LOST if damaged else frozenset()
    expected = [(KEYS[at] if fixture.has_keys else None, VALUES[at]) for at in range(COUNT) if at not in lost]
    records = read_all(client, topic, 0, 0, len(expected))
    assert [(record.key, record.value) for record in records] == expected
    assert [record.offset for record in records] == list(range(len(expected)))
    assert [record.value for record in read_all(client, topic, 2, 0, 1)] == [b"only"]
    ends = client.list_offsets(dict.fromkeys([(topic, 0), (topic, 1), (topic, 2)], LATEST))
    assert [end.offset for end in ends.values()] == [len(expected), 0, 1]
    row = next(row for row in report.partitions if row.partition == 0)
    assert row.records == len(expected)
    assert row.damage_count == (2 if damaged else 0)
    if fixture.commits:
        committed = client.fetch_offsets("billing", [(topic, 0)])
        # offset 25 of the source is the record that has it, wherever it is now
        assert [one.offset for one in committed.values()] == [24 if damaged else 25]
    assert list(Path.cwd().iterdir()) == []


def test_times_of_records_that_have_them_are_kept(broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    times = [1_600_000_000_000, 1_600_000_000_500, 1_500_000_000_000]
    minikafka_log(tmp_path / "s", "timed", 0, 0, [minikafka_record(n, t, b"k", b"v") for n, t in enumerate(times)])
    _import(broker, ImportRequest("minikafka", tmp_path / "s"))
    assert [record.timestamp for record in read_all(client, "timed", 0, 0, 3)] == times


def test_a_record_larger_than_a_topic_usually_takes_comes_over(
    broker: Broker, client: KafkaClient, tmp_path: Path
) -> None:
    big = b"b" * 3_000_000
    day1_log(tmp_path / "s", "big", 0, [day1_record(0, b"", big), day1_record(1, b"", b"small")])
    _import(broker, ImportRequest("day1", tmp_path / "s"))
    assert [record.value for record in read_all(client, "big", 0, 0, 2)] == [big, b"small"]


def test_a_topic_that_has_records_is_refused_and_named(broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    day1_log(tmp_path / "s", "twice", 0, [day1_record(0, b"", b"v")])
    _import(broker, ImportRequest("day1", tmp_path / "s"))
    with pytest.raises(ImportFailed, match=r"topic twice exists and has records; .*--map twice=NEW"):
        _import(broker, ImportRequest("day1", tmp_path / "s"))
    assert client.list_offsets({("twice", 0): LATEST}).popitem()[1].offset == 1
    assert list(Path.cwd().iterdir()) == []
    _import(broker, ImportRequest("day1", tmp_path / "s", {"twice": "thrice"}))


def test_names_that_kafka_does_not_allow_need_another(broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    for name in ("ok", "not ok", "__consumer_offsets"):
        day1_log(tmp_path / "s", name, 0, [day1_record(0, b"", name.encode())])
    request = ImportRequest("day1", tmp_path / "s", {"ok": "fine"})
    report = Import(request).dry_run()
    assert [row.topic for row in report.partitions] == ["fine"]
    assert {one.what for one in report.skipped} == {"topic 'not ok'", "topic '__consumer_offsets'"}
    assert "fine" not in client.metadata(None).topics
    _import(broker, ImportRequest("day1", tmp_path / "s", {"ok": "fine", "not ok": "mapped"}))
    assert read_all(client, "mapped", 0, 0, 1)[0].value == b"not ok"


def test_imported_records_do_not_expire_unless_asked_to(broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    from penstock.client.kafka import ConfigKind

    day1_log(tmp_path / "s", "kept", 0, [day1_record(0, b"", b"v")])
    _import(broker, ImportRequest("day1", tmp_path / "s", configs={"segment.ms": "60000"}))
    configs = client.describe_configs(ConfigKind.TOPIC, "kept")
    assert (configs["retention.ms"].value, configs["segment.ms"].value) == ("-1", "60000")


def test_names_that_are_no_text_are_reported_and_can_be_mapped(
    broker: Broker, client: KafkaClient, tmp_path: Path
) -> None:
    """FluxGo takes any bytes for a topic's name."""
    import os

    import msgspec

    from tests.imports.directories import fluxgo_log

    name = os.fsdecode(b"caf\xe9")
    path = fluxgo_log(tmp_path / "s" / f"{name}_0", 0, [b"a", b"b"])
    path.write_bytes(path.read_bytes()[:-1])
    report = Import(ImportRequest("fluxgo", tmp_path / "s")).dry_run()
    assert [one.what for one in report.skipped] == ["topic 'caf\\udce9'"]
    report = _import(broker, ImportRequest("fluxgo", tmp_path / "s", {name: "coffee"}))
    assert msgspec.json.decode(msgspec.json.encode(report.as_dict()))["partitions"][0]["damage_count"] == 1
    assert read_all(client, "coffee", 0, 0, 1)[0].value == b"a"


@pytest.mark.parametrize("wrong", [{"topics": ("order",)}, {"mapping": {"order": "orders"}}])
def test_a_topic_that_is_not_there_is_said(tmp_path: Path, wrong: dict[str, Any]) -> None:
    day1_log(tmp_path / "s", "orders", 0, [day1_record(0, b"", b"v")])
    with pytest.raises(SourceError, match="there is no topic order to import"):
        Import(ImportRequest("day1", tmp_path / "s", **wrong)).dry_run()
