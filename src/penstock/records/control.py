"""Control batches: the markers that end a transaction in a partition.

A marker is a control batch of one record: key `version i16, type i16`, value `version i16, coordinator epoch i32`
(KIP-98). Later versions may append fields; readers take the ones they know.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from penstock.records.batch import Batch, BatchError
from penstock.records.builder import NO_LEADER_EPOCH, NewRecord, build_batch
from penstock.records.record import read_records

MARKER_VERSION = 0

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class MarkerKind(enum.IntEnum):
    ABORT = 0
    COMMIT = 1


_KINDS = {kind.value: kind for kind in MarkerKind}


class Marker(NamedTuple):
    """How a producer's transaction ended, by the word of which coordinator."""

    kind: MarkerKind
    coordinator_epoch: int


def build_marker(
    marker: Marker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The control batch that ends the open transaction of `producer_id`."""
    try:
        key = _KEY.pack(MARKER_VERSION, marker.kind)
        value = _VALUE.pack(MARKER_VERSION, marker.coordinator_epoch)
    except struct.error as error:
        raise BatchError(f"a field of the marker is out of range: {error}") from None
    return build_batch(
        [NewRecord(timestamp_ms, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Batch) -> Marker | None:
    """The marker in a control batch; None where log cleaning took it, or for control records that end no transaction."""
    if not batch.is_control:
        raise BatchError("not a control batch")
    record = next(read_records(batch), None)
    if record is None:
        return None
    kind = _unpacked(_KEY, record.key, "key")
    if kind not in _KINDS:
        return None
    coordinator_epoch = _unpacked(_VALUE, record.value, "value")
    return Marker(_KINDS[kind], coordinator_epoch)


def _unpacked(form: struct.Struct, field: bytes | None, name: str) -> int:
    """What follows the version."""
    if field is None or len(field) < form.size:
        raise BatchError(f"the {name} of a marker has {0 if field is None else len(field)} bytes")
    version: int
    content: int
    version, content = form.unpack_from(field)
    if version < MARKER_VERSION:
        raise BatchError(f"the {name} of a marker is of version {version}")
    return content
