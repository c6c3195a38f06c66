from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock as product
from tests.cli.conftest import Ended, Run, environment

SETTINGS = {"storage.flush": "os", "groups.initial_rebalance_delay_ms": 0}
RECORDS = 10
"""In each partition of a topic of these tests."""


@pytest.fixture(scope="module")
def broker() -> Iterator[product.Broker]:
    with product.Broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def cli(penstock: Run, broker: product.Broker) -> Run:
    def run(*arguments: str, stdin: bytes = b"") -> Ended:
        return penstock(*arguments, stdin=stdin, env={"PENSTOCK_BOOTSTRAP": broker.bootstrap})

    return run


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def topic(broker: product.Broker) -> str:
    """In each of two partitions the records 0 to 9, a second apart."""
    config = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(config)
    admin.create_topics([NewTopic("shared", 2)])["shared"].result()
    producer = Producer(config)
    for n in range(RECORDS):
        for partition in (0, 1):
            producer.produce("shared", str(n), partition=partition, timestamp=1_700_000_000_000 + n * 1_000)
    assert producer.flush(30) == 0
    return "shared"


@contextlib.contextmanager
def member(
    broker: product.Broker, group: str, topic: str, protocol: str = "classic", **more: Any
) -> Iterator[Consumer]:
    """A consumer that has its partitions."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False, **more})
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


def commit(broker: product.Broker, group: str, topic: str, *offsets: int) -> None:
    """One offset a partition, as a consumer without membership."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def lags(cli: Run, group: str) -> list[tuple[int, int | None, int | None]]:
    """(partition, committed, lag) of each partition that the group knows."""
    described = json.loads(cli("groups", "describe", group, "--json").out)
    return [(row["partition"], row["committed"], row["lag"]) for row in described["partitions"]]


def one_line(ended: Ended, code: int = 1) -> str:
    assert (ended.code, ended.out) == (code, b"")
    (line,) = ended.err.splitlines()
    return line


# ------------------------------------------------------------------------------------------------------ looking


def test_list_shows_every_group_with_its_lag_over_all_partitions(cli: Run, broker: product.Broker, topic: str) -> None:
    names = [f"{letter}-{uuid.uuid4().hex[:8]}" for letter in "ab"]
    commit(broker, names[0], topic, 4, 7)
    commit(broker, names[1], topic, 10)
    rows = {row["name"]: row for row in json.loads(cli("groups", "list", "--json").out)}
    shared = {"state": "Empty", "protocol": "classic", "members": 0}
    assert rows[names[0]] == {"name": names[0], **shared, "partitions": 2, "lag": 9}
    assert rows[names[1]] == {"name": names[1], **shared, "partitions": 1, "lag": 0}
    table = [line.split() for line in cli("groups", "list").text.splitlines()]
    assert table[0] == ["group", "state", "protocol", "members", "partitions", "lag"]
    assert [names[0], "Empty", "classic", "0", "2", "9"] in table
    assert [row[0] for row in table[1:]] == sorted(rows)


@pytest.mark.parametrize(("protocol", "assignor"), [("classic", "range"), ("consumer", "uniform")])
def test_describe_shows_members_what_each_reads_and_the_lag_of_each_partition(
    cli: Run, broker: product.Broker, topic: str, group: str, protocol: str, assignor: str
) -> None:
    commit(broker, group, topic, 4)
    with member(broker, group, topic, protocol, **{"client.id": "someone", "group.instance.id": "i-1"}):
        described = json.loads(cli("groups", "describe", group, "--json").out)
        shown = cli("groups", "describe", group).text.splitlines()
        listed = {row["name"]: row for row in json.loads(cli("groups", "list", "--json").out)}
    (reader,) = described.pop("members")
    assert (reader["client_id"], reader["host"], reader["instance_id"]) == ("someone", "127.0.0.1", "i-1")
    assert reader["assignment"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
    assert described == {
        "name": group,
        "state": "Stable",
        "protocol": protocol,
        "assignor": assignor,
        "lag": 6,
        "partitions": [
            {"topic": topic, "partition": 0, "committed": 4, "end_offset": 10, "lag": 6, "member": reader["id"]},
            {"topic": topic, "partition": 1, "committed": None, "end_offset": 10, "lag": None, "member": reader["id"]},
        ],
    }
    assert shown[0] == f"group {group}, Stable, protocol {protocol}, assignor {assignor}, 1 member, lag 6"
    assert [line.split() for line in shown[1:]] == [
        ["topic", "partition", "committed", "end", "offset", "lag", "member"],
        [topic, "0", "4", "10", "6", "1"],
        [topic, "1", "-", "10", "-", "1"],
        ["member", "client", "host", "partitions", "id"],
        ["1", "someone", "127.0.0.1", "2", "i-1"],
    ]
    assert (listed[group]["members"], listed[group]["state"]) == (1, "Stable")


def test_a_group_that_is_not_there_is_one_clear_line(cli: Run, group: str) -> None:
    for command in (["describe", group], ["delete", group]):
        assert one_line(cli("groups", *command)).endswith(f"group {group}: the broker has no such group")
    assert one_line(cli("groups", "reset", group, "--to", "earliest")) == (
        f"penstock: group {group} has no committed offsets: give the topics to reset with --topic"
    )


# ------------------------------------------------------------------------------------------------------ resetting


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (["--to", "earliest"], (0, 0)),
        (["--to", "latest"], (10, 10)),
        (["--to", "beginning"], (0, 0)),
        (["--to", "3"], (3, 3)),
        (["--to", "10"], (10, 10)),
        (["--to", "-3"], (7, 7)),
        (["--to", "@1700000004001"], (5, 5)),
        (["--to", "2023-11-14T22:13:22Z"], (2, 2)),
        (["--to", "2030-01-01T00:00Z"], (10, 10)),
        (["--shift", "2"], (6, 9)),
        (["--shift", "-2"], (2, 5)),
        (["--shift", "-5"], (0, 2)),
        (["--shift", "+100"], (10, 10)),
        (["--to", "latest", "--topic", "T:1"], (4, 10)),
        (["--to", "earliest", "--topic", "T:0,1"], (0, 0)),
        (["--to", "8", "--topic", "T"], (8, 8)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_reset_commits_what_it_shows_and_a_dry_run_only_shows_it(
    cli: Run, broker: product.Broker, topic: str, group: str, where: list[str], offsets: tuple[int, int]
) -> None:
    commit(broker, group, topic, 4, 7)
    where = [word.replace("T:", f"{topic}:") if word.startswith("T:") else word for word in where]
    where = [topic if word == "T" else word for word in where]
    dry = json.loads(cli("groups", "reset", group, *where, "--dry-run", "--json").out)
    assert lags(cli, group) == [(0, 4, 6), (1, 7, 3)]
    done = json.loads(cli("groups", "reset", group, *where, "--json").out)
    assert lags(cli, group) == [(partition, offset, 10 - offset) for partition, offset in enumerate(offsets)]
    assert (dry["dry_run"], done["dry_run"]) == (True, False)
    assert dry["partitions"] == done["partitions"]
    for row in done["partitions"]:
        partition, new = row["partition"], row["new_offset"]
        old = (4, 7)[partition]
        assert row == {
            "topic": topic,
            "partition": partition,
            "old_offset": old,
            "new_offset": offsets[partition],
            "lag": RECORDS - new,
        }


def test_a_group_that_is_not_there_yet_can_be_put_somewhere(cli: Run, topic: str, group: str) -> None:
    ended = cli("groups", "reset", group, "--to", "latest", "--topic", topic)
    assert (ended.code, ended.err) == (0, f"reset 2 partitions of group {group}\n")
    assert [line.split() for line in ended.text.splitlines()] == [
        ["topic", "partition", "old", "offset", "new", "offset", "lag"],
        [topic, "0", "-", "10", "0"],
        [topic, "1", "-", "10", "0"],
    ]
    assert lags(cli, group) == [(0, 10, 0), (1, 10, 0)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_neither_reset_nor_deleted(
    cli: Run, broker: product.Broker, topic: str, group: str, protocol: str
) -> None:
    commit(broker, group, topic, 4, 7)
    with member(broker, group, topic, protocol):
        for more in ([], ["--dry-run"], ["--json"]):
            assert one_line(cli("groups", "reset", group, "--to", "latest", *more)) == (
                f"penstock: group {group} has 1 member (Stable): stop them first, then reset"
            )
        assert one_line(cli("groups", "delete", group)) == (
            f"penstock: cannot delete group {group}: the group has members"
        )
        assert lags(cli, group) == [(0, 4, 6), (1, 7, 3)]
    assert cli("groups", "reset", group, "--to", "latest").code == 0
    assert lags(cli, group) == [(0, 10, 0), (1, 10, 0)]


def test_what_cannot_be_reset_to_is_refused_and_changes_nothing(
    cli: Run, broker: product.Broker, topic: str, group: str
) -> None:
    commit(broker, group, topic, 4)

    def refused(*where: str) -> str:
        return one_line(cli("groups", "reset", group, *where))

    assert refused("--to", "11").endswith(f"--to 11 is out of range: partition 0 of topic {topic} has offsets 0 to 10")
    assert refused("--to", "1", "--topic", f"{topic}:2").endswith(f"topic {topic} has no partition 2 (partitions: 2)")
    assert refused("--to", "1", "--topic", "nowhere").endswith("topic nowhere: the broker has no such topic")
    assert refused("--shift", "1", "--topic", topic).endswith(
        f"--shift: group {group} has no committed offset in partition 1 of topic {topic}; use --to"
    )
    assert lags(cli, group) == [(0, 4, 6)]


@pytest.mark.parametrize(
    "command",
    [
        ["reset", "g"],
        ["reset", "g", "--to", "earliest", "--shift", "1"],
        ["reset", "g", "--to", "soon"],
        ["reset", "g", "--to", "1", "--topic", "a/b"],
        ["reset", "g", "--to", "1", "--topic", "t:"],
        ["reset", "g", "--to", "1", "--topic", "t:0,x"],
        ["reset", "", "--to", "1"],
        ["describe", ""],
        ["delete", "g", ""],
    ],
    ids=" ".join,
)
def test_a_wrong_call_is_one_clear_line_and_exit_code_2(cli: Run, command: list[str]) -> None:
    assert one_line(cli("groups", *command), 2).startswith("penstock: ")


def test_deleting_tells_of_each_group_what_became_of_it(
    cli: Run, broker: product.Broker, topic: str, group: str
) -> None:
    commit(broker, group, topic, 4)
    ended = cli("groups", "delete", group, "never-there", "--json")
    assert ended.code == 1
    assert json.loads(ended.out) == {"deleted": [group], "failed": {"never-there": "the broker has no such group"}}
    assert one_line(cli("groups", "describe", group)).endswith("no such group")
    commit(broker, group, topic, 4)
    assert cli("groups", "delete", group) == (0, b"", f"deleted group {group}\n")


# ------------------------------------------------------------------------------------------------------ reading in one


def test_consume_with_a_group_goes_on_where_the_group_is(cli: Run, topic: str, group: str) -> None:
    first = cli("consume", topic, "--group", group, "-n", "5", "--format", "json")
    assert first.code == 0
    rest = cli("consume", topic, "--group", group, "--format", "json")
    seen = [
        (record["partition"], record["offset"])
        for record in map(json.loads, first.out.splitlines() + rest.out.splitlines())
    ]
    assert len(first.out.splitlines()) == 5
    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(RECORDS)]
    assert lags(cli, group) == [(0, 10, 0), (1, 10, 0)]
    assert cli("consume", topic, "--group", group) == (0, b"", "")
    cli("groups", "reset", group, "--to", "-1")
    assert cli("consume", topic, "--group", group).out == b"9\n9\n"


def test_without_commits_a_group_begins_where_from_says(cli: Run, topic: str, group: str) -> None:
    assert cli("consume", topic, "--group", group, "--from", "end") == (0, b"", "")
    assert cli("consume", topic, "--group", f"{group}-2", "--from", "beginning").out.count(b"\n") == 2 * RECORDS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_is_stopped_leaves_at_once_and_has_committed_what_it_printed(
    cli: Run, broker: product.Broker, topic: str, group: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", "consume", topic, "--group", group, "--follow"],
        env=environment(PENSTOCK_BOOTSTRAP=broker.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        for _ in range(2 * RECORDS):
            assert process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert lags(cli, group) == [(0, 10, 0), (1, 10, 0)]
    assert cli("groups", "reset", group, "--to", "earliest").code == 0


def test_a_member_whose_broker_died_says_so_and_does_not_hang(tmp_path: Path) -> None:
    with product.Broker(tmp_path / "data", settings=SETTINGS) as mortal:
        producer = Producer({"bootstrap.servers": mortal.bootstrap})
        producer.produce("t", b"x")
        assert producer.flush(30) == 0
        with subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "consume", "t", "--group", "g", "--follow"],
            env=environment(PENSTOCK_BOOTSTRAP=mortal.bootstrap),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"x\n"
            mortal.kill()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.decode() == "penstock: group g: the last offsets may not be committed: the broker does not answer\n"


def test_members_share_the_partitions(cli: Run, broker: product.Broker, topic: str, group: str) -> None:
    with member(broker, group, topic) as other:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", "consume", topic, "--group", group, "--format", "hex"],
            env=environment(PENSTOCK_BOOTSTRAP=broker.bootstrap),
            stdout=subprocess.PIPE,
        )
        while process.poll() is None:
            other.poll(0.1)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(out.splitlines()) == RECORDS
    assert len({line.split(b"\t")[0] for line in out.splitlines()}) == 1


@pytest.mark.parametrize("more", [["--partition", "0"], ["--from", "5"], ["--from", "-5"], ["--from", "@5"]])
def test_a_member_says_neither_partitions_nor_offsets(cli: Run, topic: str, group: str, more: list[str]) -> None:
    assert one_line(cli("consume", topic, "--group", group, *more), 2).startswith("penstock: --")
