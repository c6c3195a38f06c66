"""Record batches of one partition to Arrow columns, as Spark's Kafka source names and types them.

Only the columns that are asked for are built; what lies behind the last of them in a record is not looked at. Batches
come as they lie in the log, in order; `visible_batches` leaves out what readers do not see. A byte that is wrong is a
BatchError, whichever way is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.arrow import pure
from penstock.arrow.columns import DEFAULT, schema_of
from penstock.arrow.ways import Way, best_way
from penstock.records.batch import Batch, BatchError, whole_batches
from penstock.records.visibility import Aborted, visible_batches

if TYPE_CHECKING:
    from penstock.arrow.layout import Kernel

OFFSET_MAX = (1 << 63) - 1
ROWS_MAX = 50_000
"""Arrow batches of fewer rows cost Spark more a row, of more rows only memory."""
BYTES_MAX = 8 * 1024 * 1024


def decode_view(
    records: memoryview,
    topic: str,
    partition: int,
    *,
    columns: Sequence[str] = DEFAULT,
    start: int = 0,
    end: int = OFFSET_MAX,
    aborted: Iterable[Aborted] = (),
    way: Way | None = None,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The records of a fetch answer, or of a piece of a segment: its whole batches, of those what readers see."""
    visible = visible_batches(whole_batches(records), aborted)
    return decode_batches(
        visible,
        topic,
        partition,
        columns=columns,
        start=start,
        end=end,
        way=way,
        rows_max=rows_max,
        bytes_max=bytes_max,
    )


def decode_batches(
    batches: Iterable[Batch],
    topic: str,
    partition: int,
    *,
    columns: Sequence[str] = DEFAULT,
    start: int = 0,
    end: int = OFFSET_MAX,
    way: Way | None = None,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets from `start` to before `end`, in Arrow batches of about `rows_max` rows or `bytes_max`.

    A batch of the log is not divided: an Arrow batch may be larger by one. None is empty.
    """
    group: list[Batch] = []
    rows = size = 0
    for batch in batches:
        if batch.last_offset < start or not batch.count:
            continue
        if batch.base_offset >= end:
            break
        if group and (rows + batch.count > rows_max or size + batch.size > bytes_max):
            yield from _not_empty(decode(group, topic, partition, columns, start=start, end=end, way=way))
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += batch.count
        size += batch.size
    if group:
        yield from _not_empty(decode(group, topic, partition, columns, start=start, end=end, way=way))


def _not_empty(decoded: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if decoded.num_rows:
        yield decoded


def decode(
    batches: Sequence[Batch],
    topic: str,
    partition: int,
    columns: Sequence[str] = DEFAULT,
    *,
    start: int = 0,
    end: int = OFFSET_MAX,
    way: Way | None = None,
) -> pa.RecordBatch:
    """All records of `batches` with offsets from `start` to before `end`, in one Arrow batch. CRCs are checked."""
    schema = schema_of(columns)
    for batch in batches:
        if not batch.crc_is_right():
            raise BatchError(f"CRC mismatch in the batch at offset {batch.base_offset}")
    way = best_way() if way is None else way
    if way is Way.PURE or not batches:
        arrays = pure.decode_columns(batches, topic, partition, columns, start, end)
    else:
        # numpy is there when this way is: this module does without.
        from penstock.arrow import column_arrays

        arrays = column_arrays.decode_columns(batches, topic, partition, columns, start, end, _kernel(way))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _kernel(way: Way) -> Kernel:
    if way is Way.NUMBA:
        from penstock.arrow import kernels_numba

        return kernels_numba.walk
    from penstock.arrow import kernels_numpy

    return kernels_numpy.walk
