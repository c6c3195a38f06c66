"""Records into batches, at their offsets. The cut depends on the records alone, so a second reading cuts alike.

A batch ends where offsets have a gap, since its records are dense, and when it is large enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.imports.source import SourceRecord
from penstock.records.batch import Batch
from penstock.records.builder import RECORD_OVERHEAD_BYTES_MAX, NewRecord, build_batch, build_run

BATCH_BYTES = 512 * 1024
"""Half of Kafka's max.message.bytes: a record of that size and one more still make a batch that any topic takes."""
BATCH_RECORDS_MAX = 20_000
HEADER_OVERHEAD_BYTES_MAX = 10
"""The lengths of a header's name and value."""


def cut_batches(records: Iterable[SourceRecord], start: int = 0) -> Iterator[Batch]:
    """The records with offsets from `start` on, in order."""
    group: list[SourceRecord] = []
    size = 0
    for record in records:
        if record.offset < start:
            continue
        record_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES_MAX
        for name, value in record.headers:
            record_bytes += 4 * len(name) + len(value or b"") + HEADER_OVERHEAD_BYTES_MAX
        if group and (
            record.offset != group[-1].offset + 1
            or size + record_bytes > BATCH_BYTES
            or len(group) >= BATCH_RECORDS_MAX
        ):
            yield _batch(group)
            group, size = [], 0
        group.append(record)
        size += record_bytes
    if group:
        yield _batch(group)


def _batch(records: list[SourceRecord]) -> Batch:
    base_offset, timestamp = records[0].offset, records[0].timestamp
    if all(record.timestamp == timestamp and record.value is not None and not record.headers for record in records):
        keys = [record.key for record in records]
        built = build_run(
            [record.value or b"" for record in records],
            timestamp,
            keys if any(key is not None for key in keys) else None,
            base_offset=base_offset,
            leader_epoch=0,
        )
    else:
        news = [NewRecord(record.timestamp, record.key, record.value, record.headers) for record in records]
        built = build_batch(news, base_offset=base_offset, leader_epoch=0)
    return Batch(memoryview(built))
