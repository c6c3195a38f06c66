"""Copying segment files: the kernel copies a piece while the one before it is read back.

What is written is compared with the checksum that the survey took of what it saw, so a source that changed or rotted since
then is told as well as a bad write. Threads, because system calls and checksums let others run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from crc32c import crc32c

from penstock.imports.engine import ImportFailed
from penstock.imports.entries import open_regular, read_small
from penstock.imports.kafka_scan import BUFFER_BYTES, Stretch
from penstock.imports.survey import Advance
from penstock.model.limits import IMPORT_SMALL_FILE_BYTES_MAX
from penstock.storage.files import Disk, FileCache
from penstock.storage.segment import Segment
from penstock.storage.segment_reader import base_offset_of

_WRITE_BYTES = 4 * 1024 * 1024
_UNINDEXED_BYTES_MAX = 64 * 1024
"""A segment so small needs no index."""
_ENTRY_BYTES = {".index": 8, ".timeindex": 12}


def copy_segments(disk: Disk, stretches: Sequence[Stretch], folder: Path, advance: Advance) -> None:
    """Every file of the stretches into `folder`, under its name, synced, with indexes."""
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-read-back") as reader:
        checks: list[Future[None]] = []
        for file, pieces in groupby(stretches, key=lambda stretch: stretch.file):
            checks += _copy(disk, Path(file), list(pieces), folder, reader, advance)
        for check in checks:
            check.result()


def _copy(
    disk: Disk, path: Path, pieces: list[Stretch], folder: Path, reader: ThreadPoolExecutor, advance: Advance
) -> list[Future[None]]:
    target = folder / path.name
    checks = []
    written = 0
    with open(open_regular(path), "rb") as source, open(target, "wb") as copy:
        for piece in pieces:
            _copy_piece(source.fileno(), copy.fileno(), piece)
            checks.append(reader.submit(_check, target, written, piece))
            written += piece.end - piece.start
            advance(piece.end - piece.start)
        os.fdatasync(copy.fileno())
        is_whole = written == os.fstat(source.fileno()).st_size
    if not is_whole or not all(_copy_index(path.with_suffix(suffix), target) for suffix in _ENTRY_BYTES):
        segment = Segment(disk, FileCache(disk, 4), folder, base_offset_of(target), written)
        segment.rebuild_indexes(written)
    return checks


def _copy_piece(source: int, copy: int, piece: Stretch) -> None:
    position = piece.start
    while position < piece.end:
        wanted = piece.end - position
        try:
            done = os.copy_file_range(source, copy, wanted, position)
        except OSError:  # file systems that cannot, or another one on the other side
            done = os.write(copy, os.pread(source, min(wanted, _WRITE_BYTES), position))
        if done == 0:
            raise ImportFailed(f"{piece.file} became shorter while it was copied")
        position += done


def _check(path: Path, position: int, piece: Stretch) -> None:
    """The copy of a piece, which lies at `position`, has the checksum of the piece."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    left = piece.end - piece.start
    checksum = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while left:
            filled = os.preadv(fd, [buffer[: min(left, BUFFER_BYTES)]], position)
            if not filled:
                break
            checksum = crc32c(buffer[:filled], checksum)
            position += filled
            left -= filled
    finally:
        os.close(fd)
    if left or checksum != piece.checksum:
        raise ImportFailed(
            f"{path} is not what {piece.file} was at {piece.start} when it was read first: it changed, or a disk is bad"
        )


def _copy_index(path: Path, log: Path) -> bool:
    """Take a broker's index over, without the zeros that it keeps room with; whether there is one to take."""
    entry_bytes = _ENTRY_BYTES[path.suffix]
    try:
        data = read_small(path, IMPORT_SMALL_FILE_BYTES_MAX)
    except OSError:
        return False
    entries = -(-len(data.rstrip(b"\0")) // entry_bytes)
    log.with_suffix(path.suffix).write_bytes(data[: entries * entry_bytes])
    return entries > 0 or log.stat().st_size < _UNINDEXED_BYTES_MAX
