"""Appends and reads of thousands of bare records in slices: `append_run` and `read_records` of the engine for large requests
of the smaller dialects.

The batches of a long run are built a few thousand records at a time and appended together, in one write, so that the records
have consecutive offsets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker import runs
from penstock.broker.engine import Bytes, RecordsRead, RunAppended
from penstock.broker.record_reads import objects_of
from penstock.model.errors import Fault
from penstock.model.ids import INTERNAL_TOPICS
from penstock.model.limits import READ_OBJECTS_MAX
from penstock.model.pending import Pending
from penstock.model.slices import Work

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedEngine
    from penstock.records.record import Record

APPENDED_AT_ONCE = 2_000
"""Records of one batch of a long run: about a millisecond. Shorter runs are appended by `append_run`."""
READ_AT_ONCE = 1_000
"""Records of one read of the log: about two milliseconds."""


def append_long_run(
    engine: EmbeddedEngine,
    topic: str,
    partition: int,
    values: Sequence[Bytes],
    keys: Sequence[Bytes | None] | None,
    acks: int,
) -> Work[RunAppended | Pending[RunAppended]]:
    """As `append_run`, in slices. The bytes are borrowed until the work is done."""
    found = engine.partition(topic, partition)
    if len(values) <= APPENDED_AT_ONCE or found is None or topic in INTERNAL_TOPICS:
        return engine.append_run(topic, partition, values, keys, acks)
    now_ms = time.time_ns() // 1_000_000
    made: list[bytearray] = []
    for start in range(0, len(values), APPENDED_AT_ONCE):
        end = start + APPENDED_AT_ONCE
        batches = runs.made_of_run(found, values[start:end], None if keys is None else keys[start:end], 0, now_ms)
        if isinstance(batches, RunAppended):
            return batches
        made += batches
        yield None
    if engine.partition(topic, partition) is not found:  # deleted meanwhile
        return RunAppended(Fault.UNKNOWN_TOPIC_OR_PARTITION, text=Fault.UNKNOWN_TOPIC_OR_PARTITION.value)
    return engine.append_made(found, made, acks)


def read_on(
    engine: EmbeddedEngine,
    topic: str,
    partition: int,
    found: RecordsRead,
    max_records: int,
    max_bytes: int,
    *,
    keys: bool = True,
    headers: bool = True,
) -> Work[RecordsRead]:
    """The rest of a read of up to the given records and bytes. `found` has its first `READ_AT_ONCE` records."""
    there = engine.partition(topic, partition)
    records: list[Record] = list(found.records)
    if there is None or there.log is None:
        return found
    written = there.log.log_end_offset
    left = max_bytes
    objects = 0
    looked: Sequence[Record] = found.records
    while True:
        left -= sum([_weight(record, keys) for record in looked])
        objects += objects_of(looked)
        count = min(READ_AT_ONCE, max_records - len(records), written - found.next_offset)
        if left <= 0 or count <= 0 or objects >= READ_OBJECTS_MAX:
            break
        yield None
        look = engine.read_records(topic, partition, found.next_offset, count, left, keys=keys, headers=headers)
        more = (yield look) if isinstance(look, Pending) else look
        if more.fault is not Fault.NONE or not more.records:
            break
        looked = more.records
        if left < _weight(looked[0], keys):
            break  # a read returns at least one record, whatever its size
        records += looked
        found = more
        if len(looked) < count:
            break
    return found._replace(records=records)


def _weight(record: Record, keys: bool) -> int:
    size = 0 if record.value is None else len(record.value)
    return size + len(record.key) if keys and record.key is not None else size
