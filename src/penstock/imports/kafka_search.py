"""Finds the next valid batch after damage in a segment file of Kafka's format."""

from __future__ import annotations

from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.source import OFFSET_END
from penstock.model.limits import IMPORT_BATCH_BYTES_MAX
from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, Batch

_MAGIC_AT = 16
_LENGTH_AT = 8
_SEARCH_BYTES_MAX = 64 * 1024 * 1024
"""Distance after damage within which a valid batch is searched."""
_CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""Bytes read for the checksums of possible batches: any bytes may look like a batch."""


def next_sound(path: Path, damaged: int, following: int) -> int | None:
    """Start of the next valid batch after `damaged` with offsets from `following` on."""
    with FileBytes(path) as file:
        head = file.at(damaged, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            size = int.from_bytes(head[_LENGTH_AT:LENGTH_PREFIX_BYTES], "big", signed=True) + LENGTH_PREFIX_BYTES
            header = _header(file, damaged + size, following) if size > HEADER_BYTES else None
            if header is not None and _is_sound(file, damaged + size, header):
                return damaged + size
        at = damaged + 1
        end = min(file.size, damaged + _SEARCH_BYTES_MAX)
        left = _CHECKED_BYTES_MAX
        while at < end and left > 0:
            magic = file.find(bytes([MAGIC]), at + _MAGIC_AT, end)
            if magic < 0:
                return None
            at = magic - _MAGIC_AT
            header = _header(file, at, following)
            if header is not None:
                if _is_sound(file, at, header):
                    return at
                left -= header.size
            at += 1
    return None


def _header(file: FileBytes, position: int, following: int) -> Batch | None:
    """The header at a position, if it could be that of a batch."""
    head = file.at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = Batch.of_header(memoryview(head))
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= min(file.size - position, IMPORT_BATCH_BYTES_MAX):
        return None
    if not following <= header.base_offset < OFFSET_END or header.last_offset_delta < 0 or header.count < 0:
        return None
    return header


def _is_sound(file: FileBytes, position: int, header: Batch) -> bool:
    return Batch(memoryview(file.at(position, header.size))).crc_is_right()
