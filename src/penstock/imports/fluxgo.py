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
from functools import partial
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes, read_frames
from penstock.imports.counted import counted_frames
from penstock.imports.cutting import cut_batches
from penstock.imports.entries import Folder, read_small, walk
from penstock.imports.frames import Frame
from penstock.imports.source import Commit, Findings, Found, Skips, SourcePartition, SourceRecord
from penstock.model.limits import IMPORT_SMALL_FILE_BYTES_MAX
from penstock.records.batch import Batch

RECORD_BYTES_MAX = 10 * 1024 * 1024
TAKES_FILES_OVER = False
COMMITS = "__consumer_offsets"

_LENGTH = struct.Struct(">Q")
_INDEX_ENTRY = struct.Struct(">QQ")
_COMMITS_DEPTH = 2
"""Of the folder that a group's offsets are in."""
_PARTITION = re.compile(r"(?P<topic>.*)_(?P<number>[0-9]+)", re.DOTALL)


def find(root: Path) -> Found:
    found = Found()
    for folder in walk(root, found.skipped):
        if folder.parts[0] == COMMITS:
            _skip_rest_of_commits(folder, found.skipped)
            continue
        match = _PARTITION.fullmatch(folder.name)
        files, sizes = folder.take_segments(".log")
        if files and match:
            found.partitions.append(SourcePartition(match["topic"], int(match["number"]), files, sizes=sizes))
        elif files:
            found.skipped.add(folder.name, "its name is not TOPIC_PARTITION")
        elif match and any(size for name, size in folder.files.items() if name.endswith(".index")):
            found.skipped.add(folder.name, "it has an index and no .log file")
        folder.skip_rest(found.skipped, "not a file of FluxGo", lambda name: name.endswith(".index"))
    return found


def _skip_rest_of_commits(folder: Folder, skips: Skips) -> None:
    depth = len(folder.parts)
    if depth <= _COMMITS_DEPTH:
        folder.skip_rest(skips, "not a file of FluxGo", _is_log if depth == 1 else _is_commit)
        return
    why = "the group's or the topic's name has a slash, and nothing says which"
    folder.skip_rest(skips, why, lambda name: name.endswith(".offset.tmp"))


def _is_commit(name: str) -> bool:
    return name.endswith((".offset", ".offset.tmp"))


def _is_log(name: str) -> bool:
    """Files in the folder of committed offsets: FluxGo treats it as a log, too."""
    return name.endswith((".log", ".index"))


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    return cut_batches(_records(partition, findings), start)


def _records(partition: SourcePartition, findings: Findings) -> Iterator[SourceRecord]:
    following = 0
    for name, size in zip(partition.files, partition.sizes, strict=True):
        path = Path(name)
        base_offset = max(int(path.stem), following)
        is_moved = base_offset > int(path.stem)
        for number, frame in read_frames(name, size, findings, partial(_frames, path, findings)):
            findings.renumbered += is_moved
            following = base_offset + number + 1
            yield SourceRecord(base_offset + number, frame.timestamp, None, frame.value)


def _frames(path: Path, findings: Findings, file: FileBytes) -> Iterator[tuple[int, Frame]]:
    return counted_frames(file, _parse, findings, _anchors(path), blank_bytes=_LENGTH.size)


def _parse(file: FileBytes, position: int) -> Frame | None:
    head = file.at(position, _LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    at = position + _LENGTH.size
    if length > RECORD_BYTES_MAX or at + length > file.size:
        return None
    return Frame(at + length, -1, file.modified_ms, None, file.at(at, length))


def _anchors(log: Path) -> dict[int, int]:
    """Positions of records by the index. Numbers are places in the order of positions, and count what was overwritten
    only where the entry's own number is higher."""
    try:
        data = read_small(log.with_suffix(".index"), IMPORT_SMALL_FILE_BYTES_MAX)
    except OSError:
        return {}
    whole = len(data) - len(data) % _INDEX_ENTRY.size
    entries = sorted((position, relative) for relative, position in _INDEX_ENTRY.iter_unpack(data[:whole]))
    return {position: max(place, relative) for place, (position, relative) in enumerate(entries)}


def commits(root: Path, findings: Findings) -> list[Commit]:
    found = []
    for folder in walk(root, Skips()):
        if not folder.name:
            folder.folders[:] = [name for name in folder.folders if name == COMMITS]
        elif len(folder.parts) == _COMMITS_DEPTH:
            folder.folders.clear()
            group = folder.parts[1]
            for name in folder.files:
                if name.endswith(".offset"):
                    found += _read_commit(folder.path / name, group, findings)
    return found


def _read_commit(path: Path, group: str, findings: Findings) -> list[Commit]:
    match = _PARTITION.fullmatch(path.name.removesuffix(".offset"))
    if match is None:
        findings.add(str(path), 0, 0, "its name is not TOPIC_PARTITION.offset")
        return []
    try:
        data = read_small(path, IMPORT_SMALL_FILE_BYTES_MAX)
    except OSError as error:
        findings.add(str(path), 0, 0, f"cannot be read: {error}")
        return []
    if len(data) < _LENGTH.size:
        findings.add(str(path), 0, len(data), "a committed offset of fewer than 8 bytes")
        return []
    return [Commit(group, match["topic"], int(match["number"]), _LENGTH.unpack_from(data)[0])]
