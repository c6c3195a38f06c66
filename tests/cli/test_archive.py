from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from penstock.client.kafka import KafkaClient
from penstock.records.builder import NewRecord, build_batch
from tests.cli.conftest import Run

pytest.importorskip("pyarrow", reason="the spark extra is not installed")

_NUMBERS = itertools.count()
T0_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(settings={"storage.flush": "os"}) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic(address: str) -> str:
    """Ten orders in each of two partitions."""
    name = f"orders-{next(_NUMBERS)}"
    with KafkaClient(address) as client:
        client.create_topic(name, 2)
    write(address, name)
    return name


def write(address: str, topic: str) -> None:
    with KafkaClient(address) as client:
        for partition in range(2):
            records = [NewRecord(T0_MS + at, b"k", b'{"id": %d}' % at, ()) for at in range(10)]
            client.produce({(topic, partition): build_batch(records)})


def test_run_status_compact_expire_and_replay(penstock: Run, address: str, topic: str) -> None:
    local = ("--engine", "local", "-b", address)
    made = penstock("archive", "run", topic, "--to", "table", "--values", "json", *local, "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["rows"] == 20
    assert "archived 20 records to 2 files" in made.err
    write(address, topic)
    behind = penstock("archive", "status", "table", "-b", address, "--json")
    assert json.loads(behind.out)["lag"] == 20
    assert json.loads(behind.out)["columns"] == {"id": "long"}
    assert penstock("archive", "run", topic, "--to", "table", *local).code == 0
    again = penstock("archive", "run", topic, "--to", "table", *local)
    assert "nothing to archive" in again.err
    shown = penstock("archive", "status", "table", "-b", address)
    assert "parquet, 4 files, 40 rows" in shown.text
    assert "lag 0" in shown.text
    merged = penstock("archive", "compact", "table", "--engine", "local")
    assert "merged 4 files into 2, 40 rows" in merged.err
    replayed = penstock("archive", "replay", "table", "--to", f"{topic}-again", "--until", "5", "-b", address)
    assert "replayed 10 records" in replayed.err, replayed.err
    dropped = penstock("archive", "expire", "table", "--older-than", "30d", "--json")
    assert json.loads(dropped.out)["rows"] == 40
    offline = penstock("archive", "status", "table", "--offline", "--json")
    assert (json.loads(offline.out)["rows"], json.loads(offline.out)["lag"]) == (0, None)


def test_a_second_archiver_is_refused_while_the_first_runs_and_sigterm_ends_it(
    penstock: Run, address: str, topic: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    arguments = ["archive", "run", topic, "--to", path, "--engine", "local", "-b", address]
    first = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments, "--continuous", "--interval", "1s"],
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert first.stderr is not None
    try:
        assert b"archived 20 records" in first.stderr.readline()
        second = penstock(*arguments)
        assert second.code == 1
        assert f"is in use by archive run {topic} (process {first.pid}" in second.err
        assert second.err.count("\n") == 1
        write(address, topic)
        deadline = time.monotonic() + 30
        while json.loads(penstock("archive", "status", path, "-b", address, "--json").out)["lag"]:
            assert time.monotonic() < deadline
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        first.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["status", "nowhere", "--offline"], "is not an archive: create one with `penstock archive run"),
        (["run", "no such", "--to", "t"], "topic"),
        (
            ["run", "t", "--to", "t", "--interval", "soon"],
            "--interval soon: expected a duration such as 30s, 15m, 12h or 7d",
        ),
        (["expire", "t", "--older-than", "x"], "--older-than x"),
        (["replay", "t", "--to", "x", "--from", "end"], "--from end: expected an offset"),
        (["run", "t", "--to", "t", "-b", "127.0.0.1:1", "--engine", "local"], "no broker at 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_one_line(penstock: Run, arguments: list[str], told: str) -> None:
    ended = penstock("archive", *arguments)
    assert ended.code in (1, 2)
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--type", "a=long"], "--type and --schema require --values"),
        (["--values", "json", "--type", "a=number"], "--type a=number: 'number' is not one of long, double"),
        (["--values", "json", "--schema", "1=x.avsc"], "--schema 1=x.avsc: No such file"),
        (["--values", "avro"], "--values avro requires --schema"),
        (["--kafka", "security.protocol=NONE"], "security.protocol"),
        (["--kafka", "nonsense"], "--kafka nonsense: expected KEY=VALUE"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    penstock: Run, address: str, topic: str, options: list[str], told: str
) -> None:
    ended = penstock("archive", "run", topic, "--to", "t", "--engine", "local", "-b", address, *options)
    assert ended.code in (1, 2)
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_a_table_is_of_one_topic_and_one_format(penstock: Run, address: str, topic: str) -> None:
    local = ("--engine", "local", "-b", address)
    assert penstock("archive", "run", topic, "--to", "table", *local).code == 0
    other = penstock("archive", "run", "another", "--to", "table", *local)
    assert f"is the archive of topic {topic}, not of another" in other.err
    format_ = penstock("archive", "run", topic, "--to", "table", "--format", "delta", *local)
    assert "was created with --format parquet, which cannot change" in format_.err
    unknown = penstock("archive", "run", "no-such-topic", "--to", "new", *local)
    assert "the broker has no such topic" in unknown.err
