from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.imports.source import FINDINGS_KEPT, SKIPS_KEPT
from penstock.records.builder import NewRecord, build_batch
from tests.cli.conftest import Run
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record, flip, fluxgo_commit, fluxgo_log, tear
from tests.imports.fixtures import COUNT, FIXTURES, Fixture
from tests.imports.races import day1_race


def _torn(root: Path, topic: str) -> Path:
    path = day1_log(root, topic, 0, [day1_record(n, b"k", b"v%d" % n) for n in range(3)])
    tear(path, 1)
    return root


def test_a_dry_run_tells_what_would_come_and_needs_no_broker(penstock: Run, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "dry")
    ended = penstock("import", "--from", "day1", str(root), "--dry-run", "--bootstrap", "127.0.0.1:1", "--accept-loss")
    assert ended.code == 0
    head, row, damage = ended.text.splitlines()
    assert head.split() == ["topic", "partition", "records", "bytes", "first", "offset", "end", "offset", "remarks"]
    assert row.split()[:3] == ["dry", "0", "2"]
    assert damage.startswith("damaged: ")
    assert str(root / "dry-0.log") in damage
    assert "2 records and 0 committed offsets would be imported" in ended.err
    assert not list(tmp_path.glob("penstock-import*"))


def test_an_import_prints_its_table_and_its_json(penstock: Run, broker: Broker, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "cmd")
    address = ("--bootstrap", broker.bootstrap, "--accept-loss")
    ended = penstock("import", "--from", "day1", str(root), *address, "--map", "cmd=cmd-one")
    assert (ended.code, ended.text.splitlines()[1].split()[:3]) == (0, ["cmd-one", "0", "2"])
    assert "imported and verified" in ended.err
    ended = penstock("import", "--from", "day1", str(root), *address, "--map", "cmd=cmd-two", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"], found["verified"], found["complete"]) == (0, 2, True, False)
    assert found["partitions"][0]["damage"][0]["file"] == str(root / "cmd-0.log")


@pytest.mark.parametrize(
    ("fixture", "target"),
    [*[(fixture, target) for fixture in FIXTURES for target in ("dry run", "broker")], (FIXTURES[0], "directory")],
    ids=lambda one: one.name if isinstance(one, Fixture) else one,
)
def test_any_damage_is_exit_code_1_unless_it_is_accepted(
    penstock: Run, broker: Broker, tmp_path: Path, fixture: Fixture, target: str
) -> None:
    root = tmp_path / "s"
    fixture.make(root)
    for number, (damaged, accepted, code) in enumerate([(False, False, 0), (True, False, 1), (True, True, 0)]):
        if damaged and not accepted:
            fixture.damage(root)
        where: tuple[str, ...] = ("--dry-run",)
        if target == "broker":
            where = ("--to", broker.bootstrap, "--map", f"orders=exit-{fixture.name}-{number}")
        elif target == "directory":
            where = ("--data-dir", str(tmp_path / f"data-{number}"))
        options = [*where, "--json", *["--accept-loss"][:accepted]]
        ended = penstock("import", "--from", fixture.name, str(root), *options)
        assert ended.code == code, ended.err
        found = json.loads(ended.out)
        assert (found["complete"], found["damage_count"]) == (not damaged, 2 if damaged else 0)
        assert found["records"] == COUNT + 1 - (len(fixture.lost) if damaged else 0), "what is readable comes over"
        assert ("2 damaged places" in ended.err) == (code == 1)


def test_renumbered_records_are_no_loss(penstock: Run, broker: Broker, client: KafkaClient, tmp_path: Path) -> None:
    data, written = day1_race(5, 16, 100)
    day1_log(tmp_path / "s", "raced", 0, [data])
    ended = penstock("import", "--from", "day1", str(tmp_path / "s"), "--to", broker.bootstrap, "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"], found["complete"]) == (0, len(written), True)
    assert found["partitions"][0]["renumbered"] > 0
    records = read_all(client, "raced", 0, 0, len(written))
    assert [(record.key, record.value) for record in records] == written


@pytest.mark.parametrize(
    ("damage", "target"),
    [
        ("none", "broker"),
        ("flipped in the middle", "broker"),
        ("overwritten in the middle", "broker"),
        ("overwritten in the middle", "directory"),
        ("torn at the end", "dry run"),
        ("torn at the end", "directory"),
    ],
)
def test_damage_of_a_kafka_directory_is_exit_code_1_and_loses_one_batch(
    penstock: Run, broker: Broker, tmp_path: Path, damage: str, target: str
) -> None:
    folder = tmp_path / "s" / "t-0"
    folder.mkdir(parents=True)
    path = folder / f"{0:020d}.log"
    batches = [
        build_batch([NewRecord(1, b"k", b"%d" % n) for n in range(base, base + 10)], base_offset=base, leader_epoch=0)
        for base in range(0, 50, 10)
    ]
    path.write_bytes(b"".join(batches))
    start = len(batches[0]) + len(batches[1])
    if damage == "flipped in the middle":
        flip(path, start + 80)
    elif damage == "overwritten in the middle":
        data = bytearray(path.read_bytes())
        data[start : start + 70] = b"x" * 70
        path.write_bytes(data)
    elif damage == "torn at the end":
        tear(path, 3)
    where: tuple[str, ...] = ("--dry-run",)
    if target == "broker":
        where = ("--to", broker.bootstrap, "--map", f"t=kafka-{damage.replace(' ', '-')}")
    elif target == "directory":
        where = ("--data-dir", str(tmp_path / "data"))
    ended = penstock("import", "--from", "kafka", str(tmp_path / "s"), *where, "--json")
    found = json.loads(ended.out)
    assert ended.code == (0 if damage == "none" else 1)
    assert (found["records"], found["damage_count"]) == ((50, 0) if damage == "none" else (40, 1))


def test_every_loss_of_records_files_or_commits_is_exit_code_1(penstock: Run, tmp_path: Path) -> None:
    def whole(name: str) -> Path:
        day1_log(tmp_path / name, "t", 0, [day1_record(0, b"", b"v")])
        return tmp_path / name

    foreign, name, empty = whole("foreign"), whole("name"), whole("empty")
    (foreign / "orders-0.bak").write_bytes(b"what is this")
    day1_log(name, "not a topic", 0, [day1_record(0, b"", b"v")])
    (empty / "nothing.txt").touch()
    fluxgo_log(tmp_path / "commit" / "t_0", 0, [b"v"])
    fluxgo_commit(tmp_path / "commit", "g", "t", 0, 1)
    tear(tmp_path / "commit" / "__consumer_offsets" / "g" / "t_0.offset", 1)
    for origin, folder, code, text in (
        ("day1", "foreign", 1, "skipped: orders-0.bak"),
        ("day1", "name", 1, "skipped: topic 'not a topic'"),
        ("day1", "empty", 0, "skipped: nothing.txt"),
        ("fluxgo", "commit", 1, "damaged: "),
    ):
        ended = penstock("import", "--from", origin, str(tmp_path / folder), "--dry-run")
        assert (ended.code, text in ended.text) == (code, True), (folder, ended.text, ended.err)
        assert ("--accept-loss" in ended.err) == (code == 1)
        ended = penstock("import", "--from", origin, str(tmp_path / folder), "--dry-run", "--accept-loss")
        assert ended.code == 0


def test_a_directory_in_which_nothing_is_recognised_is_never_a_success(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(1000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more.bin").write_bytes(bytes(1000))
    for origin in ("fluxgo", "minikafka", "rustlog", "flymq", "day1", "kafka"):
        ended = penstock("import", "--from", origin, str(tmp_path), "--dry-run", "--accept-loss")
        assert (ended.code, f"holds no data of {origin}" in ended.err) == (1, True), ended.err


def test_list_of_losses_is_bounded_and_gives_their_number(penstock: Run, tmp_path: Path) -> None:
    records = [day1_record(n, b"", b"value %d" % n) for n in range(2_000)]
    for number in range(5, 2_000, 20):
        records[number] = b"x" * len(records[number])
    day1_log(tmp_path, "t", 0, records)
    for number in range(SKIPS_KEPT + 30):
        (tmp_path / f"file-{number}").write_bytes(b"x")
    ended = penstock("import", "--from", "day1", str(tmp_path), "--dry-run")
    lines = ended.text.splitlines()
    assert ended.code == 1
    assert sum(line.startswith("damaged: ") for line in lines) == FINDINGS_KEPT + 1
    assert "damaged: 50 more places in t-0" in lines
    assert sum(line.startswith("skipped: ") for line in lines) == SKIPS_KEPT + 1
    assert "skipped: 30 more" in lines
    assert "100 damaged places" in ended.err
    assert "230 skipped" in ended.err


def test_what_cannot_work_is_one_line(penstock: Run, broker: Broker, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "lines")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, code, text in (
        (("--from", "kafka", str(empty), "--dry-run"), 1, "holds no data of kafka"),
        (("--from", "day1", str(root), "--bootstrap", "127.0.0.1:1"), 1, "no broker at 127.0.0.1:1"),
        (("--from", "day1", str(root), "-b", "a:1", "--data-dir", "x"), 2, "cannot be combined with --data-dir"),
        (("--from", "day1", str(root), "--map", "lines"), 2, "expected OLD=NEW"),
        (("--from", "day1", str(root), "--map", "lines=no good"), 2, "topic name 'no good'"),
        (("--from", "day1", str(root), "--config", "retention.ms=soon", "-b", broker.bootstrap), 1, "retention.ms"),
    ):
        ended = penstock("import", *arguments)
        assert (ended.code, text in ended.err, ended.err.count("\n")) == (code, True, 1), ended.err


def test_a_running_brokers_directory_is_refused(penstock: Run, broker: Broker, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "busy")
    ended = penstock("import", "--from", "day1", str(root), "--data-dir", str(broker.data_dir))
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "is in use by another broker" in ended.err


def test_the_page_about_import_names_options_that_exist(penstock: Run) -> None:
    import re

    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    offered = penstock("import", "--help").text
    for option in set(re.findall(r"`(--[a-z-]+)", page)):
        assert option in offered, option


def test_an_import_into_a_directory_from_the_command_line(penstock: Run, tmp_path: Path) -> None:
    FIXTURES[0].make(tmp_path / "s")
    ended = penstock("import", "--from", "fluxgo", str(tmp_path / "s"), "--data-dir", str(tmp_path / "data"), "--json")
    assert ended.code == 0, ended.err
    with Broker(tmp_path / "data") as own, KafkaClient(own.bootstrap) as client:
        assert len(read_all(client, "orders", 0, 0, COUNT)) == COUNT
