"""FluxGo's directory: `<topic>_<partition>/<base offset, 20 digits>.log`, and one small file a committed offset.

    record  = length u64 | bytes                              (big-endian; neither key nor time nor offset)
    index   = relative offset u64 | position u64              one entry a record
    commits = __consumer_offsets/<group>/<topic>_<partition>.offset, the offset as u64

The log is scanned and numbered from the segment's name on. The index is not believed about numbers: a restart of the broker
writes its entries from the first on again. Where it is believed is that a record begins at a position it names, which is
how the scan goes on behind damage. Names are split at the last underscore; a topic with a slash lies in nested folders.
After some restarts FluxGo gives offsets twice and a segment begins too early: such records get the next free offset.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.cutting import cut_batches
from penstock.imports.frames import Frame, counted_frames
from penstock.imports.source import Commit, Findings, Found, Skipped, SourcePartition, SourceRecord, segment_files
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 10 * 1024 * 1024
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"

_LENGTH = struct.Struct(">Q")
_INDEX_ENTRY = struct.Struct(">QQ")
_PARTITION = re.compile(r"(?P<topic>.*)_(?P<number>[0-9]+)", re.DOTALL)


def find(root: Path) -> Found:
    found = Found()
    for folder in sorted(path for path in root.rglob("*") if path.is_dir()):
        name = folder.relative_to(root).as_posix()
        if name.split("/")[0] == COMMITS:
            continue
        files = segment_files(folder, ".log")
        match = _PARTITION.fullmatch(name)
        if files and match:
            found.partitions.append(SourcePartition(match["topic"], int(match["number"]), tuple(map(str, files))))
        elif files:
            found.skipped.append(Skipped(name, "its name is not TOPIC_PARTITION"))
        elif match and any(folder.glob("*.index")):
            found.skipped.append(Skipped(name, "it has an index and no .log file"))
    return found


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    following = 0
    for path in map(Path, partition.files):
        base_offset = max(int(path.stem), following)
        is_moved = base_offset > int(path.stem)
        with FileBytes(path) as file:
            for _, number, frame in counted_frames(file, _parse, findings, _anchors(path), searches=False):
                findings.renumbered += is_moved
                following = base_offset + number + 1
                yield SourceRecord(base_offset + number, file.modified_ms, None, frame.value)


def _parse(file: FileBytes, position: int) -> Frame | None:
    head = file.at(position, _LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    at = position + _LENGTH.size
    if length > RECORD_BYTES_MAX or at + length > file.size:
        return None
    return Frame(at + length, -1, -1, None, file.at(at, length))


def _anchors(log: Path) -> dict[int, int]:
    """Positions of records by the index. Numbers are places in the order of positions, and count what was overwritten
    only where the entry's own number is higher."""
    try:
        data = log.with_suffix(".index").read_bytes()
    except OSError:
        return {}
    whole = len(data) - len(data) % _INDEX_ENTRY.size
    entries = sorted((position, relative) for relative, position in _INDEX_ENTRY.iter_unpack(data[:whole]))
    return {position: max(place, relative) for place, (position, relative) in enumerate(entries)}


def commits(root: Path, findings: Findings) -> list[Commit]:
    folder = root / COMMITS
    found = []
    for path in sorted(folder.glob("*/*.offset")) if folder.is_dir() else ():
        match = _PARTITION.fullmatch(path.name.removesuffix(".offset"))
        data = path.read_bytes()
        if match is None:
            findings.add(str(path), 0, len(data), "its name is not TOPIC_PARTITION.offset")
        elif len(data) < _LENGTH.size:
            findings.add(str(path), 0, len(data), "a committed offset of fewer than 8 bytes")
        else:
            offset = _LENGTH.unpack_from(data)[0]
            found.append(Commit(path.parent.name, match["topic"], int(match["number"]), offset))
    return found
