"""Kafka's own command-line tools against Penstock, each as its shell script would run it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker
from tests.clients.members import until
from tests.compatibility.java import KAFKA_4, tool

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
BROKER_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run(broker: Broker, main: str, *arguments: str, stdin: str | None = None) -> str:
    return tool(KAFKA_4, main, "--bootstrap-server", broker.bootstrap, *arguments, stdin=stdin)


def test_topics_are_created_described_altered_and_deleted(broker: Broker) -> None:
    run(broker, TOPICS, "--create", "--topic", "made", "--partitions", "3", "--config", "retention.ms=1000000")
    described = run(broker, TOPICS, "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    assert "retention.ms=1000000" in described
    run(broker, TOPICS, "--alter", "--topic", "made", "--partitions", "5")
    assert "PartitionCount: 5" in run(broker, TOPICS, "--describe", "--topic", "made")
    assert "made" in run(broker, TOPICS, "--list").split()
    run(broker, TOPICS, "--delete", "--topic", "made")
    assert "made" not in run(broker, TOPICS, "--list").split()


def test_configs_are_described_and_altered(broker: Broker) -> None:
    run(broker, TOPICS, "--create", "--topic", "configured")
    where = ("--entity-type", "topics", "--entity-name", "configured")
    run(broker, CONFIGS, *where, "--alter", "--add-config", "retention.ms=123456,segment.bytes=1048576")
    shown = run(broker, CONFIGS, *where, "--describe")
    assert "retention.ms=123456" in shown
    assert "segment.bytes=1048576" in shown
    run(broker, CONFIGS, *where, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in run(broker, CONFIGS, *where, "--describe")
    everything = run(broker, CONFIGS, "--entity-type", "brokers", "--entity-name", "0", "--describe", "--all")
    assert "num.partitions=1" in everything


def test_console_clients_groups_and_offsets(broker: Broker) -> None:
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(200))
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    run(broker, CONSOLE_PRODUCER, "--topic", "console", *keyed, stdin=lines)
    read = run(
        broker, CONSOLE_CONSUMER, "--topic", "console", "--group", "readers", "--from-beginning", "--max-messages", "200",
        "--timeout-ms", "30000", "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
    )  # fmt: skip
    assert read.splitlines() == lines.splitlines()
    assert "readers" in run(broker, GROUPS, "--list").split()
    row = run(broker, GROUPS, "--describe", "--group", "readers")
    assert re.search(r"readers\s+console\s+0\s+200\s+200\s+0", row), row
    run(broker, GROUPS, "--group", "readers", "--topic", "console", "--reset-offsets", "--to-offset", "50", "--execute")
    row = run(broker, GROUPS, "--describe", "--group", "readers")
    assert re.search(r"readers\s+console\s+0\s+50\s+200\s+150", row), row
    assert "console:0:200" in run(broker, GET_OFFSETS, "--topic", "console").split()
    run(broker, GROUPS, "--delete", "--group", "readers")
    assert "readers" not in run(broker, GROUPS, "--list").split()


def test_consumer_protocol_group_is_described(broker: Broker) -> None:
    run(broker, CONSOLE_PRODUCER, "--topic", "modern", stdin="one\ntwo\n")
    read = run(
        broker, CONSOLE_CONSUMER, "--topic", "modern", "--group", "modern-readers", "--from-beginning",
        "--max-messages", "2", "--timeout-ms", "30000", "--command-property", "group.protocol=consumer",
    )  # fmt: skip
    assert read.split() == ["one", "two"]
    state = run(broker, GROUPS, "--describe", "--group", "modern-readers", "--state")
    assert "Empty" in state


def test_records_are_deleted(broker: Broker, tmp_path: Path) -> None:
    run(broker, CONSOLE_PRODUCER, "--topic", "shortened", stdin="a\nb\nc\nd\n")
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "shortened", "partition": 0, "offset": 3}], "version": 1}))
    assert "low_watermark: 3" in run(broker, DELETE_RECORDS, "--offset-json-file", str(wanted))
    assert "shortened:0:3" in run(broker, GET_OFFSETS, "--topic", "shortened", "--time", "earliest").split()


def test_verifiable_clients_and_perf_tools(broker: Broker) -> None:
    run(broker, TOPICS, "--create", "--topic", "verified", "--partitions", "2")
    sent = run(broker, VERIFIABLE_PRODUCER, "--topic", "verified", "--max-messages", "500")
    assert json.loads(sent.splitlines()[-1])["acked"] == 500
    seen = run(
        broker, VERIFIABLE_CONSUMER, "--topic", "verified", "--group-id", "verifiers", "--max-messages", "500",
        "--reset-policy", "earliest",
    )  # fmt: skip
    events = [json.loads(line) for line in seen.splitlines()]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 500
    measured = tool(
        KAFKA_4, PRODUCER_PERFORMANCE, "--topic", "measured", "--num-records", "20000", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", broker.bootstrap,
    )  # fmt: skip
    assert "20000 records sent" in measured
    consumed = run(broker, CONSUMER_PERFORMANCE, "--topic", "measured", "--num-records", "20000", "--timeout", "30000")
    assert re.search(r", 20\d\d\d,", consumed), consumed


def test_transactions_are_listed_and_described(broker: Broker) -> None:
    tool(
        KAFKA_4, PRODUCER_PERFORMANCE, "--topic", "transacted", "--num-records", "1000", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", broker.bootstrap, "--transactional-id", "perf",
        "--transaction-duration-ms", "50",
    )  # fmt: skip
    # a transaction is over before its markers are flushed, and complete only then
    until(
        lambda: re.search(r"perf\S*\s+0\s+\d+\s+CompleteCommit", run(broker, TRANSACTIONS, "list")) is not None,
        "the last transaction is complete",
    )


def test_api_versions_are_all_known_to_kafka(broker: Broker) -> None:
    shown = run(broker, BROKER_VERSIONS)
    assert "Produce(0): 0 to 13" in shown
    assert "UNKNOWN" not in shown.split("(id: 0 rack", maxsplit=1)[1]


def test_dump_log_reads_our_segments_offsets_and_transactions(broker: Broker) -> None:
    run(broker, CONSOLE_PRODUCER, "--topic", "dumped", stdin="one\ntwo\n")
    run(broker, CONSOLE_CONSUMER, "--topic", "dumped", "--group", "dumpers", "--from-beginning", "--max-messages", "2")
    tool(
        KAFKA_4, PRODUCER_PERFORMANCE, "--topic", "dumped", "--num-records", "3000", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", broker.bootstrap, "--transactional-id", "dump-id",
        "--transaction-duration-ms", "50",
    )  # fmt: skip
    broker.stop()
    try:
        first = broker.data_dir / "dumped-0" / "00000000000000000000.log"
        records = tool(KAFKA_4, DUMP_LOG, "--files", str(first), "--deep-iteration", "--print-data-log")
        assert "payload: one" in records
        assert "endTxnMarker: COMMIT" in records
        for suffix in (".index", ".timeindex"):
            index = first.with_suffix(suffix)
            shown = tool(KAFKA_4, DUMP_LOG, "--files", str(index), "--verify-index-only")
            assert "Found" not in shown, shown
        snapshots = sorted(first.parent.glob("*.snapshot"))
        assert "producerId:" in tool(KAFKA_4, DUMP_LOG, "--files", str(snapshots[-1]))
        offsets = [str(path) for path in broker.data_dir.glob("__consumer_offsets-*/*.log")]
        shown = tool(KAFKA_4, DUMP_LOG, "--files", ",".join(offsets), "--offsets-decoder")
        assert '"group":"dumpers"' in shown
        assert '"topic":"dumped"' in shown
        states = [str(path) for path in broker.data_dir.glob("__transaction_state-*/*.log")]
        shown = tool(KAFKA_4, DUMP_LOG, "--files", ",".join(states), "--transaction-log-decoder")
        assert "dump-id" in shown
    finally:
        broker.start()
