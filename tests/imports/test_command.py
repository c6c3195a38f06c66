from __future__ import annotations

import json
from pathlib import Path

from penstock import Broker
from penstock.client.kafka import KafkaClient
from tests.cli.conftest import Run
from tests.imports.conftest import read_all
from tests.imports.directories import day1_log, day1_record, tear
from tests.imports.fixtures import COUNT, FIXTURES


def _torn(root: Path, topic: str) -> Path:
    path = day1_log(root, topic, 0, [day1_record(n, b"k", b"v%d" % n) for n in range(3)])
    tear(path, 1)
    return root


def test_a_dry_run_tells_what_would_come_and_needs_no_broker(penstock: Run, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "dry")
    ended = penstock("import", "--from", "day1", str(root), "--dry-run", "--bootstrap", "127.0.0.1:1")
    assert ended.code == 0
    head, row, damage = ended.text.splitlines()
    assert head.split() == ["topic", "partition", "records", "bytes", "first", "offset", "end", "offset", "remarks"]
    assert row.split()[:3] == ["dry", "0", "2"]
    assert damage.startswith("damaged: ")
    assert str(root / "dry-0.log") in damage
    assert "2 records and 0 committed offsets would come over" in ended.err
    assert not list(tmp_path.glob("penstock-import*"))


def test_an_import_prints_its_table_and_its_json(penstock: Run, broker: Broker, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "cmd")
    address = ("--bootstrap", broker.bootstrap)
    ended = penstock("import", "--from", "day1", str(root), *address, "--map", "cmd=cmd-one")
    assert (ended.code, ended.text.splitlines()[1].split()[:3]) == (0, ["cmd-one", "0", "2"])
    assert "came over and were read back" in ended.err
    ended = penstock("import", "--from", "day1", str(root), *address, "--map", "cmd=cmd-two", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["records"], found["verified"], found["complete"]) == (0, 2, True, False)
    assert found["partitions"][0]["damage"][0]["file"] == str(root / "cmd-0.log")


def test_what_cannot_work_is_one_line(penstock: Run, broker: Broker, tmp_path: Path) -> None:
    root = _torn(tmp_path / "s", "lines")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, code, text in (
        (("--from", "kafka", str(empty), "--dry-run"), 1, "holds no data of kafka"),
        (("--from", "day1", str(root), "--bootstrap", "127.0.0.1:1"), 1, "no broker at 127.0.0.1:1"),
        (("--from", "day1", str(root), "-b", "a:1", "--data-dir", "x"), 2, "give one of them"),
        (("--from", "day1", str(root), "--map", "lines"), 2, "write it as OLD=NEW"),
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
