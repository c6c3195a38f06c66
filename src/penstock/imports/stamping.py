"""Batches of a source as a running broker takes them: from one producer, with sequences, and nothing of their old life.

The records stay as they are, packed or not. Only what a broker would refuse is made again from its records: batches that log
cleaning thinned out, that begin before the log does, or whose times were written by the broker they come from.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from penstock.client.kafka import Producer
from penstock.records.batch import (
    COMPRESSION_MASK,
    CRC,
    CRC_OFFSET,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    Batch,
)
from penstock.records.builder import NO_LEADER_EPOCH, NewRecord, build_batch
from penstock.records.record import read_records

SEQUENCE_MASK = 0x7FFFFFFF


class Stamped(NamedTuple):
    """A batch to be sent, and where its records come from."""

    data: bytearray
    source_offsets: list[int] | None
    """None when they are dense, from `source_base` on."""
    source_base: int
    source_next: int
    records: int

    def breaks(self, target_base: int, shift: int | None) -> list[tuple[int, int]]:
        """Points from which on target offsets are source offsets with another shift than before."""
        found = []
        offsets = [self.source_base] if self.source_offsets is None else self.source_offsets
        for at, offset in enumerate(offsets):
            if target_base + at - offset != shift:
                shift = target_base + at - offset
                found.append((offset, target_base + at))
        return found


def stamp(batch: Batch, start: int, producer: Producer, sequence: int) -> Stamped | None:
    """The batch as it is sent; None when no record of it is at or behind `start`."""
    offsets: list[int] | None = None
    made = batch
    is_thin = batch.count != batch.last_offset_delta + 1 or batch.base_offset < start
    if is_thin or batch.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
        records = [record for record in read_records(batch) if record.offset >= start]
        if not records:
            return None
        news = [NewRecord(record.timestamp, record.key, record.value, record.headers) for record in records]
        made = Batch(memoryview(build_batch(news, compression=batch.compression)))
        offsets = [record.offset for record in records]
    data = bytearray(made.view)
    HEADER.pack_into(
        data,
        0,
        0,
        made.size - LENGTH_PREFIX_BYTES,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        made.attributes & COMPRESSION_MASK,
        made.last_offset_delta,
        made.base_timestamp,
        made.max_timestamp,
        producer.producer_id,
        producer.producer_epoch,
        sequence,
        made.count,
    )
    CRC.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[CRC_START:]))
    base = batch.base_offset if offsets is None else offsets[0]
    return Stamped(data, offsets, base, batch.next_offset, made.count)
