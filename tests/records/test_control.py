"""Markers: built and read, and what kafka-python's reader makes of them."""

from __future__ import annotations

import struct

import pytest
from kafka.record.memory_records import MemoryRecords

from penstock.records.batch import Batch, BatchError
from penstock.records.builder import NewRecord, build_batch, build_run, rebuild_batch
from penstock.records.control import Marker, MarkerKind, build_marker, read_marker

KEY = struct.pack(">hh", 0, 1)
VALUE = struct.pack(">hi", 0, 3)


def control(key: bytes | None, value: bytes | None) -> Batch:
    return Batch(memoryview(build_batch([NewRecord(1, key, value)], control=True, transactional=True)))


@pytest.mark.parametrize("kind", MarkerKind)
def test_a_marker_comes_back_from_its_batch(kind: MarkerKind) -> None:
    marker = Marker(kind, 12)
    built = build_marker(marker, producer_id=5, producer_epoch=2, timestamp_ms=1_000, base_offset=40, leader_epoch=3)
    batch = Batch(memoryview(built))
    assert read_marker(batch) == marker
    assert batch.crc_is_right()
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 2, -1)
    assert (batch.base_offset, batch.last_offset_delta, batch.leader_epoch, batch.max_timestamp) == (40, 0, 3, 1_000)


@pytest.mark.parametrize("kind", MarkerKind)
def test_a_client_sees_the_marker(kind: MarkerKind) -> None:
    built = build_marker(Marker(kind, 0), producer_id=5, producer_epoch=2, timestamp_ms=1_000)
    batch = MemoryRecords(bytes(built)).next_batch()
    assert batch.is_control_batch
    (record,) = batch
    assert (record.commit, record.abort) == (kind is MarkerKind.COMMIT, kind is MarkerKind.ABORT)


def test_the_bytes_of_a_marker_are_those_of_the_format() -> None:
    built = build_marker(Marker(MarkerKind.COMMIT, 3), producer_id=5, producer_epoch=2, timestamp_ms=1_000)
    assert built == control_bytes()


def control_bytes() -> bytearray:
    return build_batch(
        [NewRecord(1_000, KEY, VALUE)], control=True, transactional=True, producer_id=5, producer_epoch=2
    )


def test_fields_that_a_later_version_appends_are_passed_over() -> None:
    batch = control(struct.pack(">hhq", 1, 0, 9), struct.pack(">hiq", 1, 3, 9))
    assert read_marker(batch) == Marker(MarkerKind.ABORT, 3)


def test_other_control_records_are_no_markers() -> None:
    assert read_marker(control(struct.pack(">hh", 0, 2), b"")) is None


def test_a_marker_that_log_cleaning_took_is_none() -> None:
    assert read_marker(Batch(memoryview(rebuild_batch(control(KEY, VALUE), [])))) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (KEY, None),
        (KEY[:3], VALUE),
        (KEY, VALUE[:5]),
        (struct.pack(">hh", -1, 1), VALUE),
        (KEY, struct.pack(">hi", -1, 3)),
    ],
)
def test_unsound_markers_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BatchError, match="of a marker"):
        read_marker(control(key, value))


def test_a_data_batch_is_no_marker() -> None:
    with pytest.raises(BatchError, match="not a control batch"):
        read_marker(Batch(memoryview(build_run([VALUE], 1, [KEY]))))


def test_a_coordinator_epoch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BatchError, match="out of range"):
        build_marker(Marker(MarkerKind.ABORT, 2**31), producer_id=5, producer_epoch=2, timestamp_ms=1)
