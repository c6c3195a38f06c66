"""`penstock bench`: a quick look at what a running broker does with one client. `make bench` measures properly."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import (
    BOOTSTRAP_DEFAULT,
    TIMEOUT_S,
    AsJson,
    Bootstrap,
    admin_client,
    client_config,
    failing_as,
    reason,
)
from penstock.cli.failure import Failed
from penstock.cli.output import note, print_json, print_table
from penstock.cli.produce import Acks, Compression

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = command_app()

_STALLED_S = 30.0
_SIZE_MAX = 1_000_000_000
"""What the client library can send at all; what the broker takes is for it to say."""


@app.command()
def bench(
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="Number of records.")] = 500_000,
    size: Annotated[int, typer.Option(min=0, max=_SIZE_MAX, help="Value size in bytes.")] = 100,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the temporary topic.")] = 1,
    acks: Annotated[Acks, typer.Option(help="Acknowledgements required from the broker.")] = Acks.all,
    compression: Annotated[Compression, typer.Option(help="Compression of record batches.")] = Compression.none,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Produce and consume records with one client and print the rates.

    For a quick look: the Python client accounts for most of the time. The temporary topic is deleted afterwards.
    """
    from confluent_kafka.admin import NewTopic

    admin = admin_client(bootstrap)
    topic = f"penstock-bench-{os.urandom(4).hex()}"
    with failing_as(f"cannot create topic {topic}"):
        admin.create_topics([NewTopic(topic, partitions, -1)], operation_timeout=TIMEOUT_S)[topic].result()
    try:
        settings = {"acks": acks.value, "compression.type": compression.value, "linger.ms": 5}
        settings["message.max.bytes"] = _SIZE_MAX
        written_s = _produce(client_config(bootstrap, **settings), topic, records, os.urandom(size))
        read_s = _consume(client_config(bootstrap), topic, partitions, records)
    finally:
        _delete(admin, topic)
    rows = [_row("produce", records, size, written_s), _row("consume", records, size, read_s)]
    if as_json:
        print_json(rows)
    else:
        print_table(("", "records", "seconds", "records/s", "MB/s"), [tuple(row.values()) for row in rows])
        note("measured with one Python client; `make bench` in the repository measures the broker")


def _row(what: str, records: int, size: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds),
        "mb_per_s": round(records * size / seconds / 1e6, 1),
    }


def _produce(config: dict[str, Any], topic: str, records: int, value: bytes) -> float:
    """Seconds until the broker acknowledged all."""
    from confluent_kafka import Producer

    problems: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            problems.append(error)

    # Only failures call back: a callback a record would cost more than the record.
    producer = Producer({**config, "delivery.report.only.error": True, "queue.buffering.max.messages": 1_000_000})
    began = time.perf_counter()
    with failing_as("cannot produce a record"):
        for _ in range(records):
            while True:
                try:
                    producer.produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.05)
    left = producer.flush(_STALLED_S)
    seconds = time.perf_counter() - began
    if problems or left:
        why = reason(problems[0]) if problems else "the broker does not answer"
        raise Failed(f"{len(problems) + left} of {records} records were not delivered: {why}")
    return seconds


def _consume(config: dict[str, Any], topic: str, partitions: int, records: int) -> float:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({**config, "group.id": "penstock-bench", "enable.auto.commit": False})
    try:
        began = time.perf_counter()
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        left = records
        while left > 0:
            messages = consumer.consume(min(left, 10_000), _STALLED_S)
            bad = next((error for message in messages if (error := message.error()) is not None), None)
            if bad is not None or not messages:
                raise Failed(f"{left} of {records} records were not read: {reason(bad) if bad else 'timed out'}")
            left -= len(messages)
        return time.perf_counter() - began
    finally:
        consumer.close()


def _delete(admin: AdminClient, topic: str) -> None:
    from confluent_kafka import KafkaException

    try:
        admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result()
    except KafkaException as error:
        note(f"cannot delete topic {topic}: {reason(error)}")
