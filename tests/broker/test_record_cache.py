"""The cache of unpacked batches: every offset gives its own record, and memory stays within the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.record_cache import DecodedBatch, RecordCache
from penstock.records.batch import Batch, BatchError
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


def test_a_batch_whose_records_are_cut_off_is_an_error_wherever_reading_begins() -> None:
    whole = bytearray(batch_of([b"a" * 10] * 5).view)
    whole[61 + 17 * 2] = 0x7E  # the third record says that it is longer than all that is there
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
