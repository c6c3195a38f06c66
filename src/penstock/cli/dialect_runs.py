"""One run of `produce` or `consume` in another dialect: lines to records, records to lines, through its small client."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import BinaryIO

from penstock.cli.dialects import DialectClient, DialectName, Found, Pair, speaking
from penstock.cli.failure import Misused
from penstock.cli.record_text import LineParser, Place, RecordWriter, TextRecord
from penstock.cli.whence import From, Start

_READ_BYTES = 256 * 1024
_POLL_S = 0.25
"""Between two looks for more: most of these dialects cannot wait for a record."""
_RECORDS_BETWEEN_COMMITS = 1_000


class DialectReading:
    """Reads the chosen partitions one after the other, to their ends; then, when told to follow, again and again."""

    def __init__(self, name: DialectName, address: str, topic: str, write: RecordWriter, count: int | None) -> None:
        self._name = name
        self._address = address
        self._topic = topic
        self._write = write
        self._left = sys.maxsize if count is None else count
        self._group: str | None = None

    def run(self, start: Start, partitions: list[int] | None, group: str | None, *, follow: bool) -> None:
        kind, number = start
        if kind not in (From.BEGINNING, From.OFFSET):
            raise Misused(f"--from is beginning or an offset with --dialect {self._name}")
        self._group = group
        with speaking(self._name, self._address) as client:
            if group is not None and not client.keeps_offsets:
                raise Misused(f"--group goes without --dialect {self._name}, which keeps no offsets")
            chosen = sorted(set(partitions)) if partitions else client.partitions(self._topic)
            offsets = {partition: self._first(client, partition, number) for partition in chosen}
            try:
                self._read(client, offsets)
                while follow and self._left:
                    time.sleep(_POLL_S)
                    self._read(client, offsets)
            except _PipeClosed:
                # The reader of the pipe has seen enough; what is still buffered has nowhere to go.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _first(self, client: DialectClient, partition: int, otherwise: int) -> int:
        committed = None if self._group is None else client.committed(self._group, self._topic, partition)
        return otherwise if committed is None else committed

    def _read(self, client: DialectClient, offsets: dict[int, int]) -> None:
        """One pass over the partitions; `offsets` goes along."""
        for partition, offset in offsets.items():
            if not self._left:
                return
            for window in _windows(client.consume(self._topic, partition, offset), self._left):
                self._print(partition, window)
                offsets[partition] = window[-1].offset + 1
                if self._group is not None:
                    client.commit(self._group, self._topic, partition, offsets[partition])

    def _print(self, partition: int, window: list[Found]) -> None:
        lines = [
            self._write(TextRecord(found.key, found.value), Place(self._topic, partition, found.offset)) + b"\n"
            for found in window
        ]
        try:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise _PipeClosed from None
        self._left -= len(lines)


class _PipeClosed(Exception):
    """Not an OSError: the broker's connection is fine."""


def _windows(found: Iterator[Found], count: int) -> Iterator[list[Found]]:
    """Pieces of what is printed and committed at once; `count` records in all at most."""
    window: list[Found] = []
    for record in found:
        window.append(record)
        count -= 1
        if not count or len(window) == _RECORDS_BETWEEN_COMMITS:
            yield window
            window = []
        if not count:
            return
    if window:
        yield window


class DialectDelivery:
    """Sends lines as they come: all that one read delivers leave together, and are acknowledged before the next."""

    def __init__(self, name: DialectName, client: DialectClient, topic: str, partition: int | None) -> None:
        self._name = name
        self._client = client
        self._topic = topic
        self._partition = partition
        self.delivered = 0
        self.failed: Counter[str] = Counter()
        """How many records failed on this side of the wire, by reason."""

    def run(self, lines: BinaryIO, parser: LineParser, advance: Callable[[int, int], None]) -> bool:
        """Send every line; False when Ctrl-C ended it."""
        rest = b""
        try:
            while chunk := lines.read1(_READ_BYTES):  # type: ignore[attr-defined]
                *complete, rest = (rest + chunk).split(b"\n")
                self._send(self._records(complete, parser))
                advance(len(chunk), self.delivered)
            if rest:
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
            raise ValueError(f"{self._name} carries no headers")
        if record.key and not self._client.carries_keys:
            raise ValueError(f"{self._name} carries no keys")
        if record.value is None:
            raise ValueError(f"{self._name} carries no null values")

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
