"""MiniKafka's directory: `logs/<topic>/<partition>/<first id>.log`, committed offsets in a topic of its own.

    record  = total i32 | CRC-32 of the payload i32 | id i64 | time in ms i64 | key length i32 | key | payload length i32 |
              payload                                              (big-endian; total counts what follows it)
    commits = records of `__consumer_offsets`: key `group:topic:partition`, payload the offset in decimal digits

After a restart MiniKafka begins with id 0 again in every partition, in files that may hold older records. So the files of a
partition are cut into runs of rising ids, and the runs are put in the order of their times. The first run keeps its
ids; later ones whose ids were given before get the next free offsets, and the report counts them. A committed offset means
the run that was written to when it was committed.

Keys lie there as UTF-8 of the bytes that were sent, each taken for a character; they come over as those bytes.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.frames import Frame, numbered_frames
from penstock.imports.source import (
    Commit,
    Findings,
    Found,
    Skipped,
    SourcePartition,
    SourceRecord,
    partition_number,
    segment_files,
)
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 100_000_000
KEY_BYTES_MAX = 1024
"""Its broker takes a longer one for damage; on disk a byte of a key may be two."""
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"

_HEAD = struct.Struct(">iIqqi")
_LENGTH = struct.Struct(">i")
_FIXED_BYTES = 28
"""What a record's total counts beside key and payload."""


class Run(NamedTuple):
    """Records of one file whose ids rise: what was written between two restarts."""

    first_timestamp: int
    first_id: int
    last_id: int
    file: str
    start: int
    end: int
    """Positions of its first record, and behind its last."""


class PlacedRun(NamedTuple):
    run: Run
    shift: int
    """From ids to offsets."""


def find(root: Path) -> Found:
    found = Found()
    logs = root / "logs" if (root / "logs").is_dir() else root
    for topic in sorted(path for path in logs.iterdir() if path.is_dir()):
        if topic.name == COMMITS:
            continue
        for folder in sorted(path for path in topic.iterdir() if path.is_dir()):
            number = partition_number(folder.name)
            files = segment_files(folder, ".log")
            if files and number is None:
                found.skipped.append(Skipped(f"{topic.name}/{folder.name}", "its name is no partition number"))
            elif files and number is not None:
                found.partitions.append(SourcePartition(topic.name, number, tuple(map(str, files))))
    return found


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    placed = _place(_runs(partition, findings))
    for run, shift in placed:
        with FileBytes(Path(run.file)) as file:
            # What is wrong with the file was found when it was cut into runs.
            for position, frame in numbered_frames(file, _parse, _peek, Findings(), run.start):
                if position >= run.end:
                    break
                findings.renumbered += shift != 0
                yield SourceRecord(frame.offset + shift, frame.timestamp, frame.key, frame.value)


def _runs(partition: SourcePartition, findings: Findings) -> list[Run]:
    runs: list[Run] = []
    for path in partition.files:
        with FileBytes(Path(path)) as file:
            run: Run | None = None
            for position, frame in numbered_frames(file, _parse, _peek, findings):
                if run is not None and frame.offset > run.last_id:
                    run = run._replace(last_id=frame.offset, end=frame.end)
                else:
                    if run is not None:
                        runs.append(run)
                    run = Run(frame.timestamp, frame.offset, frame.offset, path, position, frame.end)
            if run is not None:
                runs.append(run)
    runs.sort(key=lambda run: run.first_timestamp)
    return runs


def _place(runs: list[Run]) -> list[PlacedRun]:
    placed = []
    following = 0
    for run in runs:
        shift = max(0, following - run.first_id)
        following = run.last_id + shift + 1
        placed.append(PlacedRun(run, shift))
    return placed


def _parse(file: FileBytes, position: int) -> Frame | None:
    head = file.at(position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    total, crc, record_id, timestamp, key_bytes = _HEAD.unpack(head)
    end = position + _LENGTH.size + total
    if not 0 <= key_bytes <= 2 * KEY_BYTES_MAX or end > file.size or total < _FIXED_BYTES + key_bytes:
        return None
    payload_bytes = total - _FIXED_BYTES - key_bytes
    key_at = position + _HEAD.size
    rest = file.at(key_at, key_bytes + _LENGTH.size + payload_bytes)
    if payload_bytes > RECORD_BYTES_MAX or _LENGTH.unpack_from(rest, key_bytes)[0] != payload_bytes:
        return None
    payload = rest[key_bytes + _LENGTH.size :]
    return Frame(end, record_id, timestamp, _sent(rest[:key_bytes]), payload, zlib.crc32(payload) == crc)


def _sent(stored: bytes) -> bytes:
    """A key as it came over the wire; one that no MiniKafka wrote stays as it is."""
    try:
        return stored.decode("utf-8").encode("latin-1")
    except UnicodeError:
        return stored


def _peek(file: FileBytes, position: int) -> int | None:
    head = file.at(position, _HEAD.size)
    return _HEAD.unpack(head)[2] if len(head) == _HEAD.size else None


def commits(root: Path, findings: Findings) -> list[Commit]:
    logs = root / "logs" if (root / "logs").is_dir() else root
    latest: dict[tuple[str, str, int], tuple[int, int]] = {}
    folders = sorted(path for path in (logs / COMMITS).iterdir() if path.is_dir()) if (logs / COMMITS).is_dir() else []
    for folder in folders:
        partition = SourcePartition(COMMITS, 0, tuple(map(str, segment_files(folder, ".log"))))
        for record in _records(partition, findings):
            place = _committed_place(record.key or b"")
            text = record.value or b""
            if place is None or not text.isdigit():
                findings.add(str(folder), 0, len(text), f"a commit that is none: {(record.key or b'')[:60]!r}")
            elif place[1] != COMMITS:  # at every start MiniKafka commits garbage for its own loader
                latest[place] = (int(text), record.timestamp)
    return [
        Commit(group, topic, number, _offset_of(logs / topic / str(number), offset, timestamp))
        for (group, topic, number), (offset, timestamp) in sorted(latest.items())
    ]


def _committed_place(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition, split from the right: a group may have colons."""
    try:
        group, topic, number_text = key.decode().rsplit(":", 2)
    except ValueError:
        return None
    number = partition_number(number_text)
    return None if number is None or not group or not topic else (group, topic, number)


def _offset_of(folder: Path, record_id: int, timestamp: int) -> int:
    """The offset that an id has now, if it was committed at that time."""
    if not folder.is_dir():
        return record_id
    placed = _place(_runs(SourcePartition("", 0, tuple(map(str, segment_files(folder, ".log")))), Findings()))
    at = bisect_right(placed, timestamp, key=lambda one: one.run.first_timestamp) - 1
    # The runs of one life of the broker have one shift.
    return record_id + (placed[max(at, 0)].shift if placed else 0)
