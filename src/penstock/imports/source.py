"""What a foreign directory holds, in words that all readers share.

A reader finds partitions, gives their records or batches in log order, and the offsets that groups committed. Whatever it
cannot take is a finding: where, how many bytes, and why. Findings are counted without bound and kept up to one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from penstock.records.batch import Batch
from penstock.records.record import Headers

FINDINGS_KEPT = 50
"""Of one partition: a report is for people."""

SKIPS_KEPT = 200

OFFSET_END = 1 << 62
"""Offset that no log reaches: an offset from here on is damaged or forged."""

TIME_END_MS = 253_402_300_800_000
"""The year 10000: a time from then on, or before 1970, is invalid."""

READERS: Final = ("fluxgo", "minikafka", "rustlog", "flymq", "day1", "kafka")


class SourcePartition(NamedTuple):
    """One partition as it lies there; plain values, so that it can be sent to another process."""

    topic: str
    partition: int
    files: tuple[str, ...]
    """Its segments in the order of their offsets."""
    layout: str = ""
    """Which of a broker's layouts it is, where there are several."""
    sizes: tuple[int, ...] = ()
    """Sizes of the files when they were found: data that a running broker appends later is not read."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Skipped(NamedTuple):
    """Something that is there and does not come over."""

    what: str
    why: str
    is_loss: bool = True
    """False for files that the source broker no longer counts as its data."""


@dataclass(slots=True)
class Skips:
    """Items that are all counted and kept up to a bound."""

    kept: list[Skipped] = field(default_factory=list)
    count: int = 0
    losses: int = 0

    def add(self, what: str, why: str, *, is_loss: bool = True) -> None:
        self.count += 1
        self.losses += is_loss
        if len(self.kept) < SKIPS_KEPT:
            self.kept.append(Skipped(shown(what), shown(why), is_loss))

    def __iter__(self) -> Iterator[Skipped]:
        return iter(self.kept)

    def __len__(self) -> int:
        return self.count


class Commit(NamedTuple):
    """Where a group goes on, in the source's offsets."""

    group: str
    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class SourceRecord(NamedTuple):
    """A record at the offset that it keeps, or that it is given because the source numbered it twice."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Finding(NamedTuple):
    """Damage: bytes of a file that do not come over, or (with a length of 0) something that is odd there."""

    file: str
    position: int
    length: int
    reason: str

    def __str__(self) -> str:
        lost = f" ({self.length} bytes)" if self.length else ""
        return f"{self.file} at {self.position}: {self.reason}{lost}"


@dataclass(slots=True)
class Findings:
    kept: list[Finding] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    renumbered: int = 0
    """Records whose offset was given twice by the source, and is now another."""

    def add(self, file: str, position: int, length: int, reason: str) -> None:
        self.count += 1
        self.bytes += length
        if len(self.kept) < FINDINGS_KEPT:
            self.kept.append(Finding(shown(file), position, length, shown(reason)))


@dataclass(slots=True)
class Found:
    """What a directory holds, by its names alone."""

    partitions: list[SourcePartition] = field(default_factory=list)
    skipped: Skips = field(default_factory=Skips)


class Reader(Protocol):
    """One broker's format. A module is one: `load` gives it."""

    RECORD_BYTES_MAX: int
    """The broker's own limit: what claims to be longer is damage."""
    TAKES_FILES_OVER: bool
    """Whether its segment files are ours too, and need no conversion."""

    def find(self, root: Path) -> Found:
        """The partitions below `root`; raises NotADirectory of its kind as SourceError."""
        ...

    def batches(self, partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
        """Sound batches in log order, at their offsets, from the first that ends at or behind `start`."""
        ...

    def commits(self, root: Path, findings: Findings) -> list[Commit]:
        """What groups committed, the last word of each."""
        ...


class SourceError(Exception):
    """The directory is not what it is said to be: one line for the user."""


def load(name: str) -> Reader:
    """The reader of a broker's directories."""
    if name not in READERS:
        raise SourceError(f"{name!r} is not one of {', '.join(READERS)}")
    return cast("Reader", importlib.import_module(f"penstock.imports.{name}"))


def shown(text: str) -> str:
    """A printable form of a name or text: some are not UTF-8, and control characters affect terminals."""
    text = text.encode(errors="surrogateescape").decode(errors="replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def usable_time(timestamp: int, otherwise: int) -> int:
    """A record's time in ms, or the given default if it is not valid."""
    return timestamp if 0 <= timestamp < TIME_END_MS else otherwise


def partition_number(text: str) -> int | None:
    """The number that a name ends with, if it is one: digits of ASCII without a sign."""
    return int(text) if text.isascii() and text.isdecimal() else None
