"""Batches whose headers cannot be true are rejected before the append, and markers that cannot be true fence nobody."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.broker.engine import Appended
from penstock.model.errors import Fault
from penstock.model.limits import DECOMPRESSED_BYTES_MAX
from penstock.records.batch import CRC_START, HEADER_BYTES, TRANSACTIONAL_BIT
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.control import Marker, MarkerKind, build_marker
from penstock.records.record import RECORD_BYTES_MIN
from tests.broker.failing_disk import CueDisk, answer_of, engine_on, until

INT_MAX = 2**31 - 1
RECORDS_MAX = DECOMPRESSED_BYTES_MAX // RECORD_BYTES_MIN

FIELDS = {
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "producer_id": (43, "q"),
    "producer_epoch": (51, "h"),
    "base_sequence": (53, "i"),
    "count": (57, "i"),
}


def batch_with(codec: int = Codec.NONE, records: int = 1, payload: bytes | None = None, **fields: int) -> memoryview:
    """A batch of small records whose header says something else, with the CRC that belongs to it."""
    data = build_batch([NewRecord(1_000, None, None)] * records, compression=codec)
    if payload is not None:
        data[HEADER_BYTES:] = payload
        struct.pack_into(">i", data, 8, len(data) - 12)
    for name, value in fields.items():
        at, form = FIELDS[name]
        struct.pack_into(f">{form}", data, at, value)
    struct.pack_into(">I", data, 17, crc32c(data[CRC_START:]))
    return memoryview(data)


def counted(codec: int, count: int) -> memoryview:
    return batch_with(codec, count=count, last_offset_delta=count - 1)


def produced(path: Path, *batches: memoryview) -> tuple[list[Appended], int]:
    """The results, and the log end offset after them."""

    async def run() -> tuple[list[Appended], int]:
        async with engine_on(path, CueDisk()) as engine:
            results = [(await answer_of(engine.append("t", 0, [batch], -1)))[0] for batch in batches]
            partition = engine.partition("t", 0)
            assert partition is not None
            assert partition.log is not None
            return results, partition.log.log_end_offset

    return asyncio.run(run())


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("count", [RECORDS_MAX + 1, INT_MAX, -1, -(2**31), 0])
def test_record_count_that_no_payload_holds_is_rejected(tmp_path: Path, codec: int, count: int) -> None:
    delta = max(count - 1, -(2**31))
    [result], end = produced(tmp_path, batch_with(codec, count=count, last_offset_delta=delta))
    assert result.fault is Fault.INVALID_RECORD
    assert str(count) in (result.text or "")
    assert end == 0


@pytest.mark.parametrize(
    ("codec", "room"), [(Codec.NONE, 1), (Codec.GZIP, 1_032), (Codec.SNAPPY, 22), (Codec.LZ4, 255)]
)
def test_record_count_beyond_the_payload_size_is_rejected(tmp_path: Path, codec: int, room: int) -> None:
    size = len(counted(codec, 1)) - HEADER_BYTES
    most = size * room // RECORD_BYTES_MIN
    (fits, exceeds), _ = produced(tmp_path, counted(codec, most), counted(codec, most + 1))
    assert fits.fault is Fault.NONE
    assert exceeds.fault is Fault.INVALID_RECORD
    assert exceeds.text == f"{most + 1} records cannot fit into {size} bytes (compression: {Codec(codec).name.lower()})"


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_batch_without_payload_is_rejected(tmp_path: Path, codec: int) -> None:
    [result], _ = produced(tmp_path, batch_with(codec, payload=b""))
    assert result.fault is Fault.INVALID_RECORD


@pytest.mark.parametrize(("count", "delta"), [(2, 0), (1, 1), (1, INT_MAX), (1, -1), (INT_MAX, 0)])
def test_record_count_that_differs_from_the_offset_range_is_rejected(tmp_path: Path, count: int, delta: int) -> None:
    [result], end = produced(tmp_path, batch_with(count=count, last_offset_delta=delta))
    assert (result.fault, end) == (Fault.INVALID_RECORD, 0)


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1), (-1, -1)])
def test_producer_id_without_epoch_or_sequence_is_rejected(tmp_path: Path, epoch: int, sequence: int) -> None:
    [result], _ = produced(tmp_path, batch_with(producer_id=7, producer_epoch=epoch, base_sequence=sequence))
    assert result.fault is Fault.INVALID_RECORD
    assert result.text == (
        f"producer id 7 requires an epoch and a sequence of at least 0, got epoch {epoch} and sequence {sequence}"
    )


def test_transactional_batch_without_producer_id_is_rejected(tmp_path: Path) -> None:
    [result], _ = produced(tmp_path, batch_with(attributes=TRANSACTIONAL_BIT))
    assert (result.fault, result.text) == (Fault.INVALID_RECORD, "a transactional batch requires a producer id")


def test_epoch_and_sequence_without_producer_id_are_ignored(tmp_path: Path) -> None:
    """KafkaJS sends 0 for both when it is not idempotent."""
    [result], end = produced(tmp_path, batch_with(producer_epoch=0, base_sequence=0))
    assert (result.fault, end) == (Fault.NONE, 1)


def test_marker_with_impossible_coordinator_epoch_in_the_log_does_not_fence(tmp_path: Path) -> None:
    """Earlier versions wrote such markers for any client that asked."""

    async def run() -> None:
        async with engine_on(tmp_path, CueDisk()) as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            wrong = build_marker(Marker(MarkerKind.ABORT, INT_MAX), producer_id=7, producer_epoch=0, timestamp_ms=1_000)
            partition.append_own(wrong, 1_000)
        async with engine_on(tmp_path, CueDisk()) as engine:
            partition = engine.partition("t", 0)
            assert partition is not None
            partition.producers.verified(7, 0)
            batch = batch_with(producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
            [result] = await answer_of(engine.append("t", 0, [batch], -1))
            assert result.fault is Fault.NONE
            assert partition.last_stable_offset == 1
            partition.append_marker(Marker(MarkerKind.COMMIT, engine.leader_epoch), 7, 0, 0, 1_000)
            await until(lambda: partition.last_stable_offset == 3)

    asyncio.run(run())


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("records", [1, 64, 100_000])
def test_smallest_records_are_accepted(tmp_path: Path, codec: int, records: int) -> None:
    [result], end = produced(tmp_path, batch_with(codec, records))
    assert (result.fault, end) == (Fault.NONE, records)
