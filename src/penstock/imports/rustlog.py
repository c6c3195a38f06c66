"""RustLog's directory: segments of records that carry their offset, beside a sparse index that is not needed.

    <partition>/<base offset, 20 digits>.log       record = payload length u32 | offset u64 | payload     (big-endian)

RustLog keeps topics in memory only: its server writes each partition to a temporary folder, `.tmp` and six random letters
or digits, whose name has neither topic nor partition. Such a folder, and any other without a partition in its name, becomes
partition 0 of a topic with its name; `--map FOLDER=TOPIC:PARTITION` maps it to its topic. Folders created with RustLog's
library are recognized as `TOPIC-N`, `TOPIC_N`, `TOPIC/N` or `TOPIC/partition-N`. Segments directly in the directory are
partition 0 of a topic with the directory's name.

Records have neither key nor time: the time is that of the segment's last change. Groups were never on disk.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.entries import walk
from penstock.imports.frames import Frame, Head
from penstock.imports.numbered import NumberedFormat, numbered_records
from penstock.imports.source import Commit, Findings, Found, SourcePartition
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 10 * 1024 * 1024
TAKES_FILES_OVER = False

_HEAD = struct.Struct(">IQ")
_FLAT = re.compile(r"(?P<topic>.+)[-_](?P<number>[0-9]+)", re.DOTALL)
_NESTED = re.compile(r"(?:partition-)?(?P<number>[0-9]+)")


def find(root: Path) -> Found:
    found = Found()
    for folder in walk(root, found.skipped):
        files, sizes = folder.take_segments(".log")
        if files:
            topic, number = _place(folder.name or root.absolute().name)
            found.partitions.append(SourcePartition(topic, number, files, sizes=sizes))
        folder.skip_rest(found.skipped, "not a file of RustLog", _is_known)
    return found


def _place(name: str) -> tuple[str, int]:
    """Topic and partition from the name of a folder."""
    topic, _, last = name.rpartition("/")
    nested = _NESTED.fullmatch(last) if topic else None
    if nested:
        return topic, int(nested["number"])
    flat = _FLAT.fullmatch(last)
    if flat:
        return f"{topic}/{flat['topic']}" if topic else flat["topic"], int(flat["number"])
    return name, 0


def _is_known(name: str) -> bool:
    return name.endswith((".index", ".tmp")) or name == ".cleaner_checkpoint"


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(numbered_records(partition, _FORMAT, findings), start)


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
    return Frame(at + length, offset, file.modified_ms, None, file.at(at, length))


def _peek(file: FileBytes, position: int) -> int | None:
    head = file.at(position, _HEAD.size)
    return _HEAD.unpack(head)[1] if len(head) == _HEAD.size else None


_FORMAT = NumberedFormat(_parse, _peek, Head.of(rb"(?!\0{12})\0.{3}\0\0.{6}", 12), 12, repeats_offsets=False)
