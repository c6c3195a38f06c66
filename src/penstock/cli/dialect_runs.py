"""One run of `produce` or `consume` in another dialect: lines to records, records to lines, through its small client."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import BinaryIO

from penstock.cli.dialect_clients import DialectClient, Found, Groups, Pair
from penstock.cli.dialects import DialectName
from penstock.cli.failure import Misused
from penstock.cli.output import OutputClosed, write_lines
from penstock.cli.record_text import LineParser, Place, RecordWriter, TextRecord
from penstock.cli.stopping import Stop
from penstock.cli.whence import From, Start

_READ_BYTES = 256 * 1024
_POLL_S = 0.25
"""Between two looks for more: these dialects cannot wait for a record."""


class DialectReading:
    """Reads the chosen partitions one after the other, to their ends; then, when told to follow, again and again."""

    def __init__(self, name: DialectName, topic: str, write: RecordWriter, count: int | None, stop: Stop) -> None:
        self._name = name
        self._stop = stop
        self._topic = topic
        self._write = write
        self._left = sys.maxsize if count is None else count

    def run(
        self,
        client: DialectClient,
        start: Start,
        partitions: list[int] | None,
        group: str | None,
        *,
        follow: bool,
    ) -> None:
        self._check(client, start, group)
        chosen = sorted(set(partitions)) if partitions else None
        try:
            while self._left and not self._stop.asked:
                self._pass(client, client.read(self._topic, chosen, group, start[1]))
                if not follow:
                    break
                time.sleep(_POLL_S)
        except OutputClosed:
            return

    def _check(self, client: DialectClient, start: Start, group: str | None) -> None:
        if client.groups is Groups.MUST and group is None:
            raise Misused(f"--dialect {self._name} requires a consumer group: give --group NAME")
        if client.groups is Groups.NEVER and group is not None:
            raise Misused(f"--group cannot be combined with --dialect {self._name}, which does not store offsets")
        if client.groups is Groups.MUST and start != (From.BEGINNING, 0):
            raise Misused(
                f"--from cannot be combined with --dialect {self._name}: reading continues at the group's offset"
            )
        if start[0] not in (From.BEGINNING, From.OFFSET):
            raise Misused(f"--from must be beginning or an offset with --dialect {self._name}")

    def _pass(self, client: DialectClient, found: Iterator[Found]) -> None:
        """Once to the end: written, then committed, then the next."""
        while window := list(islice(found, min(self._left, client.records_per_commit))):
            self._print(window)
            client.commit()
            self._left -= len(window)
            if not self._left or self._stop.asked:
                return

    def _print(self, window: list[Found]) -> None:
        lines = [
            self._write(TextRecord(found.key, found.value), Place(self._topic, found.partition, found.offset)) + b"\n"
            for found in window
        ]
        write_lines(lines)


class DialectDelivery:
    """Sends lines as they come: all that one read delivers leave together, and are acknowledged before the next."""

    def __init__(self, name: DialectName, client: DialectClient, topic: str, partition: int | None) -> None:
        if partition is not None and not client.takes_partitions:
            raise Misused(f"--partition cannot be combined with --dialect {name}: the record key selects the partition")
        self._name = name
        self._client = client
        self._topic = topic
        self._partition = partition
        self.delivered = 0
        self.failed: Counter[str] = Counter()
        """How many records failed on this side of the wire, by reason."""

    def run(self, lines: BinaryIO, parser: LineParser, advance: Callable[[int, int], None]) -> bool:
        """Send every line; False when Ctrl-C ended it."""
        begun: list[bytes] = []
        """The parts of an incomplete line, joined once, because a line may have many."""
        try:
            while chunk := lines.read1(_READ_BYTES):  # type: ignore[attr-defined]
                if b"\n" in chunk:
                    *complete, rest = b"".join([*begun, chunk]).split(b"\n")
                    begun = [rest]
                    self._send(self._records(complete, parser))
                else:
                    begun.append(chunk)
                advance(len(chunk), self.delivered)
            if rest := b"".join(begun):
                self._send(self._records([rest], parser))
        except KeyboardInterrupt:
            return False
        return True

    def _records(self, lines: list[bytes], parser: LineParser) -> list[Pair]:
        found = (parser.take(line, self._checked) for line in lines)
        return [Pair(record.key or b"", record.value or b"") for record in found if record is not None]

    def _checked(self, record: TextRecord) -> None:
        """ValueError for what the dialect cannot carry. A timestamp is not missed: the broker sets it there."""
        if record.headers:
            raise ValueError(f"{self._name} does not support headers")
        if record.key and not self._client.carries_keys:
            raise ValueError(f"{self._name} does not support keys")
        if record.value is None:
            raise ValueError(f"{self._name} does not support null values")

    def _send(self, records: list[Pair]) -> None:
        if not records:
            return
        try:
            self._client.produce(self._topic, self._partition, records)
            self.delivered += len(records)
        except ValueError as error:  # one of them fits no frame: nothing has left
            if len(records) == 1:
                self.failed[str(error)] += 1
                return
            for record in records:
                self._send([record])
