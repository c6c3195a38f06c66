"""The same batches through kio, aiokafka and kafka-python, in both directions."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from penstock.records.batch import Batch
from penstock.records.builder import NewRecord, build_batch
from penstock.records.compression import CODECS, Codec
from penstock.records.record import Record, read_records

FIELD = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=20), FIELD), max_size=3).map(tuple)
# kio keeps whole seconds.
TIMESTAMP = st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1_000)
RECORDS = st.lists(st.builds(NewRecord, TIMESTAMP, FIELD, FIELD, HEADERS), min_size=1, max_size=8)

AIOKAFKA_CODECS = sorted(CODECS)
KAFKA_PYTHON_CODECS = sorted(CODECS - {Codec.SNAPPY})
"""Its snappy is another package."""

COMPRESSIBLE = [
    NewRecord(1_000 + n, b"key-%d" % (n % 7), b'{"user": %d, "event": "click"}' % n * 4, (("trace", b"0" * 30),))
    for n in range(2_000)
]
"""Clients send a batch uncompressed when that is smaller; this one is smaller compressed, and many blocks long."""


def as_read(records: Iterable[NewRecord], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + n, *record) for n, record in enumerate(records)]


def by_kio(records: list[NewRecord], base_offset: int) -> bytes:
    written = io.BytesIO()
    write_batch(
        written,
        NewRecordBatch(
            producer_id=i64(8),
            producer_epoch=i16(1),
            base_sequence=i32(4),
            partition_leader_epoch=i32(6),
            attributes=i16(0),
            records=tuple(
                KioRecord(
                    attributes=i8(0),
                    timestamp=TZAwareMicros.parse(dt.datetime.fromtimestamp(record.timestamp / 1_000, dt.UTC)),
                    offset=i64(base_offset + n),
                    key=record.key,
                    value=record.value,
                    headers=tuple(RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
                )
                for n, record in enumerate(records)
            ),
        ),
    )
    return written.getvalue()


@given(RECORDS, st.integers(0, 2**40))
def test_a_batch_is_byte_for_byte_what_kio_writes(records: list[NewRecord], base_offset: int) -> None:
    built = build_batch(
        records, base_offset=base_offset, leader_epoch=6, producer_id=8, producer_epoch=1, base_sequence=4
    )
    assert built == by_kio(records, base_offset)


@given(RECORDS, st.integers(0, 2**40))
def test_kios_batches_are_read(records: list[NewRecord], base_offset: int) -> None:
    batch = Batch(memoryview(by_kio(records, base_offset)))
    assert batch.crc_is_right()
    assert list(read_records(batch)) == as_read(records, base_offset)


@given(RECORDS, st.integers(0, 2**40))
def test_kio_reads_our_batches(records: list[NewRecord], base_offset: int) -> None:
    built = build_batch(records, base_offset=base_offset, producer_id=8, producer_epoch=1, base_sequence=4)
    batch, size = read_batch(bytes(built), 0)
    assert size == len(built)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (8, 1, 4)
    assert [
        Record(
            record.offset,
            int(record.timestamp.timestamp()) * 1_000,
            record.key,
            record.value,
            tuple((header.key.decode(), header.value) for header in record.headers),
        )
        for record in batch.records
    ] == as_read(records, base_offset)


def by_aiokafka(records: Iterable[NewRecord], codec: int) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=1,
        producer_id=8,
        producer_epoch=1,
        base_sequence=4,
        batch_size=2**30,
    )
    for n, (timestamp, key, value, headers) in enumerate(records):
        assert builder.append(n, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


def aiokafka_reads(built: bytes) -> list[Record]:
    batch = DefaultRecordBatch(built)
    assert batch.validate_crc()
    return _foreign(batch)


def by_kafka_python(records: Iterable[NewRecord], codec: int) -> bytes:
    builder = MemoryRecordsBuilder(
        magic=2,
        compression_type=codec,
        batch_size=2**30,
        transactional=True,
        producer_id=8,
        producer_epoch=1,
        base_sequence=4,
    )
    for timestamp, key, value, headers in records:
        assert builder.append(timestamp, key, value, list(headers)) is not None
    builder.close()
    return bytes(builder.buffer())


def kafka_python_reads(built: bytes) -> list[Record]:
    records = MemoryRecords(built)
    batch = records.next_batch()
    assert batch.validate_crc()
    assert not records.has_next()
    return _foreign(batch)


def _foreign(batch: Iterable[Any]) -> list[Record]:
    return [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)))
        for record in batch
    ]


Build = Callable[[Iterable[NewRecord], int], bytes]
Read = Callable[[bytes], list[Record]]

CLIENTS = [
    *(pytest.param(by_aiokafka, aiokafka_reads, codec, id=f"aiokafka-{codec.name}") for codec in AIOKAFKA_CODECS),
    *(
        pytest.param(by_kafka_python, kafka_python_reads, codec, id=f"kafka-python-{codec.name}")
        for codec in KAFKA_PYTHON_CODECS
    ),
]


@pytest.mark.parametrize(("build", "read", "codec"), CLIENTS)
def test_large_batches_of_clients_are_read(build: Build, read: Read, codec: Codec) -> None:
    batch = Batch(memoryview(build(COMPRESSIBLE, codec)))
    assert batch.compression == codec
    assert batch.crc_is_right()
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (8, 1, 4)
    assert list(read_records(batch)) == as_read(COMPRESSIBLE)


@pytest.mark.parametrize(("build", "read", "codec"), CLIENTS)
def test_clients_read_our_large_batches(build: Build, read: Read, codec: Codec) -> None:
    assert read(bytes(build_batch(COMPRESSIBLE, compression=codec))) == as_read(COMPRESSIBLE)


@pytest.mark.parametrize(("build", "read", "codec"), CLIENTS)
@given(records=RECORDS)
def test_batches_of_clients_are_read(build: Build, read: Read, codec: Codec, records: list[NewRecord]) -> None:
    batch = Batch(memoryview(build(records, codec)))
    assert batch.crc_is_right()
    assert list(read_records(batch)) == as_read(records)


@pytest.mark.parametrize(("build", "read", "codec"), CLIENTS)
@given(records=RECORDS)
def test_clients_read_our_batches(build: Build, read: Read, codec: Codec, records: list[NewRecord]) -> None:
    assert read(bytes(build_batch(records, compression=codec))) == as_read(records)


@given(RECORDS)
def test_an_uncompressed_batch_is_byte_for_byte_what_the_clients_write(records: list[NewRecord]) -> None:
    fields = {"transactional": True, "producer_id": 8, "producer_epoch": 1, "base_sequence": 4}
    assert build_batch(records, **fields) == by_aiokafka(records, Codec.NONE)
    # It sets the leader epoch, which is the broker's to write, to 0.
    assert build_batch(records, **fields, leader_epoch=0) == by_kafka_python(records, Codec.NONE)
