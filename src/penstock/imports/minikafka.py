"""MiniKafka's directory: `logs/<topic>/<partition>/<first id>.log`, committed offsets in a topic of its own.

    record  = total i32 | CRC-32 of the payload i32 | id i64 | time in ms i64 | key length i32 | key | payload length i32 |
              payload                                              (big-endian; total counts what follows it)
    commits = records of `__consumer_offsets`: key `group:topic:partition`, payload the offset in decimal digits

After a restart MiniKafka starts at id 0 again in every partition, in files that may hold older records. Producers that write
at the same time repeat ids and overtake each other. So records are imported in the order of the file. Where ids fall back,
another file of the partition may hold older records: those come first, by their times. A record whose id is already used
gets the next free offset, and the report counts it.

A committed offset is one above the id of the last record that the group has read. It becomes the offset after that record:
the last one with that id at the time of the commit.

Keys lie there as UTF-8 of the bytes that were sent, each taken for a character; they come over as those bytes.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes, read_frames
from penstock.imports.checked import checked_frames
from penstock.imports.cutting import cut_batches
from penstock.imports.entries import walk
from penstock.imports.frames import Frame, Head
from penstock.imports.numbering import number_frames
from penstock.imports.source import (
    Commit,
    Findings,
    Found,
    Skips,
    SourcePartition,
    SourceRecord,
    partition_number,
    usable_time,
)
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 100_000_000
KEY_BYTES_MAX = 1024
"""Its broker takes a longer one for damage; on disk a byte of a key may be two."""
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"
LOGS = "logs"

_HEAD = struct.Struct(">iIqqi")
_LENGTH = struct.Struct(">i")
_FIXED_BYTES = 28
"""What a record's total counts beside key and payload."""
_DIGITS_MAX = 19
"""Of an offset."""


def find(root: Path) -> Found:
    found = Found()
    found.partitions = [one for one in _partitions(root, found.skipped) if one.topic != COMMITS]
    return found


def _partitions(root: Path, skips: Skips) -> Iterator[SourcePartition]:
    """All partitions, including those of its own topic. A topic with a slash is in nested folders."""
    top = ""
    for folder in walk(root, skips):
        if not folder.name and LOGS in folder.folders:
            top = LOGS + "/"
        if not (folder.name + "/").startswith(top) and folder.name:
            folder.skip_whole(skips, f"not in {LOGS}/")
            continue
        topic, _, number_text = folder.name.removeprefix(top).rpartition("/")
        number = partition_number(number_text)
        if topic and number is not None:
            files, sizes = folder.take_segments(".log")
            if files:
                yield SourcePartition(topic, number, files, sizes=sizes)
        folder.skip_rest(skips, "not a file of MiniKafka, or not in TOPIC/PARTITION", lambda _: False)


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    for offset, frame in _numbered(partition, findings):
        yield SourceRecord(offset, frame.timestamp, frame.key, frame.value)


def _numbered(partition: SourcePartition, findings: Findings) -> Iterator[tuple[int, Frame]]:
    return number_frames(_in_order(partition, findings), findings)


@dataclass(slots=True)
class _Cursor:
    """Progress of reading a file."""

    path: str
    size: int
    position: int = 0
    time: int = 0
    """The latest time so far, or that of the next record: times in a file rise, unless a clock was set back."""


def _in_order(partition: SourcePartition, findings: Findings) -> Iterator[Frame]:
    """The frames of all files. One file at a time is open: a partition may have any number of them."""
    cursors = [_Cursor(path, size) for path, size in zip(partition.files, partition.sizes, strict=True)]
    waiting: list[tuple[int, int]] = []
    for number, cursor in enumerate(cursors):
        cursor.time = _first_time(cursor) if len(cursors) > 1 else 0
        waiting.append((cursor.time, number))
    heapq.heapify(waiting)
    while waiting:
        _, number = heapq.heappop(waiting)
        cursor = cursors[number]
        yield from _until_older(cursor, waiting[0][0] if waiting else None, findings)
        if cursor.position >= 0:
            heapq.heappush(waiting, (cursor.time, number))


def _first_time(cursor: _Cursor) -> int:
    first = next(_frames(cursor, Findings()), None)
    return 0 if first is None else first[1].timestamp


def _until_older(cursor: _Cursor, next_time: int | None, findings: Findings) -> Iterator[Frame]:
    """The frames of a file, up to one whose id falls back and that is newer than the next frame of another file."""
    highest = -1
    for position, frame in _frames(cursor, findings):
        cursor.time = max(cursor.time, frame.timestamp)
        if frame.offset <= highest and next_time is not None and cursor.time > next_time:
            cursor.position = position
            return
        highest = max(highest, frame.offset)
        yield frame
    cursor.position = -1


def _frames(cursor: _Cursor, findings: Findings) -> Iterator[tuple[int, Frame]]:
    """From where the cursor is."""

    def frames_of(file: FileBytes) -> Iterator[tuple[int, Frame]]:
        return checked_frames(file, _parse, _HEAD_OF, findings, cursor.position)

    return read_frames(cursor.path, cursor.size, findings, frames_of)


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
    time = usable_time(timestamp, file.modified_ms)
    return Frame(end, record_id, time, _sent(rest[:key_bytes]), payload, zlib.crc32(payload) == crc)


def _sent(stored: bytes) -> bytes:
    """A key as it came over the wire; one that no MiniKafka wrote stays as it is."""
    try:
        return stored.decode("utf-8").encode("latin-1")
    except UnicodeError:
        return stored


_HEAD_OF = Head.of(rb"(?!\0\0\0[\0-\x1b])[\0-\x05].{23}\0\0[\0-\x08]", 27)
"""Start of a record: a length from 28 to a hundred million, and a key of at most 2048 bytes."""


def commits(root: Path, findings: Findings) -> list[Commit]:
    latest: dict[tuple[str, str, int], tuple[int, int]] = {}
    partitions = {(one.topic, one.partition): one for one in _partitions(root, Skips())}
    for partition in partitions.values():
        if partition.topic == COMMITS:
            _read_commits(partition, latest, findings)
    committed: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    for (group, topic, number), one in latest.items():
        committed.setdefault((topic, number), {})[group] = one
    found = []
    for place, groups in committed.items():
        offsets = _offsets_now(partitions.get(place, SourcePartition(*place, ())), list(groups.values()))
        found += [Commit(group, *place, offset) for group, offset in zip(groups, offsets, strict=True)]
    return sorted(found)


def _read_commits(
    partition: SourcePartition, latest: dict[tuple[str, str, int], tuple[int, int]], findings: Findings
) -> None:
    for record in _records(partition, findings):
        key, text = record.key or b"", record.value or b""
        place = _committed_place(key)
        if place is None or not text.isdigit() or len(text) > _DIGITS_MAX:
            findings.add(partition.files[0], 0, len(text), f"a record that commits no offset: {key[:60]!r}")
        elif place[1] != COMMITS and record.timestamp >= latest.get(place, (0, 0))[1]:
            # At every start MiniKafka commits garbage for its own loader.
            latest[place] = (int(text), record.timestamp)


def _committed_place(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition, split from the right: a group may have colons."""
    try:
        group, topic, number_text = key.decode().rsplit(":", 2)
    except ValueError:
        return None
    number = partition_number(number_text)
    return None if number is None or not group or not topic else (group, topic, number)


def _offsets_now(partition: SourcePartition, committed: list[tuple[int, int]]) -> list[int]:
    """The new offsets of ids that were committed at given times, found by reading the partition once."""
    by_id: dict[int, list[int]] = {}
    for number, (record_id, _) in enumerate(committed):
        by_id.setdefault(record_id - 1, []).append(number)
    offsets = [-1] * len(committed)
    # A group's position may be an id without a preceding record: it continues at the first record from there on.
    rising = sorted(range(len(committed)), key=lambda number: committed[number][0])
    fallback = [-1] * len(committed)
    reached = end = 0
    for offset, frame in _numbered(partition, Findings()):
        for number in by_id.get(frame.offset, ()):
            if frame.timestamp <= committed[number][1]:
                offsets[number] = offset + 1
        while reached < len(rising) and committed[rising[reached]][0] <= frame.offset:
            fallback[rising[reached]] = offset
            reached += 1
        end = offset + 1
    return [
        after if after >= 0 else first if first >= 0 else max(end, record_id)
        for after, first, (record_id, _) in zip(offsets, fallback, committed, strict=True)
    ]
