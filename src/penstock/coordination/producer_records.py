"""The bytes that keep a partition's producers on disk, in Kafka's formats: the `.snapshot` file and the entries of the
`.txnindex` file. Pure bytes and values; `producers` gives them their meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

SNAPSHOT_VERSION = 1
ABORTED_VERSION = 0

_SNAPSHOT_HEADER = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_ABORTED = struct.Struct(">hqqqq")
ABORTED_BYTES = _ABORTED.size


class SnapshotEntry(NamedTuple):
    """One remembered batch of one producer; a producer that wrote only markers has one entry with offset -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class AbortedTransaction(NamedTuple):
    """The records of `producer_id` from `first_offset` to `last_offset` (its marker) are to be skipped by readers of
    committed data; `last_stable_offset` is the one that the abort made, so a search by offset knows where to stop."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ABORTED.pack(ABORTED_VERSION, *self)

    @classmethod
    def decode(cls, buffer: bytes | memoryview, start: int = 0) -> AbortedTransaction:
        """The entry at `start`; raises ValueError when it is cut off or of another version."""
        try:
            version, *fields = _ABORTED.unpack_from(buffer, start)
        except struct.error:
            raise ValueError(f"an aborted transaction has {ABORTED_BYTES} bytes, not {len(buffer) - start}") from None
        if version != ABORTED_VERSION:
            raise ValueError(f"aborted transaction of version {version}, expected {ABORTED_VERSION}")
        return cls(*fields)


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    rows = [_SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    body = _SNAPSHOT_COUNT.pack(len(rows)) + b"".join(rows)
    return _SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes | memoryview) -> list[SnapshotEntry]:
    """The entries in file order; raises ValueError for anything but a whole snapshot with the right CRC."""
    view = memoryview(data)
    try:
        version, crc = _SNAPSHOT_HEADER.unpack_from(view)
        body = view[_SNAPSHOT_HEADER.size :]
        (count,) = _SNAPSHOT_COUNT.unpack_from(body)
    except struct.error:
        raise ValueError(f"a producer snapshot of {len(view)} bytes is cut off") from None
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot of version {version}, expected {SNAPSHOT_VERSION}")
    if crc32c(body) != crc:
        raise ValueError("the CRC of the producer snapshot is wrong")
    rows = body[_SNAPSHOT_COUNT.size :]
    if count < 0 or len(rows) != count * _SNAPSHOT_ENTRY.size:
        raise ValueError(f"a producer snapshot of {count} entries has {len(rows)} bytes of them")
    return [SnapshotEntry(*fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(rows)]
