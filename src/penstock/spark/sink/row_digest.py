"""The content of a set of rows as two numbers: the number of rows, and a digest that does not depend on their order.

The exactly-once sink uses it to check whether a repeated batch has the rows that were decided. Spark may deliver the rows in
a different order and to different tasks, so each row has a hash, and the digest is the sum of the hashes modulo 2^64. Rows
that differ in any byte have different hashes, except by chance. The digest does not protect against attackers.

A field of 9 to 1,024 bytes is covered by its first and its last 2^k bytes, which overlap as in wyhash: numpy hashes all
fields of similar lengths together. Longer fields are hashed by their CRC-32C. Digests are kept in journals, so this function
must never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from penstock.arrow.rows import Headers, rows_of
from penstock.spark.sink.options import SinkError

Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Lengths = npt.NDArray[np.int64]

_WORD = 8
_GATHERED_MAX = 1_024
"""Length up to which gathering bytes with numpy is cheaper than a call per field."""
_BLOCK_BYTES = 128 * 1024
"""Bytes gathered at once, which fit into the processor's cache."""
_WORDS: Final = np.dtype("<u8")
_MODULUS: Final = 1 << 64
_NULL, _EMPTY = 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B
_FIELDS: Final = {"key": 1, "value": 2, "headers": 3, "topic": 4, "partition": 5}
"""The fixed position of a column in the hash of its row."""


def _multipliers(count: int) -> Hashes:
    """Odd numbers that never change (splitmix64)."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return _mixed(state) | np.uint64(1)


def _mixed(hashes: Hashes) -> Hashes:
    """Mix in place, so that every bit of the input changes half of the output (the finalizer of MurmurHash3)."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> np.uint64(33)
    return hashes


_OF_WORDS = _multipliers(_GATHERED_MAX // _WORD)
_OF_FIELDS = _multipliers(8)
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


@dataclass(frozen=True, slots=True)
class Content:
    """Number and digest of a set of rows."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, (self.digest + other.digest) % _MODULUS)


EMPTY = Content()


class ContentCounter:
    """Hashes the rows that pass through; `content` covers all rows so far."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.content = EMPTY
        self._columns = list(columns)

    def watch(self, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The unchanged tables. Raises SinkError for a row that cannot be written."""
        for table in tables:
            if table.num_rows:
                try:
                    self.content += content_of(table.select(self._columns))
                except ValueError as error:
                    raise SinkError(str(error)) from None
            yield table


def content_of(table: pa.RecordBatch) -> Content:
    """Hashes of the rows of a sink. Raises ValueError for a row that cannot be written."""
    rows = rows_of(table, 0)
    hashes = _field_hashes(rows.values) * _OF_FIELDS[_FIELDS["value"]]
    keys = np.full(len(hashes), _NULL, np.uint64) if rows.keys is None else _field_hashes(rows.keys)
    hashes += keys * _OF_FIELDS[_FIELDS["key"]]
    if rows.headers is not None:
        hashes += _header_hashes(rows.headers) * _OF_FIELDS[_FIELDS["headers"]]
    for name in ("topic", "partition"):
        if name in table.schema.names:
            column = table.column(name)
            of_column = _field_hashes(column.cast(pa.binary())) if name == "topic" else _numbers(column)
            hashes += of_column * _OF_FIELDS[_FIELDS[name]]
    return Content(table.num_rows, int(_mixed(hashes).sum(dtype=np.uint64)))


def _numbers(column: pa.Int32Array) -> Hashes:
    filled: Lengths = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return filled.astype(np.uint64)


def _header_hashes(headers: Headers) -> Hashes:
    """One hash for the headers of each row, in their order; 0 for a row without any."""
    counts = headers.counts.to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(counts)
    firsts = ends - counts
    of_one = _field_hashes(headers.names) * _OF_FIELDS[6] + _field_hashes(headers.values) * _OF_FIELDS[7]
    of_one += (np.arange(len(of_one)) - np.repeat(firsts, counts)).astype(np.uint64)
    totals = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(of_one))))
    hashes: Hashes = totals[ends] - totals[firsts]
    return hashes


def _field_hashes(column: pa.BinaryArray) -> Hashes:
    """A hash for each entry: of its length and all of its bytes, or the value for null."""
    _, at, data = column.buffers()
    bounds = np.frombuffer(at, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = lengths.astype(np.uint64)
    hashes += np.uint64(_EMPTY)
    longest = int(lengths.max(initial=0))
    if longest:
        held = np.frombuffer(data, np.uint8)
        _add_words(hashes, held, starts, lengths)
        size = _WORD
        while size < min(longest, _GATHERED_MAX):
            _add_halves(hashes, held, starts, lengths, size)
            size *= 2
        if longest > _GATHERED_MAX:
            _add_checksums(hashes, held, starts, lengths)
    _mixed(hashes)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _add_words(hashes: Hashes, held: Bytes, starts: Lengths, lengths: Lengths) -> None:
    """Hash fields of up to 8 bytes, each read as a masked word."""
    rows = _between(lengths, 0, _WORD)
    if rows is None:
        return
    if len(held) < _WORD:
        held = np.concatenate((held, np.zeros(_WORD, np.uint8)))
    words = np.ndarray((len(held) - _WORD + 1,), _WORDS, held.data, strides=(1,))
    # The last fields have no complete word after their start: they use the last word of the data, shifted.
    places = np.minimum(starts[rows], len(words) - 1)
    shifts = (starts[rows] - places << 3).astype(np.uint64)
    hashes[rows] += (words[places] >> shifts & _MASKS[lengths[rows]]) * _OF_WORDS[0]


def _add_halves(hashes: Hashes, held: Bytes, starts: Lengths, lengths: Lengths, size: int) -> None:
    """Hash fields of more than `size` and up to twice as many bytes: the first `size` bytes and the last."""
    rows = _between(lengths, size, 2 * size)
    if rows is None:
        return
    pieces = np.ndarray((len(held) - size + 1,), np.dtype((np.void, size)), held.data, strides=(1,))
    firsts = starts[rows]
    lasts = firsts + lengths[rows] - size
    words = size // _WORD
    sums = np.zeros(len(firsts), np.uint64)
    step = _BLOCK_BYTES // size
    for at in range(0, len(firsts), step):
        block = slice(at, at + step)
        for part, places in enumerate((firsts[block], lasts[block])):
            gathered = pieces[places].view(_WORDS).reshape(-1, words)
            # The highest bit of a word reaches only the highest bit of its product, and two of those cancel out.
            gathered ^= gathered >> np.uint64(32)
            sums[block] += gathered @ _OF_WORDS[part * words : (part + 1) * words]
    hashes[rows] += sums


def _add_checksums(hashes: Hashes, held: Bytes, starts: Lengths, lengths: Lengths) -> None:
    """Hash longer fields."""
    rows = np.flatnonzero(lengths > _GATHERED_MAX)
    places = map(slice, starts[rows].tolist(), (starts + lengths)[rows].tolist())
    # Maps of C functions: a loop in Python takes twice as long.
    sums = np.fromiter(map(crc32c, map(held.data.__getitem__, places)), np.uint64, len(rows))
    hashes[rows] += sums * _OF_WORDS[0]


def _between(lengths: Lengths, above: int, up_to: int) -> slice | npt.NDArray[np.intp] | None:
    """Which fields are longer than `above` and not longer than `up_to`."""
    is_between = (lengths > above) & (lengths <= up_to)
    count = np.count_nonzero(is_between)
    if not count:
        return None
    return slice(None) if count == len(lengths) else np.flatnonzero(is_between)
