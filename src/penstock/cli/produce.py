"""`penstock produce`: records from lines of text. Counts what the broker acknowledged, and says what it did not."""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli.command import command_app
from penstock.cli.connection import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    client_config,
    partitions_for_writing,
    reach,
    reason,
)
from penstock.cli.failure import Failed, Misused, checked_topic
from penstock.cli.output import counted, note
from penstock.cli.record_text import Header, TextRecord, parse_json, parse_keyvalue

if TYPE_CHECKING:
    from confluent_kafka import Producer

app = command_app()

_LINES_BETWEEN_POLLS = 500
_RECORD_BYTES_MAX = 1_000_000_000
"""librdkafka's own bound; the topic's max.message.bytes is the one that counts."""
_BAD_LINES_SHOWN_MAX = 5


class InputFormat(enum.StrEnum):
    value = "value"
    keyvalue = "keyvalue"
    json = "json"


class Acks(enum.StrEnum):
    all = "all"
    one = "1"
    none = "0"


class Compression(enum.StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read lines from there. [default: stdin]"),
    ] = None,
    format_: Annotated[
        InputFormat | None, typer.Option("--format", help="What a line is. [default: value, with a separator keyvalue]")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="What is between key and value. [default: ':']")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; several times.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="[default: by the key's hash]")] = None,
    acks: Annotated[Acks, typer.Option(help="Who must have a record before it counts as delivered.")] = Acks.all,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.none,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to try to deliver a record.")] = 30.0,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write records, one a line, to a topic.

    JSON lines have the fields key, value, headers and timestamp, as `penstock consume --format json` writes them. Empty
    lines are empty records; in JSON they are skipped.
    """
    from confluent_kafka import Producer

    checked_topic(topic)
    parse = _parser(format_, key_separator)
    headers = _headers(header or [])
    reach(bootstrap)
    settings: dict[str, Any] = {
        "acks": acks.value,
        "enable.idempotence": acks is Acks.all,
        "compression.type": compression.value,
        "linger.ms": 5,
        "delivery.report.only.error": True,
        "message.timeout.ms": int(timeout_s * 1000),
        "message.max.bytes": _RECORD_BYTES_MAX,
        "topic.metadata.propagation.max.ms": 3_000,
        "partitioner": "murmur2_random",
    }
    producer = Producer(client_config(bootstrap, **settings))
    there = partitions_for_writing(producer, topic)
    if partition is not None and partition not in there:
        raise Failed(f"topic {topic} has no partition {partition}: there are {len(there)}")
    delivery = Delivery(producer, topic, partition, headers)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        lines: BinaryIO = sys.stdin.buffer if file is None else stack.enter_context(file.open("rb"))
        if lines.isatty():
            note("one record a line; Ctrl-D ends")
        advance = stack.enter_context(_progress(lines, file))
        interrupted = not delivery.run(lines, parse, advance)
    delivery.report(time.monotonic() - began)
    if interrupted:
        raise typer.Exit(130)
    if delivery.failed or delivery.bad_lines:
        raise typer.Exit(1)


def _parser(chosen: InputFormat | None, separator: str | None) -> Callable[[bytes], TextRecord | None]:
    if chosen is None:
        chosen = InputFormat.value if separator is None else InputFormat.keyvalue
    if separator is not None and chosen is not InputFormat.keyvalue:
        raise Misused(f"--key-separator goes with --format keyvalue, not {chosen.value}")
    if separator == "":
        raise Misused("--key-separator is empty")
    if chosen is InputFormat.json:
        return lambda line: parse_json(line) if line.strip() else None
    if chosen is InputFormat.keyvalue:
        between = (separator or ":").encode()
        return lambda line: parse_keyvalue(line, between)
    return lambda line: TextRecord(None, line)


def _headers(written: list[str]) -> list[Header]:
    headers: list[Header] = []
    for header in written:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise Misused(f"--header {header}: write it as NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


class Delivery:
    """One run: hands lines to the client library and keeps count of what became of them."""

    def __init__(self, producer: Producer, topic: str, partition: int | None, headers: list[Header]) -> None:
        self._producer = producer
        self._topic = topic
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        self._produce = functools.partial(producer.produce, topic, on_delivery=self._note_failure, **where)
        self._headers = headers
        self._accepted = 0
        self.failed: Counter[str] = Counter()
        """How many records failed, by reason."""
        self.bad_lines = 0

    @property
    def delivered(self) -> int:
        """Records that the broker acknowledged. Only failures are reported one by one: a call a record would cost more
        than the record."""
        return self._accepted - self.failed.total() - len(self._producer)

    def run(
        self, lines: BinaryIO, parse: Callable[[bytes], TextRecord | None], advance: Callable[[int, int], None]
    ) -> bool:
        """Send every line and wait for the broker; False when Ctrl-C ended it."""
        interactive = lines.isatty()
        unread = 0
        try:
            for number, line in enumerate(lines, 1):
                self._take(number, line, parse)
                unread += len(line)
                if interactive or number % _LINES_BETWEEN_POLLS == 0:
                    self._producer.poll(0)
                    advance(unread, self.delivered)
                    unread = 0
            while len(self._producer):
                self._producer.poll(0.1)
                advance(unread, self.delivered)
                unread = 0
        except KeyboardInterrupt:
            self._producer.purge()
            self._producer.flush(1)
            return False
        return True

    def _take(self, number: int, line: bytes, parse: Callable[[bytes], TextRecord | None]) -> None:
        try:
            record = parse(line.removesuffix(b"\n").removesuffix(b"\r"))
        except ValueError as error:
            self.bad_lines += 1
            if self.bad_lines <= _BAD_LINES_SHOWN_MAX:
                note(f"line {number}: {error}")
            return
        if record is not None:
            self._send(record)

    def _send(self, record: TextRecord) -> None:
        from confluent_kafka import KafkaException

        more: dict[str, Any] = {}
        if self._headers or record.headers:
            more["headers"] = [*self._headers, *record.headers]
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        self._accepted += 1
        while True:
            try:
                self._produce(value=record.value, key=record.key, **more)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self.failed[reason(error)] += 1
                return

    def _note_failure(self, error: Any, _message: Any) -> None:
        self.failed[reason(error)] += 1

    def report(self, seconds: float) -> None:
        rate = f" ({self.delivered / seconds:,.0f} records/s)" if self.delivered and seconds > 0 else ""
        note(f"{counted(self.delivered, 'record')} delivered to {self._topic}{rate}")
        for why, count in self.failed.items():
            note(f"{counted(count, 'record')} failed: {why}")
        if self.bad_lines:
            note(f"{counted(self.bad_lines, 'line')} not sent: no record could be made of them")


@contextlib.contextmanager
def _progress(lines: BinaryIO, file: Path | None) -> Iterator[Callable[[int, int], None]]:
    """`advance(bytes read, records delivered so far)`: a bar where somebody looks on, and nothing in a pipe."""
    if not sys.stderr.isatty() or lines.isatty():
        yield lambda _read, _delivered: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = [
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[delivered]:,} delivered"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=file.stat().st_size if file is not None else None, delivered=0)
        waiting = 0
        shown = time.monotonic()

        def advance(read: int, delivered: int) -> None:
            nonlocal waiting, shown
            waiting += read
            if time.monotonic() - shown > 0.1:
                progress.update(task, advance=waiting, delivered=delivered)
                waiting, shown = 0, time.monotonic()

        yield advance
