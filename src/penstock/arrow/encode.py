"""Arrow columns to record batches, ready for Produce: the other direction of `decode`.

Rows stay in their order. A batch is closed before it would be larger than allowed, by the most that its records can take;
compression makes it smaller still. The bytes are the same whichever way is taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from penstock.arrow import pure
from penstock.arrow.rows import Packer, Rows, rows_of
from penstock.arrow.ways import Way, best_way
from penstock.records.batch import (
    CRC,
    CRC_OFFSET,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchError,
)
from penstock.records.builder import NO_LEADER_EPOCH, RECORD_OVERHEAD_BYTES_MAX
from penstock.records.compression import Codec, compress
from penstock.records.varint import INT64_MAX

if TYPE_CHECKING:
    from penstock.arrow.layout import Varints

BATCH_BYTES_MAX = 1_000_000
"""A little below Kafka's default for max.message.bytes, 1,048,588."""
HEADER_OVERHEAD_BYTES_MAX = 10
"""Two lengths."""
_PACKED_AT_ONCE_BYTES_MAX = 64 * 1024 * 1024
"""Arrow's strings have offsets of 32 bits; and what is packed at once is in memory twice."""
_LOOKED_AT_IN_PYTHON_MAX = 200
"""A call of Arrow costs as much as a look at so many numbers."""
_SEQUENCE_MASK = 0x7FFFFFFF


class Writer(NamedTuple):
    """Who writes: by default nobody in particular, so that a batch sent twice is there twice."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    is_transactional: bool = False


NOBODY = Writer()


class Encoded(NamedTuple):
    """A batch to be written."""

    batch: bytearray
    records: int


def encode(
    table: pa.RecordBatch,
    *,
    timestamp_ms: int | None = None,
    codec: int = Codec.NONE,
    writer: Writer = NOBODY,
    base_sequence: int = NO_SEQUENCE,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    way: Way | None = None,
) -> Iterator[Encoded]:
    """The rows of `table` as batches: column `value`, and if they are there `key`, `headers` and `timestamp`, which
    `timestamp_ms` stands in for. With `base_sequence` each batch has the sequence that follows the one before."""
    rows = rows_of(table, timestamp_ms)
    pack = _packer(best_way() if way is None else way)
    sequence = base_sequence
    for portion, ends in _portions(rows, batch_bytes_max):
        packed, bounds = pack(portion, ends)
        first = at = 0
        for end, bound in zip(ends, bounds, strict=True):
            count = end - first
            timestamps = portion.timestamps.slice(first, count)
            yield Encoded(_sealed(packed[at:bound], timestamps, codec, writer, sequence), count)
            if sequence != NO_SEQUENCE:
                sequence = sequence + count & _SEQUENCE_MASK
            first, at = end, bound


def _packer(way: Way) -> Packer:
    if way is Way.PURE:
        return pure.pack
    # numpy is there when this way is: this module does without.
    from penstock.arrow import pack

    varints: Varints
    if way is Way.NUMBA:
        from penstock.arrow.kernels_numba import NumbaVarints

        varints = NumbaVarints()
    else:
        from penstock.arrow.kernels_numpy import NumpyVarints

        varints = NumpyVarints()
    return lambda rows, ends: pack.pack(rows, ends, varints)


def _portions(rows: Rows, batch_bytes_max: int) -> Iterator[tuple[Rows, list[int]]]:
    """The rows in pieces that are packed at once; for each, behind which of its rows each batch ends."""
    count = len(rows.values)
    if not count:
        return
    # A view of Arrow's memory: only the few places that bisect looks at become numbers of Python.
    totals = memoryview(pc.cumulative_sum(_sizes_max(rows)).buffers()[1]).cast("B").cast("q")
    room = batch_bytes_max - HEADER_BYTES
    start = first = before = portion_before = 0
    ends: list[int] = []
    while first < count:
        end = max(bisect_right(totals, before + room, first, count), first + 1)
        if ends and totals[end - 1] - portion_before > _PACKED_AT_ONCE_BYTES_MAX:
            yield rows.part(start, first), ends
            start, portion_before, ends = first, before, []
        ends.append(end - start)
        first, before = end, totals[end - 1]
    yield (rows if start == 0 else rows.part(start, count)), ends


def _sizes_max(rows: Rows) -> pa.Int64Array:
    """What each row takes at most."""
    sizes = pc.add(_lengths(rows.values), RECORD_OVERHEAD_BYTES_MAX)
    if rows.keys is not None:
        sizes = pc.add(sizes, _lengths(rows.keys))
    if rows.headers is not None:
        of_headers = pc.add(_lengths(rows.headers.names), _lengths(rows.headers.values))
        of_headers = pc.add(of_headers, HEADER_OVERHEAD_BYTES_MAX)
        zero = pa.array([0], pa.int64())
        totals = pa.concat_arrays([zero, pc.cumulative_sum(of_headers)])
        bounds = pa.concat_arrays([zero, pc.cumulative_sum(rows.headers.counts.cast(pa.int64()))])
        at_bounds = totals.take(bounds)
        sizes = pc.add(sizes, pc.subtract(at_bounds.slice(1), at_bounds.slice(0, len(at_bounds) - 1)))
    return sizes


def _lengths(column: pa.BinaryArray) -> pa.Int64Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _sealed(payload: memoryview, timestamps: pa.Int64Array, codec: int, writer: Writer, sequence: int) -> bytearray:
    """The batch of these packed records."""
    count = len(timestamps)
    earliest, latest = _spread(timestamps)
    if latest - earliest > INT64_MAX:
        raise BatchError("the timestamps of a batch differ by more than 64 bits")
    records = payload if codec == Codec.NONE else compress(codec, payload)
    batch = bytearray(HEADER_BYTES + len(records))
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LENGTH_PREFIX_BYTES,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        codec | (TRANSACTIONAL_BIT if writer.is_transactional else 0),
        count - 1,
        timestamps[0].as_py(),
        latest,
        writer.producer_id,
        writer.producer_epoch,
        sequence,
        count,
    )
    batch[HEADER_BYTES:] = records
    CRC.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _spread(timestamps: pa.Int64Array) -> tuple[int, int]:
    if len(timestamps) > _LOOKED_AT_IN_PYTHON_MAX:
        spread = pc.min_max(timestamps)
        return spread["min"].as_py(), spread["max"].as_py()
    numbers = timestamps.to_pylist()
    return min(numbers), max(numbers)
