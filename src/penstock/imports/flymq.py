"""FlyMQ's directory, as its document has it and as its server writes it.

    document   topics/<topic>/partition-<n>/<base offset, 20 digits>.store     record = length u32 | message
    server     <topic>/<n>/<base offset>.store                                 record = length u64 | message
    message    key length u32 | key | value length u32 | value                 (big-endian; what the server writes)
               and then, in the document's encoding:
               number of headers i32 | (name length u16 | name | value length u16 | value)... | time in ms i64
    commits    __consumer_offsets/<topic>_<group>.json                         {group_id, topic, offsets: {"0": n}}

Both layouts may have either width of the length: a file has the one with which its records follow each other. Both may also
have either message encoding, even mixed in one file: after key and value, a record has nothing left in one encoding, and
exactly headers and a time in the other. Agreeing lengths also detect damage and find the next record after it. The index,
which a killed server leaves at one megabyte, is not needed. Messages without a time get that of the
segment's last change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.imports.bytes_of_file import FileBytes, read_frames
from penstock.imports.counted import counted_frames, runs_on
from penstock.imports.cutting import cut_batches
from penstock.imports.entries import read_small, walk
from penstock.imports.frames import Frame, Head
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
from penstock.model.limits import HEADERS_PER_RECORD_MAX, IMPORT_SMALL_FILE_BYTES_MAX
from penstock.records.batch import Batch
from penstock.records.record import HEADER_NAME_ERRORS, Headers

RECORD_BYTES_MAX = 32 * 1024 * 1024
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"
DOCUMENT, SERVER = "document", "server"

SCHEMAS = "schemas"

_ROOT_FILES = frozenset(
    {"membership.json", "partition_assignments.json", ".encryption_marker", "users.json", "acls.json", "acl.json"}
)
_LENGTH = struct.Struct(">I")
_LONG_LENGTH = struct.Struct(">Q")
_COUNT = struct.Struct(">i")
_TEXT = struct.Struct(">H")
_TIME = struct.Struct(">q")
_INDEX_ENTRY = struct.Struct(">IQ")


class _Offsets(msgspec.Struct):
    group_id: str
    topic: str
    offsets: dict[str, int] = {}


def find(root: Path) -> Found:
    found = Found()
    for folder in walk(root, found.skipped):
        files, sizes = folder.take_segments(".store")
        place = _place(folder.name)
        if files and place is None:
            found.skipped.add(folder.name, "its name is not TOPIC/NUMBER or TOPIC/partition-NUMBER")
        elif files and place is not None:
            found.partitions.append(SourcePartition(*place[:2], files, place[2], sizes))
        why = "schemas are not imported" if folder.name == SCHEMAS else "not a file of FlyMQ"
        folder.skip_rest(found.skipped, why, _KNOWN_FILES.get(folder.parts[0], _is_index))
    return found


def _is_index(name: str) -> bool:
    return name.endswith(".index")


def _is_commit(name: str) -> bool:
    return name.endswith((".json", ".tmp"))


_KNOWN_FILES: dict[str, Callable[[str], bool]] = {
    "": _ROOT_FILES.__contains__,
    COMMITS: _is_commit,
    "audit": lambda _: True,
    "raft": lambda _: True,
}
"""Folders of the root that hold no topic data."""


def _place(name: str) -> tuple[str, int, str] | None:
    """Topic, partition and layout by the name of a folder."""
    topic, _, last = name.rpartition("/")
    number = partition_number(last.removeprefix("partition-"))
    if number is None or not topic:
        return None
    if last.startswith("partition-"):
        return topic.removeprefix("topics/"), number, DOCUMENT
    return topic, number, SERVER


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    following = 0
    for name, size in zip(partition.files, partition.sizes, strict=True):
        path = Path(name)
        base_offset = max(int(path.stem), following)
        is_moved = base_offset > int(path.stem)
        for number, frame in read_frames(name, size, findings, partial(_frames, path, partition.layout, findings)):
            findings.renumbered += is_moved
            following = base_offset + number + 1
            yield SourceRecord(base_offset + number, frame.timestamp, frame.key, frame.value, frame.headers)


def _frames(path: Path, layout: str, findings: Findings, file: FileBytes) -> Iterator[tuple[int, Frame]]:
    form = _form_of(file, layout)
    return counted_frames(file, form.parse, findings, _anchors(path), head=form.head)


class _Form(NamedTuple):
    length: struct.Struct
    head: Head

    def parse(self, file: FileBytes, position: int) -> Frame | None:
        head = file.at(position, self.length.size)
        if len(head) < self.length.size:
            return None
        length = self.length.unpack(head)[0]
        start = position + self.length.size
        if not 2 * _LENGTH.size <= length <= RECORD_BYTES_MAX or start + length > file.size:
            return None
        return _parse_message(file, start, length)


_FORMS = {
    DOCUMENT: _Form(_LENGTH, Head.of(rb"(?!\0\0\0[\0-\7])[\0-\2].{3}[\0-\2].{3}", 8)),
    SERVER: _Form(_LONG_LENGTH, Head.of(rb"\0{4}(?!\0\0\0[\0-\7])[\0-\2].{3}[\0-\2].{3}", 12)),
}
"""Start of a record, by layout: a length of at least 8, then the length of a key."""


def _form_of(file: FileBytes, layout: str) -> _Form:
    """The form in which records follow each other from the earliest position on; the default of the layout if none does."""
    first: list[tuple[int, _Form]] = []
    for form in sorted(_FORMS.values(), key=lambda one: one is not _FORMS[layout]):
        if runs_on(file, form.parse, 0):
            return form
        place = next((at for at in form.head.places(file, 1) if runs_on(file, form.parse, at)), file.size)
        first.append((place, form))
    return min(first, key=lambda one: one[0])[1]


def _parse_message(file: FileBytes, start: int, length: int) -> Frame | None:
    key_bytes = _LENGTH.unpack(file.at(start, _LENGTH.size))[0]
    if key_bytes > length - 2 * _LENGTH.size:
        return None
    message = file.at(start, length)
    value_at = 2 * _LENGTH.size + key_bytes
    value_end = value_at + _LENGTH.unpack_from(message, value_at - _LENGTH.size)[0]
    headers: Headers = ()
    timestamp = -1
    if value_end != length:
        rest = _read_rest(message, value_end) if value_end < length else None
        if rest is None:
            return None
        headers, timestamp = rest
    key = message[_LENGTH.size : value_at - _LENGTH.size]
    time = usable_time(timestamp, file.modified_ms)
    return Frame(start + length, -1, time, key, message[value_at:value_end], headers=headers)


def _read_rest(message: bytes, at: int) -> tuple[Headers, int] | None:
    """Headers and time, if the message ends with them."""
    if len(message) < at + _COUNT.size + _TIME.size:
        return None
    count = _COUNT.unpack_from(message, at)[0]
    at += _COUNT.size
    if not 0 <= count <= HEADERS_PER_RECORD_MAX or 2 * _TEXT.size * count > len(message) - at:
        return None
    headers = []
    try:
        for _ in range(count):
            name, at = _read_text(message, at)
            value, at = _read_text(message, at)
            headers.append((name.decode("utf-8", HEADER_NAME_ERRORS), value))
    except struct.error:
        return None
    if at + _TIME.size != len(message):
        return None
    return tuple(headers), _TIME.unpack_from(message, at)[0]


def _read_text(message: bytes, at: int) -> tuple[bytes, int]:
    start = at + _TEXT.size
    end = start + _TEXT.unpack_from(message, at)[0]
    return message[start:end], end


def _anchors(store: Path) -> dict[int, int]:
    """Positions and numbers by the index; zeros at its end are room that was never used."""
    try:
        data = read_small(store.with_suffix(".index"), IMPORT_SMALL_FILE_BYTES_MAX)
    except OSError:
        return {}
    whole = len(data) - len(data) % _INDEX_ENTRY.size
    entries = {position: relative for relative, position in _INDEX_ENTRY.iter_unpack(data[:whole])}
    entries[0] = 0
    return entries


def commits(root: Path, findings: Findings) -> list[Commit]:
    found = []
    for folder in walk(root, Skips()):
        if not folder.name:
            folder.folders[:] = [name for name in folder.folders if name == COMMITS]
            continue
        for name in folder.files:
            if name.endswith(".json"):
                found += _read_commits(folder.path / name, findings)
    return found


def _read_commits(path: Path, findings: Findings) -> list[Commit]:
    size = 0
    try:
        data = read_small(path, IMPORT_SMALL_FILE_BYTES_MAX)
        size = len(data)
        stored = msgspec.json.decode(data, type=_Offsets)
        rows = {int(number): offset for number, offset in stored.offsets.items()}
    except (msgspec.DecodeError, ValueError, OSError) as error:
        findings.add(str(path), 0, size, f"the committed offsets are not readable: {error}")
        return []
    return [Commit(stored.group_id, stored.topic, number, offset) for number, offset in sorted(rows.items())]
