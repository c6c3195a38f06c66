"""`penstock consume`: records to text, from anywhere in a topic to its end or on and on. Joins no group, commits nothing."""

from __future__ import annotations

import contextlib
import datetime
import enum
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    admin_client,
    client_config,
    offsets,
    partitions_of,
    reason,
)
from penstock.cli.failure import Failed, Misused, checked_topic
from penstock.cli.record_text import Place, TextRecord, format_hex, format_json

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

app = command_app()

_MESSAGES_PER_CALL = 1_000
_POLL_S = 0.25
_GROUP = "penstock-consume"
"""The client library wants a name; nothing is ever committed under it."""


class OutputFormat(enum.StrEnum):
    value = "value"
    keyvalue = "keyvalue"
    json = "json"
    hex = "hex"


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, -N for the last N of each partition, or a time: 2026-01-31T12:00Z or "
            "@MILLISECONDS.",
        ),
    ] = "beginning",
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only these. [default: all]")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after so many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--until-end", help="Wait for more, or stop where the topic ended at the start.")
    ] = False,
    format_: Annotated[
        OutputFormat, typer.Option("--format", help="What is printed of a record.")
    ] = OutputFormat.value,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-K", help="What is between key and value with keyvalue.")
    ] = ":",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Read records from a topic and print them, one a line."""
    checked_topic(topic)
    begin = parse_start(start)
    admin = admin_client(bootstrap)
    chosen = _choose(partitions_of(admin, topic), partition, topic)
    first, end = _bounds(admin, topic, chosen, begin, start)
    reading = Reading(topic, _writer(format_, key_separator.encode()), count, None if follow else end)
    with contextlib.suppress(KeyboardInterrupt):
        reading.run(client_config(bootstrap), first)


class From(enum.Enum):
    BEGINNING = enum.auto()
    END = enum.auto()
    OFFSET = enum.auto()
    LAST = enum.auto()
    TIMESTAMP_MS = enum.auto()


Start = tuple[From, int]


def parse_start(text: str) -> Start:
    if text == "beginning":
        return From.BEGINNING, 0
    if text == "end":
        return From.END, 0
    with contextlib.suppress(ValueError):
        number = int(text)
        return (From.LAST, -number) if text.startswith("-") else (From.OFFSET, number)
    with contextlib.suppress(ValueError):
        if text.startswith("@"):
            return From.TIMESTAMP_MS, int(text[1:])
        moment = datetime.datetime.fromisoformat(text)
        return From.TIMESTAMP_MS, int((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1000)
    raise Misused(f"--from {text} is not beginning, end, an offset, -N, @MILLISECONDS or a time like 2026-01-31T12:00Z")


def _choose(there: list[int], wanted: list[int] | None, topic: str) -> list[int]:
    if not wanted:
        return there
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise Failed(f"topic {topic} has no partition {missing[0]}: there are {len(there)}")
    return sorted(set(wanted))


def _bounds(
    admin: AdminClient, topic: str, partitions: list[int], start: Start, text: str
) -> tuple[dict[int, int], dict[int, int]]:
    """Where each partition is read from, and where it ends now."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    places = [TopicPartition(topic, partition) for partition in partitions]
    log_start = offsets(admin, places, OffsetSpec.earliest())
    end = offsets(admin, places, OffsetSpec.latest())
    kind, number = start
    if kind is From.BEGINNING:
        return log_start, end
    if kind is From.END:
        return dict(end), end
    if kind is From.LAST:
        return {p: max(log_start[p], end[p] - number) for p in partitions}, end
    if kind is From.TIMESTAMP_MS:
        found = offsets(admin, places, OffsetSpec.for_timestamp(number))
        return {p: end[p] if found[p] < 0 else found[p] for p in partitions}, end
    for p in partitions:
        if not log_start[p] <= number <= end[p]:
            raise Failed(f"--from {text}: partition {p} of topic {topic} has offsets {log_start[p]} to {end[p]}")
    return dict.fromkeys(partitions, number), end


Writer = Callable[["Message"], bytes]


def _writer(chosen: OutputFormat, separator: bytes) -> Writer:
    if chosen is OutputFormat.value:
        return lambda message: message.value() or b""
    if chosen is OutputFormat.keyvalue:
        return lambda message: (message.key() or b"") + separator + (message.value() or b"")
    formatted = format_json if chosen is OutputFormat.json else format_hex
    return lambda message: formatted(_record(message), _place(message))


def _record(message: Any) -> TextRecord:
    kind, timestamp_ms = message.timestamp()
    return TextRecord(message.key(), message.value(), message.headers() or (), timestamp_ms if kind else None)


def _place(message: Any) -> Place:
    return Place(message.topic(), message.partition(), message.offset())


class Reading:
    """One run over a topic. `end` is where to stop in each partition; None reads on."""

    def __init__(self, topic: str, write: Writer, count: int | None, end: dict[int, int] | None) -> None:
        self._topic = topic
        self._write = write
        self._left = sys.maxsize if count is None else count
        self._end = end
        self._open: set[int] = set()
        self._gone: str | None = None

    def run(self, config: dict[str, Any], first: dict[int, int]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._open = {p for p in first if self._end is None or first[p] < self._end[p]}
        if not self._open or not self._left:
            return
        settings = {
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._note_error,
        }
        consumer = Consumer({**config, **settings})
        try:
            consumer.assign([TopicPartition(self._topic, p, first[p]) for p in sorted(self._open)])
            self._read(consumer)
        except BrokenPipeError:
            # The reader of the pipe has seen enough; what is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            consumer.close()

    def _note_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._gone = reason(error)

    def _read(self, consumer: Consumer) -> None:
        out = sys.stdout.buffer
        while self._open and self._left:
            messages = consumer.consume(_MESSAGES_PER_CALL, _POLL_S)
            if messages:
                self._gone = None
            elif self._gone is not None and self._end is not None:
                raise Failed(f"topic {self._topic}: {self._gone}")
            out.writelines(self._lines(messages))
            out.flush()

    def _lines(self, messages: list[Message]) -> list[bytes]:
        lines: list[bytes] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._take_error(error, message)
                continue
            partition: Any = message.partition()
            offset: Any = message.offset()
            if partition not in self._open:
                continue
            if self._end is not None and offset >= self._end[partition] - 1:
                self._open.discard(partition)
                if offset >= self._end[partition]:
                    continue  # the last offset below the end was no record (a marker, or compacted away)
            lines.append(self._write(message) + b"\n")
            self._left -= 1
            if not self._left:
                break
        return lines

    def _take_error(self, error: Any, message: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:
            if self._end is not None:
                self._open.discard(message.partition())
        elif error.fatal() or not error.retriable():
            raise Failed(f"topic {self._topic}: {reason(error)}")
