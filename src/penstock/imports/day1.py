"""Day1's directory: one flat file a partition, `<topic>-<partition>.log`, no index, no segments, no groups.

    record = offset i64 | key length u16 | key | value length u32 | value          (big-endian)

Its broker refuses a file with a torn tail; here the tail is left out and reported. Simultaneous requests open a log several
times, and each handle counts offsets by itself. A record whose offset is already used gets the next free one, in file order,
and the report counts it. Records have no timestamp; they get the modification time of the file. Empty keys stay empty, as
the dialect writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.entries import walk
from penstock.imports.frames import Frame, Head
from penstock.imports.numbered import NumberedFormat, numbered_records
from penstock.imports.source import Commit, Findings, Found, SourcePartition, partition_number
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 8 * 1024 * 1024
TAKES_FILES_OVER = False

_OFFSET_AND_KEY_LENGTH = struct.Struct(">qH")
_VALUE_LENGTH = struct.Struct(">I")
_OFFSET = struct.Struct(">q")


def find(root: Path) -> Found:
    found = Found()
    for folder in walk(root, found.skipped):
        if folder.name:
            folder.skip_whole(found.skipped, "Day1 has no folders")
            continue
        for name, size in list(folder.files.items()):
            topic, dash, number_text = name.removesuffix(".log").rpartition("-")
            number = partition_number(number_text)
            if name.endswith(".log") and dash and number is not None:
                del folder.files[name]
                path = str(folder.path / name)
                found.partitions.append(SourcePartition(topic, number, (path,), sizes=(size,)))
        folder.skip_rest(found.skipped, "its name is not TOPIC-PARTITION.log", lambda _: False)
    return found


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(numbered_records(partition, _FORMAT, findings), start)


def commits(root: Path, findings: Findings) -> list[Commit]:
    return []


def _parse(file: FileBytes, position: int) -> Frame | None:
    head = file.at(position, _OFFSET_AND_KEY_LENGTH.size)
    if len(head) < _OFFSET_AND_KEY_LENGTH.size:
        return None
    offset, key_bytes = _OFFSET_AND_KEY_LENGTH.unpack(head)
    rest = file.at(position + _OFFSET_AND_KEY_LENGTH.size, key_bytes + _VALUE_LENGTH.size)
    if len(rest) < key_bytes + _VALUE_LENGTH.size:
        return None
    value_bytes = _VALUE_LENGTH.unpack_from(rest, key_bytes)[0]
    at = position + _OFFSET_AND_KEY_LENGTH.size + key_bytes + _VALUE_LENGTH.size
    if value_bytes > RECORD_BYTES_MAX or at + value_bytes > file.size:
        return None
    return Frame(at + value_bytes, offset, file.modified_ms, rest[:key_bytes], file.at(at, value_bytes))


def _peek(file: FileBytes, position: int) -> int | None:
    head = file.at(position, _OFFSET.size)
    return _OFFSET.unpack(head)[0] if len(head) == _OFFSET.size else None


_FORMAT = NumberedFormat(_parse, _peek, Head.of(rb"(?!\0{14})\0\0.{12}", 14), 14, repeats_offsets=True)
