"""FlyMQ's directory, as its document has it and as its server writes it.

    document   topics/<topic>/partition-<n>/<base offset, 20 digits>.store     record = length u32 | message
    server     <topic>/<n>/<base offset>.store                                 record = length u64 | message
    message    key length u32 | key | value length u32 | value                 (big-endian)
    commits    __consumer_offsets/<topic>_<group>.json                         {group_id, topic, offsets: {"0": n}}

The length of a record and the two inside it must agree, which is how damage is told and a place to go on from is found. The
index, which the server leaves a megabyte long when it is killed, is not needed. Records have no time: they get that of the
segment's last change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.frames import Frame, Parse, counted_frames
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

RECORD_BYTES_MAX = 32 * 1024 * 1024
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"
DOCUMENT, SERVER = "document", "server"

_NOT_TOPICS = frozenset({COMMITS, "topics", "schemas", "audit", "raft"})
_LENGTHS = {DOCUMENT: struct.Struct(">I"), SERVER: struct.Struct(">Q")}
_FIELD = struct.Struct(">I")
_INDEX_ENTRY = struct.Struct(">IQ")


class _Offsets(msgspec.Struct):
    group_id: str
    topic: str
    offsets: dict[str, int] = {}


def find(root: Path) -> Found:
    found = Found()
    if (root / "topics").is_dir():
        _find_topics(root / "topics", DOCUMENT, found)
    _find_topics(root, SERVER, found)
    return found


def _find_topics(root: Path, layout: str, found: Found) -> None:
    prefix = "partition-" if layout == DOCUMENT else ""
    for folder in sorted(path for path in root.rglob("*") if path.is_dir()):
        inside = folder.relative_to(root)
        if layout == SERVER and inside.parts[0] in _NOT_TOPICS:
            continue
        files = segment_files(folder, ".store")
        if not files:
            continue
        number = partition_number(folder.name.removeprefix(prefix)) if folder.name.startswith(prefix) else None
        topic = inside.parent.as_posix()
        if number is None or topic == ".":
            found.skipped.append(Skipped(inside.as_posix(), f"its name is not TOPIC/{prefix}NUMBER"))
        else:
            found.partitions.append(SourcePartition(topic, number, tuple(map(str, files)), layout))


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    parse = _parser(_LENGTHS[partition.layout])
    following = 0
    for path in map(Path, partition.files):
        base_offset = max(int(path.stem), following)
        is_moved = base_offset > int(path.stem)
        with FileBytes(path) as file:
            for _, number, frame in counted_frames(file, parse, findings, _anchors(path), searches=True):
                findings.renumbered += is_moved
                following = base_offset + number + 1
                yield SourceRecord(base_offset + number, file.modified_ms, frame.key, frame.value)


def _parser(form: struct.Struct) -> Parse:
    def parse(file: FileBytes, position: int) -> Frame | None:
        head = file.at(position, form.size + _FIELD.size)
        if len(head) < form.size + _FIELD.size:
            return None
        length = form.unpack_from(head)[0]
        start = position + form.size
        end = start + length
        if not 2 * _FIELD.size <= length <= RECORD_BYTES_MAX or end > file.size:
            return None
        key_bytes = _FIELD.unpack_from(head, form.size)[0]
        if key_bytes > length - 2 * _FIELD.size:
            return None
        message = file.at(start, length)
        value_at = _FIELD.size + key_bytes
        if _FIELD.unpack_from(message, value_at)[0] != length - key_bytes - 2 * _FIELD.size:
            return None
        return Frame(end, -1, -1, message[_FIELD.size : value_at], message[value_at + _FIELD.size :])

    return parse


def _anchors(store: Path) -> dict[int, int]:
    """Positions and numbers by the index; zeros at its end are room that was never used."""
    try:
        data = store.with_suffix(".index").read_bytes()
    except OSError:
        return {}
    whole = len(data) - len(data) % _INDEX_ENTRY.size
    entries = {position: relative for relative, position in _INDEX_ENTRY.iter_unpack(data[:whole])}
    entries[0] = 0
    return entries


def commits(root: Path, findings: Findings) -> list[Commit]:
    folder = root / COMMITS
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        data = path.read_bytes()
        try:
            stored = msgspec.json.decode(data, type=_Offsets)
            rows = {int(number): offset for number, offset in stored.offsets.items()}
        except (msgspec.DecodeError, ValueError) as error:
            findings.add(str(path), 0, len(data), f"the committed offsets are not readable: {error}")
            continue
        found += [Commit(stored.group_id, stored.topic, number, offset) for number, offset in sorted(rows.items())]
    return found
