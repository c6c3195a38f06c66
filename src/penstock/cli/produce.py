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
    request_bytes_max,
)
from penstock.cli.dialect_runs import DialectDelivery
from penstock.cli.dialects import DialectOption, dialect_address, given, speaking
from penstock.cli.failure import Failed, Misused, checked_topic
from penstock.cli.output import counted, note
from penstock.cli.record_text import Header, LineParser, TextRecord, parse_json, parse_keyvalue

if TYPE_CHECKING:
    from confluent_kafka import Producer

app = command_app()

_LINES_BETWEEN_POLLS = 500
_RECORD_BYTES_MAX = 1_000_000_000
"""librdkafka's own limit. The topic's max.message.bytes and the broker's largest request apply instead."""
_LARGE_BYTES = 64 * 1024
"""Size from which a record may be too large for a request: the broker is asked for its limit, once."""
_REQUEST_OVERHEAD_BYTES = 2_000
"""Maximum size of a Produce request without its record."""
_TIMEOUT_S_MAX = 2_000_000
"""Three weeks: the client library counts milliseconds in 32 bits."""


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
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", exists=True, dir_okay=False, help="Read lines from FILE. [default: stdin]"
        ),
    ] = None,
    format_: Annotated[
        InputFormat | None, typer.Option("--format", help="Format of a line. [default: value; with -K: keyvalue]")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Separator between key and value. [default: ':']"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header for every record; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Write to this partition. [default: by hash of the key]")
    ] = None,
    acks: Annotated[Acks, typer.Option(help="Acknowledgements required from the broker.")] = Acks.all,
    compression: Annotated[Compression, typer.Option(help="Compression of record batches.")] = Compression.none,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, max=_TIMEOUT_S_MAX, help="Delivery timeout for a record."
        ),
    ] = 30.0,
    dialect: DialectOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write records to a topic, one per line.

    JSON lines have the fields key, value, headers and timestamp, as `penstock consume --format json` prints them. Empty
    lines are empty records; with --format json they are skipped.
    """
    checked_topic(topic)
    parser = LineParser(_parser(format_, key_separator), note)
    headers = _headers(header or [])
    with contextlib.ExitStack() as stack:
        delivery: Delivery | DialectDelivery
        if dialect is None:
            producer = _producer(bootstrap, acks, compression, timeout_s)
            limit = functools.cache(lambda: request_bytes_max(bootstrap))
            delivery = Delivery(producer, topic, partition, headers, limit, packed=compression is not Compression.none)
        else:
            for option in ("header", "acks", "compression"):
                if given(context, option):
                    raise Misused(f"--{option} cannot be combined with --dialect: {dialect} does not support it")
            client = stack.enter_context(speaking(dialect, dialect_address(context, dialect, bootstrap), timeout_s))
            delivery = DialectDelivery(dialect, client, topic, partition)
        lines: BinaryIO = sys.stdin.buffer if file is None else stack.enter_context(file.open("rb"))
        if lines.isatty():
            note("enter one record per line; Ctrl-D to finish")
        began = time.monotonic()
        try:
            with _progress(lines, file) as advance:
                finished = delivery.run(lines, parser, advance)
        finally:
            _report(topic, delivery, parser.bad_lines, time.monotonic() - began)
    if not finished:
        raise typer.Exit(130)
    if delivery.failed or parser.bad_lines:
        raise typer.Exit(1)


def _report(topic: str, delivery: Delivery | DialectDelivery, bad_lines: int, seconds: float) -> None:
    delivered = delivery.delivered
    rate = f" ({delivered / seconds:,.0f} records/s)" if delivered and seconds > 0 else ""
    note(f"{counted(delivered, 'record')} delivered to {topic}{rate}")
    for why, count in delivery.failed.items():
        note(f"{counted(count, 'record')} failed: {why}")
    if bad_lines:
        note(f"{counted(bad_lines, 'invalid line')} not sent")


def _producer(bootstrap: str, acks: Acks, compression: Compression, timeout_s: float) -> Producer:
    from confluent_kafka import Producer

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
    return Producer(client_config(bootstrap, **settings))


def _parser(chosen: InputFormat | None, separator: str | None) -> Callable[[bytes], TextRecord | None]:
    if chosen is None:
        chosen = InputFormat.value if separator is None else InputFormat.keyvalue
    if separator is not None and chosen is not InputFormat.keyvalue:
        raise Misused(f"--key-separator requires --format keyvalue, not {chosen.value}")
    if separator == "":
        raise Misused("--key-separator must not be empty")
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
            raise Misused(f"--header {header}: expected NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


class Delivery:
    """One run: hands lines to the client library and keeps count of what became of them."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition: int | None,
        headers: list[Header],
        request_bytes_max: Callable[[], int],
        *,
        packed: bool,
    ) -> None:
        there = partitions_for_writing(producer, topic)
        if partition is not None and partition not in there:
            raise Failed(f"topic {topic} has no partition {partition} (partitions: {len(there)})")
        self._producer = producer
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        self._produce = functools.partial(producer.produce, topic, on_delivery=self._note_failure, **where)
        self._headers = headers
        self._request_bytes_max = request_bytes_max
        self._packed = packed
        """Whether records are compressed, so that a large record may fit into a request."""
        self._accepted = 0
        self.failed: Counter[str] = Counter()
        """How many records failed, by reason."""

    @property
    def delivered(self) -> int:
        """Records that the broker acknowledged. Only failures are reported one by one: a call a record would cost more
        than the record."""
        return self._accepted - self.failed.total() - len(self._producer)

    def run(self, lines: BinaryIO, parser: LineParser, advance: Callable[[int, int], None]) -> bool:
        """Send every line and wait for the broker; False when Ctrl-C ended it."""
        interactive = lines.isatty()
        unread = 0
        try:
            for number, line in enumerate(lines, 1):
                record = parser.take(line)
                if record is not None:
                    self._send(record)
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

    def _send(self, record: TextRecord) -> None:
        from confluent_kafka import KafkaException

        more: dict[str, Any] = {}
        if self._headers or record.headers:
            more["headers"] = [*self._headers, *record.headers]
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        self._accepted += 1
        size = len(record.value or b"") + len(record.key or b"")
        if not self._packed and self._fits_no_request(size):
            self.failed[self._too_large()] += 1
            return
        while True:
            try:
                self._produce(value=record.value, key=record.key, **more)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self.failed[reason(error)] += 1
                return

    def _fits_no_request(self, size: int) -> bool:
        return size >= _LARGE_BYTES and size + _REQUEST_OVERHEAD_BYTES > self._request_bytes_max()

    def _too_large(self) -> str:
        limit = self._request_bytes_max()
        return f"record exceeds the broker's socket.request.max.bytes ({limit})"

    def _note_failure(self, error: Any, message: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._MSG_TIMED_OUT and self._fits_no_request(len(message)):
            # the broker closes the connection before it reads such a request, and the client library retries
            self.failed[self._too_large()] += 1
        else:
            self.failed[reason(error)] += 1


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
