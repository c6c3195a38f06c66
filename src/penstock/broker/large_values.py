"""Where a large value lies in the log: as a range of its file it leaves by sendfile and is never copied.

Only of a batch that is plain and full of large records, so that the way to the wanted one is a few short reads, and of a
record without headers. Everything else goes through the cache of unpacked batches. As for a fetch of whole batches, the
bytes go out as they lie there: the checksum of the batch is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.engine import LargeRecord
from penstock.records.batch import HEADER_BYTES, Batch, BatchError
from penstock.records.varint import VARINT_BYTES_MAX, read_varint, read_varlong
from penstock.storage.segment import Segment

LARGE_BYTES_MIN = 256 * 1024
"""Smaller values are cheaper to copy, once they are in the cache for the next reader or not."""
LEAD_BYTES = 4 * 1024
"""What is read of a record to find its value: a longer key makes it no large value."""


def has_large_values(header: Batch) -> bool:
    return (
        header.size >= LARGE_BYTES_MIN * max(1, header.count)
        and not (header.compression or header.is_control or header.is_transactional)
        and header.count == header.last_offset_delta + 1
    )


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
