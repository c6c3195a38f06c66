"""The fast way through segment files of Kafka's format: every batch checked, nothing kept, one buffer for all.

Each batch is valid until the next one is requested: then its bytes are overwritten. The scan also notes stretches of valid
batches with a checksum over all their bytes. A copy is compared with these piece by piece, without decoding batches again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from penstock.imports.batch_checks import batch_problem
from penstock.imports.bytes_of_file import note_unreadable
from penstock.imports.entries import open_regular
from penstock.imports.kafka_search import next_sound
from penstock.imports.source import Findings, SourcePartition
from penstock.model.limits import IMPORT_BATCH_BYTES_MAX
from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, Batch
from penstock.records.record import header_problem
from penstock.storage.segment_reader import base_offset_of

BUFFER_BYTES = 1024 * 1024
"""Small enough to stay in the processor's cache between the read and the checksum."""
STRETCH_BYTES_MAX = 64 * 1024 * 1024
_LENGTH_AT = 8


class Stretch(NamedTuple):
    """Sound batches that lie one behind the other in a file."""

    file: str
    start: int
    end: int
    checksum: int
    """CRC-32C of all its bytes."""


class KafkaScan:
    """Iterate once; `stretches` are complete then."""

    def __init__(self, partition: SourcePartition, findings: Findings) -> None:
        self._partition = partition
        self._findings = findings
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self.stretches: list[Stretch] = []
        self._following = 0
        self._position = 0
        """Up to here the file is read."""

    def __iter__(self) -> Iterator[Batch]:
        for file, size in zip(self._partition.files, self._partition.sizes, strict=True):
            self._position = 0
            try:
                yield from self._scan_file(file, size)
            except OSError as error:
                note_unreadable(error, file, self._position, size, self._findings)

    def _scan_file(self, file: str, size: int) -> Iterator[Batch]:
        fd = open_regular(file)
        try:
            yield from self._scan(file, fd, min(size, os.fstat(fd).st_size))
        finally:
            os.close(fd)

    def _scan(self, file: str, fd: int, size: int) -> Iterator[Batch]:
        least = base_offset_of(Path(file))
        position = 0
        while position < size:
            filled = os.preadv(fd, [self._buffer[: size - position]], position)
            if not filled:
                raise OSError(f"{file} was truncated while it was read")
            at = 0
            reason = ""
            while at < filled:
                found = self._batch(at, filled, size - position, least)
                if not isinstance(found, Batch):
                    reason = found
                    break
                if found.base_offset < self._following:
                    reason = f"offset {found.base_offset} again, {self._following} is due"
                    break
                least = self._following = found.next_offset
                yield found
                at += found.size
            if at:
                self._sound(file, position, at)
                position += at
                self._position = position
            elif not reason:
                continue  # a batch that is larger than the buffer was; it is larger now
            else:
                position = self._position = self._damaged(file, position, size, max(least, self._following), reason)

    def _batch(self, at: int, filled: int, left: int, least: int) -> Batch | str:
        """The sound batch at `at` of the buffer; "" when more has to be read, else what is wrong."""
        buffer = self._buffer
        if filled - at < HEADER_BYTES:
            return "" if left > filled else f"{filled - at} bytes are too few for a batch"
        size = int.from_bytes(buffer[at + _LENGTH_AT : at + LENGTH_PREFIX_BYTES], "big") + LENGTH_PREFIX_BYTES
        if at + size > filled:
            if buffer[at + 16] != MAGIC:
                return f"magic {buffer[at + 16]} is not that of a record batch ({MAGIC})"
            if at + size > left:
                return f"a batch of {size} bytes is cut off"
            if size > IMPORT_BATCH_BYTES_MAX:
                return f"a batch of {size} bytes exceeds the limit of {IMPORT_BATCH_BYTES_MAX}"
            if at == 0:
                self._buffer = memoryview(bytearray(size))
            return ""
        if size < HEADER_BYTES:
            return f"batch length {size - LENGTH_PREFIX_BYTES} is too small"
        batch = Batch(buffer[at : at + size])
        if batch.magic != MAGIC:
            return f"magic {batch.magic} is not that of a record batch ({MAGIC})"
        if not batch.crc_is_right():
            return "the CRC does not fit the batch"
        if batch.base_offset < least or batch.last_offset_delta < 0:
            return f"base offset {batch.base_offset} where {least} or more is due"
        return header_problem(batch) or batch_problem(batch) or batch

    def _sound(self, file: str, position: int, length: int) -> None:
        last = self.stretches[-1] if self.stretches else None
        view = self._buffer[:length]
        if (
            last is not None
            and last.file == file
            and last.end == position
            and position + length - last.start <= STRETCH_BYTES_MAX
        ):
            longer = Stretch(file, last.start, position + length, crc32c(view, last.checksum))
            self.stretches[-1] = longer
        else:
            self.stretches.append(Stretch(file, position, position + length, crc32c(view)))

    def _damaged(self, file: str, position: int, size: int, least: int, reason: str) -> int:
        """Note the damage; where to go on."""
        found = next_sound(Path(file), position, least)
        end = size if found is None else found
        self._findings.add(file, position, end - position, reason)
        return end
