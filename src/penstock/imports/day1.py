"""Day1's directory: one flat file a partition, `<topic>-<partition>.log`, no index, no segments, no groups.

    record = offset i64 | key length u16 | key | value length u32 | value          (big-endian)

Its broker refuses a file with a torn tail; here the tail is cut and reported. Two requests at once could open a log twice
and give an offset twice: the second record of an offset gets the next free one, and the report counts it. Records have no
time; they get that of the file's last change. Empty keys stay empty, as the dialect writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.frames import Frame, numbered_records
from penstock.imports.source import Commit, Findings, Found, Skipped, SourcePartition, partition_number
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 8 * 1024 * 1024
TAKES_FILES_OVER = False

_OFFSET_AND_KEY_LENGTH = struct.Struct(">qH")
_VALUE_LENGTH = struct.Struct(">I")
_OFFSET = struct.Struct(">q")


def find(root: Path) -> Found:
    found = Found()
    for path in sorted(root.iterdir()):
        topic, dash, number_text = path.stem.rpartition("-")
        number = partition_number(number_text)
        if path.suffix != ".log" or not path.is_file():
            found.skipped.append(Skipped(path.name, "not a .log file"))
        elif not dash or number is None:
            found.skipped.append(Skipped(path.name, "its name is not TOPIC-PARTITION.log"))
        else:
            found.partitions.append(SourcePartition(topic, number, (str(path),)))
    return found


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(numbered_records(partition, _parse, _peek, findings), start)


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
    return Frame(at + value_bytes, offset, -1, rest[:key_bytes], file.at(at, value_bytes))


def _peek(file: FileBytes, position: int) -> int | None:
    head = file.at(position, _OFFSET.size)
    return _OFFSET.unpack(head)[0] if len(head) == _OFFSET.size else None
