"""The broker's main promise in half a minute: a million records in, kill -9, every one back.

    python examples/million.py

starts a broker in a temporary directory, writes a million records with an ordinary Kafka client (confluent-kafka, acks=all),
kills the broker with signal 9 in the middle and again at the end, restarts it, and reads everything back and compares.
"""

from __future__ import annotations

import logging
import sys
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import Broker

RECORDS = 1_000_000
PARTITIONS = 4
TOPIC = "demo"
VALUE = b"%010d" + b"." * 90

_QUIET = logging.getLogger("demo.client")
"""That the broker is gone for a moment is the point; the client need not say so each time it tries."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class Acknowledged:
    """Which records the broker promised to keep, and where it said they are."""

    def __init__(self) -> None:
        self.offsets: dict[int, tuple[int, int]] = {}
        self.failures: list[str] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.offsets[int(value[:10])] = (partition, offset)


def produce(broker: Broker, progress: Progress, acknowledged: Acknowledged) -> int:
    """Write all records, killing the broker half way; how often it was killed."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        },
        logger=_QUIET,
    )
    task = progress.add_task("produce", total=RECORDS)
    killed = 0
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(TOPIC, VALUE % number, partition=number % PARTITIONS, on_delivery=acknowledged)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
            progress.update(task, completed=len(acknowledged.offsets))
        if number == RECORDS // 2:
            progress.console.print(
                f"  kill -9 of process {broker.pid} with {len(acknowledged.offsets):,} records acknowledged"
            )
            broker.kill()
            broker.restart()
            killed += 1
    while producer.flush(0.2):
        progress.update(task, completed=len(acknowledged.offsets))
    progress.update(task, completed=len(acknowledged.offsets))
    progress.console.print(f"  kill -9 of process {broker.pid} when the last record was acknowledged")
    broker.kill()
    broker.restart()
    return killed + 1


def consume(broker: Broker, progress: Progress) -> dict[tuple[int, int], int]:
    """Everything that is in the topic: (partition, offset) to record number."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        },
        logger=_QUIET,
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    task = progress.add_task("consume", total=RECORDS)
    found: dict[tuple[int, int], int] = {}
    ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, timeout=0.5):
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(f"consume failed: {error}")
                ended += 1
                continue
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            found[partition, offset] = int(value[:10])
        progress.update(task, completed=len(found))
    consumer.close()
    return found


def main() -> int:
    console = Console()
    progress = Progress(
        TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    acknowledged = Acknowledged()
    began = time.monotonic()
    with Broker() as broker:
        took_s = time.monotonic() - began
        console.print(f"broker ready in {took_s:.2f} s at {broker.bootstrap}, data in {broker.data_dir}")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=_QUIET)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        with progress:
            produce_began = time.monotonic()
            killed = produce(broker, progress, acknowledged)
            produce_s = time.monotonic() - produce_began
            consume_began = time.monotonic()
            found = consume(broker, progress)
            consume_s = time.monotonic() - consume_began
    lost = sum(found.get(place) != number for number, place in acknowledged.offsets.items())
    doubled = len(found) - len(set(found.values()))
    table = Table("what", "count")
    table.add_row("records sent", f"{RECORDS:,}")
    table.add_row("acknowledged", f"{len(acknowledged.offsets):,}")
    table.add_row("times the broker was killed with signal 9", str(killed))
    table.add_row("read back", f"{len(found):,}")
    table.add_row("acknowledged and lost or moved", str(lost))
    table.add_row("doubled", str(doubled))
    table.add_row("produce, with both restarts", f"{produce_s:.1f} s")
    table.add_row("consume", f"{consume_s:.1f} s")
    console.print(table)
    whole = lost == 0 and doubled == 0 and len(found) == RECORDS and not acknowledged.failures
    console.print("[green]every record is there, once[/]" if whole else f"[red]failed[/] {acknowledged.failures[:3]}")
    console.print("next: make demo, the same with Spark; or penstock serve, and README.md")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
