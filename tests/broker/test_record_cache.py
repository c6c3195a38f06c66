"""The cache of unpacked batches: every offset gives its own record, and memory stays within the bound."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.record_cache import (
    DECODED_HEADERS_MAX,
    DECODED_RECORDS_MAX,
    MARK_RECORDS,
    DecodedBatch,
    Far,
    RecordCache,
)
from penstock.records.batch import CRC_OFFSET, CRC_START, Batch, BatchError, BatchTooLarge
from penstock.records.builder import NewRecord, build_batch, rebuild_batch
from penstock.records.compression import Codec
from penstock.records.record import read_records

BASE = 1_000

contents = st.lists(st.one_of(st.none(), st.binary(max_size=10), st.just(b"v" * 20_000)), min_size=1, max_size=80)


def batch_of(values: list[bytes | None], codec: int = Codec.NONE, base_offset: int = BASE) -> Batch:
    records = [NewRecord(1_700_000_000_000 + at, None, value) for at, value in enumerate(values)]
    return Batch(memoryview(build_batch(records, base_offset=base_offset, compression=codec)))


@given(contents, st.sampled_from([Codec.NONE, Codec.ZSTD]), st.data())
def test_from_each_offset_on_the_records_are_those_of_a_whole_read(
    values: list[bytes | None], codec: int, data: st.DataObject
) -> None:
    batch = batch_of(values, codec)
    decoded = DecodedBatch(batch)
    whole = list(read_records(batch))
    for _ in range(3):
        offset = data.draw(st.integers(BASE - 2, BASE + len(values) + 2))
        assert list(decoded.from_offset(offset)) == [record for record in whole if record.offset >= offset]


@given(contents, st.data())
def test_a_batch_that_was_cleaned_gives_what_is_left_of_it(values: list[bytes | None], data: st.DataObject) -> None:
    batch = batch_of(values)
    kept = [record for record in read_records(batch) if data.draw(st.booleans())]
    decoded = DecodedBatch(Batch(memoryview(rebuild_batch(batch, kept))))
    offset = data.draw(st.integers(BASE - 1, BASE + len(values)))
    assert list(decoded.from_offset(offset)) == [record for record in kept if record.offset >= offset]


@pytest.mark.parametrize("count", [5, DECODED_RECORDS_MAX + 1])
def test_a_batch_whose_records_are_cut_off_is_an_error_wherever_reading_begins(count: int) -> None:
    whole = bytearray(batch_of([b"a" * 10] * count).view)
    whole[-17:-16] = b"\x7e"  # the last record says that it is longer than all that is there
    whole[CRC_OFFSET:CRC_START] = crc32c(whole[CRC_START:]).to_bytes(4, "big")
    decoded = DecodedBatch(Batch(memoryview(whole)))
    with pytest.raises(BatchError):
        list(decoded.from_offset(BASE + 4))
    with pytest.raises(BatchError):
        list(decoded.from_offset(BASE))


def test_a_batch_is_found_by_any_offset_that_it_holds_and_by_no_other() -> None:
    cache = RecordCache()
    here, elsewhere = object(), object()
    for base_offset in (20, 0, 40):
        cache.put(here, DecodedBatch(batch_of([b"x"] * 10, base_offset=base_offset)))
    assert [
        found.base_offset if (found := cache.find(here, offset)) else None for offset in (0, 9, 10, 25, 49, 50)
    ] == [
        0,
        0,
        None,
        20,
        40,
        None,
    ]
    assert cache.find(elsewhere, 5) is None


def test_what_was_not_read_for_longest_goes_when_the_bound_is_reached() -> None:
    segment = object()
    cost = DecodedBatch(batch_of([b"x" * 1_000])).cost_bytes
    cache = RecordCache(bytes_max=3 * cost)
    for base_offset in (0, 1, 2):
        cache.put(segment, DecodedBatch(batch_of([b"x" * 1_000], base_offset=base_offset)))
    assert cache.find(segment, 0) is not None
    cache.put(segment, DecodedBatch(batch_of([b"x" * 1_000], base_offset=3)))
    assert [offset for offset in range(4) if cache.find(segment, offset)] == [0, 2, 3]
    assert len(cache) == 3
    for base_offset in range(4, 50):  # all that are there were read; the new one stays all the same
        cache.put(segment, DecodedBatch(batch_of([b"x" * 1_000], base_offset=base_offset)))
        assert cache.find(segment, base_offset) is not None
        assert len(cache) == 3


def test_a_batch_larger_than_the_bound_is_there_alone() -> None:
    segment = object()
    cache = RecordCache(bytes_max=1_000)
    for base_offset in (0, 1, 0):
        cache.put(segment, DecodedBatch(batch_of([b"x" * 5_000], base_offset=base_offset)))
        assert cache.find(segment, base_offset) is not None
        assert len(cache) == 1


def test_a_batch_that_is_not_what_was_written_is_refused() -> None:
    data = bytearray(batch_of([b"value"] * 3).view)
    data[-2] ^= 1
    with pytest.raises(BatchError, match="checksum"):
        DecodedBatch(Batch(memoryview(data)))


@pytest.mark.parametrize("count", [1, 10, DECODED_RECORDS_MAX, DECODED_RECORDS_MAX + 1])
def test_a_record_is_read_alone_as_it_is_in_the_row(count: int) -> None:
    batch = batch_of([b"%d" % n for n in range(count)])
    row = list(read_records(batch))
    decoded = DecodedBatch(batch)
    for _ in range(2):
        assert [decoded.record_at(record.offset) for record in row] == row
        assert decoded.record_at(row[0].offset - 5) == row[0]
        assert decoded.record_at(row[-1].offset + 1) is None


FAR = 100 * MARK_RECORDS
"""Records: more than a read passes by itself."""


@pytest.mark.parametrize("cleaned", [False, True])
def test_reading_far_into_a_large_batch_needs_a_seek(cleaned: bool) -> None:
    batch = batch_of([b"%d" % n for n in range(2 * FAR)])
    row = list(read_records(batch))
    if cleaned:
        row = [record for record in row if record.offset % 3]
        batch = Batch(memoryview(rebuild_batch(batch, row)))
    decoded = DecodedBatch(batch)
    for wanted in (row[0], row[50], row[MARK_RECORDS * 10 + 3]):
        assert decoded.record_at(wanted.offset) == wanted
    with pytest.raises(Far) as far:
        decoded.record_at(row[-1].offset)
    assert far.value.offset == row[-1].offset
    assert len(list(decoded.seek(row[-1].offset))) > 1
    for wanted in (*row[:: FAR // 7], row[-1]):
        assert next(decoded.from_offset(wanted.offset)) == wanted
    assert list(decoded.from_offset(row[-3].offset)) == row[-3:]
    assert decoded.record_at(row[-1].offset + 1) is None


@given(st.integers(1, 400), st.integers(1, 5), st.data())
def test_every_offset_of_a_cleaned_batch_is_found(count: int, every: int, data: st.DataObject) -> None:
    batch = batch_of([b"%d" % n for n in range(count)])
    kept = [record for record in read_records(batch) if record.offset % every == 0]
    decoded = DecodedBatch(Batch(memoryview(rebuild_batch(batch, kept))))
    for _ in range(5):
        offset = data.draw(st.integers(BASE - 1, BASE + count))
        assert list(decoded.from_offset(offset)) == [record for record in kept if record.offset >= offset]


def test_records_with_many_headers_are_not_kept_decoded() -> None:
    cache = RecordCache(bytes_max=1_000_000)
    segment = object()
    for at, headers in enumerate((10, 100, DECODED_HEADERS_MAX)):
        records = [NewRecord(1, None, b"v", (("h", b""),) * headers) for _ in range(3)]
        cache.put(segment, DecodedBatch(Batch(memoryview(build_batch(records, base_offset=3 * at)))))
    before = cache.bytes_counted
    for offset in range(9):
        found = cache.find(segment, offset)
        assert found is not None
        record = found.record_at(offset)
        assert record is not None
        assert record.offset == offset
        assert cache.find(segment, offset) is found
    assert cache.bytes_counted == before + 330 * 200


def test_decoding_cached_batches_keeps_the_bound() -> None:
    cost = DecodedBatch(with_headers(0)).cost_bytes
    cache = RecordCache(bytes_max=10 * cost)
    segment = object()
    for base_offset in range(10):
        cache.put(segment, DecodedBatch(with_headers(base_offset)))
    assert len(cache) == 10
    for offset in range(10):
        found = cache.find(segment, offset)
        if found is not None:
            found.record_at(offset)
            cache.find(segment, offset)
    assert len(cache) < 10
    assert cache.bytes_counted <= 10 * cost


def with_headers(base_offset: int) -> Batch:
    return Batch(memoryview(build_batch([NewRecord(1, None, b"v", (("h", b""),) * 50)], base_offset=base_offset)))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_unpacked_size_above_the_limit_is_too_large(codec: int) -> None:
    batch = batch_of([bytes(100_000)], codec)
    assert DecodedBatch(batch, 100_100).size > 100_000
    with pytest.raises(BatchTooLarge):
        DecodedBatch(batch, 100_000)
