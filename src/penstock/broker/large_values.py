"""Where a large value lies in the log: as a range of its file it leaves by sendfile and is never copied.

Only of a batch that is plain and full of large records, so that the way to the wanted one is a few short reads, and of a
record without headers. Everything else goes through the cache of unpacked batches. The CRC of a batch is checked before the
first of its values is given out (`batch_checks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.broker.batch_checks import BatchChecks, Stretch, Unreadable
from penstock.broker.engine import LargeRecord
from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.varint import VARINT_BYTES_MAX, read_varint, read_varlong
from penstock.storage.files import Cold
from penstock.storage.log import PartitionLog
from penstock.storage.segment import Segment

LARGE_BYTES_MIN = 256 * 1024
"""Smaller values are cheaper to copy, once they are in the cache for the next reader or not."""
LEAD_BYTES = 4 * 1024
"""What is read of a record to find its value: a longer key makes it no large value."""


class LargeBatch(NamedTuple):
    segment: Segment
    position: int
    header: Batch

    def stretch(self) -> Stretch:
        return Stretch(self.segment.file, self.position, self.header.size, self.header.crc)

    def value_bytes_min(self, offset: int) -> int:
        """What the values from `offset` on have at least."""
        header = self.header
        if offset > header.base_offset:
            return LARGE_BYTES_MIN * (header.next_offset - offset)
        size: int = header.size
        return size - HEADER_BYTES - (LEAD_BYTES + VARINT_BYTES_MAX) * header.count


class Limits(NamedTuple):
    """Of one read."""

    end: int
    """Batches from here on are not read."""
    max_records: int
    max_bytes: int
    keys: bool
    """Whether keys count as bytes."""


def has_large_values(header: Batch) -> bool:
    return (
        header.size >= LARGE_BYTES_MIN * max(1, header.count)
        and not (header.compression or header.is_control or header.is_transactional)
        and header.count == header.last_offset_delta + 1
    )


def read_larges(
    log: PartitionLog, first: LargeBatch, offset: int, limits: Limits, checks: BatchChecks
) -> tuple[list[LargeRecord], bool]:
    """The records with large values from `offset` on, in the batch `first` and those behind it, up to the first other;
    and whether they go up to the end. Raises Unchecked, and when there is none Cold, OSError and Unreadable."""
    batches, up_to_end = _batches(log, first, offset, limits)
    stretches = [batch.stretch() for batch in batches]  # holds the files open, so that what is checked is what leaves
    bad = checks.require(stretches)
    found: list[LargeRecord] = []
    size = 0
    try:
        for (segment, position, header), stretch in zip(batches, stretches, strict=True):
            if stretch in bad:
                raise Unreadable(segment, bad[stretch], header, position)
            offset = max(offset, header.base_offset)
            for record in large_records(segment, position, header, offset):
                size += len(record.value) + (len(record.key or b"") if limits.keys else 0)
                if found and size > limits.max_bytes:
                    return found, False
                found.append(record)
                offset = record.offset + 1
                if size >= limits.max_bytes or len(found) >= limits.max_records:
                    return found, False
            if header.last_offset >= offset:
                return found, False  # a record that is not to be had so
    except (Cold, OSError, Unreadable):
        if not found:
            raise
        return found, False
    return found, up_to_end


def _batches(log: PartitionLog, batch: LargeBatch, offset: int, limits: Limits) -> tuple[list[LargeBatch], bool]:
    """The batches of large values that the read may need, and whether there is no batch behind them below the end."""
    found = [batch]
    size = batch.value_bytes_min(offset)
    count = batch.header.next_offset - offset
    try:
        while size < limits.max_bytes and count < limits.max_records:
            offset = batch.header.next_offset
            located = log.locate(offset) if offset < limits.end else None
            if located is None or located[1].base_offset >= limits.end:
                return found, True
            segment, place = located
            header = Batch.of_header(segment.read_span_now(place.position, HEADER_BYTES))
            if not has_large_values(header):
                return found, False
            batch = LargeBatch(segment, place.position, header)
            found.append(batch)
            size += batch.value_bytes_min(header.base_offset)
            count += header.count
    except (Cold, OSError):
        return found, False
    return found, batch.header.next_offset >= limits.end


def large_records(segment: Segment, position: int, header: Batch, offset: int) -> Iterator[LargeRecord]:
    """The records from `offset` on of a batch that has large values, up to the first that is not to be had so. Raises
    Cold."""
    end = position + header.size
    at = position + HEADER_BYTES
    try:
        for passed in range(header.count):
            length, skip = read_varint(segment.read_span_now(at, VARINT_BYTES_MAX), 0)
            following = at + skip + length
            if length < 0 or following > end:
                return
            if header.base_offset + passed >= offset:
                record = _record(segment, header, at, following, header.base_offset + passed)
                if record is None:
                    return
                yield record
            at = following
    except BatchError:  # it is told by the other way
        return


def _record(segment: Segment, header: Batch, at: int, end: int, offset: int) -> LargeRecord | None:
    """The record between the two positions; None when its value is small, its key long, or it has headers. Raises Cold,
    and BatchError when its lead has no end."""
    lead = bytes(segment.read_span_now(at, min(LEAD_BYTES, end - at)))
    _, start = read_varint(lead, 0)
    timestamp_delta, start = read_varlong(lead, start + 1)
    offset_delta, start = read_varint(lead, start)
    key_bytes, start = read_varint(lead, start)
    key = None if key_bytes < 0 else lead[start : start + key_bytes]
    value_bytes, start = read_varint(lead, start + max(0, key_bytes))
    if (
        value_bytes < LARGE_BYTES_MIN
        or at + start + value_bytes + 1 != end
        or header.base_offset + offset_delta != offset
        or bytes(segment.read_span_now(end - 1, 1)) != b"\0"
    ):
        return None
    timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta
    return LargeRecord(offset, timestamp, key, segment.range(at + start, value_bytes))
