"""What the fast ways to read batches share: where the records of some batches lie in one buffer, and where their fields do.

A kernel (kernels_numpy, kernels_numba) turns a `Frame` into a `Layout`; `decode` turns that into columns. A kernel that
finds a byte wrong gives None, and the plain reader of `penstock.records` is asked what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.model.limits import DECOMPRESSED_BYTES_MAX
from penstock.records.batch import HEADER_BYTES, MAGIC, Batch, BatchError
from penstock.records.compression import Codec, decompress
from penstock.records.record import RECORD_BYTES_MIN
from penstock.records.varint import INT64_MAX, INT64_MIN

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Frame(NamedTuple):
    """Batches laid out in one buffer; the arrays have an entry a batch."""

    data: Bytes
    starts: Longs
    ends: Longs
    counts: Longs
    base_offsets: Longs
    last_offset_deltas: Longs
    base_timestamps: Longs
    append_times: Longs
    """What counts for every record where `has_append_time`."""
    has_append_time: NDArray[np.bool_]

    @property
    def records(self) -> int:
        return int(self.counts.sum())


class Fields(NamedTuple):
    """Byte strings in the buffer; a length of -1 is a null."""

    starts: Longs
    lengths: Longs


class HeaderFields(NamedTuple):
    """The headers of all records, one after the other."""

    counts: Longs
    """An entry a record."""
    names: Fields
    values: Fields


class Layout(NamedTuple):
    """An entry a record; what was not asked for is None."""

    offsets: Longs
    timestamps: Longs
    keys: Fields | None
    values: Fields | None
    headers: HeaderFields | None


class Wanted(NamedTuple):
    """How deep to look into a record: headers need all that is before them."""

    fields: bool
    headers: bool


class Kernel(Protocol):
    def __call__(self, frame: Frame, wanted: Wanted, /) -> Layout | None: ...


class Varints(Protocol):
    """Numbers written as varints: the part of packing that differs from way to way."""

    def widths(self, numbers: Longs) -> Longs: ...

    def strings(self, columns: Sequence[Longs]) -> tuple[Bytes, Ints]: ...


def frame_batches(batches: Sequence[Batch], limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Frame:
    """The batches unpacked, without a copy where they are not packed; raises BatchError for what their headers say."""
    for batch in batches:
        if batch.magic != MAGIC:
            raise BatchError(f"unsupported magic {batch.magic} in a batch, expected {MAGIC}")
        if batch.count and not INT64_MIN <= batch.base_offset + batch.last_offset_delta <= INT64_MAX:
            raise BatchError(f"invalid last offset delta {batch.last_offset_delta} at base offset {batch.base_offset}")
    data, starts, ends = _unpacked(batches, limit_bytes)
    counts = _longs([batch.count for batch in batches])
    sizes = ends - starts
    wrong = (counts < 0) | (counts * RECORD_BYTES_MIN > sizes) | ((counts == 0) & (sizes > 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise BatchError(f"{counts[at]} records in {sizes[at]} bytes")
    return Frame(
        data,
        starts,
        ends,
        counts,
        _longs([batch.base_offset for batch in batches]),
        _longs([batch.last_offset_delta for batch in batches]),
        _longs([batch.base_timestamp for batch in batches]),
        _longs([batch.max_timestamp for batch in batches]),
        np.array([batch.has_log_append_time for batch in batches], np.bool_),
    )


def _unpacked(batches: Sequence[Batch], limit_bytes: int) -> tuple[Bytes, Longs, Longs]:
    """One buffer, and where each batch's records are in it."""
    whole = _shared_buffer(batches)
    if whole is not None:
        sizes = _longs([batch.size - HEADER_BYTES for batch in batches])
        addresses = _longs([pa.py_buffer(batch.view).address for batch in batches]) + HEADER_BYTES
        # Only the part that these batches take: offsets into it must fit 32 bits.
        first = int(addresses.min())
        starts = addresses - first
        ends = starts + sizes
        at = first - int(pa.py_buffer(whole).address)
        return np.frombuffer(whole, np.uint8, int(ends.max()), at), starts, ends
    parts = [
        # A bare header is left by log cleaning, whatever its attributes say.
        batch.payload()
        if batch.compression == Codec.NONE or batch.size == HEADER_BYTES
        else decompress(batch.compression, batch.payload(), limit_bytes)
        for batch in batches
    ]
    ends = np.cumsum(_longs([len(part) for part in parts]))
    joined = parts[0] if len(parts) == 1 else b"".join(parts)
    return np.frombuffer(joined, np.uint8), np.concatenate((_longs([0]), ends[:-1])), ends


def _shared_buffer(batches: Sequence[Batch]) -> bytes | bytearray | None:
    """The buffer that all batches are views of, if there is one and none is compressed."""
    owner = batches[0].view.obj
    if not isinstance(owner, bytes | bytearray):
        return None
    for batch in batches:
        if batch.view.obj is not owner or batch.compression != Codec.NONE or batch.size == HEADER_BYTES:
            return None
    return owner


def _longs(values: Sequence[int]) -> Longs:
    return np.array(values, np.int64)
