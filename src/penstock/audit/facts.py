"""The facts that a task collects: counts, runs of offsets, sizes by hour, a digest for each piece, and findings."""

from __future__ import annotations

from typing import Final

import msgspec

FINDINGS_KEPT: Final = 20
"""Of one kind and partition; all are counted."""

DIGEST_MAX: Final = (1 << 64) - 1

KINDS: Final = {
    "crc": "a batch with a CRC mismatch",
    "torn": "a file that ends inside a batch",
    "damage": "bytes that are not a batch, a file that cannot be read, or rows without a valid partition and offset",
    "records": "a batch with a valid CRC whose records cannot be decoded",
    "order": "offsets that do not increase",
    "duplicate": "duplicate offsets or duplicate batches of a producer",
    "gap": "missing offsets",
    "index": "an index that does not match its segment",
    "missing": "records of the topic that are not in the table",
    "extra": "records of the table that are not in the topic",
    "content": "records that differ between table and topic",
    "topic": "a table of another topic with the same name",
}
"""Every kind of finding, and what it means."""

Runs = list[tuple[int, int]]
"""First and last offset of stretches without a gap, in the order in which they were read."""


class Finding(msgspec.Struct, frozen=True):
    kind: str
    place: str
    """TOPIC-PARTITION, and the file where there is one."""
    text: str
    offsets: tuple[int, int] | None = None
    """First and last offset of a finding about offsets."""


class Found(msgspec.Struct):
    """Findings of one partition."""

    kept: list[Finding] = []
    counts: dict[str, int] = {}

    def add(self, kind: str, place: str, text: str, count: int = 1, offsets: tuple[int, int] | None = None) -> None:
        assert kind in KINDS, kind
        seen = self.counts.get(kind, 0)
        self.counts[kind] = seen + count
        if sum(1 for one in self.kept if one.kind == kind) < FINDINGS_KEPT:
            self.kept.append(Finding(kind, place, text, offsets))

    def add_offsets(self, kind: str, place: str, first: int, last: int, text: str) -> None:
        """Count every offset from `first` to `last`; `text` continues after them."""
        self.add(kind, place, f"offsets {first} to {last} {text}", last - first + 1, (first, last))

    def take(self, other: Found) -> None:
        for one in other.kept:
            if sum(1 for kept in self.kept if kept.kind == one.kind) < FINDINGS_KEPT:
                self.kept.append(one)
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count


class Piece(msgspec.Struct, array_like=True):
    """Records whose offsets start with the same bits: their number and the sum of their digests, in any order."""

    records: int = 0
    digest: int = 0


class Facts(msgspec.Struct):
    topic: str
    partition: int
    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    """That readers of committed records see."""
    hidden: int = 0
    """Markers, and records of transactions that were aborted or have no end."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    timestamp_min: int | None = None
    timestamp_max: int | None = None
    """In milliseconds."""
    null_keys: int = 0
    null_values: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    record_bytes_max: int = 0
    runs: Runs = []
    """Of offsets that are taken, by records or by what readers do not see."""
    visible: Runs = []
    hours: dict[int, tuple[int, int]] = {}
    """Records, and bytes of keys and values, by hours since 1970."""
    pieces: dict[int, Piece] = {}
    keys: list[int] = []
    """Hashes of different keys, or registers of a sketch (`distinct`)."""
    is_sketch: bool = False
    topic_id: str = ""
    """Empty if unknown."""
    found: Found = msgspec.field(default_factory=Found)

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}"


def add_run(runs: Runs, first: int, last: int) -> None:
    """Append a stretch; the last one becomes longer if this one follows it."""
    if runs and runs[-1][1] + 1 == first:
        runs[-1] = (runs[-1][0], last)
    else:
        runs.append((first, last))
