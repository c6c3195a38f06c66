"""Segment files of Kafka's format in which a batch says what cannot be true of its records."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.imports.kafka_scan import KafkaScan
from penstock.imports.source import Findings, SourcePartition
from penstock.records.batch import CRC_START
from penstock.records.builder import NewRecord, build_batch

INT_MAX = 2**31 - 1


def batch_at(base_offset: int, **fields: int) -> bytes:
    data = build_batch([NewRecord(1_000, b"key", b"value")], base_offset=base_offset)
    struct.pack_into(">i", data, 23, fields.get("last_offset_delta", 0))
    struct.pack_into(">i", data, 57, fields.get("count", 1))
    struct.pack_into(">I", data, 17, crc32c(data[CRC_START:]))
    return bytes(data)


@pytest.mark.parametrize(("count", "delta"), [(INT_MAX, INT_MAX - 1), (10, 9), (2, 0), (-1, 0), (-(2**31), INT_MAX)])
def test_batches_with_impossible_record_counts_are_not_imported(tmp_path: Path, count: int, delta: int) -> None:
    first, wrong = batch_at(0), batch_at(1, count=count, last_offset_delta=delta)
    last = batch_at(delta + 2)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(first + wrong + last)
    partition = SourcePartition("t", 0, (str(path),), sizes=(path.stat().st_size,))
    findings = Findings()
    assert [batch.base_offset for batch in KafkaScan(partition, findings)] == [0, delta + 2]
    [finding] = findings.kept
    assert (finding.position, finding.length) == (len(first), len(wrong))
    assert f"{count}" in finding.reason


def test_batch_that_log_cleaning_thinned_out_is_sound(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(batch_at(0, last_offset_delta=500))
    findings = Findings()
    [batch] = KafkaScan(SourcePartition("t", 0, (str(path),), sizes=(path.stat().st_size,)), findings)
    assert (batch.count, batch.next_offset, findings.count) == (1, 501, 0)
