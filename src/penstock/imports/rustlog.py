"""RustLog's directory: segments of records that carry their offset, beside a sparse index that is not needed.

    <partition>/<base offset, 20 digits>.log       record = payload length u32 | offset u64 | payload     (big-endian)

Where a partition's folder lies is not fixed by RustLog, so these are taken: `TOPIC-N`, `TOPIC_N`, `TOPIC/N`,
`TOPIC/partition-N`, and segments right in the directory, which are then partition 0 of a topic with the directory's name.
Records have neither key nor time: the time is that of the segment's last change. Groups were never on disk.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.frames import Frame, numbered_records
from penstock.imports.source import Commit, Findings, Found, Skipped, SourcePartition, segment_files
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 10 * 1024 * 1024
TAKES_FILES_OVER = False

_HEAD = struct.Struct(">IQ")
_FLAT = re.compile(r"(?P<topic>.+)[-_](?P<number>[0-9]+)")
_NESTED = re.compile(r"(?:partition-)?(?P<number>[0-9]+)")


def find(root: Path) -> Found:
    found = Found()
    own = segment_files(root, ".log")
    if own:
        found.partitions.append(SourcePartition(root.absolute().name, 0, tuple(map(str, own))))
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        flat = _FLAT.fullmatch(folder.name)
        files = segment_files(folder, ".log")
        if files and flat:
            found.partitions.append(SourcePartition(flat["topic"], int(flat["number"]), tuple(map(str, files))))
        elif files:
            found.skipped.append(Skipped(folder.name, "segments in a folder that is not named for a partition"))
        else:
            _find_nested(folder, found)
    return found


def _find_nested(folder: Path, found: Found) -> None:
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        nested = _NESTED.fullmatch(inner.name)
        files = segment_files(inner, ".log")
        if nested and files:
            found.partitions.append(SourcePartition(folder.name, int(nested["number"]), tuple(map(str, files))))
        elif files:
            found.skipped.append(Skipped(f"{folder.name}/{inner.name}", "its name is no partition number"))


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(numbered_records(partition, _parse, _peek, findings), start)


def commits(root: Path, findings: Findings) -> list[Commit]:
    return []


def _parse(file: FileBytes, position: int) -> Frame | None:
    head = file.at(position, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    length, offset = _HEAD.unpack(head)
    at = position + _HEAD.size
    if length > RECORD_BYTES_MAX or at + length > file.size:
        return None
    return Frame(at + length, offset, -1, None, file.at(at, length))


def _peek(file: FileBytes, position: int) -> int | None:
    head = file.at(position, _HEAD.size)
    return _HEAD.unpack(head)[1] if len(head) == _HEAD.size else None
