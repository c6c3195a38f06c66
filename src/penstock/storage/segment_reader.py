"""Reading segment files from outside the broker: the batches of a `.log` file one after the other, CRC checked.

For tools and pipelines that look at a data directory, also one of another program in Kafka's layout. It opens files
read-only, takes no lock and trusts no index. A file that a broker is writing is read as far as it went when the scan
began; what a crash or a half-done write left at the end is no batch, and the scan says where that begins.
"""

from __future__ import annotations

import base64
import enum
import os
import re
import struct
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, Batch
from penstock.storage.files import Disk

CHUNK_BYTES = 1024 * 1024

_LENGTH_AT = 8
_MAGIC_AT = 16
_LENGTH = struct.Struct(">i")
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_TOPIC_ID = re.compile(r"^topic_id: ?([\w-]{22})$", re.MULTILINE)
_LISTING_TRIES = 3
_LOG_NAME = re.compile(r"\d{20}\.log")


class DamageKind(enum.Enum):
    TORN = "torn"
    """The file ends inside a batch."""
    NO_BATCH = "damage"
    CRC = "crc"
    ORDER = "order"
    """The batch is complete, but its offsets are already used."""


class Damage(NamedTuple):
    """Where the sound batches of a file end before the file does."""

    position: int
    bytes_left: int
    kind: DamageKind
    reason: str

    def __str__(self) -> str:
        return f"at position {self.position}: {self.reason} ({self.bytes_left} bytes from there to the end)"


class SegmentScan:
    """The batches of one file with their positions. After the iteration `damage` says whether it ended early, and why.

    Batches keep their bytes alive and may be kept; each holds on to the chunk that it was read with.
    """

    def __init__(
        self, path: Path, start_position: int = 0, chunk_bytes: int = CHUNK_BYTES, disk: Disk | None = None
    ) -> None:
        self.path = path
        self._disk = disk or Disk()
        self.chunk_bytes = chunk_bytes
        self.start_position = start_position
        self.end_position = start_position
        """Behind the last sound batch so far."""
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        self.end_position = self.start_position
        self.damage = None
        next_offset = base_offset_of(self.path)
        disk = self._disk
        file = disk.open_to_read(self.path)
        file_end = disk.open_size(file)
        chunk, chunk_start = memoryview(b""), self.start_position
        while self.end_position < file_end:
            position = self.end_position
            left = file_end - position
            rest = chunk[position - chunk_start :]
            if not _is_whole(rest):
                rest = memoryview(disk.read_at(file, position, min(self.chunk_bytes, left)))
                if not _is_whole(rest) and len(rest) >= HEADER_BYTES:
                    rest = memoryview(disk.read_at(file, position, min(max(_size(rest), HEADER_BYTES), left)))
                chunk, chunk_start = rest, position
            found = _check(rest, left, next_offset)
            if isinstance(found, tuple):
                self.damage = Damage(position, left, *found)
                return
            self.end_position = position + found.size
            next_offset = found.next_offset
            yield position, found


def _check(view: memoryview, left: int, next_offset: int) -> Batch | tuple[DamageKind, str]:
    """The sound batch at the start of `view`, or what is wrong with it; `left` is what the file has from there."""
    if len(view) < HEADER_BYTES:
        return DamageKind.TORN, f"{len(view)} bytes are too few for a batch"
    size = _size(view)
    if view[_MAGIC_AT] != MAGIC:
        return DamageKind.NO_BATCH, f"magic {view[_MAGIC_AT]} is not that of a record batch ({MAGIC})"
    if size < HEADER_BYTES:
        return DamageKind.NO_BATCH, f"batch length {size - LENGTH_PREFIX_BYTES} is too small"
    if size > left:
        return DamageKind.TORN, f"a batch of {size} bytes is truncated"
    if size > len(view):
        return DamageKind.NO_BATCH, "the file became shorter while it was read"
    batch = Batch(view[:size])
    if not batch.crc_is_right():
        return DamageKind.CRC, "the CRC does not match the batch"
    if batch.base_offset < next_offset or batch.last_offset_delta < 0:
        return DamageKind.ORDER, f"base offset {batch.base_offset} is below the expected {next_offset}"
    return batch


def read_segment(path: Path, start_position: int = 0, chunk_bytes: int = CHUNK_BYTES) -> SegmentScan:
    """Iterate over the `(position, batch)` of a `.log` file, from a position where a batch begins."""
    return SegmentScan(path, start_position, chunk_bytes)


def position_before(path: Path, offset: int) -> int:
    """Where in a `.log` file the index beside it says that a batch begins which is not past `offset`. The index is a cache
    and may be of another file by now: who reads from there sees whether it was right, and begins at 0 if not."""
    base_offset = base_offset_of(path)
    found = 0
    for relative, position in _entries(path.with_suffix(".index"), _INDEX_ENTRY, []):
        if base_offset + relative > offset:
            break
        found = max(found, position)
    return found


class Aborted(NamedTuple):
    """A transaction that was taken back: the records of its producer between these offsets do not count."""

    producer_id: int
    first_offset: int
    last_offset: int


class Snapshot(NamedTuple):
    """The files of a partition at one moment."""

    segments: list[Path]
    aborted: list[Aborted]


def settled_segments(partition_dir: Path) -> Snapshot | None:
    """The `.log` files and the aborted transactions of a partition while its broker runs; None when it is exchanging files
    just now, and some of the log may be in none of them. Files may go after that: opening one says so."""
    for _ in range(_LISTING_TRIES):
        changed_ns = partition_dir.stat().st_mtime_ns
        if any(name == "swap" or name.endswith(".swap") for name in os.listdir(partition_dir)):
            return None
        segments = list_segments(partition_dir)
        aborted = [entry for path in segments for entry in read_aborted(path)]
        if partition_dir.stat().st_mtime_ns == changed_ns:
            return Snapshot(segments, aborted)
    return None


def read_aborted(path: Path) -> list[Aborted]:
    """What the index of aborted transactions beside a `.log` file holds; an entry that is being written is not yet there."""
    return [Aborted(*row[1:4]) for row in _entries(path.with_suffix(".txnindex"), _ABORTED_ENTRY, [])]


def topic_id_of(partition_dir: Path) -> uuid.UUID | None:
    """The id of the topic that a partition's folder belongs to, if it says so."""
    try:
        text = (partition_dir / "partition.metadata").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    match = _TOPIC_ID.search(text)
    return uuid.UUID(bytes=base64.urlsafe_b64decode(match[1] + "==")) if match else None


def topics_that_compact(data_dir: Path) -> dict[str, bool]:
    """The topics that the broker's catalogue knows, and whether cleaning leaves gaps in their offsets. Empty without a
    catalogue, as in the folder of another program."""
    try:
        _, _, payload = (data_dir / "topics").read_bytes().partition(b"\n")
        entries = msgspec.json.decode(payload)["topics"]
        return {one["name"]: "compact" in one.get("configs", {}).get("cleanup.policy", "") for one in entries}
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return {}


def list_segments(partition_dir: Path) -> list[Path]:
    """The `.log` files of a partition's folder, oldest first."""
    return sorted(path for path in partition_dir.iterdir() if _LOG_NAME.fullmatch(path.name) and path.is_file())


def list_partitions(data_dir: Path) -> list[Path]:
    """The folders of a data directory that hold segments: `<topic>-<partition>`, in that order."""

    def order(path: Path) -> tuple[str, int]:
        topic, _, number = path.name.rpartition("-")
        return topic, int(number)

    folders = (path for path in data_dir.iterdir() if re.fullmatch(r".+-\d+", path.name) and path.is_dir())
    return sorted((path for path in folders if list_segments(path)), key=order)


def base_offset_of(path: Path) -> int:
    """The offset that the file's name says it begins at; 0 for a file with another name."""
    return int(path.stem) if path.stem.isdecimal() else 0


def check_indexes(path: Path, batches: Iterable[tuple[int, int, int]]) -> list[str]:
    """What is wrong with the indexes beside a `.log` file; `batches` are (position, base offset, last offset) of all.

    Entries that a broker has yet to write are not missed: an index is a cache, and every entry may be absent.
    """
    base_offset = base_offset_of(path)
    at = {position: (first, last) for position, first, last in batches}
    problems: list[str] = []
    for relative, position in _entries(path.with_suffix(".index"), _INDEX_ENTRY, problems):
        if position == relative == 0:
            continue  # Kafka fills the file of the active segment with zeros
        first, last = at.get(position, (-1, -1))
        if not first <= base_offset + relative <= last:
            problems.append(
                f"{path.stem}.index: offset {base_offset + relative} is not in a batch at position {position}"
            )
    last_timestamp = -1
    log_end = max((last for _, last in at.values()), default=-1)
    for timestamp, relative in _entries(path.with_suffix(".timeindex"), _TIME_INDEX_ENTRY, problems):
        if timestamp == relative == 0:
            continue
        if timestamp < last_timestamp:
            problems.append(f"{path.stem}.timeindex: timestamp {timestamp} after {last_timestamp}")
        if not base_offset <= base_offset + relative <= log_end:
            problems.append(f"{path.stem}.timeindex: offset {base_offset + relative} is not in the segment")
        last_timestamp = timestamp
    return problems


def _entries(path: Path, form: struct.Struct, problems: list[str]) -> Iterable[tuple[int, ...]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    if len(data) % form.size:
        problems.append(f"{path.name}: {len(data)} bytes are not whole entries of {form.size}")
        data = data[: len(data) - len(data) % form.size]
    return form.iter_unpack(data)


def _is_whole(view: memoryview) -> bool:
    """Whether a batch that begins at the start of `view` ends in it."""
    return len(view) >= HEADER_BYTES and HEADER_BYTES <= _size(view) <= len(view)


def _size(view: memoryview) -> int:
    length: int = _LENGTH.unpack_from(view, _LENGTH_AT)[0]
    return length + LENGTH_PREFIX_BYTES
