"""Runs: bare records of dialects that send one at a time, made into batches, so that the log sees no single records.

A run is what one read of a connection delivered for a partition. It becomes one batch, or several of at most
max.message.bytes; a record larger than that has a batch to itself, because the dialect's own limit let it in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from penstock.broker.engine import ACKS_ALL, Bytes, RunAppended
from penstock.broker.partition import Partition
from penstock.model.errors import NO_FAULT, BrokerError, Fault
from penstock.model.pending import Pending
from penstock.records.batch import HEADER_BYTES
from penstock.records.builder import RECORD_OVERHEAD_BYTES_MAX, NewRecord, build_batch, build_run


def append_run(
    partition: Partition,
    values: Sequence[Bytes],
    keys: Sequence[Bytes | None] | None,
    acks: int,
    timestamp_ms: int,
    now_ms: int,
) -> RunAppended | Pending[RunAppended]:
    return _when_safe(partition, write_run(partition, values, keys, timestamp_ms, now_ms), acks)


def write_run(
    partition: Partition,
    values: Sequence[Bytes],
    keys: Sequence[Bytes | None] | None,
    timestamp_ms: int,
    now_ms: int,
) -> RunAppended:
    """Append and wait for no flush. Without a timestamp of their own the records get the current one."""
    made = made_of_run(partition, values, keys, timestamp_ms, now_ms)
    return made if isinstance(made, RunAppended) else _written(partition, made, now_ms)


def made_of_run(
    partition: Partition,
    values: Sequence[Bytes],
    keys: Sequence[Bytes | None] | None,
    timestamp_ms: int,
    now_ms: int,
) -> Sequence[bytearray] | RunAppended:
    """The batches for a run, which do not refer to its buffers, or why the topic refuses it."""
    if timestamp_ms <= 0:
        timestamp_ms = now_ms
    if partition.compacts and (keys is None or any(key is None for key in keys)):
        return RunAppended(Fault.INVALID_RECORD, text="a record of a compacted topic needs a key")
    batch_bytes_max = partition.config.max_message_bytes
    if len(values) == 1:
        return (build_run(values, timestamp_ms, keys),)
    sizes = list(map(len, values))
    if keys is not None:
        sizes = [size if key is None else size + len(key) for size, key in zip(sizes, keys, strict=True)]
    if HEADER_BYTES + sum(sizes) + len(sizes) * RECORD_OVERHEAD_BYTES_MAX <= batch_bytes_max:
        return (build_run(values, timestamp_ms, keys),)
    return [
        build_run(values[start:end], timestamp_ms, None if keys is None else keys[start:end])
        for start, end in _cuts(sizes, batch_bytes_max)
    ]


def append_new(
    partition: Partition, records: Sequence[NewRecord], acks: int, compression: int, now_ms: int
) -> RunAppended | Pending[RunAppended]:
    return _when_safe(partition, write_new(partition, records, compression, now_ms), acks)


def write_new(partition: Partition, records: Sequence[NewRecord], compression: int, now_ms: int) -> RunAppended:
    """Append and wait for no flush."""
    made = made_of_new(partition, records, compression)
    return made if isinstance(made, RunAppended) else _written(partition, made, now_ms)


def made_of_new(partition: Partition, records: Sequence[NewRecord], compression: int) -> list[bytearray] | RunAppended:
    """As `made_of_run`, for records with headers or timestamps of their own."""
    if partition.compacts and any(record.key is None for record in records):
        return RunAppended(Fault.INVALID_RECORD, text="a record of a compacted topic needs a key")
    sizes = [
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(n) * 4 + len(v or b"") + 10 for n, v in record.headers)
        for record in records
    ]
    return [
        build_batch(records[start:end], compression=compression)
        for start, end in _cuts(sizes, partition.config.max_message_bytes)
    ]


def append_made(
    partition: Partition, made: Sequence[bytearray], acks: int, now_ms: int
) -> RunAppended | Pending[RunAppended]:
    return _when_safe(partition, _written(partition, made, now_ms), acks)


def _written(partition: Partition, made: Sequence[bytearray], now_ms: int) -> RunAppended:
    try:
        return partition.append_made(made, now_ms)
    except BrokerError as error:
        return RunAppended(error.fault, text=error.text)


def _when_safe(partition: Partition, appended: RunAppended, acks: int) -> RunAppended | Pending[RunAppended]:
    if not appended.written or not partition.durable or not (acks == ACKS_ALL or partition.waits_always):
        return appended
    waiting: Pending[RunAppended] = Pending()

    def flushed(fault: Fault) -> None:
        waiting.complete(appended if fault is NO_FAULT else RunAppended(fault, text=fault.value))

    safe_offset = appended.base_offset + appended.written
    return waiting if partition.when_flushed(safe_offset, flushed) else appended


def _cuts(sizes: Sequence[int], batch_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Where to cut a run into batches that stay below the bound."""
    room = batch_bytes_max - HEADER_BYTES
    ends = list(accumulate(size + RECORD_OVERHEAD_BYTES_MAX for size in sizes))
    start = taken = 0
    while start < len(sizes):
        end = max(start + 1, bisect_right(ends, taken + room))
        yield start, end
        start, taken = end, ends[end - 1]
