from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock import Broker
from tests.cli.conftest import Ended, Run, environment

TOO_LARGE = "record exceeds the topic's max.message.bytes"


@pytest.fixture
def cli(penstock: Run, broker_address: str) -> Run:
    """A command that talks to the broker of these tests."""

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        return penstock(*arguments, stdin=stdin, env={"PENSTOCK_BOOTSTRAP": broker_address})

    return run


@pytest.fixture
def topic(cli: Run) -> str:
    """A topic of its own with one partition."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    assert cli("topics", "create", name).code == 0
    return name


def one_line(ended: Ended) -> str:
    """The only line of a command that failed."""
    assert ended.code == 1
    assert ended.out == b""
    (line,) = ended.err.splitlines()
    return line


FITS_NO_REQUEST = "record exceeds the broker's socket.request.max.bytes (200000)"


def test_record_larger_than_a_request_fails_at_once_with_the_limit(penstock: Run) -> None:
    with Broker(settings={"net.frame_bytes_max": 200_000}) as broker:
        lines = b"x" * 300_000 + b"\nsmall\n"
        env = {"PENSTOCK_BOOTSTRAP": broker.bootstrap}
        ended = penstock("produce", "t", "--timeout", "600", stdin=lines, env=env)
        assert ended.code == 1
        assert ended.err.startswith("1 record delivered to t")
        assert ended.err.splitlines()[1:] == [f"1 record failed: {FITS_NO_REQUEST}"]
        packed = penstock("produce", "t", "--compression", "gzip", stdin=lines, env=env)
        assert (packed.code, packed.err[:22]) == (0, "2 records delivered to")


def test_record_that_fits_no_request_compressed_fails_with_the_limit(penstock: Run) -> None:
    """Only the broker can tell, and closes the connection."""
    with Broker(settings={"net.frame_bytes_max": 200_000}) as broker:
        large = os.urandom(300_000).replace(b"\n", b" ")
        options = ("--compression", "gzip", "--timeout", "1")
        ended = penstock("produce", "t", *options, stdin=large, env={"PENSTOCK_BOOTSTRAP": broker.bootstrap})
        assert ended.code == 1
        assert ended.err.splitlines() == ["0 records delivered to t", f"1 record failed: {FITS_NO_REQUEST}"]


def test_a_topic_is_created_listed_described_altered_and_deleted(cli: Run) -> None:
    name = f"life-{uuid.uuid4().hex[:12]}"
    created = cli("topics", "create", name, "--partitions", "3", "--config", "retention.ms=5000", "--json")
    assert json.loads(created.out) == {"name": name, "created": True, "partitions": 3}
    assert {"name": name, "partitions": 3} in json.loads(cli("topics", "list", "--json").out)
    assert [name, "3"] in [line.split() for line in cli("topics", "list").text.splitlines()]

    assert one_line(cli("topics", "create", name)).startswith(f"penstock: cannot create topic {name}: ")
    again = cli("topics", "create", name, "--if-not-exists", "--json")
    assert (again.code, json.loads(again.out)["created"]) == (0, False)

    altered = cli("topics", "alter", name, "--partitions", "4", "--config", "segment.bytes=2000000", "--json")
    assert json.loads(altered.out) == {
        "name": name,
        "partitions": 4,
        "configs": {"retention.ms": "5000", "segment.bytes": "2000000"},
    }
    assert cli("topics", "alter", name, "--unset", "retention.ms").code == 0
    described = json.loads(cli("topics", "describe", name, "--json").out)
    assert described["configs"]["retention.ms"] == {"value": "604800000", "default": True}
    assert described["configs"]["segment.bytes"] == {"value": "2000000", "default": False}
    assert described["partitions"] == [
        {"partition": partition, "leader": 0, "start_offset": 0, "end_offset": 0} for partition in range(4)
    ]
    assert "segment.bytes" in (shown := cli("topics", "describe", name).text)
    assert "retention.ms" not in shown
    assert "retention.ms" in cli("topics", "describe", name, "--all-configs").text

    assert cli("topics", "delete", name).code == 0
    assert name not in cli("topics", "list").text


def test_a_topic_that_is_not_there_is_one_clear_line_and_is_not_made_by_asking(cli: Run) -> None:
    name = f"none-{uuid.uuid4().hex[:12]}"
    for command in (
        ["topics", "describe", name],
        ["topics", "alter", name, "--partitions", "2"],
        ["topics", "delete", name],
        ["consume", name],
    ):
        assert one_line(cli(*command)).endswith(f"topic {name}: the broker has no such topic")
    assert name not in cli("topics", "list").text


def test_what_the_broker_refuses_is_told_in_its_words(cli: Run, topic: str) -> None:
    assert "retention.ms = 'soon' is not an integer" in one_line(
        cli("topics", "alter", topic, "--config", "retention.ms=soon")
    )
    assert "cannot add partitions" in one_line(cli("topics", "alter", topic, "--partitions", "1"))
    assert one_line(cli("consume", topic, "--partition", "7")).endswith("has no partition 7 (partitions: 1)")
    assert one_line(cli("produce", topic, "--partition", "7")).endswith("has no partition 7 (partitions: 1)")
    assert one_line(cli("consume", topic, "--from", "5")).endswith("has offsets 0 to 0")


def test_lines_come_back_as_they_went_in(cli: Run, topic: str) -> None:
    lines = b"".join(b"line %d \xff\n" % n for n in range(5_000))
    produced = cli("produce", topic, stdin=lines)
    assert produced.code == 0
    assert produced.err.startswith(f"5,000 records delivered to {topic}")
    assert cli("consume", topic).out == lines


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_acks_and_compression_delivers(cli: Run, topic: str, acks: str, compression: str) -> None:
    sent = b"x" * 500 + b"\n"
    assert cli("produce", topic, "--acks", acks, "--compression", compression, stdin=sent * 20).code == 0
    if acks != "0":
        assert cli("consume", topic).out == sent * 20


def test_a_file_is_produced_without_its_line_ends(cli: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(b"unix\ndos\r\n\nno end")
    assert cli("produce", topic, "--file", "lines.txt").code == 0
    assert cli("consume", topic).out == b"unix\ndos\n\nno end\n"


def test_keys_headers_and_json_survive_the_way_to_another_topic(cli: Run, topic: str) -> None:
    assert cli("produce", topic, "-K", "=>", "-H", "a=1", "-H", "a=2", stdin=b"k=>v\nx=>y=>z\n").code == 0
    first = cli("consume", topic, "--format", "json").out
    records = [json.loads(line) for line in first.splitlines()]
    assert [(record["key"], record["value"], record["offset"]) for record in records] == [
        ("k", "v", 0),
        ("x", "y=>z", 1),
    ]
    assert records[0]["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    other = f"{topic}-copy"
    assert cli("produce", other, "--format", "json", stdin=first).code == 0
    second = cli("consume", other, "--format", "json").out
    assert second == first.replace(topic.encode(), other.encode())
    assert cli("consume", topic, "--format", "keyvalue", "-K", "|").out == b"k|v\nx|y=>z\n"
    assert cli("consume", topic, "--format", "hex", "-n", "1").out == b"0\t0\t6b\t76\n"


def test_a_null_value_is_kept_in_json(cli: Run, topic: str) -> None:
    assert cli("produce", topic, "--format", "json", stdin=b'{"key": "k", "value": null}\n\n{"value": "v"}\n').code == 0
    records = [json.loads(line) for line in cli("consume", topic, "--format", "json").out.splitlines()]
    assert [(record["key"], record["value"]) for record in records] == [("k", None), (None, "v")]


def test_lines_that_are_no_records_are_counted_and_fail_the_command(cli: Run, topic: str) -> None:
    ended = cli("produce", topic, "--format", "keyvalue", stdin=b"a:1\nbad\nb:2\n" + b"worse\n" * 20)
    assert ended.code == 1
    said = ended.err.splitlines()
    assert said[0] == "line 2: no ':' between key and value"
    assert len(said) == 7
    assert said[-2].startswith(f"2 records delivered to {topic}")
    assert said[-1] == "21 invalid lines not sent"
    assert cli("consume", topic).out == b"1\n2\n"


def test_records_that_the_broker_refuses_are_counted_and_fail_the_command(cli: Run, topic: str) -> None:
    assert cli("topics", "alter", topic, "--config", "max.message.bytes=1000").code == 0
    ended = cli("produce", topic, stdin=b"x" * 5_000 + b"\n")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        f"0 records delivered to {topic}",
        "1 record failed: record exceeds the topic's max.message.bytes",
    ]


def test_reading_begins_where_it_is_told(cli: Run, topic: str) -> None:
    for start in (1_000, 2_000, 3_000):
        lines = b"".join(
            b'{"value": "%d", "timestamp": %d}\n' % (start + n, 1_700_000_000_000 + start + n) for n in range(3)
        )
        assert cli("produce", topic, "--format", "json", stdin=lines).code == 0

    def read(*arguments: str) -> list[int]:
        ended = cli("consume", topic, *arguments)
        assert ended.code == 0
        return [int(line) for line in ended.out.split()]

    everything = [1_000, 1_001, 1_002, 2_000, 2_001, 2_002, 3_000, 3_001, 3_002]
    assert read() == read("--from", "beginning") == everything
    assert read("--from", "end") == []
    assert read("--from", "4") == everything[4:]
    assert read("--from", "9") == []
    assert read("--from", "-2") == everything[-2:]
    assert read("--from", "-100") == everything
    assert read("--from", "@1700000002001") == everything[4:]
    assert read("--from", "2023-11-14T22:13:22.500Z") == everything[6:]
    assert read("--from", "2026-01-01T00:00Z") == []
    assert read("--from", "1", "--count", "2") == everything[1:3]
    assert read("--count", "0") == []


def test_partitions_are_read_together_or_one_by_one(cli: Run) -> None:
    name = f"many-{uuid.uuid4().hex[:12]}"
    cli("topics", "create", name, "--partitions", "3")
    for partition in range(3):
        assert cli("produce", name, "--partition", str(partition), stdin=b"%d\n" % partition * 100).code == 0
    assert sorted(cli("consume", name).out.split()) == sorted([b"0", b"1", b"2"] * 100)
    assert cli("consume", name, "--partition", "1").out == b"1\n" * 100
    assert sorted(set(cli("consume", name, "--partition", "2", "--partition", "0").out.split())) == [b"0", b"2"]


def test_follow_prints_what_comes_later_until_ctrl_c(cli: Run, topic: str, broker_address: str) -> None:
    cli("produce", topic, stdin=b"before\n")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "consume", topic, "--follow"],
        env=environment(PENSTOCK_BOOTSTRAP=broker_address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        cli("produce", topic, stdin=b"after\n")
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(cli: Run, topic: str, broker_address: str) -> None:
    cli("produce", topic, stdin=b"x" * 999 + b"\n" + b"y\n" * 200_000)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "consume", topic],
        env=environment(PENSTOCK_BOOTSTRAP=broker_address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1_000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("how", ["full", "closed"])
@pytest.mark.parametrize(
    "command", ["topics list", "topics list --json", "consume {}", "consume {} --group {}", "--help"]
)
def test_output_that_has_no_room_is_one_line_and_no_output_is_none(
    cli: Run, topic: str, broker_address: str, command: str, how: str
) -> None:
    cli("produce", topic, stdin=b"x\n" * 1_000)
    words = " ".join(command.replace("{}", topic).split())
    target = "/dev/full" if how == "full" else "&-"
    ended = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m penstock.cli.main {words} >{target}"],
        env=environment(PENSTOCK_BOOTSTRAP=broker_address),
        stderr=subprocess.PIPE,
        timeout=60,
    )
    if how == "closed":
        assert (ended.returncode, ended.stderr) == (0, b"")
        return
    assert (ended.returncode, ended.stderr) == (1, b"penstock: cannot write output: No space left on device\n")
    if "--group" in command:
        # what nobody got was not committed
        assert cli("consume", topic, "--group", topic).text == "x\n" * 1_000


def test_bench_prints_rates_and_leaves_nothing_behind(cli: Run) -> None:
    ended = cli("bench", "-n", "2000", "--partitions", "2", "--json")
    assert ended.code == 0
    assert [(row["what"], row["records"]) for row in json.loads(ended.out)] == [("produce", 2_000), ("consume", 2_000)]
    assert "penstock-bench" not in cli("topics", "list").text


def test_bench_with_records_that_the_broker_refuses_is_one_line_and_leaves_nothing_behind(cli: Run) -> None:
    ended = cli("bench", "-n", "3", "--size", "2000000")
    assert ended.code == 1
    assert ended.err == f"penstock: 3 of 3 records were not delivered: {TOO_LARGE}\n"
    assert "penstock-bench" not in cli("topics", "list").text
    assert cli("produce", "any", "--timeout", "1e30").code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_where_it_listens_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "serve", "--data-dir", "d", "--listen", "kafka=127.0.0.1:0"],
        cwd=tmp_path,
        env=environment(PENSTOCK_LOG__LEVEL="warning"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")
    word, dialect, address = line.split()
    assert (word, dialect, address.rpartition(":")[0]) == ("listening", "kafka", "127.0.0.1")
    assert (tmp_path / "d").is_dir()


@pytest.mark.parametrize("what", ["port", "directory", "file"])
def test_serve_on_something_in_use_is_one_clear_line_and_exit_code_2(
    broker_address: str, broker_directory: Path, tmp_path: Path, what: str
) -> None:
    (tmp_path / "file").touch()
    flags, named = {
        "port": (["--listen", f"kafka={broker_address}"], broker_address),
        "directory": (["--listen", "kafka=127.0.0.1:0", "--data-dir", str(broker_directory)], str(broker_directory)),
        "file": (["--listen", "kafka=127.0.0.1:0", "--data-dir", "file"], "file"),
    }[what]
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "serve", *flags],
        cwd=tmp_path,
        env=environment(PENSTOCK_LOG__LEVEL="warning"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("penstock: ")
    assert named in line


@pytest.mark.timeout(60)
def test_a_reader_behind_an_open_transaction_ends(cli: Run, topic: str, broker_address: str) -> None:
    open_one = Producer({"bootstrap.servers": broker_address, "transactional.id": topic})
    open_one.init_transactions()
    plain = Producer({"bootstrap.servers": broker_address})
    plain.produce(topic, b"before")
    assert plain.flush(10) == 0
    open_one.begin_transaction()
    open_one.produce(topic, b"undecided")
    assert open_one.flush(10) == 0
    plain.produce(topic, b"behind")
    assert plain.flush(10) == 0
    assert cli("consume", topic).out == b"before\n"
    assert cli("consume", topic, "--from", "-1").out == b"before\n"
    assert cli("consume", topic, "--from", "2").out == b""
    assert cli("groups", "reset", f"g-{topic}", "--to", "2", "--topic", topic).code == 0
    assert cli("consume", topic, "--group", f"g-{topic}").out == b""
    open_one.commit_transaction()
    assert cli("consume", topic, "--group", f"g-{topic}").out == b"behind\n"


def test_a_topic_id_is_written_as_kafka_writes_it(cli: Run, broker_directory: Path) -> None:
    for _ in range(20):  # about half of them have neither of the two characters
        name = f"id-{uuid.uuid4().hex[:12]}"
        assert cli("topics", "create", name).code == 0
        stored = (broker_directory / f"{name}-0" / "partition.metadata").read_text().rpartition(" ")[2].strip()
        assert json.loads(cli("topics", "describe", name, "--json").out)["id"] == stored
        assert f"id {stored}\n" in cli("topics", "describe", name).text
        if "-" in stored or "_" in stored:
            return
    raise AssertionError("no id had a character that tells the forms apart")


def test_a_number_that_no_client_takes_is_said(cli: Run) -> None:
    ended = cli("topics", "create", "many", "--partitions", "3000000000")
    assert ended.code == 2
    assert ended.err.startswith("penstock: number out of range: ")
