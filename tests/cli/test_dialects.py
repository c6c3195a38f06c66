from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

import penstock as product
from penstock.cli.dialect_clients import CLIENTS
from penstock.cli.dialects import DialectName
from penstock.model.listeners import PORTS
from tests.cli.conftest import Ended, Run, environment

DIALECTS = sorted(CLIENTS)
KEYED = ("day1", "flymq", "minikafka")
ONLY_IN_GROUPS = ("minikafka",)
NEVER_IN_GROUPS = ("day1",)

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@pytest.fixture(scope="module")
def broker() -> Iterator[product.Broker]:
    listen = ("kafka=127.0.0.1:0", *(f"{dialect}=127.0.0.1:0" for dialect in DIALECTS))
    with product.Broker(listen=listen, settings={"storage.flush": "os"}) as running:
        yield running


@pytest.fixture
def cli(penstock: Run, broker: product.Broker) -> Run:
    """A command; with `--dialect` it is told where that listener is."""

    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        more: list[str] = []
        if "--dialect" in arguments:
            more = ["--bootstrap", broker.addresses[arguments[arguments.index("--dialect") + 1]]]
        return penstock(*arguments, *more, stdin=stdin, env={"PENSTOCK_BOOTSTRAP": broker.bootstrap})

    return run


@pytest.fixture
def topic(cli: Run) -> str:
    """A topic of its own with two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    assert cli("topics", "create", name, "--partitions", "2").code == 0
    return name


def reader(dialect: str, topic: str, *more: str) -> list[str]:
    """`consume` in that dialect, in a group of its own where there must be one."""
    group = ["--group", f"g-{uuid.uuid4().hex[:8]}"] if dialect in ONLY_IN_GROUPS else []
    return ["consume", topic, "--dialect", dialect, *group, *more]


def one_line(ended: Ended, code: int = 1) -> str:
    assert (ended.code, ended.out) == (code, b"")
    (line,) = ended.err.splitlines()
    return line


def test_every_dialect_but_kafka_can_be_spoken() -> None:
    assert {*DialectName} == {*CLIENTS} == PORTS.keys() - {"kafka"}


@each_dialect
def test_what_one_dialect_writes_it_reads_and_kafka_reads(cli: Run, topic: str, dialect: str) -> None:
    lines = b"".join(b"line %d \xff\n" % n for n in range(3_000))
    produced = cli("produce", topic, "--dialect", dialect, stdin=lines)
    assert (produced.code, produced.out) == (0, b"")
    assert produced.err.startswith(f"3,000 records delivered to {topic} (")
    assert sorted(cli("consume", topic).out.splitlines()) == sorted(lines.splitlines())
    read = cli(*reader(dialect, topic, "-n", "200"))
    assert (read.code, read.err) == (0, "")
    assert read.out == cli("consume", topic, "--partition", "0", "-n", "200").out
    assert len(read.out.splitlines()) == 200


@each_dialect
def test_what_kafka_writes_every_dialect_reads(cli: Run, topic: str, dialect: str) -> None:
    assert cli("produce", topic, "--partition", "0", "-K", "=", stdin=b"k=a\nk=b\n=c\n").code == 0
    assert cli(*reader(dialect, topic)).out == b"a\nb\nc\n"
    key, empty = ("k", "") if dialect in KEYED else (None, None)
    records = [json.loads(line) for line in cli(*reader(dialect, topic, "--format", "json")).out.splitlines()]
    assert [(r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in records] == [
        (topic, 0, 0, key, "a"),
        (topic, 0, 1, key, "b"),
        (topic, 0, 2, empty, "c"),
    ]
    assert cli(*reader(dialect, topic, "--format", "keyvalue", "-n", "1")).out == f"{key or ''}:a\n".encode()


@each_dialect
def test_keys_are_carried_or_refused(cli: Run, topic: str, dialect: str) -> None:
    ended = cli("produce", topic, "--dialect", dialect, "-K", ":", stdin=b"k:v\n:w\n")
    if dialect in KEYED:
        assert ended.code == 0
        assert sorted(cli("consume", topic, "--format", "keyvalue").out.splitlines()) == [b":w", b"k:v"]
        return
    assert ended.code == 1
    assert ended.err.splitlines()[0] == f"line 1: {dialect} does not support keys"
    assert ended.err.splitlines()[-1] == "1 invalid line not sent"
    assert cli("consume", topic).out == b"w\n"


@each_dialect
def test_headers_nulls_and_options_that_a_dialect_has_no_word_for_are_refused(
    cli: Run, topic: str, dialect: str
) -> None:
    lines = b'{"value": null}\n{"value": "v", "headers": [{"name": "a", "value": "b"}]}\n'
    ended = cli("produce", topic, "--dialect", dialect, "--format", "json", stdin=lines)
    assert ended.code == 1
    assert ended.err.splitlines()[:2] == [
        f"line 1: {dialect} does not support null values",
        f"line 2: {dialect} does not support headers",
    ]
    for option, value in (("--acks", "1"), ("--compression", "gzip"), ("--header", "a=b")):
        line = one_line(cli("produce", topic, "--dialect", dialect, option, value, stdin=b"x\n"), 2)
        assert line == f"penstock: {option} cannot be combined with --dialect: {dialect} does not support it"
    assert cli("consume", topic).out == b""


@each_dialect
def test_partitions_are_chosen_where_the_dialect_lets_one(cli: Run, topic: str, dialect: str) -> None:
    ended = cli("produce", topic, "--dialect", dialect, "--partition", "1", stdin=b"x\n")
    if dialect == "minikafka":
        assert "--partition cannot be combined with --dialect minikafka" in one_line(ended, 2)
        assert cli("produce", topic, "--partition", "1", stdin=b"x\n").code == 0
    else:
        assert ended.code == 0
    assert cli("consume", topic, "--partition", "1").out == b"x\n"
    assert cli(*reader(dialect, topic, "--partition", "1")).out == b"x\n"
    assert cli(*reader(dialect, topic, "--partition", "0")).out == b""
    if dialect != "day1":  # it has no word for how many there are
        assert cli(*reader(dialect, topic)).out == b"x\n"


@each_dialect
def test_a_place_to_begin_is_an_offset_or_the_beginning(cli: Run, topic: str, dialect: str) -> None:
    assert cli("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n").code == 0
    if dialect in ONLY_IN_GROUPS:
        assert "--from cannot be combined with" in one_line(cli(*reader(dialect, topic, "--from", "1")), 2)
        return
    assert cli(*reader(dialect, topic, "--partition", "0", "--from", "1")).out == b"b\nc\n"
    assert cli(*reader(dialect, topic, "--partition", "0", "--from", "1", "-n", "1")).out == b"b\n"
    assert "--from must be beginning or an offset" in one_line(cli(*reader(dialect, topic, "--from", "-1")), 2)


@each_dialect
def test_a_group_goes_on_where_it_is(cli: Run, topic: str, dialect: str) -> None:
    assert cli("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n").code == 0
    group = f"g-{uuid.uuid4().hex[:12]}"
    read = ["consume", topic, "--dialect", dialect, "--group", group]
    if dialect in NEVER_IN_GROUPS:
        assert one_line(cli(*read), 2).endswith("which does not store offsets")
        return
    assert cli(*read, "-n", "2").out == b"a\nb\n"
    described = json.loads(cli("groups", "describe", group, "--json").out)
    assert [(row["partition"], row["committed"], row["lag"]) for row in described["partitions"]] == [(0, 2, 1)]
    assert cli(*read).out == b"c\n"
    assert cli(*read) == (0, b"", "")


def test_a_dialect_that_reads_in_groups_only_says_so(cli: Run, topic: str) -> None:
    line = one_line(cli("consume", topic, "--dialect", "minikafka"), 2)
    assert line == "penstock: --dialect minikafka requires a consumer group: give --group NAME"


@each_dialect
def test_follow_prints_what_comes_later_until_ctrl_c(
    cli: Run, broker: product.Broker, topic: str, dialect: str
) -> None:
    where = ["--partition", "0", "--bootstrap", broker.addresses[dialect]]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *reader(dialect, topic, "--follow"), *where],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        for word in (b"one\n", b"two\n"):
            assert cli("produce", topic, "--partition", "0", stdin=word).code == 0
            assert process.stdout.readline() == word
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")


@each_dialect
def test_a_listener_that_is_not_there_is_one_clear_line(penstock: Run, dialect: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        for command in (["produce", "t", "--dialect", dialect], reader(dialect, "t")):
            line = one_line(penstock(*command, "--bootstrap", address))
            assert line.startswith(f"penstock: no broker at {address}: Connection refused")
            assert f"give the address of its {dialect} listener with --bootstrap" in line


@each_dialect
def test_the_environment_says_where_kafka_is_not_where_a_dialect_is(penstock: Run, dialect: str) -> None:
    """Nothing is sent: whoever listens at the dialect's own port, it is not 127.0.0.1:1."""
    ended = penstock("produce", "t", "--dialect", dialect, env={"PENSTOCK_BOOTSTRAP": "127.0.0.1:1"})
    assert "127.0.0.1:1:" not in ended.err


def test_what_the_broker_refuses_is_told_in_its_words(cli: Run) -> None:
    line = one_line(cli("consume", "nowhere", "--dialect", "fluxgo"))
    assert line.startswith("penstock: fluxgo at 127.0.0.1:")
    assert "not found" in line
    ended = cli("produce", "nowhere", "--dialect", "rustlog", stdin=b"x\n")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.splitlines()[0] == "0 records delivered to nowhere"
    assert ended.err.splitlines()[1].startswith("penstock: rustlog at 127.0.0.1:")


def test_a_record_that_fits_no_frame_fails_alone(cli: Run, topic: str) -> None:
    large = b"x" * (11 * 1024 * 1024)
    ended = cli("produce", topic, "--dialect", "fluxgo", stdin=b"a\n" + large + b"\nb\n")
    assert ended.code == 1
    assert ended.err.splitlines()[0].startswith(f"2 records delivered to {topic}")
    assert ended.err.splitlines()[1].startswith("1 record failed: a frame of ")
    assert cli("consume", topic).out == b"a\nb\n"


def test_records_go_from_dialect_to_dialect_as_json(cli: Run, topic: str) -> None:
    assert cli("produce", topic, "--partition", "0", "-K", "=", stdin=b"k=a\nl=b\n").code == 0
    lines = cli("consume", topic, "--format", "json").out
    assert cli("produce", f"{topic}-copy", "--dialect", "day1", "--format", "json", stdin=lines).code == 0
    assert cli("consume", f"{topic}-copy", "--format", "keyvalue").out == b"k:a\nl:b\n"


@pytest.mark.parametrize(
    ("dialect", "option", "number"),
    [("day1", "--partition", "70000"), ("flymq", "--partition", "3000000000"), ("rustlog", "--from", "9" * 24)],
)
def test_a_number_that_a_dialect_cannot_carry_is_said(
    cli: Run, topic: str, dialect: str, option: str, number: str
) -> None:
    ended = cli(*reader(dialect, topic, option, number))
    assert ended.code == 2
    assert f"out of range for --dialect {dialect}" in ended.err
    assert len(ended.err.splitlines()) == 1
